"""Tokenizers of any kind that `tokenizers` reads from a tokenizer.json: byte pairs, unigram pieces, word pieces, words.

RoBERTa's are byte pairs on bytes, XLM-R's and ALBERT's unigram pieces of SentencePiece. Special tokens have any names;
the post-processor says where they stand. A folder with vocab.json and merges.txt alone has RoBERTa's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, pre_tokenizers, processors

from bertwright.base.files import digest_bytes, read_json, write_json
from bertwright.vocabulary.backend_tokenizer import (
    BackendTokenizer,
    canonical_description,
    make_byte_pairs,
    tokens_by_id,
)
from bertwright.vocabulary.byte_pair_tokenizer import CONFIG, DESCRIPTION, MERGES, VOCAB, read_ids, read_merges
from bertwright.vocabulary.sequence_layout import SequenceLayout
from bertwright.vocabulary.tokenizer import Encoding, TokenText
from bertwright.vocabulary.wordpiece_files import (
    GENERIC_CLASSES,
    add_listed_tokens,
    check_ids,
    load_backend,
    read_settings,
)

# Special tokens by their names in tokenizer_config.json; RoBERTa's, which is the order of learned vocabularies.
ROLES = {
    "bos_token": "<s>", "cls_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "sep_token": "</s>",
    "unk_token": "<unk>", "mask_token": "<mask>",
}  # fmt: skip
BYTE_SPACE = "Ġ"  # mark of a space before a token of byte pairs on bytes; SentencePiece has ▁
HIDDEN = "\uffff"  # a noncharacter before the special tokens of plain text, so that no text has them
# Letters of scripts without spaces between words: Thai and Lao, Burmese, Khmer, kana, Chinese.
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
INSIDE_WORD = re.compile(r"[\w\u0300-\u036f\ufffd]")  # what can continue a word; U+FFFD: a part of a character's bytes


class GeneralTokenizer(BackendTokenizer):
    """A tokenizer with the ids and offsets of `transformers`' fast tokenizer on the same files."""

    def __init__(self, backend: tokenizers.Tokenizer, roles: Mapping[str, str], source: str) -> None:
        """Wrap a `tokenizers` object; `roles`: special tokens by their names in tokenizer_config.json.

        Raises ValueError, naming `source`, without an unknown token, and for a layout of sequences other than BERT's
        and RoBERTa's.
        """
        backend.no_truncation()  # the limits of some model, which the caller decides
        backend.no_padding()
        ids = backend.get_vocab()
        self._typed, self.tokens = backend, tokens_by_id(ids)
        self.roles = {role: token for role, token in roles.items() if token in ids}
        if "unk_token" not in self.roles:
            raise ValueError(f"{source}: expected an unk_token among its tokens, got none; copy all files of the model")
        self.unk_id = ids[self.roles["unk_token"]]
        self._layout = read_layout(backend, source)
        added = (self._layout.first, self._layout.between, self._layout.last)
        if odd := [number for number in added if not (number < self.vocab_size and self.tokens[number])]:
            raise ValueError(f"{source}: post_processor: {odd[0]} is no token's id; restore the file")
        self._mark, self.space = _read_marks(backend)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a folder with tokenizer.json, or with vocab.json and merges.txt, as `transformers` does.

        Raises ValueError, naming the file, for damaged files and for files that contradict each other.
        """
        path = folder / DESCRIPTION
        settings = read_settings(path)
        if path.is_file():
            description = read_json(path)
            check_ids(path, description)
            _apply_prefix_space(path, description, settings)
            backend = load_backend(path, description)
            if description["model"].get("type") == "Unigram" and description["model"].get("unk_id") is None:
                raise ValueError(f"{path}: model: unk_id is missing, so that unknown text has no id; add that of <unk>")
        else:
            path = folder / VOCAB
            backend = byte_pair_backend(read_ids(path), read_merges(folder / MERGES), settings, str(path))
        add_listed_tokens(backend, path, settings)
        return cls(backend, _read_roles(backend, settings), str(path))

    def __reduce__(self) -> tuple[Callable[..., GeneralTokenizer], tuple[Any, ...]]:
        return _from_json, (self._typed.to_str(), self.roles)  # so that it can be sent to worker processes

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of the special tokens with a role, and of those around a text."""
        named = (self._ids[token] for token in self.roles.values())
        return tuple(dict.fromkeys((*named, self.layout.first, self.layout.between, self.layout.last)))

    @property
    def layout(self) -> SequenceLayout:
        return self._layout

    @property
    def mask_id(self) -> int:
        return self._ids[self.roles["mask_token"]] if "mask_token" in self.roles else super().mask_id

    @cached_property
    def digest(self) -> str:
        """Digest of everything that decides ids: the model, its normalizer and word rules, added tokens, the layout."""
        parts = [canonical_description(self._typed), self.layout]
        return digest_bytes(json.dumps(parts, sort_keys=True).encode())

    @cached_property
    def is_continuation(self) -> npt.NDArray[np.bool_]:
        """For every id, whether its token continues a word: it has no mark of a space, and begins with a letter.

        In scripts without spaces every token is taken for a word; so is every token of a kind without marks.
        """
        texts = [self.token_text(number) for number in range(self.vocab_size)]
        return np.array([p.joins and bool(INSIDE_WORD.match(p.text)) and not UNSPACED.match(p.text) for p in texts])

    def token_text(self, number: int) -> TokenText:
        token, (mark, marks_words) = self.token(number), self._mark
        if not mark or number in self.special_ids:
            return TokenText(token, joins=False)
        text = token.removeprefix(mark)
        joins = (text == token) == marks_words
        return TokenText(decoders.ByteLevel().decode([text]) if mark == BYTE_SPACE else text, joins)

    def encode_raw_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode raw texts with offsets, without the space before a token, which some tokenizers count to it."""
        encodings = super().encode_raw_batch(texts)
        for text, encoding in zip(texts, encodings, strict=True):
            is_spaced = [text[start:end][:1].isspace() for start, end in encoding.offsets.tolist()]
            encoding.offsets[:, 0] += np.array(is_spaced, dtype=np.int64)
        return encodings

    def save(self, folder: Path | str, max_length: int | None = None) -> None:
        """Write tokenizer.json, and tokenizer_config.json, by which `transformers` uses it as it is."""
        config: dict[str, Any] = {"tokenizer_class": GENERIC_CLASSES[0], **self.roles}
        if not self.layout.has_types:
            config["model_input_names"] = ["input_ids", "attention_mask"]
        if max_length is not None:
            config["model_max_length"] = max_length
        write_json(Path(folder) / DESCRIPTION, self._description)
        write_json(Path(folder) / CONFIG, config)

    @property
    def _description(self) -> dict[str, Any]:
        description: dict[str, Any] = json.loads(self._typed.to_str())
        return description

    @cached_property
    def _raw(self) -> tokenizers.Tokenizer:
        description, specials = self._description, {self.tokens[number] for number in self.special_ids}
        description["added_tokens"] = [one for one in description["added_tokens"] if one["content"] not in specials]
        model = description["model"]
        if isinstance(model["vocab"], list):  # a unigram model finds its special tokens in plain text
            model["vocab"] = [[HIDDEN + token if token in specials else token, s] for token, s in model["vocab"]]
        elif "merges" not in model:  # so does one of words; what stands for unknown text must keep its name
            hidden = specials - {model["unk_token"]}
            model["vocab"] = {HIDDEN + token if token in hidden else token: n for token, n in model["vocab"].items()}
        return tokenizers.Tokenizer.from_str(json.dumps(description))


def _from_json(description: str, roles: Mapping[str, str]) -> GeneralTokenizer:
    return GeneralTokenizer(tokenizers.Tokenizer.from_str(description), roles, "tokenizer")


def read_layout(backend: tokenizers.Tokenizer, source: str) -> SequenceLayout:
    """Return the layout in which the post-processor joins texts. Raises ValueError for one that is not understood."""
    pair = backend.encode("a", "a")
    groups = [
        (segment, [number for _, number in group])
        for segment, group in groupby(zip(pair.sequence_ids, pair.ids, strict=True), key=lambda item: item[0])
    ]
    if [segment for segment, _ in groups] == [None, 0, None, 1, None]:
        (first, a, between, b, last) = (ids for _, ids in groups)
        layout = SequenceLayout(first[0], between[0], last[0], any(pair.type_ids), len(between))
        placed = layout.place([np.array([len(a)]), np.array([len(b)])])
        placed.ids[placed.is_text] = [*a, *b]
        types = [0] * len(pair.ids) if placed.token_type_ids is None else placed.token_type_ids.tolist()
        if (placed.ids.tolist(), types) == (pair.ids, pair.type_ids) and (
            backend.encode("a").ids == [layout.first, *a, layout.last]
        ):
            return layout
    raise ValueError(
        f"{source}: joins a pair of texts as {' '.join(pair.tokens)}; expected a special token before and after each "
        "text, such as [CLS] A [SEP] B [SEP] or <s> A </s></s> B </s>; take the tokenizer of an encoder"
    )


def _read_marks(backend: tokenizers.Tokenizer) -> tuple[tuple[str, bool], str]:
    """Return the mark at the start of tokens, whether it marks words or tokens inside a word, and `space`."""
    component = backend.pre_tokenizer
    kinds = {part["type"]: part for part in _parts(json.loads(component.__getstate__()) if component else None)}
    if "ByteLevel" in kinds:
        return (BYTE_SPACE, True), "" if kinds["ByteLevel"]["add_prefix_space"] else " "
    if "Metaspace" in kinds:
        return (kinds["Metaspace"]["replacement"], True), ""
    return (getattr(backend.model, "continuing_subword_prefix", None) or "", False), ""


def byte_pair_backend(
    ids: Mapping[str, int], merges: Sequence[tuple[str, str]], settings: Mapping[str, Any], source: str
) -> tokenizers.Tokenizer:
    """Build RoBERTa's tokenizer from vocab.json and merges.txt. Raises ValueError, naming `source`, for others."""
    names = ROLES | _named_tokens(settings)
    missing = [token for token in (BYTE_SPACE, *names.values()) if token not in ids]
    if missing:
        raise ValueError(
            f"{source}: expected byte pairs on bytes, as RoBERTa has, got no {missing[0]}; make tokenizer.json with "
            "transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    backend = make_byte_pairs(ids, merges, source)
    add_space = bool(settings.get("add_prefix_space", False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_space)
    backend.decoder = decoders.ByteLevel()
    last, first = ((names[role], ids[names[role]]) for role in ("sep_token", "cls_token"))
    backend.post_processor = processors.RobertaProcessing(last, first, add_prefix_space=add_space)
    mask = tokenizers.AddedToken(names["mask_token"], lstrip=True, special=True)
    backend.add_special_tokens([token for role, token in names.items() if role != "mask_token"] + [mask])
    return backend


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    named = {role: settings.get(role) for role in ROLES}
    contents = {role: one.get("content") if isinstance(one, dict) else one for role, one in named.items()}
    return {role: token for role, token in contents.items() if isinstance(token, str)}


def _read_roles(backend: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens by their roles; a role that no file states has its usual token."""
    known = backend.get_vocab()
    usual = {"unk_token": ("<unk>", "[UNK]"), "mask_token": ("<mask>", "[MASK]"), "pad_token": ("<pad>", "[PAD]")}
    found = {role: next((token for token in tokens if token in known), None) for role, tokens in usual.items()}
    return {role: token for role, token in found.items() if token} | _named_tokens(settings)


def _parts(component: Any) -> Iterator[dict[str, Any]]:
    """Yield a component of a tokenizer.json and, if it is a sequence, all of its parts."""
    for part in [component] if isinstance(component, dict) else component or ():
        yield part
        for name in ("pretokenizers", "processors"):
            yield from _parts(part.get(name))


def _apply_prefix_space(path: Path, description: Any, settings: Mapping[str, Any]) -> None:
    """Apply the setting of tokenizer_config.json for a space before a text, as `transformers` does.

    Raises ValueError if only tokenizer.json states it, and the class that is named beside it would not use that.
    """
    described = description if isinstance(description, dict) else {}
    both = (described.get(name) for name in ("pre_tokenizer", "post_processor"))
    parts = [part for one in both for part in _parts(one) if "add_prefix_space" in part]
    stated, name = settings.get("add_prefix_space"), settings.get("tokenizer_class", GENERIC_CLASSES[0])
    if isinstance(stated, bool):
        for part in parts:
            part["add_prefix_space"] = stated
    elif name not in GENERIC_CLASSES and any(part["add_prefix_space"] for part in parts if part["type"] == "ByteLevel"):
        raise ValueError(
            f"{path}: add_prefix_space is true, but tokenizer_config.json next to it has no add_prefix_space, which "
            f"{name} of transformers reads as false; write add_prefix_space into tokenizer_config.json"
        )
