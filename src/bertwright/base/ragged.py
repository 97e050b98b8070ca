"""Arithmetic on sequences of different lengths that are laid end to end in one array."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ragged:
    """Ids of many texts, end to end: text `i` has `ids[offsets[i]:offsets[i + 1]]`."""

    ids: npt.NDArray[np.uint32]
    """Ids of all texts; of words with their characters, rows of ids."""
    offsets: Ints
    """One per text and one more: start of each text, and the end of the last one."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> npt.NDArray[np.uint32]:
        if not 0 <= number < len(self):
            raise IndexError(f"text {number} of {len(self)}")
        return self.ids[self.offsets[number] : self.offsets[number + 1]]

    def __iter__(self) -> Iterator[npt.NDArray[np.uint32]]:
        return (self[number] for number in range(len(self)))


def offsets_from_lengths(lengths: npt.NDArray[np.integer]) -> Ints:
    """Return the start of each of several sequences laid end to end, and the end of the last one.

    >>> offsets_from_lengths(np.array([3, 2])).tolist()
    [0, 3, 5]
    """
    bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def positions_from_lengths(lengths: npt.NDArray[np.integer]) -> Ints:
    """Return the positions within each of several sequences laid end to end.

    >>> positions_from_lengths(np.array([3, 0, 2])).tolist()
    [0, 1, 2, 0, 1]
    """
    if len(lengths) == 1:  # a call with one text: each array operation counts
        return np.arange(lengths[0], dtype=np.int64)
    bounds = offsets_from_lengths(lengths)
    counting: Ints = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
    return counting


def flat_ranges(first: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]) -> Ints:
    """Return the indices of several ranges, end to end, given the start and the length of each.

    >>> flat_ranges(np.array([10, 0]), np.array([2, 3])).tolist()
    [10, 11, 0, 1, 2]
    """
    if len(lengths) == 1:
        return np.arange(first[0], first[0] + lengths[0], dtype=np.int64)
    indices: Ints = np.repeat(first, lengths) + positions_from_lengths(lengths)
    return indices
