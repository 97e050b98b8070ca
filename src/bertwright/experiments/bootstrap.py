"""Bootstrap intervals of differences between two systems, over seeds and over examples (Efron 1979).

N examples of a dev split, S seeds, D draws of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from bertwright.metrics.example_scores import ExampleScores, Floats, compute_scores
from bertwright.seeding import make_rng

DRAWS = 1_000
COVERAGE = 0.95
SEED = 0


class Difference(NamedTuple):
    """A difference of two mean scores with its bootstrap interval."""

    mean: float
    low: float
    high: float


class Sample(NamedTuple):
    """The results of one system in one column: a score per seed and, if they are known, the examples' numbers."""

    scores: Sequence[float]
    """S."""
    examples: Sequence[ExampleScores]
    """S, or empty."""


Draw = Callable[[Sample, Sample], tuple[Floats, Floats]]


def bootstrap_differences(better: Sample, worse: Sample, draws: int = DRAWS) -> Floats:
    """Return `draws` differences of the two systems' mean scores, each on resampled seeds and examples.

    Both systems are scored on the same resampled examples; their seeds are resampled independently. Without numbers
    per example, only seeds are resampled; with a single seed, only examples.
    """
    rng = make_rng(SEED, draws)
    count = len(better.examples[0].values) if better.examples and worse.examples else 0
    weights = rng.multinomial(count, np.full(count, 1 / count), size=draws).astype(float) if count else None
    means = []
    for sample in (better, worse):
        if weights is None:
            table = np.tile(np.asarray(sample.scores, dtype=float), (draws, 1))  # D S
        else:
            table = np.stack([compute_scores(one, weights) for one in sample.examples], axis=1)
        chosen = rng.integers(table.shape[1], size=table.shape)
        means.append(np.take_along_axis(table, chosen, axis=1).mean(1))
    return np.asarray(means[0] - means[1])


def difference(samples: Sequence[tuple[Sample, Sample]]) -> Difference:
    """Return the difference between two systems, averaged over columns, with its 95 % percentile interval.

    `samples`: for each column, those of the better and of the worse system.
    """
    mean = float(np.mean([np.mean(better.scores) - np.mean(worse.scores) for better, worse in samples]))
    drawn = np.mean([bootstrap_differences(better, worse) for better, worse in samples], axis=0)
    low, high = np.quantile(drawn, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return Difference(mean, float(low), float(high))
