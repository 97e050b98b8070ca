"""The engine of every training run: metrics, evaluations, best and latest checkpoints, resuming, stopping.

A kind of training provides a `Training`: its batches, its loss, its evaluation, and the model and optimizer, already
restored from the newest checkpoint. `fit` does everything else. Pre-training, fine-tuning, heads on frozen features and
other architectures all use it.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from rich.console import Console

from bertwright.console import format_duration, notice, say
from bertwright.training import checkpoint
from bertwright.training.context import ExecutionContext
from bertwright.training.definition import FitSettings, MetricWindow, Training
from bertwright.training.distributed import any_rank, wrap
from bertwright.training.interrupt import graceful_shutdown
from bertwright.training.loop import LossModule, StepResult, train_steps
from bertwright.training.metrics_log import step_progress
from bertwright.training.prefetch import prefetch
from bertwright.training.recorder import Recorder, find_best_step, open_recorder

M = TypeVar("M")
PRINT_EVERY_S = 30  # seconds between progress lines if there is no live display


class FitResult(NamedTuple):
    """Evaluations of a finished run, and the step of the weights that its model now has."""

    evaluations: Mapping[int, Mapping[str, Any]]
    """Records by step; empty on ranks other than 0."""
    step: int
    """Step of the weights: that of the best evaluation, or the last step if no metric selects one."""

    @property
    def scores(self) -> dict[str, float]:
        """Scores of these weights."""
        return {name: value for name, value in self.evaluations[self.step].items() if name not in ("kind", "step")}


def fit(settings: FitSettings, training: Training[M], context: ExecutionContext, console: Console) -> FitResult:
    """Train to the last step, then load the best weights into the model.

    Training starts after the step `training.optimizer.steps`. After Ctrl-C or SIGTERM, the current step is finished
    and saved; then KeyboardInterrupt is raised. Raises ValueError for metrics or a best checkpoint that were altered
    since they were written, DivergedError for numbers that are not finite, OSError for a disk that fails; the newest
    checkpoint is intact in each case.
    """
    if not context.is_main_process:
        with graceful_shutdown() as stop_signals:  # Ctrl-C reaches all ranks, which must stop after the same step
            for _ in train_until_stopped(training, context, stop_signals):
                pass
        return FitResult({}, training.optimizer.steps)
    with open_recorder(settings, training, context) as recorder:
        return _Fit(settings, training, context, console, recorder).run()


def train_until_stopped(
    training: Training[M], context: ExecutionContext, stop_signals: Sequence[int]
) -> Generator[StepResult]:
    """Run the remaining steps on this rank. If any rank receives a signal, all ranks stop after the same step."""
    loss: Any = wrap(LossModule(training.model, training.loss), training.find_unused_parameters)
    with closing(prefetch(training.batches(training.optimizer.steps))) as batches:
        for result in train_steps(loss, batches, training.optimizer, training.schedule):
            yield result
            if any_rank(bool(stop_signals), context.device):
                return


@dataclass
class _Fit(Generic[M]):
    """A run on rank 0."""

    settings: FitSettings
    training: Training[M]
    context: ExecutionContext
    console: Console
    recorder: Recorder

    @property
    def step(self) -> int:
        return self.training.optimizer.steps

    def run(self) -> FitResult:
        """Run the remaining steps, then load the best weights."""
        settings, evaluations = self.settings, self.recorder.evaluations
        if settings.run is not None and self.step:
            say(self.console, f"Resuming after step {self.step:,}")
            resumed = checkpoint.path_of(settings.run / "checkpoints", self.step)
            if changes := checkpoint.describe_environment_changes(resumed, self.context):
                notice(self.console, changes)
        with graceful_shutdown() as stop_signals:
            self.train(stop_signals)
        if stop_signals or self.step < settings.steps:  # the latter after a signal to another rank alone
            is_saved = settings.run is not None and settings.resumable
            outcome = f"is saved; resume with: {settings.resume_command}" if is_saved else "is not saved"
            raise KeyboardInterrupt(f"step {self.step:,} {outcome}")
        best = None if settings.metric is None else find_best_step(evaluations, settings.metric)
        if best is None:
            return FitResult(evaluations, self.step)
        self.recorder.load_best(best)
        return FitResult(evaluations, best)

    def train(self, stop_signals: Sequence[int]) -> None:
        """Run the remaining steps; log, evaluate and save when they are due."""
        settings = self.settings
        if self.step == 0 and 0 in settings.eval_steps:
            self.evaluate()
        window: list[StepResult] = []
        first, started = self.step, time.perf_counter()
        last_print = started
        with step_progress(self.console) as progress:
            line = progress.add_task("", total=settings.steps, completed=first, metrics="")
            for result in train_until_stopped(self.training, self.context, stop_signals):
                step, last = result.step, result.step == settings.steps
                saving = last or step in settings.save_steps
                window.append(result)
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
                    self.recorder.save()
        if window:  # after an interruption: the checkpoint must contain a record of all its steps
            self.write_metrics(window)
        self.recorder.save()

    def write_metrics(self, results: Sequence[StepResult]) -> str:
        """Log the metrics of some steps; return them as text."""
        seconds = sum(result.seconds for result in results)
        sums = {name: sum(result.sums[name] for result in results) for name in results[0].sums}
        rates = {"learning_rate": results[-1].learning_rate, "gradient_norm": results[-1].gradient_norm}
        metrics = self.training.summarize(MetricWindow(sums, len(results), seconds)) | rates
        self.recorder.write("train", metrics)
        if self.training.diagnose and (text := self.training.diagnose(results[-1].step, metrics)):
            notice(self.console, text)
        return self.training.format_metrics(metrics)

    def evaluate(self) -> None:
        """Score the model, and save it if it is the best so far; skip a step whose scores are already recorded."""
        metric, evaluations = self.settings.metric, self.recorder.evaluations
        if self.training.evaluate is None or self.step in evaluations:
            return
        scores = self.training.evaluate()
        is_best = metric is not None and all(scores[metric] > record[metric] for record in evaluations.values())
        self.recorder.write(self.settings.evaluation, scores)
        if is_best:
            self.recorder.save_best()
        if self.training.format_scores is not None:
            text = f"{self.settings.evaluation.replace('_', ' ')} after step {self.step:,}"
            say(self.console, f"{text}: {self.training.format_scores(scores)}{' *' if is_best else ''}")
