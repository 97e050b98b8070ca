"""The distinct words of a batch, whose characters a model reads once.

N words of the batch, U distinct ones, W characters per word.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bertwright.vocabulary.word_tokenizer import BEGIN, END

HASH_MULTIPLIER = 0x5851F42D4C957F2D  # of Knuth's MMIX generator


class DistinctWords(NamedTuple):
    """The distinct words of a batch, by their characters."""

    rows: Tensor
    """U × W, W up to the longest of them."""
    words: Tensor
    """N int64, number of each word among them."""
    keys: Tensor
    """U int64, keys of their dropout: a hash of the characters, so that a word has one mask in the whole step."""

    @classmethod
    def of(cls, characters: Tensor) -> DistinctWords:
        """Find the distinct rows of N × W characters by a hash; where two have the same hash, keep all rows."""
        multipliers = torch.tensor(HASH_MULTIPLIER).pow(torch.arange(1, characters.shape[1] + 1)).to(characters.device)
        hashes = (characters * multipliers).sum(1)  # int64 overflow is intended
        hashes = (hashes ^ (hashes >> 32)) & 0x7FFFFFFFFFFFFFFF
        keys, words = torch.unique(hashes, return_inverse=True)
        rows = characters.new_empty(len(keys), characters.shape[1])
        rows[words] = characters
        if not torch.equal(rows[words], characters):
            rows, words, keys = characters, torch.arange(len(characters), device=characters.device), hashes
        width = int((rows > 0).sum(1).max()) if len(rows) else 0
        return cls(rows[:, : max(width, 1)], words, keys)


def is_mark(rows: Tensor) -> Tensor:
    """Return which of T rows, whose first number is a word's id, mark the beginning or the end of a text: T bool."""
    return (rows[:, 0] >= BEGIN) & (rows[:, 0] <= END)
