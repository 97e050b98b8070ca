"""The engine of every training run: metrics, evaluations, best and latest checkpoints, resuming, stopping.

A kind of training provides a `Training`: its model and optimizer, restored from the newest checkpoint, its batches, its
loss and its evaluation. `fit` does everything else, for pre-training, fine-tuning and every other architecture.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from rich.console import Console
from torch import nn

from bertwright.console import format_duration, notice, say
from bertwright.files import read_json, remove_folder
from bertwright.training import checkpoint
from bertwright.training.context import ExecutionContext
from bertwright.training.distributed import any_rank, wrap
from bertwright.training.interrupt import graceful_shutdown
from bertwright.training.loop import LossModule, LossOutput, StepReport, check_finite_weights, train_steps
from bertwright.training.metrics_log import METRICS_FILE, MetricLogger, step_progress
from bertwright.training.optimizer import Optimizer
from bertwright.training.prefetch import prefetch
from bertwright.training.schedules import LRSchedule

M = TypeVar("M")
PRINT_EVERY_S = 30  # seconds between progress lines if there is no live display


@dataclass(frozen=True)
class FitSettings:
    """Length of a run, and the steps after which it logs, evaluates and saves; the last step does all three."""

    run: Path
    """Run folder; checkpoints are in its folders `checkpoints` and `best`."""
    steps: int
    """Optimizer steps in total."""
    log_every: int = 10
    """Steps per record of metrics.jsonl; a record also ends at each checkpoint."""
    eval_steps: Container[int] = ()
    """Steps after which the model is evaluated; 0 is before the first one."""
    save_steps: Container[int] = ()
    """Steps after which a checkpoint is written."""
    keep_last: int = 1
    """Number of newest checkpoints that are preserved."""
    keep_every: int | None = None
    """Checkpoints whose step is a multiple are preserved, too."""
    evaluation: str = "dev"
    """Name of the data that is evaluated on; the kind of its records in metrics.jsonl."""
    metric: str | None = None
    """Score of an evaluation that decides which checkpoint is the best; None: no best checkpoint is saved."""
    resumable: bool = True
    """Write checkpoints; False: only the best one, for a run whose folder is deleted at its end."""
    resume_command: str = "the same command"
    """Command that resumes the run."""


class Window(NamedTuple):
    """Totals of consecutive steps, which one record of metrics.jsonl summarizes."""

    sums: dict[str, float]
    steps: int
    seconds: float


def average_per_step(window: Window) -> dict[str, float]:
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
    """From a number of finished steps: this rank's micro-batches of each step that follows, on the device."""
    loss: Callable[[M], LossOutput]
    evaluate: Callable[[], Mapping[str, float]] | None = None
    """Return the scores of the model as it is."""
    write_model: Callable[[Path], None] | None = None
    """Write the model into a checkpoint; unset: its state dict, which `checkpoint.restore` loads."""
    summarize: Callable[[Window], dict[str, float]] = average_per_step
    format_metrics: Callable[[Mapping[str, float]], str] = format_first
    format_scores: Callable[[Mapping[str, float]], str] = format_first
    diagnose: Callable[[int, Mapping[str, float]], str | None] | None = None
    """From a step and its metrics: a notice for the user, if one is due."""
    find_unused_parameters: bool = False
    """A step may use only some of the parameters."""


def fit(
    settings: FitSettings, training: Training[M], context: ExecutionContext, console: Console
) -> dict[int, dict[str, Any]]:
    """Train to the last step; return the evaluations by step (on ranks other than 0, nothing).

    Continues after `training.optimizer.steps`. Ctrl-C and SIGTERM finish and save the current step, then raise
    KeyboardInterrupt. Raises ValueError for metrics or a best checkpoint that were altered since they were written,
    DivergedError for numbers that are not finite, OSError for a disk that fails; the newest checkpoint is intact in
    each case.
    """
    if not context.is_main_process:
        with graceful_shutdown() as stop_signals:  # Ctrl-C reaches all ranks, which must stop after the same step
            for _ in train_until_stopped(training, context, stop_signals):
                pass
        return {}
    step = training.optimizer.steps
    resumed = checkpoint.path_of(settings.run / "checkpoints", step) if step else None
    saved_digest = read_json(resumed / checkpoint.STATE)["metrics"] if resumed else None
    log = MetricLogger(settings.run, step, settings.evaluation, saved_digest)
    run = _Fit(settings, training, context, console, log)
    with closing(log):
        run.prepare(resumed)
        with graceful_shutdown() as stop_signals:
            run.train(stop_signals)
        if stop_signals:
            saved = f"step {training.optimizer.steps:,} is saved"
            raise KeyboardInterrupt(f"{saved}; resume with: {settings.resume_command}")
    return log.evaluations


def train_until_stopped(
    training: Training[M], context: ExecutionContext, stop_signals: Sequence[int]
) -> Generator[StepReport]:
    """Run the remaining steps on this rank; end early, after the same step on all ranks, if one received a signal."""
    loss: Any = wrap(LossModule(training.model, training.loss), training.find_unused_parameters)
    with closing(prefetch(training.batches(training.optimizer.steps))) as batches:
        for report in train_steps(loss, batches, training.optimizer, training.schedule):
            yield report
            if any_rank(bool(stop_signals), context.device):
                return


@dataclass
class _Fit(Generic[M]):
    """A run on rank 0."""

    settings: FitSettings
    training: Training[M]
    context: ExecutionContext
    console: Console
    log: MetricLogger

    @property
    def best(self) -> Path:
        return self.settings.run / "best"

    @property
    def step(self) -> int:
        return self.training.optimizer.steps

    def prepare(self, path: Path | None) -> None:
        """Check the best checkpoint; for a run that resumes from `path`, print what differs from its last process."""
        drop_best_after(self.best, self.step)
        if self.settings.metric is not None:
            check_best_checkpoint(self.settings.run, self.log.evaluations, self.settings.metric)
        if path is None:
            return
        say(self.console, f"Resuming after step {self.step:,}")
        if changes := checkpoint.environment_changes(path, self.context):
            notice(self.console, changes)

    def train(self, stop_signals: Sequence[int]) -> None:
        """Run the remaining steps; log, evaluate and save when they are due."""
        settings = self.settings
        if self.step == 0 and 0 in settings.eval_steps:
            self.evaluate()
        window: list[StepReport] = []
        first, started = self.step, time.perf_counter()
        last_print = started
        with step_progress(self.console) as progress:
            line = progress.add_task("", total=settings.steps, completed=first, metrics="")
            for report in train_until_stopped(self.training, self.context, stop_signals):
                step, last = report.step, report.step == settings.steps
                saving = last or step in settings.save_steps
                window.append(report)
                if saving or step % settings.log_every == 0:
                    text = self.write_metrics(window)
                    window = []
                    progress.update(line, metrics=text)
                    if not self.console.is_terminal and (now := time.perf_counter()) - last_print > PRINT_EVERY_S:
                        left = format_duration((settings.steps - step) * (now - started) / (step - first))
                        say(self.console, f"step {step:,} of {settings.steps:,}: {text}, {left} left")
                        last_print = now
                progress.update(line, completed=step)
                if last or step in settings.eval_steps:
                    self.evaluate()
                if saving and not last:
                    self.save()
        if window:  # interrupted: a record ends at each checkpoint
            self.write_metrics(window)
        self.save()

    def write_metrics(self, reports: Sequence[StepReport]) -> str:
        """Log the metrics of some steps; return them as text."""
        seconds = sum(report.seconds for report in reports)
        sums = {name: sum(report.sums[name] for report in reports) for name in reports[0].sums}
        rates = {"learning_rate": reports[-1].learning_rate, "gradient_norm": reports[-1].gradient_norm}
        metrics = self.training.summarize(Window(sums, len(reports), seconds)) | rates
        self.log.write("train", reports[-1].step, metrics)
        if self.training.diagnose and (text := self.training.diagnose(reports[-1].step, metrics)):
            notice(self.console, text)
        return self.training.format_metrics(metrics)

    def evaluate(self) -> None:
        """Score the model and save it if it is the best so far, unless the log has the scores of this step."""
        metric, evaluations = self.settings.metric, self.log.evaluations
        if self.training.evaluate is None or self.step in evaluations:
            return
        scores = self.training.evaluate()
        is_best = metric is not None and all(scores[metric] > record[metric] for record in evaluations.values())
        self.log.write(self.settings.evaluation, self.step, scores)
        if is_best:  # the previous best remains until the next checkpoint: a run killed before that resumes from there
            keep_last = None if self.settings.resumable else 1
            checkpoint.save(self.best, self.step, self.write_model, {}, keep_last)
        text = f"{self.settings.evaluation.replace('_', ' ')} after step {self.step:,}"
        say(self.console, f"{text}: {self.training.format_scores(scores)}{' *' if is_best else ''}")

    def save(self) -> None:
        """Write a checkpoint of this step, after flushing the metrics; delete superseded ones."""
        self.log.flush()
        if not self.settings.resumable:  # the caller writes the model
            check_finite_weights(self.training.model, self.step)
        else:
            fields = {"metrics": self.log.digest, "environment": checkpoint.describe_environment(self.context)}
            folder, state = self.settings.run / "checkpoints", self.training.optimizer.state()
            checkpoint.save(folder, self.step, self.write_model, state, None, fields)
            checkpoint.prune(folder, self.settings.keep_last, self.settings.keep_every)
        for superseded in checkpoint.list_checkpoints(self.best)[:-1]:
            remove_folder(superseded)

    def write_model(self, folder: Path) -> None:
        """Write the model into a checkpoint; raises DivergedError if its weights are not finite."""
        check_finite_weights(self.training.model, self.step)
        (self.training.write_model or partial(checkpoint.write_weights, model=self.training.model))(folder)


def drop_best_after(best: Path, step: int) -> None:
    """Delete best checkpoints after a step: a resumed run finds them again."""
    for path in checkpoint.list_checkpoints(best):
        if checkpoint.step_of(path) > step:
            remove_folder(path)


def check_best_checkpoint(run: Path, evaluations: Mapping[int, Mapping[str, Any]], metric: str) -> None:
    """Raise ValueError if the best checkpoint is not that of the evaluation with the best score."""
    best = checkpoint.latest(run / "best")
    expected = max(evaluations, key=lambda step: evaluations[step][metric], default=None)  # of equal ones the first
    if expected == (best and checkpoint.step_of(best)):
        return
    if best is None:
        remaining = checkpoint.list_checkpoints(run / "checkpoints")[-1]
        problem = f"the best checkpoint, of step {expected:,}, is missing"
    else:
        remaining = best
        problem = f"{METRICS_FILE} lacks the scores of the best checkpoint, {best.name}"
    raise ValueError(f"{run}: {problem}; start again in another folder, or use {remaining} as it is")
