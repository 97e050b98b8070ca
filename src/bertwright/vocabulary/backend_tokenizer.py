"""Tokenizers that the library `tokenizers` computes, or the faster `nanotoken` if only ids are needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import models

from bertwright.base.ragged import Ragged
from bertwright.vocabulary.tokenizer import Encoding, TextTokenizer, check_raw_text
from bertwright.vocabulary.wordpiece_files import effective_normalizer

FALLBACK_BATCH = 1024  # texts per call of `tokenizers`: its encodings take much memory
FlatBackend = Any  # of `flat_ids`: a nanotoken.Tokenizer or a tokenizers.Tokenizer


class BackendTokenizer(TextTokenizer):
    """A tokenizer of the library in two forms: for typed texts, and for plain ones."""

    @cached_property
    def _typed(self) -> tokenizers.Tokenizer:
        """The tokenizer of typed texts, in which special tokens are special."""
        raise NotImplementedError

    @cached_property
    def _raw(self) -> tokenizers.Tokenizer:
        """The tokenizer of plain texts, in which special tokens are ordinary characters."""
        raise NotImplementedError

    @cached_property
    def _flat_typed(self) -> FlatBackend:
        """The faster form of `_typed` where only ids are needed."""
        return self._typed

    @cached_property
    def _flat_raw(self) -> FlatBackend:
        """The faster form of `_raw` where only ids are needed."""
        return self._raw

    @property
    def lowercase(self) -> bool:
        """True if text is lowercased. Runs the normalizer on "A": files record the setting in several ways."""
        return self._typed.normalizer is not None and self._typed.normalizer.normalize_str("A").endswith("a")

    def encode_raw(self, texts: Sequence[str]) -> Ragged:
        return flat_ids(self._flat_raw, texts, False)

    def encode_raw_batch(self, texts: Sequence[str]) -> list[Encoding]:
        return list(_encode_with_offsets(self._raw, texts))

    def encode_ids(self, texts: Sequence[str]) -> Ragged:
        return flat_ids(self._flat_typed, texts, True)

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        return [self.add_ends(encoding) for encoding in _encode_with_offsets(self._typed, texts)]

    def decode(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]], skip_special: bool = True) -> str:
        numbers = np.asarray(ids, dtype=np.int64).tolist()
        for number in numbers:
            self.token(number)  # `tokenizers` would silently skip an unknown id
        text: str = self._typed.decode(numbers, skip_special_tokens=skip_special)
        return text


def tokens_by_id(ids: Mapping[str, int]) -> tuple[str, ...]:
    """Return all tokens in id order; "" for an id without a token."""
    tokens = [""] * (max(ids.values(), default=-1) + 1)
    for token, number in ids.items():
        tokens[number] = token
    return tuple(tokens)


def make_byte_pairs(
    ids: Mapping[str, int], merges: Sequence[tuple[str, str]], source: str, **options: Any
) -> tokenizers.Tokenizer:
    """Build a model of byte pairs. Raises ValueError, naming `source`, for merges with an unknown token."""
    try:
        return tokenizers.Tokenizer(models.BPE(dict(ids), list(merges), **options))
    except Exception as error:  # `tokenizers` raises nothing more specific
        raise ValueError(f"{source}: its merges do not fit ({error}); copy both files of one model") from None


def canonical_description(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return the components that decide ids, the same however they were stored."""
    description = json.loads(backend.to_str())
    if isinstance(vocab := description["model"].get("vocab"), dict):
        vocab.pop("", None)  # a blank line of vocab.txt, which no text has
    normalizer = description["normalizer"]
    if normalizer is not None and normalizer["type"] == "BertNormalizer":
        normalizer = effective_normalizer(normalizer)
    return {
        "model": description["model"],
        "normalizer": normalizer,
        "pre_tokenizer": description["pre_tokenizer"],
        "added_tokens": sorted(description["added_tokens"], key=lambda token: token["id"]),
    }


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


def flat_ids(backend: FlatBackend, texts: Sequence[str], add_special_tokens: bool) -> Ragged:
    """Encode texts with either library."""
    if not isinstance(backend, tokenizers.Tokenizer):
        flat_encoding = _encode_with(backend.encode_batch, texts, add_special_tokens)
        return Ragged(flat_encoding.ids, flat_encoding.offsets)
    flat: list[npt.NDArray[np.uint32]] = [np.empty(0, dtype=np.uint32)]
    lengths = [0]
    for start in range(0, len(texts), FALLBACK_BATCH):
        encodings = _encode_with(backend.encode_batch_fast, texts[start : start + FALLBACK_BATCH], add_special_tokens)
        flat += [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        lengths += [len(encoding.ids) for encoding in encodings]
    return Ragged(np.concatenate(flat), np.cumsum(lengths, dtype=np.int64))


def _encode_with_offsets(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> Iterator[Encoding]:
    """Encode texts with `tokenizers`, without special tokens before and after."""
    for encoding in _encode_with(backend.encode_batch, texts, False):
        yield Encoding(np.array(encoding.ids, np.int64), np.array(encoding.offsets, np.int64).reshape(-1, 2))


def _encode_with(encode_batch: Callable[..., Any], texts: Sequence[str], add_special_tokens: bool) -> Any:
    """Call either library and explain its errors for lone surrogates and values that are no texts."""
    if isinstance(texts, str):
        raise TypeError("expected a sequence of texts, got one str")
    try:
        return encode_batch(list(texts), add_special_tokens=add_special_tokens)
    except (TypeError, UnicodeEncodeError):
        for number, text in enumerate(texts):
            check_raw_text(text, number)
        raise
