"""Tables of the paper as data: rows, the paper's figures and its claims. This module does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from bertwright.models.representations import RepresentationName
from bertwright.tasks.linear_floor import LINEAR, LOOKUP
from bertwright.trials.ladder_settings import FLOOR
from bertwright.trials.levels import Shape

if TYPE_CHECKING:
    from bertwright.trials.experiment_plan import Plan
    from bertwright.trials.planner import Planner

T = TypeVar("T")
Objective = Literal["mlm+nsp", "mlm", "ltr", "rtl"]
Figures = Mapping[str, Mapping[str, float]]
"""Figures of the paper (Devlin et al. 2018) by row and column, in percent; perplexities are not scaled. A column is
named as the task's preset, or PRESET EM for SQuAD's exact match; a row as the system in the paper's table."""

PERPLEXITY, FEATURES = "perplexity", "features"  # columns without fine-tuning
FREQUENT, RANDOM = FLOOR, "random weights"
FLOORS = (FREQUENT, LOOKUP, LINEAR, RANDOM)  # rows of every table: the floors of its columns
CURVE_CHECKPOINTS = 10  # evenly spaced checkpoints of a pre-training, which figure 5 shows
ACCURACY = {"mrpc": "accuracy"}  # metric in tables 5 and 6; table 1 has F1
UNTRAINED_POOLER = (
    "Only next-sentence prediction trains the pooler; after the other objectives, sentence tasks start from its "
    "initial weights."
)


class Claim(NamedTuple):
    """A statement of the paper: one row is better than another."""

    text: str
    better: str
    worse: str
    columns: tuple[str, ...] = ()
    """Columns over which the difference is averaged, if they were run; empty: all tasks."""


@dataclass(frozen=True)
class Row:
    """How the model of a row is pre-trained and what is trained on it."""

    objective: Objective = "mlm+nsp"
    data: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the examples in which the row differs."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the model in which the row differs."""
    shape: Shape | None = None
    """None: the level's."""
    is_random: bool = False
    """Whether the model is not trained."""
    beside: Objective | None = None
    """Objective of a second model, whose states are concatenated."""
    has_lstm: bool = False
    """Whether a new BiLSTM reads the states."""
    step: int | None = None
    """Checkpoint that is fine-tuned; None: the last."""
    pooling: str | None = None
    only: tuple[str, ...] = ()
    """Tasks of the row; empty: all."""
    is_tuned: bool = True
    features: RepresentationName | None = None
    """Frozen states on which heads are trained for CoNLL-2003."""
    feature_column: str = FEATURES


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper. Where a field has a function, the value depends on the level or on the user's model."""

    title: str
    tasks: tuple[tuple[str, ...], ...]
    """Tasks, or in the order of preference several lists: the first list counts whose first task has files."""
    rows: Mapping[str, Row] | Callable[[Planner], Mapping[str, Row]]
    claims: tuple[Claim, ...] | Callable[[Planner], tuple[Claim, ...]] = ()
    figures: Figures | Callable[[Planner], Figures] = field(default_factory=dict)
    notes: tuple[str, ...] | Callable[[Planner], tuple[str, ...]] = ()
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Metrics of tasks that replace their own."""
    has_perplexity: bool = False
    takes_model: bool = False
    """Whether a model folder of the user may stand for the pre-trainings."""
    only_task: str = ""
    """The task of a table that is about one; "": `--tasks` chooses."""
    is_curve: bool = False
    """Whether each checkpoint is fine-tuned: levels then have fewer seeds and rates, and tasks read short sequences."""
    has_all_scores: bool = False
    """Whether exact matches and scores on test have columns of their own."""
    parts: tuple[str, ...] = ()
    """Names of the paper's tables that it contains and that have no file of their own."""
    finish: Callable[[Plan], Plan] = lambda plan: plan
    """Adds what depends on the columns."""


def at(value: T | Callable[[Planner], T], planner: Planner) -> T:
    """Return a field of a table for a level."""
    return value(planner) if callable(value) else value
