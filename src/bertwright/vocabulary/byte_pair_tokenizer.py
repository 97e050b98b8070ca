"""GPT's tokenizer: byte pairs with "</w>" after the last token of a word (Radford et al. 2018, section 4.1).

Text is normalized, lowercased (unless the vocabulary is cased) and split into words by BERT's rules, as `transformers`'
`OpenAIGPTTokenizer` does; the released code uses ftfy and spaCy, which split a few words in another way. `tokenizers`
merges the pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers

from bertwright.base.files import digest_bytes, read_json, read_utf8, write_json, write_text
from bertwright.base.ragged import Ragged
from bertwright.vocabulary.backend_tokenizer import BackendTokenizer, make_byte_pairs, tokens_by_id
from bertwright.vocabulary.learn.merges import WORD_END, Pair
from bertwright.vocabulary.sequence_layout import SequenceLayout
from bertwright.vocabulary.wordpiece_files import MAX_ID, read_object

VOCAB, MERGES, DESCRIPTION, CONFIG = "vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json"
TOKENIZER_CLASS = "OpenAIGPTTokenizer"
# A cased vocabulary has the class that does what tokenizer.json says: `OpenAIGPTTokenizer` lowercases every text.
KIND, CASED = "bertwright_kind", "cased-byte-pairs"
CASED_CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", KIND: CASED}
# Names in tokenizer_config.json, and the tokens; the layout's have the names of OpenAI's code.
UNK = {"unk_token": "<unk>"}
LAYOUT_TOKENS = {"bos_token": "_start_", "sep_token": "_delimiter_", "cls_token": "_classify_"}
SPECIAL_TOKENS = {"pad_token": "<pad>"} | UNK | LAYOUT_TOKENS  # first tokens of learned vocabularies, in this order
HEADER = "#version: 0.2"  # first line of merges.txt


class BytePairTokenizer(BackendTokenizer):
    """A byte-pair tokenizer with the ids of `transformers`' `OpenAIGPTTokenizer` on the same files.

    Sequences are `_start_ A _classify_` and `_start_ A _delimiter_ B _classify_` (section 3.3: start, delimiter,
    extract). A vocabulary without these tokens, such as OpenAI's, gets them as its last ids.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        merges: Sequence[Pair],
        source: str,
        special: Mapping[str, str] | None = None,
        lowercase: bool = True,
    ) -> None:
        """Build a tokenizer; `special`: special tokens by their names in tokenizer_config.json.

        Raises ValueError, naming `source`, for ids that are not distinct, and for merges with an unknown token.
        """
        names = SPECIAL_TOKENS | dict(special or {})
        _check_ids(ids, source)
        if names["unk_token"] not in ids:
            raise ValueError(f"{source}: expected {names['unk_token']} among its tokens, got none; copy the file again")
        complete = dict(ids)
        for name in LAYOUT_TOKENS:
            complete.setdefault(names[name], max(complete.values()) + 1)
        self.names = {name: token for name, token in names.items() if token in complete}
        self.merges = tuple(merges)
        self.tokens = tokens_by_id(complete)
        self.unk_id, self.start_id, self.delimiter_id, self.extract_id = (
            complete[names[name]] for name in (*UNK, *LAYOUT_TOKENS)
        )
        options = {"unk_token": names["unk_token"], "continuing_subword_prefix": "", "end_of_word_suffix": WORD_END}
        self._raw = make_byte_pairs(complete, self.merges, source, **options)
        self._raw.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        self._raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._raw.decoder = decoders.BPEDecoder(suffix=WORD_END)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Open a folder with vocab.json and merges.txt, or with tokenizer.json. Raises ValueError for damaged files."""
        config_path = folder / CONFIG
        config = read_object(config_path)
        special = {}
        for name in SPECIAL_TOKENS:
            value = config.get(name)
            token = value.get("content") if isinstance(value, dict) else value
            if token is None:
                continue
            if not isinstance(token, str) or not token:
                raise ValueError(f"{config_path}: {name}: expected a text, got {token!r}; correct it, or leave it out")
            special[name] = token
        lowercase = config.get(KIND) != CASED
        if (folder / VOCAB).is_file():
            merges = read_merges(folder / MERGES)
            return cls(read_ids(folder / VOCAB), merges, str(folder / VOCAB), special, lowercase)
        path = folder / DESCRIPTION
        if not path.is_file():
            raise FileNotFoundError(f"{folder}: neither {VOCAB} with {MERGES} nor {DESCRIPTION} is there; copy them")
        description = read_json(path)
        try:
            model = description["model"]
            ids = model["vocab"] | {token["content"]: token["id"] for token in description["added_tokens"]}
            pairs = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]]
        except (KeyError, TypeError):
            raise ValueError(f"{path}: expected byte pairs with a vocabulary and merges; copy the file again") from None
        return cls(ids, pairs, str(path), special, lowercase)

    def __reduce__(self) -> tuple[Callable[..., BytePairTokenizer], tuple[Any, ...]]:
        return BytePairTokenizer, (self._ids, self.merges, "vocabulary", self.names, self.lowercase)  # workers

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of the unknown token, of padding if there is one, and of the start, delimiter and extract tokens."""
        return tuple(self._ids[token] for token in self.names.values())

    @cached_property
    def layout(self) -> SequenceLayout:
        """Start, delimiter and extract tokens, without segment types."""
        return SequenceLayout(self.start_id, self.delimiter_id, self.extract_id, has_types=False)

    @cached_property
    def digest(self) -> str:
        """Digest of the tokens, the merges, the special tokens and, if it is cased, of this."""
        case = [] if self.lowercase else ["cased"]
        return digest_bytes(json.dumps([self._ids, self.merges, self.names, *case], sort_keys=True).encode())

    def encode_ids(self, texts: Sequence[str]) -> Ragged:
        encodings = [encoding.ids.astype(np.uint32) for encoding in self.encode_batch(texts)]
        flat = np.concatenate([np.empty(0, np.uint32), *encodings])
        return Ragged(flat, np.cumsum([0, *map(len, encodings)], dtype=np.int64))

    def decode(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]], skip_special: bool = True) -> str:
        """Decode ids: the tokens with a space after each word. Raises ValueError for an unknown id."""
        tokens = [self.token(number) for number in np.asarray(ids, dtype=np.int64).tolist()]
        special = {*self.names.values()}
        words = [
            f" {token} " if token in special else token.replace(WORD_END, " ")
            for token in tokens
            if not (skip_special and token in special)
        ]
        return " ".join("".join(words).split())

    def save(self, folder: Path | str, max_length: int | None = None) -> None:
        """Write vocab.json, merges.txt, tokenizer.json and tokenizer_config.json, as `transformers` reads them."""
        folder = Path(folder)
        kind = {"tokenizer_class": TOKENIZER_CLASS} if self.lowercase else CASED_CONFIG
        config: dict[str, Any] = {**kind, **self.names}
        if max_length is not None:
            config["model_max_length"] = max_length
        write_json(folder / VOCAB, self._ids)
        write_text(folder / MERGES, "\n".join([HEADER, *map(" ".join, self.merges)]) + "\n")
        write_json(folder / DESCRIPTION, json.loads(self._typed.to_str()))
        write_json(folder / CONFIG, config)

    @cached_property
    def _typed(self) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer.from_str(self._raw.to_str())
        backend.add_special_tokens([*self.names.values()])
        return backend


def read_ids(path: Path) -> dict[str, int]:
    """Read a vocab.json. Raises ValueError for anything but an id for each token."""
    ids = read_json(path)
    if not isinstance(ids, dict):
        raise ValueError(f"{path}: expected an object with the id of each token, got {type(ids).__name__}")
    return ids


def _check_ids(ids: Mapping[str, int], source: str) -> None:
    """Raise ValueError for ids that are no numbers from 0 to MAX_ID, or that two tokens share."""
    tokens: dict[int, str] = {}
    for token, number in ids.items():
        if type(number) is not int or not 0 <= number <= MAX_ID:
            raise ValueError(f"{source}: {token}: expected an id from 0 to {MAX_ID:,}, got {number!r}; correct it")
        if number in tokens:
            raise ValueError(f"{source}: {token} and {tokens[number]} have the same id, {number}; copy the file again")
        tokens[number] = token


def read_merges(path: Path) -> list[Pair]:
    """Read the pairs of a merges.txt, one per line. Raises ValueError with the line of anything else."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; {VOCAB} next to it needs it, copy both files of one model")
    merges: list[Pair] = []
    for number, line in enumerate(read_utf8(path).split("\n"), 1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        parts = line.split(" ")
        if len(parts) != 2 or not all(parts):
            raise ValueError(f"{path}, line {number}: expected two tokens with a space between, got {line[:60]!r}")
        merges.append((parts[0], parts[1]))
    return merges
