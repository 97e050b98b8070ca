"""Plan of an experiment: its rows, columns and trials, and what it is planned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertwright.base.files import digest_bytes
from bertwright.training.device_settings import DeviceSettings
from bertwright.trials.levels import ExperimentLevel
from bertwright.trials.paper_table import FLOORS, Claim, Figures
from bertwright.trials.trial import Trial


@dataclass(frozen=True)
class Plan:
    """Everything that an experiment runs and compares."""

    name: str
    title: str
    columns: dict[str, str]
    """Names and titles."""
    rows: tuple[str, ...]
    trials: list[Trial]
    claims: Sequence[Claim] = ()
    figures: Figures = field(default_factory=dict)
    notes: Sequence[str] = ()
    steps: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Series and step of each row, if the plan is a curve."""
    averages: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns that are means of several columns."""
    figure_splits: dict[tuple[str, str], str] = field(default_factory=dict)
    """Split of each of the paper's figures that is on another split than its column, by row and column."""
    is_transposed: bool = False
    """Whether the table is printed with a line for each column, because it has many."""

    @property
    def ordered(self) -> list[Trial]:
        """Trials, one per cell first, floors before the others, so that a table fills evenly."""
        return sorted(self.trials, key=lambda trial: (trial.pretraining, trial.seed, trial.row not in FLOORS))

    @property
    def key(self) -> str:
        """Digest of all trials, and so of every setting and file that decides a number of the report."""
        trials = (f"{trial.row} {trial.column} {trial.key} {trial.score}" for trial in self.trials)
        return digest_bytes(*(trial.encode() for trial in trials))[:8]


@dataclass(frozen=True)
class ExperimentInputs:
    """Model sizes, files and device of an experiment."""

    level: ExperimentLevel
    store: Path | None
    store_digest: str
    data: Path
    lowercase: bool
    """Whether the vocabulary is lower-case."""
    tasks: tuple[str, ...]
    """Names of presets; empty: the tasks of the paper's table."""
    device: DeviceSettings
    linear_floor: bool = True
    """Whether models without a network are floors as well."""
    model: str | None = None
    """Model folder of tables 1 and 7, in place of a pre-training."""
