"""Plans of experiments: the jobs behind each cell of a table of the paper, and the paper's claims about the cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bertwright.base.files import digest_bytes
from bertwright.trials.jobs import Job
from bertwright.trials.ladder_settings import FLOOR
from bertwright.trials.task_files import FoundTask

PERPLEXITY, FEATURES = "perplexity", "features"  # columns without fine-tuning
FREQUENT, RANDOM = FLOOR, "random weights"
FLOORS = (FREQUENT, RANDOM)  # rows of every table: the floors of its columns

Figures = dict[str, dict[str, float]]
"""Figures of the paper (Devlin et al. 2018) by row and column, in percent. A column is named as the task's preset, or
PRESET EM for SQuAD's exact match; a row as the system in the paper's table."""


class Trial(NamedTuple):
    """A number of a cell: a score of a job."""

    row: str
    column: str
    seed: int
    learning_rate: float
    """If a cell has several rates, the one with the best mean counts."""
    job: Job
    score: str
    """Name of the score among the job's scores."""
    selection: str
    """Name of the score whose mean selects the rate: never one on test."""
    pretraining: int = 0
    """Seed of pre-training."""


class Claim(NamedTuple):
    """A statement of the paper: one row is better than another."""

    text: str
    better: str
    worse: str
    columns: tuple[str, ...]
    """Columns over which the difference is averaged, if they were run."""


@dataclass(frozen=True)
class TablePlan:
    """Everything that an experiment runs and compares."""

    name: str
    title: str
    columns: dict[str, str]
    """Names and titles."""
    rows: tuple[str, ...]
    trials: list[Trial]
    claims: list[Claim]
    figures: Figures
    """The paper's figures, in percent; perplexities are not scaled."""
    notes: list[str]
    steps: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Series and step of each row, if the plan is a curve."""
    averages: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns that are means of several columns."""
    figure_splits: dict[tuple[str, str], str] = field(default_factory=dict)
    """Split of each of the paper's figures that is on another split than its column, by row and column."""
    is_transposed: bool = False
    """Whether the table is printed with a line for each column, because it has many."""

    @property
    def jobs(self) -> list[Job]:
        """Jobs of all trials, one per cell first, floors before the others, so that a table fills evenly."""
        ordered = sorted(self.trials, key=lambda trial: (trial.pretraining, trial.seed, trial.row not in FLOORS))
        return [trial.job for trial in ordered]

    @property
    def key(self) -> str:
        """Digest of all trials, and so of every setting and file that decides a number of the report."""
        trials = (f"{trial.row} {trial.column} {trial.job.key} {trial.score}" for trial in self.trials)
        return digest_bytes(*(trial.encode() for trial in trials))[:8]


def column_titles(tasks: Mapping[str, FoundTask]) -> dict[str, str]:
    """Return the title of each task's column: its name and metric."""
    short = {"accuracy": "acc.", "f1": "F1", "spearman": "ρ", "matthews": "MCC"}
    metrics = {name: task.settings.build_task().metric for name, task in tasks.items()}
    return {name: f"{name} {short.get(metric, metric)}" for name, metric in metrics.items()}
