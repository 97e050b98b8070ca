"""BERT's tokenizer: text to word pieces and back, and what a loaded tokenizer must be to be BERT's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import processors

from bertwright.base.files import digest_bytes
from bertwright.vocabulary.backend_tokenizer import (
    BackendTokenizer,
    FlatBackend,
    canonical_description,
    flat_backend,
    tokens_by_id,
)
from bertwright.vocabulary.sequence_layout import SequenceLayout
from bertwright.vocabulary.tokenizer import TokenText
from bertwright.vocabulary.wordpiece_files import (
    CONTINUATION,
    SPECIAL_TOKENS,
    bert_backend,
    read_backend,
    write_folder,
)

SENTENCEPIECE = "\u2581"  # marks the start of a word in vocabularies of SentencePiece


class Tokenizer(BackendTokenizer):
    """A WordPiece tokenizer with the ids of `transformers`' `BertTokenizerFast` on the same files.

    `encode` and `encode_ids` are for texts that a user types for a model: "[MASK]" in a text is the special token, as
    in `transformers`. `encode_raw` and `encode_raw_batch` are for corpora and the examples of tasks: "[SEP]" in a text
    is three ordinary words, since a web page about BERT must not break the segments of a sequence.
    """

    def __init__(self, backend: tokenizers.Tokenizer, source: str) -> None:
        """Wrap a `tokenizers` object, which `source` names in messages; see `load` and `from_tokens`."""
        validate_backend(backend, source)
        self._typed, self.tokens = backend, tokens_by_id(backend.get_vocab())
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self._mask_id = (self._ids[t] for t in SPECIAL_TOKENS)

    @classmethod
    def load(cls, folder_or_vocab_file: Path | str, lowercase: bool | None = None) -> Self:
        """Open a Hugging Face folder (tokenizer.json, else vocab.txt with tokenizer_config.json), or one such file.

        `lowercase` overrides the files. It is required for a vocab.txt without tokenizer_config.json: nothing else
        states it, and a wrong guess silently makes a model worse.

        Raises ValueError unless the files hold a complete BERT vocabulary, and for a normalizer other than BERT's that
        `lowercase` cannot override; FileNotFoundError if there are no files.
        """
        path = Path(folder_or_vocab_file)
        tokenizer = cls(read_backend(path, lowercase), str(path))
        if lowercase not in (None, tokenizer.lowercase):
            raise ValueError(
                f"{path}: lowercase = {lowercase}: tokenizer.json has a normalizer other than BERT's, in which this "
                "cannot be changed; edit the file, or give no lowercase"
            )
        return tokenizer

    @classmethod
    def from_tokens(cls, tokens: Sequence[str], *, lowercase: bool, strip_accents: bool | None = None) -> Self:
        """Create a tokenizer from tokens in id order; an id whose token is "" has none.

        `strip_accents` None follows `lowercase`, as in BERT.

        >>> tokenizer = Tokenizer.from_tokens([*SPECIAL_TOKENS, "un", "##able"], lowercase=True)
        >>> tokenizer.encode("Unable").ids.tolist()
        [2, 5, 6, 3]
        """
        ids: dict[str, int] = {}
        for number, token in enumerate(tokens):
            if token in ids:
                raise ValueError(f"token {number} is token {ids[token]} again: {token}")
            if token:
                ids[token] = number
        backend = bert_backend(ids, lowercase=lowercase, strip_accents=strip_accents)
        return cls(backend, "vocabulary")

    def __reduce__(self) -> tuple[Callable[[str], Tokenizer], tuple[str]]:
        return _from_json, (self._typed.to_str(),)  # so that it can be sent to worker processes

    @property
    def mask_id(self) -> int:
        """Id of [MASK]."""
        return self._mask_id

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of [PAD], [UNK], [CLS], [SEP], [MASK]."""
        return (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)

    @cached_property
    def layout(self) -> SequenceLayout:
        """Layout of the sequences that models with this vocabulary read."""
        return SequenceLayout(first=self.cls_id, between=self.sep_id, last=self.sep_id)

    @cached_property
    def digest(self) -> str:
        """Digest of everything that decides ids: vocabulary, normalizer, word rules, added tokens; not of the files."""
        return digest_bytes(json.dumps(canonical_description(self._typed), sort_keys=True).encode())

    @cached_property
    def is_continuation(self) -> npt.NDArray[np.bool_]:
        """For every id, whether its token continues a word (starts with ##)."""
        return np.array([token.startswith(CONTINUATION) and token != CONTINUATION for token in self.tokens])

    def token_text(self, number: int) -> TokenText:
        token = self.token(number)
        return TokenText(token.removeprefix(CONTINUATION), joins=token.startswith(CONTINUATION))

    def save(self, folder: Path | str, max_length: int | None = None) -> None:
        """Write tokenizer.json, vocab.txt and tokenizer_config.json, from which `transformers` gives the same ids.

        `max_length`, the model's number of positions, is where `transformers` truncates on request.
        """
        write_folder(Path(folder), self._typed, self.tokens, max_length)

    @cached_property
    def _raw(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self._raw_description)

    @cached_property
    def _flat_raw(self) -> FlatBackend:
        return flat_backend(self._raw_description)

    @cached_property
    def _flat_typed(self) -> FlatBackend:
        return flat_backend(self._typed.to_str())

    @cached_property
    def _raw_description(self) -> str:
        description = json.loads(self._typed.to_str())
        # Tokens that the user added stay, such as [E1]; BERT's own special tokens become plain text.
        added = description["added_tokens"]
        description["added_tokens"] = [token for token in added if token["content"] not in SPECIAL_TOKENS]
        description["post_processor"] = None
        return json.dumps(description)


def _from_json(description: str) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(description), "tokenizer")


def validate_backend(backend: tokenizers.Tokenizer, source: str) -> None:
    """Check what a tokenizer must be to be BERT's, and add what BERT's have beyond the vocabulary."""
    backend.no_truncation()  # the limits of some model, which the caller decides
    backend.no_padding()
    ids = backend.get_vocab()
    missing = [token for token in SPECIAL_TOKENS if token not in ids]
    if missing:
        raise ValueError(f"{source}: no {' '.join(missing)}; a BERT vocabulary has {' '.join(SPECIAL_TOKENS)}")
    starts = sum(token.startswith(SENTENCEPIECE) and token != SENTENCEPIECE for token in ids)
    if starts > sum(token.startswith(CONTINUATION) for token in ids):
        raise ValueError(
            f"{source}: a SentencePiece vocabulary ({starts:,} tokens start with {SENTENCEPIECE}, which marks a word), "
            f"as KoBERT has; expected WordPiece, with {CONTINUATION} inside words; take a model with such a vocabulary"
        )
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_special_tokens([token for token in SPECIAL_TOKENS if token not in known])
    if backend.post_processor is None:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
        )
    _check_templates(json.loads(backend.post_processor.__getstate__()), source)
    empty = backend.encode("", "")
    if (empty.tokens, empty.type_ids) != (["[CLS]", "[SEP]", "[SEP]"], [0, 0, 1]):
        raise ValueError(
            f"{source}: joins a pair as {' '.join(empty.tokens)}; expected [CLS] A [SEP] B [SEP], as in BERT"
        )


def _check_templates(processor: Mapping[str, Any], source: str) -> None:
    """Reject templates with a token that they do not define, at which `tokenizers` panics and prints Rust's stack."""
    for nested in processor.get("processors", ()):
        _check_templates(nested, source)
    items = (*processor.get("single", ()), *processor.get("pair", ()))
    for token in (item["SpecialToken"]["id"] for item in items if "SpecialToken" in item):
        if token not in processor["special_tokens"]:
            raise ValueError(f"{source}: damaged: its template contains an unknown token, {token}; copy the file again")
