"""Dropout masks inside Triton kernels: the hash of `kernels/dropout.py` in 32-bit words."""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from bertwright.kernels.dropout import MaskKey

GOLDEN = tl.constexpr(0x9E3779B9)
MASK_NUMBERS = ("first_token", "key0", "key1", "threshold", "scale")
"""Kernel arguments that change from step to step: Triton must not compile a kernel for each value."""


@triton.jit
def lowbias32(words):
    words = tl.mul(words ^ (words >> 16), 0x7FEB352D, sanitize_overflow=False)
    words = tl.mul(words ^ (words >> 15), 0x846CA68B, sanitize_overflow=False)
    return words ^ (words >> 16)


@triton.jit
def row_words(rows, key0, key1):
    """Return the two words of each row; `rows`: int64."""
    low, high = rows.to(tl.uint32), (rows >> 32).to(tl.uint32)
    first = tl.add(key0.to(tl.uint32), tl.mul(high, GOLDEN, sanitize_overflow=False), sanitize_overflow=False)
    second = tl.add(tl.add(low, key1.to(tl.uint32), sanitize_overflow=False), high, sanitize_overflow=False)
    return lowbias32(low ^ first), lowbias32(second)


@triton.jit
def keep(word0, word1, columns, threshold):
    """Return which elements stay, for the words of their rows and their columns, which broadcast."""
    words = tl.add(word0, tl.mul(columns.to(tl.uint32), GOLDEN, sanitize_overflow=False), sanitize_overflow=False)
    words = tl.mul(words ^ (words >> 16), 0x7FEB352D, sanitize_overflow=False) ^ word1
    words = tl.mul(words ^ (words >> 15), 0x846CA68B, sanitize_overflow=False)
    return (words ^ (words >> 16)) >= threshold.to(tl.uint32)


@triton.jit
def token_indices(rows, positions, first_token, valid):
    """Return the indices within the whole step, int64, of the tokens in these rows of a tensor."""
    indices = rows.to(tl.int64)
    if positions is not None:
        indices = tl.load(positions + rows, mask=valid, other=0)
    return indices + first_token


@triton.jit
def read_key(numbers, first_token, key0, key1):
    """Return first token and words of a mask's key: from memory, where it may change between replays of a graph."""
    if numbers is not None:
        first_token = tl.load(numbers)
        key0 = tl.load(numbers + 1)
        key1 = tl.load(numbers + 2)
    return first_token, key0, key1


class StoredKey(NamedTuple):
    """A `MaskKey` whose first token and words are in a GPU's memory."""

    numbers: Tensor
    """3 int64: first token and the key's two words."""
    threshold: int
    scale: float
    positions: Tensor | None


Key = MaskKey | StoredKey


def store(key: MaskKey, numbers: Tensor, positions: Tensor | None) -> Key:
    """Return a key that reads first token and words from `numbers`, 3 int64; a key that drops nothing stays as it is.

    `positions`: memory for the key's positions.
    """
    if key.threshold == 0:
        return key
    return StoredKey(numbers, key.threshold, key.scale, None if key.positions is None else positions)


def mask_args(key: Key) -> tuple[Any, ...]:
    """Return the arguments of a kernel for a mask.

    They are positions, numbers in memory, first token and words if there are no such numbers, threshold, and scale.
    """
    threshold = _signed(key.threshold)
    if isinstance(key, StoredKey):
        return key.positions, key.numbers, 0, 0, 0, threshold, key.scale
    return key.positions, None, key.first_token, _signed(key.key0), _signed(key.key1), threshold, key.scale


def _signed(word: int) -> int:
    """Return the int32 with the bits of a 32-bit word: an unsigned argument would have a type for each half."""
    return word - (word >> 31 << 32)
