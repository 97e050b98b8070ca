"""Which example comes when: a permutation that needs no table, random numbers that need no history, longest first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

ROUNDS = 8  # of the Feistel network; four already pass for random, eight keep tiny sizes well mixed too


def splitmix64(places: np.ndarray, key: int | np.ndarray) -> np.ndarray:
    """64 random bits for each place under a key (the SplitMix64 output function), in any order, at any time."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    bits = (np.asarray(places).astype(np.uint64) + np.uint64(1)) * golden + np.asarray(key, dtype=np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def uniform(places: np.ndarray, key: int | np.ndarray) -> np.ndarray:
    """A number in [0, 1) for each place under a key (or each place's own key): float64, 53 random bits.

    >>> import numpy as np
    >>> alone, together = uniform(np.array([5]), key=1), uniform(np.arange(9), key=1)
    >>> bool(alone[0] == together[5]) and bool(0 <= alone[0] < 1)
    True
    """
    return (splitmix64(places, key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permute(indices: np.ndarray, size: int, key: int) -> np.ndarray:
    """Where a random permutation of range(size) sends each index: int64, O(1) memory for every index.

    A Feistel network permutes the next power of two; what falls outside the range goes through it again until it
    falls inside ("cycle walking", Black and Rogaway 2002), which leaves a permutation of the range itself.

    >>> import numpy as np
    >>> sorted(permute(np.arange(10), size=10, key=3).tolist()) == list(range(10))
    True

    Raises ValueError for an index outside the range.
    """
    walking = np.array(indices, dtype=np.uint64)
    if np.any(np.asarray(indices) < 0) or np.any(walking >= size):
        raise ValueError(f"indices must lie in 0 … {size - 1}, found {np.min(indices)} … {np.max(indices)}")
    bits = max(2, (size - 1).bit_length())
    low_bits = np.uint64(bits // 2)
    low_mask, high_mask = np.uint64(2 ** (bits // 2) - 1), np.uint64(2 ** (bits - bits // 2) - 1)
    outside = np.arange(walking.size)
    flat = walking.reshape(-1)
    while outside.size:
        high, low = flat[outside] >> low_bits, flat[outside] & low_mask
        for number in range(0, ROUNDS, 2):
            high ^= splitmix64(low, _round_key(key, number)) & high_mask
            low ^= splitmix64(high, _round_key(key, number + 1)) & low_mask
        flat[outside] = high << low_bits | low
        outside = outside[flat[outside] >= size]
    return walking.astype(np.int64)


def _round_key(key: int, number: int) -> int:
    return (key + number * 0xD1342543DE82EF95) % 2**64


def token_budget_batches(lengths: np.ndarray, budget: int) -> Iterator[np.ndarray]:
    """The numbers of sequences, or items, in groups of at most `budget` tokens, or of one; each number once.

    Longest first: memory runs out at once or never, and a backend that pads has little to pad.

    >>> import numpy as np
    >>> [group.tolist() for group in token_budget_batches(np.array([2, 9, 3, 2]), 6)]
    [[1], [2, 0], [3]]
    """
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    while begin < len(order):
        total = np.cumsum(lengths[order[begin : begin + budget]])
        end = begin + max(int(np.searchsorted(total, budget, side="right")), 1)
        yield order[begin:end]
        begin = end
