"""Tokenization: text to ids and back, by `tokenizers`, or by the faster `nanotoken` if only ids are needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import tokenizers

from bertwright.base.files import digest_bytes
from bertwright.base.ragged import Ragged
from bertwright.vocabulary.sequence_layout import SequenceLayout
from bertwright.vocabulary.tokenizer import Encoding, TextTokenizer, TokenText, check_raw_text
from bertwright.vocabulary.wordpiece_files import (
    CONTINUATION,
    SPECIAL_TOKENS,
    bert_backend,
    read_backend,
    write_folder,
)
from bertwright.vocabulary.wordpiece_pipeline import canonical_description, validate_backend

FALLBACK_BATCH = 1024  # texts per call of `tokenizers`: its encodings take much memory


class Tokenizer(TextTokenizer):
    """A WordPiece tokenizer with the ids of `transformers`' `BertTokenizerFast` on the same files.

    `encode` and `encode_ids` are for texts that a user types for a model: "[MASK]" in a text is the special token, as
    in `transformers`. `encode_raw` and `encode_raw_batch` are for corpora and the examples of tasks: "[SEP]" in a text
    is three ordinary words, since a web page about BERT must not break the segments of a sequence.
    """

    def __init__(self, backend: tokenizers.Tokenizer, source: str) -> None:
        """Wrap a `tokenizers` object, which `source` names in messages; see `load` and `from_tokens`."""
        self.tokens = tuple(validate_backend(backend, source))
        self._backend = backend
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
        return _from_json, (self._backend.to_str(),)  # so that it can be sent to worker processes

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

    @property
    def lowercase(self) -> bool:
        """True if text is lowercased. Runs the normalizer on "A": files record the setting in several ways."""
        return self._backend.normalizer is not None and self._backend.normalizer.normalize_str("A") == "a"

    @cached_property
    def digest(self) -> str:
        """Digest of everything that decides ids: vocabulary, normalizer, word rules, added tokens; not of the files."""
        return digest_bytes(json.dumps(canonical_description(self._backend), sort_keys=True).encode())

    @cached_property
    def is_continuation(self) -> npt.NDArray[np.bool_]:
        """For every id, whether its token continues a word (starts with ##)."""
        return np.array([token.startswith(CONTINUATION) and token != CONTINUATION for token in self.tokens])

    def token_text(self, number: int) -> TokenText:
        token = self.token(number)
        return TokenText(token.removeprefix(CONTINUATION), joins=token.startswith(CONTINUATION))

    def encode_raw(self, texts: Sequence[str]) -> Ragged:
        """Encode raw texts: no special token is added or recognized. The fast path for corpora.

        Raises ValueError for a lone surrogate.
        """
        return flat_ids(self._raw, texts, add_special_tokens=False)

    def encode_raw_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode raw texts like `encode_raw`, with offsets. Raises ValueError for a lone surrogate."""
        return list(encode_with_offsets(self._raw_with_offsets, texts))

    def encode_ids(self, texts: Sequence[str]) -> Ragged:
        """Encode texts like `encode_batch` without offsets: many times as fast."""
        return flat_ids(self._typed, texts, add_special_tokens=True)

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Encode texts, not truncated, with special tokens and offsets. Raises ValueError for a lone surrogate."""
        return [self.add_ends(encoding) for encoding in encode_with_offsets(self._backend, texts)]

    def decode(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]], skip_special: bool = True) -> str:
        """Decode ids; spaces before punctuation are removed. Raises ValueError for an unknown id."""
        numbers = np.asarray(ids, dtype=np.int64).tolist()
        for number in numbers:
            self.token(number)  # `tokenizers` would silently skip an unknown id
        return self._backend.decode(numbers, skip_special_tokens=skip_special)

    def save(self, folder: Path | str, max_length: int | None = None) -> None:
        """Write tokenizer.json, vocab.txt and tokenizer_config.json, from which `transformers` gives the same ids.

        `max_length`, the model's number of positions, is where `transformers` truncates on request.
        """
        write_folder(Path(folder), self._backend, self.tokens, max_length)

    @cached_property
    def _raw(self) -> FlatBackend:
        return flat_backend(self._raw_description)

    @cached_property
    def _raw_with_offsets(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self._raw_description)

    @cached_property
    def _raw_description(self) -> str:
        description = json.loads(self._backend.to_str())
        # Tokens that the user added stay, such as [E1]; BERT's own special tokens become plain text.
        added = description["added_tokens"]
        description["added_tokens"] = [token for token in added if token["content"] not in SPECIAL_TOKENS]
        description["post_processor"] = None
        return json.dumps(description)

    @cached_property
    def _typed(self) -> FlatBackend:
        return flat_backend(self._backend.to_str())


FlatBackend = Any  # of `flat_ids`: a nanotoken.Tokenizer or a tokenizers.Tokenizer


def flat_backend(description: str) -> FlatBackend:
    """Load a tokenizer.json with the faster of the two libraries that supports it and is installed."""
    try:
        import nanotoken
    except ModuleNotFoundError:  # extra "fast"
        return tokenizers.Tokenizer.from_str(description)
    try:
        return nanotoken.Tokenizer.from_json(description)
    except nanotoken.UnsupportedTokenizerError:  # an unusual normalizer or pre-tokenizer
        return tokenizers.Tokenizer.from_str(description)


def flat_ids(backend: FlatBackend, texts: Sequence[str], add_special_tokens: bool = False) -> Ragged:
    """Encode texts with either library."""
    if not isinstance(backend, tokenizers.Tokenizer):
        flat_encoding = encode_with(backend.encode_batch, texts, add_special_tokens)
        return Ragged(flat_encoding.ids, flat_encoding.offsets)
    flat: list[npt.NDArray[np.uint32]] = [np.empty(0, dtype=np.uint32)]
    lengths = [0]
    for start in range(0, len(texts), FALLBACK_BATCH):
        encodings = encode_with(backend.encode_batch_fast, texts[start : start + FALLBACK_BATCH], add_special_tokens)
        flat += [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        lengths += [len(encoding.ids) for encoding in encodings]
    return Ragged(np.concatenate(flat), np.cumsum(lengths, dtype=np.int64))


def encode_with_offsets(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> Iterator[Encoding]:
    """Encode texts with `tokenizers`, without special tokens before and after. Raises ValueError as `encode_with`."""
    for encoding in encode_with(backend.encode_batch, texts, False):
        yield Encoding(np.array(encoding.ids, np.int64), np.array(encoding.offsets, np.int64).reshape(-1, 2))


def encode_with(encode_batch: Callable[..., Any], texts: Sequence[str], add_special_tokens: bool) -> Any:
    """Call either library and explain its errors for lone surrogates and values that are no texts."""
    if isinstance(texts, str):
        raise TypeError("expected a sequence of texts, got one str")
    try:
        return encode_batch(list(texts), add_special_tokens=add_special_tokens)
    except (TypeError, UnicodeEncodeError):
        for number, text in enumerate(texts):
            check_raw_text(text, number)
        raise


def _from_json(description: str) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(description), "tokenizer")
