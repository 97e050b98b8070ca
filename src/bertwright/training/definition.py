"""Definition of a training run: the functions of a kind of training, and the steps at which `fit` calls them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from torch import nn

from bertwright.training.loop import LossOutput
from bertwright.training.optimizer import Optimizer
from bertwright.training.schedules import LRSchedule

M = TypeVar("M")


@dataclass(frozen=True)
class FitSettings:
    """Length of a run, and the steps after which it logs, evaluates and saves.

    It also does all three after the last step.
    """

    run: Path | None
    """Run folder, with checkpoints in `checkpoints` and `best`. None: nothing is written."""
    steps: int
    """Optimizer steps in total."""
    log_every: int = 10
    """Steps per record of metrics.jsonl; a record also ends at each checkpoint."""
    eval_steps: Container[int] = ()
    """Steps after which the model is evaluated; 0: before the first step."""
    save_steps: Container[int] = ()
    """Steps after which a checkpoint is written."""
    keep_last: int = 1
    """Number of newest checkpoints that are preserved."""
    keep_every: int | None = None
    """Checkpoints whose step is a multiple of this number are preserved, too. None: no others."""
    evaluation: str = "dev"
    """Name of the evaluation data, which is also the kind of its records in metrics.jsonl."""
    metric: str | None = None
    """Name of the score that decides which weights are the best. None: the weights of the last step are the result."""
    resumable: bool = True
    """Write checkpoints to resume from. False: only the best checkpoint, because the caller deletes the run folder."""
    resume_command: str = "the same command"
    """Command that resumes the run."""


class MetricWindow(NamedTuple):
    """Totals of the consecutive steps that one record of metrics.jsonl summarizes."""

    sums: dict[str, float]
    steps: int
    seconds: float


def average_per_step(window: MetricWindow) -> dict[str, float]:
    """Return the mean of each sum over the steps."""
    return {name: total / window.steps for name, total in window.sums.items()}


def format_first(metrics: Mapping[str, float]) -> str:
    """Format the first two metrics.

    >>> format_first({"loss": 0.51234, "accuracy": 1.0, "seconds": 3.0})
    'loss 0.5123, accuracy 1'
    """
    return ", ".join(f"{name} {value:.4g}" for name, value in list(metrics.items())[:2])


@dataclass(frozen=True)
class Training(Generic[M]):
    """A kind of training: everything that `fit` does not know itself."""

    model: nn.Module
    optimizer: Optimizer
    schedule: LRSchedule
    batches: Callable[[int], Iterator[Sequence[M]]]
    """From the number of finished steps: this rank's micro-batches of each remaining step, on the device."""
    loss: Callable[[M], LossOutput]
    evaluate: Callable[[], Mapping[str, float]] | None = None
    """Return the scores of the model with its current weights. None: no evaluations."""
    write_model: Callable[[Path], None] | None = None
    """Write the model into a checkpoint. None: the run has no folder."""
    read_model: Callable[[Path], None] | None = None
    """Load the weights of a checkpoint that `write_model` wrote. None: the run has no folder, or selects no weights."""
    summarize: Callable[[MetricWindow], dict[str, float]] = average_per_step
    format_metrics: Callable[[Mapping[str, float]], str] = format_first
    format_scores: Callable[[Mapping[str, float]], str] | None = format_first
    """Format the scores of an evaluation for the line that reports it. None: no line is printed."""
    diagnose: Callable[[int, Mapping[str, float]], str | None] | None = None
    """From a step and its metrics: a notice for the user, if one is due."""
    find_unused_parameters: bool = False
    """A step may use only some of the parameters."""
