"""Cells of a table: the scores of a row in a column over seeds, at the best rate, and their estimates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bertwright.metrics.example_scores import ExampleScores
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds
from bertwright.metrics.statistics import Estimate, Sample, estimate
from bertwright.trials.paper_table import PERPLEXITY
from bertwright.trials.runner import Result
from bertwright.trials.trial import Trial

Key = tuple[str, str]
"""Row and column of a cell."""
Run = tuple[int, int]
"""Seed of pre-training, seed of fine-tuning."""


class Score(NamedTuple):
    """A number of a cell."""

    row: str
    column: str
    value: float
    seed: int
    learning_rate: float = 0.0
    """If a cell has several rates, the one with the best mean counts."""
    pretraining: int = 0
    selected_by: float | None = None
    """The number whose mean selects the rate; None: the value."""
    examples: ExampleScores | None = None
    is_one_label: bool = False
    """Whether all predictions on dev are one label."""


class Cell(NamedTuple):
    """Scores of a row in a column, over the seeds."""

    scores: Mapping[Run, float]
    """Score of each run."""
    learning_rate: float | None
    """Among the rates with the most runs, the one with the best mean; None for a mean over columns."""
    examples: Sequence[ExampleScores] = ()
    """Per-example statistics of each run; empty unless all are known."""
    rates: Mapping[float, float] = {}
    """Mean score on dev at each rate, which selected the rate."""
    one_label: int = 0
    """Number of runs whose predictions on dev are all one label."""

    @property
    def summary(self) -> SeedSummary:
        """Mean and standard deviation of the scores."""
        return summarize_seeds([*self.scores.values()])

    @property
    def sample(self) -> Sample:
        """Scores and per-example statistics, as they are resampled."""
        return Sample([*self.scores.values()], self.examples, [pretraining for pretraining, _ in self.scores])

    @property
    def pretrainings(self) -> int:
        """Number of pre-trainings behind the scores."""
        return len({pretraining for pretraining, _ in self.scores})


def read_cells(scores: Iterable[Score]) -> dict[Key, Cell]:
    """Return the cells of some scores, each at its best rate."""
    by_key = dict[Key, list[Score]]()
    for score in scores:
        by_key.setdefault((score.row, score.column), []).append(score)
    return {key: _read_cell(of_cell) for key, of_cell in by_key.items()}


def _read_cell(scores: Sequence[Score]) -> Cell:
    rates = dict[float, list[Score]]()
    for score in scores:
        rates.setdefault(score.learning_rate, []).append(score)
    means = {
        rate: statistics.fmean(one.value if one.selected_by is None else one.selected_by for one in runs)
        for rate, runs in rates.items()
    }
    best = max(rates, key=lambda rate: (len(rates[rate]), means[rate]))
    chosen = rates[best]
    examples = [one.examples for one in chosen if one.examples is not None]
    return Cell(
        {(one.pretraining, one.seed): one.value for one in chosen},
        best,
        examples if len(examples) == len(chosen) else (),
        means,
        sum(one.is_one_label for one in chosen),
    )


def average(cells: Sequence[Cell]) -> Cell | None:
    """Return the mean of some cells of a row over the runs that all of them have; None if there is no such run."""
    runs = [run for run in cells[0].scores if all(run in cell.scores for cell in cells)]
    scores = {run: statistics.fmean(cell.scores[run] for cell in cells) for run in runs}
    return Cell(scores, None) if scores else None


def estimate_cells(cells: Mapping[Key, Cell]) -> dict[Key, Estimate]:
    """Return the estimate of each cell; of a perplexity, of the negative loss, so that higher is always better."""
    estimates = dict[Key, Estimate]()
    for column in dict.fromkeys(column for _, column in cells):
        samples = {row: cell.sample for (row, name), cell in cells.items() if name == column}
        if column == PERPLEXITY:
            samples = {row: one._replace(scores=[-math.log(score) for score in one.scores])
                       for row, one in samples.items()}  # fmt: skip
        estimates |= {(row, column): result for row, result in estimate(column, samples).items()}
    return estimates


def score_splits(results: Iterable[tuple[Trial, Result]]) -> Iterator[Score]:
    """Yield the scores on dev and test of the runs of a series; if a row has several rates, dev selects."""
    for trial, result in results:
        selected_by = result.scores.get("dev") if trial.learning_rate else None
        for split in ("dev", "test"):
            if split in result.scores:
                value = result.scores[split]
                yield Score(trial.row, split, value, trial.seed, trial.learning_rate, selected_by=selected_by)
