"""The order of examples: permutations without tables, random numbers without state, batches by token budget."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

ROUNDS = 8  # rounds of the Feistel network: four are enough for large sizes, eight also mix tiny ones well


def splitmix64(counters: np.ndarray, key: int | np.ndarray) -> np.ndarray:
    """Return 64 random bits for each counter under a key: the output function of SplitMix64."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    bits = (np.asarray(counters).astype(np.uint64) + np.uint64(1)) * golden + np.asarray(key, dtype=np.uint64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def uniform(counters: np.ndarray, key: int | np.ndarray) -> np.ndarray:
    """Return a number in [0, 1) for each counter under a key (one, or one per counter): float64, 53 random bits.

    >>> import numpy as np
    >>> alone, together = uniform(np.array([5]), key=1), uniform(np.arange(9), key=1)
    >>> bool(alone[0] == together[5]) and bool(0 <= alone[0] < 1)
    True
    """
    return (splitmix64(counters, key) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permute(indices: np.ndarray, size: int, key: int) -> np.ndarray:
    """Return the images (int64) of indices under a random permutation of range(size), in constant memory.

    A Feistel network permutes the next power of two; images outside the range are permuted again until they are inside
    ("cycle walking", Black and Rogaway 2002), which gives a permutation of the range itself.

    >>> import numpy as np
    >>> sorted(permute(np.arange(10), size=10, key=3).tolist()) == list(range(10))
    True

    Raises ValueError for an index outside the range.
    """
    walking = np.array(indices, dtype=np.uint64)
    if np.any(np.asarray(indices) < 0) or np.any(walking >= size):
        raise ValueError(f"indices: expected 0 … {size - 1}, got {np.min(indices)} … {np.max(indices)}")
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
    """Yield the indices of sequences in groups of at most `budget` tokens, or of one sequence; each index once.

    The longest come first: memory runs out at once or never, and a backend that pads has little to pad.

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
