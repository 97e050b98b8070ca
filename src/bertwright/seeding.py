"""Random numbers that belong to a place, not to a history.

Places of one kind have the same number of entries, each below 2³², as have seeds: NumPy takes (7, 3) for (7, 3, 0).
"""

from __future__ import annotations

import numpy as np


def check_seed(seed: int, name: str = "seed") -> None:
    """Raise ValueError for one that would be taken for another."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"{name} is {seed}; from 0 to {2**32 - 1} is possible")


def make_rng(seed: int, *place: int) -> np.random.Generator:
    """Random numbers that belong to one place, whoever asks and in whatever order.

    >>> int(make_rng(7, 3, 1).integers(100)) == int(make_rng(7, 3, 1).integers(100))
    True
    """
    return np.random.default_rng([seed, *place])


def derive_key(seed: int, *place: int) -> int:
    """One 64-bit number that belongs to a place: what kernels are given in place of a generator.

    >>> derive_key(7, 3) == derive_key(7, 3) != derive_key(7, 4)
    True
    """
    return int(np.random.SeedSequence([seed, *place]).generate_state(1, np.uint64)[0])
