"""Counter-based dropout: masks are never stored, but computed from a key, again in the backward pass.

A 32-bit hash of (seed of the step, site in the model, row, column) decides whether an element is dropped. A mask
therefore depends neither on micro-batches nor on ranks, threads or backend. The native kernels (`dropout.h`) and
those for GPUs (`triton/dropout_masks.py`) compute the same masks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

WORD = 0xFFFFFFFF  # torch has no full set of uint32 operations: the words are kept in int64
GOLDEN = 0x9E3779B9  # 2^32 / golden ratio: consecutive multiples spread evenly
SITE_STRIDE = 0x9E3779B97F4A7C15  # difference of the seeds of consecutive sites: 2^64 / golden ratio


class MaskKey(NamedTuple):
    """The key of one site's mask in one micro-batch, with the fields of `struct MaskKey` in csrc/dropout.h."""

    key0: int  # two 32-bit words, derived from (seed of the step, site)
    key1: int
    threshold: int  # an element stays iff its hash, uniform in [0, 2^32), is at least this
    scale: float  # factor of the elements that stay
    first_token: int
    positions: Tensor | None  # R int64: the tokens of the micro-batch that are computed; None: all

    def token_indices(self, count: int, device: torch.device) -> Tensor:
        """Return the indices of `count` tokens within the whole step, int64."""
        return self.first_token + (torch.arange(count, device=device) if self.positions is None else self.positions)


class Dropout(NamedTuple):
    """Rate and key of the dropout of one micro-batch. Functions accept None instead, for no dropout."""

    rate: float  # share of the elements that become 0; the rest is scaled by 1 / (1 - rate)
    seed: int  # derived from (run seed, step)
    first_token: int = 0  # index of the micro-batch's first token within the whole step
    positions: Tensor | None = None  # R int64: the tokens of the micro-batch that are computed; None: all

    def select(self, tokens: Tensor) -> Dropout:
        """Return the dropout of some tokens, in any order; `tokens`: R int64, their indices."""
        return self._replace(positions=tokens if self.positions is None else self.positions[tokens])

    def after(self, sites: int) -> Dropout:
        """Return a dropout with its site 0 at site number `sites`, for a module after modules with `sites` sites."""
        return self._replace(seed=skip_sites(self.seed, sites))

    def mask_key(self, site: int) -> MaskKey:
        """Derive the key of one site."""
        if not 0.0 <= self.rate < 1.0:
            raise ValueError(f"dropout: expected a rate from 0 to below 1, got {self.rate}")
        threshold = min(round(self.rate * 2**32), WORD)
        return MaskKey(*self.site_key(site), threshold, 1.0 / (1.0 - self.rate), self.first_token, self.positions)

    def site_key(self, site: int) -> tuple[int, int]:
        """Derive two 32-bit words for one site with the SplitMix64 finaliser (Steele et al. 2014).

        >>> keys = Dropout(0.1, seed=7).site_key(0), Dropout(0.5, seed=7).site_key(0), Dropout(0.1, seed=7).site_key(1)
        >>> keys[0] == keys[1] != keys[2]
        True
        """
        word = skip_sites(self.seed, site + 1)
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        word ^= word >> 31
        return word & WORD, word >> 32


KEEP_ALL = MaskKey(key0=0, key1=0, threshold=0, scale=1.0, first_token=0, positions=None)


def mask_key(dropout: Dropout | None, site: int) -> MaskKey:
    """Derive the key of one site; without dropout, a key that keeps everything."""
    return KEEP_ALL if dropout is None else dropout.mask_key(site)


def skip_sites(seed: int, count: int) -> int:
    """Return the seed under which site 0 has the mask of site `count`.

    >>> Dropout(0.1, skip_sites(7, 3)).site_key(2) == Dropout(0.1, seed=7).site_key(5)
    True
    """
    return (seed + count * SITE_STRIDE) % 2**64


def lowbias32(words: Tensor) -> Tensor:
    """Hash 32-bit words one to one (Wellons, "hash prospector", lowbias32)."""
    words = (words ^ (words >> 16)) * 0x7FEB352D & WORD
    words = (words ^ (words >> 15)) * 0x846CA68B & WORD
    return words ^ (words >> 16)


def keep_mask(key: MaskKey, rows: Tensor, columns: int, first: int = 0) -> Tensor:
    """Compute which elements stay: R × columns bool, for R rows given by their indices (int64), from column `first`."""
    low, high = rows & WORD, rows >> 32
    # Two words per row: with one, rows whose words are close would have shifted copies of one mask.
    row0 = lowbias32(low ^ ((key.key0 + high * GOLDEN) & WORD))
    row1 = lowbias32((low + key.key1 + high) & WORD)
    words = (row0[:, None] + torch.arange(first, first + columns, device=rows.device) * GOLDEN) & WORD
    words = ((words ^ (words >> 16)) * 0x7FEB352D & WORD) ^ row1[:, None]
    words = (words ^ (words >> 15)) * 0x846CA68B & WORD
    return (words ^ (words >> 16)) >= key.threshold
