"""Independent random streams derived from (seed, spawn key), so that the order of calls never matters.

Spawn keys of one stream have the same number of entries, since NumPy takes (7, 3) for (7, 3, 0). Entries and seeds are
below 2³².
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """First entry of the spawn keys of pre-training. The numbers decide the bits of every run: never change them."""

    ORDER = 0
    PHASE = 1
    SEGMENT = 2
    MASK = 3
    DROPOUT = 4


class TaskStream(IntEnum):
    """First entry of the spawn keys of fine-tuning."""

    ORDER = 0
    DROPOUT = 1
    HELD_OUT = 2
    FILES = 3
    CLASSES = 4
    WORDS = 5


class ProbeStream(IntEnum):
    """First entry of the spawn keys of a feature probe's head."""

    ORDER = 0
    BATCH_ORDER = 1
    DROPOUT = 2


class TranslationStream(IntEnum):
    """First entry of the spawn keys of a translation model's training."""

    ORDER = 0
    DROPOUT = 1


def make_rng(seed: int, *spawn_key: int) -> np.random.Generator:
    """Return the random generator of one spawn key; equal arguments give equal numbers.

    >>> int(make_rng(7, 3, 1).integers(100)) == int(make_rng(7, 3, 1).integers(100))
    True
    """
    return np.random.default_rng([seed, *spawn_key])


def derive_key(seed: int, *spawn_key: int) -> int:
    """Return the 64-bit key of one spawn key, for kernels and hashes that take a key instead of a generator.

    >>> derive_key(7, 3) == derive_key(7, 3) != derive_key(7, 4)
    True
    """
    return int(np.random.SeedSequence([seed, *spawn_key]).generate_state(1, np.uint64)[0])
