"""Intervals of differences between systems: the bootstrap over examples (Efron 1979), Student's t over seeds.

N examples of a dev split, S seeds, D draws of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertwright.base.files import digest_bytes
from bertwright.base.seeding import make_rng
from bertwright.metrics.example_scores import ExampleScores, Floats, compute_scores

DRAWS = 10_000
COVERAGE = 0.95
SEED = 0
BLOCK = 4_000_000  # examples that are drawn at a time: bounds memory


class Sample(NamedTuple):
    """The results of one system in one column: a score per seed and, if they are known, the examples' numbers."""

    scores: Sequence[float]
    """S."""
    examples: Sequence[ExampleScores]
    """S, or empty."""
    pretrainings: Sequence[int] = ()
    """S, the pre-training of each score; empty if all have the same."""

    def independent_means(self) -> list[float]:
        """Return one mean per pre-training if there are several, else the scores of the seeds."""
        if len({*self.pretrainings}) < 2:
            return [*self.scores]
        pairs = list(zip(self.pretrainings, self.scores, strict=True))
        return [float(np.mean([score for n, score in pairs if n == number])) for number in sorted({*self.pretrainings})]


class Estimate(NamedTuple):
    """The mean score of a system in a column, and draws from its distribution."""

    mean: float
    draws: Floats | None
    """D; None for a single seed without per-example statistics."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % percentile interval of the mean."""
        return None if self.draws is None else _percentiles(self.draws)


class Interval(NamedTuple):
    """95 % interval of a difference."""

    low: float
    high: float

    @property
    def smallest_effect(self) -> float:
        """Half of the width: a smaller difference would not exclude 0 with as much noise as this one has."""
        return (self.high - self.low) / 2


class Difference(NamedTuple):
    """Difference of two mean scores."""

    mean: float
    interval: Interval | None
    """None if nothing could be resampled."""

    def to_record(self) -> dict[str, Any]:
        """Return the difference as a JSON object."""
        return {"mean": self.mean} | (self.interval._asdict() if self.interval else {})


def estimate(column: str, samples: Mapping[str, Sample], draws: int = DRAWS) -> dict[str, Estimate]:
    """Return the mean, and draws from its distribution, for the systems of a column, by row.

    A draw is the mean over the seeds on resampled examples, plus the error of a mean over S seeds, from Student's t
    with S - 1 degrees of freedom: resampling two to five seeds gives intervals that are much too narrow (decision 21).
    All systems are scored on the same resampled examples, so that differences between them are paired; the errors of
    seeds are independent. The random numbers of different columns are independent. Without per-example statistics,
    the draws vary only with the seeds; with a single seed, only with the examples. With several pre-trainings, the
    scores of one pre-training are averaged first and S is the number of pre-trainings, so that the error is that of the
    objective, not of a checkpoint.
    """
    numbers = {row: sample.examples for row, sample in samples.items() if sample.examples}
    resampled = _resample_examples(column, numbers, draws)
    estimates = {}
    for row, sample in samples.items():
        means = sample.independent_means()
        mean, seeds, drawn = float(np.mean(sample.scores)), len(means), resampled.get(row)
        if seeds > 1:
            error = np.std(means, ddof=1) / np.sqrt(seeds)
            t = make_rng(SEED, _key(column), _key(row)).standard_t(seeds - 1, size=draws)
            drawn = (mean if drawn is None else drawn) + error * t
        estimates[row] = Estimate(mean, drawn)
    return estimates


def _resample_examples(column: str, numbers: Mapping[str, Sequence[ExampleScores]], draws: int) -> dict[str, Floats]:
    """Return by row the mean over the seeds on `draws` samples of the examples, D."""
    if not numbers:
        return {}
    (size,) = {len(scores.values) for seeds in numbers.values() for scores in seeds}
    rng, block = make_rng(SEED, _key(column), 0), max(1, BLOCK // size)
    blocks: dict[str, list[Floats]] = {row: [] for row in numbers}
    for first in range(0, draws, block):
        count = min(block, draws - first)
        chosen = rng.integers(size, size=(count, size)) + size * np.arange(count)[:, None]
        weights = np.bincount(chosen.ravel(), minlength=count * size).reshape(count, size).astype(float)
        for row, seeds in numbers.items():
            blocks[row].append(np.mean([compute_scores(scores, weights) for scores in seeds], axis=0))
    return {row: np.concatenate(draws_of_row) for row, draws_of_row in blocks.items()}


def _key(name: str) -> int:
    """Return a spawn key for a name.

    >>> _key("sst2") != _key("rte")
    True
    """
    return int(digest_bytes(name.encode())[:8], 16)


def difference(pairs: Sequence[tuple[Estimate, Estimate]]) -> Difference:
    """Return the difference between two systems, averaged over columns, with its 95 % percentile interval.

    `pairs`: for each column, the estimates of the better and the worse system.
    """
    mean = float(np.mean([better.mean - worse.mean for better, worse in pairs]))
    if all(system.draws is None for pair in pairs for system in pair):
        return Difference(mean, None)
    # A column without draws has the same number in each of them.
    drawn = np.sum(np.broadcast_arrays(*(_draws(better) - _draws(worse) for better, worse in pairs)), axis=0)
    return Difference(mean, Interval(*_percentiles(drawn / len(pairs))))


def compare(column: str, better: ExampleScores, worse: ExampleScores, draws: int = DRAWS) -> Difference:
    """Return the difference of two systems' scores on the same examples, with the interval of the paired bootstrap."""
    whole = np.ones((1, len(better.values)))
    samples = {
        name: Sample([float(compute_scores(scores, whole)[0])], [scores])
        for name, scores in (("better", better), ("worse", worse))
    }
    estimates = estimate(column, samples, draws)
    return difference([(estimates["better"], estimates["worse"])])


def _percentiles(draws: Floats) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high)


def _draws(system: Estimate) -> Floats | float:
    return system.mean if system.draws is None else system.draws
