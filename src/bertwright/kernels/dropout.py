"""Dropout whose mask is a function of a place: drawn where it is needed, drawn again for the gradient, never stored.

An element is known by (seed of the step, site in the model, row, column); a 32-bit hash of that decides. So a mask
depends neither on micro-batches nor on ranks, threads or backend. The native kernels (`dropout.h`) draw the same.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

WORD = 0xFFFFFFFF  # torch has no full set of uint32 operations: the words are kept in int64
GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: consecutive multiples spread evenly


class Draw(NamedTuple):
    """The dropout of one site in one micro-batch, in the plain numbers that kernels work with."""

    key0: int  # two 32-bit words, which belong to (seed of the step, site)
    key1: int
    threshold: int  # an element is kept iff its hash, uniform in [0, 2^32), is at least this
    scale: float  # what the kept ones are multiplied by
    first_token: int
    rows: Tensor | None

    def places(self, count: int, device: torch.device) -> Tensor:
        """The given tokens' numbers in the whole step, `count` int64."""
        return self.first_token + (torch.arange(count, device=device) if self.rows is None else self.rows)


class Dropout(NamedTuple):
    """What is dropped in one micro-batch of one step; `None` in its place means that nothing is."""

    rate: float  # share of the elements that become 0; the others are scaled by 1 / (1 - rate)
    seed: int  # belongs to (run seed, step)
    first_token: int = 0  # place of the micro-batch's first token in the whole step
    rows: Tensor | None = None  # R int64: which of the micro-batch's tokens are given, where it is not all of them

    def at(self, site: int) -> Draw:
        """What is dropped at one site."""
        assert 0.0 <= self.rate < 1.0, self.rate
        threshold = min(round(self.rate * 2**32), WORD)
        return Draw(*self.key(site), threshold, 1.0 / (1.0 - self.rate), self.first_token, self.rows)

    def key(self, site: int) -> tuple[int, int]:
        """Two 32-bit words for one site, by the SplitMix64 finaliser (Steele et al. 2014).

        >>> Dropout(0.1, seed=7).key(site=0) == Dropout(0.5, seed=7).key(site=0) != Dropout(0.1, seed=7).key(site=1)
        True
        """
        word = (self.seed + (site + 1) * 0x9E3779B97F4A7C15) % 2**64
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        word ^= word >> 31
        return word & WORD, word >> 32


def mix(words: Tensor) -> Tensor:
    """A bijection of 32-bit words with little bias (Wellons, "hash prospector", lowbias32)."""
    words = (words ^ (words >> 16)) * 0x7FEB352D & WORD
    words = (words ^ (words >> 15)) * 0x846CA68B & WORD
    return words ^ (words >> 16)


def kept(draw: Draw, rows: Tensor, columns: int) -> Tensor:
    """Which elements stay, as booleans (R × columns), for rows known by their numbers (R, int64)."""
    low, high = rows & WORD, rows >> 32
    # Two words a row: with one, two rows whose words lie near each other would be shifted copies.
    row0 = mix(low ^ ((draw.key0 + high * GOLDEN) & WORD))
    row1 = mix((low + draw.key1 + high) & WORD)
    # Columns are cut to a word too, which changes none of them: Triton would multiply 32-bit numbers otherwise.
    words = (row0[:, None] + (torch.arange(columns, device=rows.device) & WORD) * GOLDEN) & WORD
    words = ((words ^ (words >> 16)) * 0x7FEB352D & WORD) ^ row1[:, None]
    words = (words ^ (words >> 15)) * 0x846CA68B & WORD
    return (words ^ (words >> 16)) >= draw.threshold
