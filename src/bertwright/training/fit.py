"""The engine of every training run: metrics, evaluations, best and latest checkpoints, resuming, stopping.

A kind of training provides a `TrainingSpec`: batches, loss, evaluation, and the model and optimizer, already restored
from the newest checkpoint. `fit` does everything else. Pre-training, fine-tuning, heads on frozen features and other
architectures all use it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, cast

from safetensors.torch import load_file
from torch import Tensor, nn

from bertwright.base.reporter import MUTE, Line, Reporter
from bertwright.kernels.fused_encoder import release_memory
from bertwright.training import checkpoint
from bertwright.training.context import ExecutionContext
from bertwright.training.distributed import any_rank, run_on_rank_0, wrap
from bertwright.training.divided_weights import copy_weights, shard
from bertwright.training.loop import Loss, LossModule, StepResult, Stopwatch, prefetch, train_steps, wrap_forward
from bertwright.training.optimizer import Optimizer
from bertwright.training.optimizer_settings import LRSchedule
from bertwright.training.recorder import FollowingRecorder, Recorder, find_best_step, open_recorder
from bertwright.training.tracking import TrackerName

if TYPE_CHECKING:
    from bertwright.models.encoder import EncoderModel

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
    """Every checkpoint at a multiple of this number of steps is preserved. None: no more than `keep_last`."""
    evaluation: str = "dev"
    """Name of the evaluation data, which is also the kind of its records in metrics.jsonl."""
    metric: str | None = None
    """Name of the score that decides which weights are the best. None: the weights of the last step are the result."""
    patience: int | None = None
    """Stop after this many evaluations in a row without a better score. None: train to the last step."""
    track: TrackerName | None = None
    """Program that gets a copy of each record of metrics.jsonl."""
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
    return {name: total / window.steps for name, total in window.sums.items()}


def format_first(metrics: Mapping[str, float]) -> str:
    """Format the first two metrics.

    >>> format_first({"loss": 0.51234, "accuracy": 1.0, "seconds": 3.0})
    'loss 0.5123, accuracy 1'
    """
    return ", ".join(f"{name} {value:.4g}" for name, value in list(metrics.items())[:2])


class CarriedState(Protocol):
    """State that each step hands to the next one, such as the hidden state of a recurrent model or a sampler's cache.

    Checkpoints save it, and a resumed run loads it.
    """

    def state(self) -> dict[str, Tensor]: ...
    def load_state(self, state: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class TrainingSpec(Generic[M]):
    """A kind of training: everything that `fit` does not know itself."""

    model: nn.Module
    optimizer: Optimizer
    schedule: LRSchedule
    batches: Callable[[int], Iterator[Sequence[M]]]
    """From the number of finished steps: this rank's micro-batches of each remaining step, on the device."""
    loss: Loss[M]
    """From a micro-batch: its share of the step's loss; or a `WholeBatchLoss`, in which all rows of a step meet."""
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
    divided: EncoderModel | None = None
    """A copy of `model` on the CPU, if the ranks divide its weights (`divided_weights.py`): `loss` and `optimizer` use
    the copy, and rank 0 copies its weights into `model` to evaluate and to write them. None: each rank has all."""
    carried: CarriedState | None = None
    """State that `batches` and `loss` may use and change. Batches are then not made ahead, and there is one rank."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    """Gets the seconds of each part of the work."""


class FitResult(NamedTuple):
    """Evaluations of a finished run, and the step whose weights its model now has."""

    evaluations: Mapping[int, Mapping[str, Any]]
    """Records by step; empty on ranks other than 0."""
    step: int
    """Step of the best evaluation, or the last step if no metric selects one."""

    @property
    def scores(self) -> dict[str, float]:
        """Scores after `step`."""
        return scores_of(self.evaluations[self.step])


def scores_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores in a record of an evaluation."""
    return {name: value for name, value in record.items() if name not in ("kind", "step")}


def fit(settings: FitSettings, spec: TrainingSpec[M], context: ExecutionContext, reporter: Reporter) -> FitResult:
    """Train to the last step, then load the best weights into the model.

    Training starts after the step `spec.optimizer.steps`. After Ctrl-C or SIGTERM, the current step is finished
    and saved; then KeyboardInterrupt is raised, unless it was the last step. Raises ValueError for metrics that cannot
    be read and for a missing or damaged best checkpoint, DivergedError for numbers that are not finite, OSError for a
    disk that fails; the newest checkpoint is intact in each case.
    """
    if spec.carried is not None:
        if context.world_size > 1:
            raise ValueError("torchrun: a state that steps carry belongs to one process; start it without torchrun")
        if settings.run is not None and spec.optimizer.steps:
            resumed = checkpoint.path_of(settings.run / "checkpoints", spec.optimizer.steps)
            spec.carried.load_state(load_file(resumed / checkpoint.CARRIED))
    with ExitStack() as stack:
        stack.callback(release_memory)
        opened: list[Recorder] = []
        run_on_rank_0(
            lambda: opened.append(stack.enter_context(open_recorder(settings, spec, context))),
            settings.run,
            context.device,
        )
        if opened:
            return _Fit(settings, spec, context, reporter, opened[0]).run()
        follower = _Fit(settings, replace(spec, evaluate=None), context, MUTE, FollowingRecorder(settings, spec))
        with graceful_shutdown() as stop_signals:  # Ctrl-C reaches all ranks, which must stop after the same step
            follower.train(stop_signals)
        return FitResult({}, spec.optimizer.steps)


class StopSignals(list[int]):
    """Signals that have asked this process to stop. As a handler it appends the first; a second one interrupts."""

    def __call__(self, number: int, _frame: object) -> None:
        if self:
            raise KeyboardInterrupt
        self.append(number)


@contextmanager
def graceful_shutdown() -> Iterator[StopSignals]:
    """Yield a list and append Ctrl-C and SIGTERM to it, so that the caller can finish and save the current step.

    A second signal raises KeyboardInterrupt at once. A signal that this process ignores (a shell's `&`, `nohup`) is
    still ignored. Only the main thread receives signals; in other threads the list stays empty. Within another such
    block, both blocks know the signals of either.
    """
    if threading.current_thread() is not threading.main_thread():
        yield StopSignals()
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # None: a handler that was not installed from Python, which cannot be restored.
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    outer = next((handler for handler in before.values() if isinstance(handler, StopSignals)), None)
    stop_signals = StopSignals() if outer is None else outer
    for number in before:
        signal.signal(number, stop_signals)
    try:
        yield stop_signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def gather_weights(spec: TrainingSpec[Any]) -> None:
    """Update `spec.model` on rank 0, if the ranks divide its weights. All ranks must call this together."""
    if spec.divided is not None:
        copy_weights(spec.divided, spec.model)


def train_until_stopped(
    spec: TrainingSpec[M],
    context: ExecutionContext,
    stop_signals: Sequence[int],
    is_over: Callable[[], bool] = lambda: False,
) -> Generator[StepResult]:
    """Run the remaining steps on this rank. If any rank receives a signal or is over, all stop after the same step.

    `is_over`: whether the training stops early; asked before the first step, too, because a resumed run may be over.
    """
    if any_rank(is_over(), context.device):
        return

    def connect(forward: Callable[[M], Any]) -> nn.Module:
        """Let the ranks exchange the gradients of what runs the model."""
        module = LossModule(spec.divided or spec.model, forward)
        if spec.divided is None:
            return wrap(module, spec.find_unused_parameters)
        return shard(module, cast(nn.ModuleList, spec.divided.encoder.layers), context.device)

    loss = wrap_forward(spec.loss, connect)
    if spec.divided is not None:
        spec.optimizer.divide(spec.divided)
    made = spec.batches(spec.optimizer.steps)
    # Batches that are made ahead would change the state before a checkpoint saves it.
    ahead: AbstractContextManager[Any] = closing(prefetch(made)) if spec.carried is None else nullcontext(made)
    with ahead as batches:
        for result in train_steps(loss, batches, spec.optimizer, spec.schedule, spec.watch):
            yield result
            if any_rank(bool(stop_signals) or is_over(), context.device):
                return


@dataclass
class _Fit(Generic[M]):
    """A run on one rank; only rank 0 evaluates, saves and reports."""

    settings: FitSettings
    spec: TrainingSpec[M]
    context: ExecutionContext
    reporter: Reporter
    recorder: Recorder

    @property
    def step(self) -> int:
        return self.spec.optimizer.steps

    def run(self) -> FitResult:
        settings, evaluations = self.settings, self.recorder.evaluations
        if settings.run is not None and self.step:
            self.reporter.record(Line(f"Resuming after step {self.step:,}"))
            resumed = checkpoint.path_of(settings.run / "checkpoints", self.step)
            if changes := checkpoint.describe_environment_changes(resumed, self.context):
                self.reporter.note(changes)
        with graceful_shutdown() as stop_signals:
            self.train(stop_signals)
        if self.is_over():
            evaluated = f"{settings.patience} evaluations without a better {settings.metric}"
            self.reporter.record(Line(f"Stopped early after step {self.step:,} of {settings.steps:,}: {evaluated}"))
        elif self.step < settings.steps:  # after a signal to any rank; one during the last step interrupts nothing
            is_saved = settings.run is not None and settings.resumable
            outcome = f"is saved; resume with: {settings.resume_command}" if is_saved else "is not saved"
            raise KeyboardInterrupt(f"step {self.step:,} {outcome}")
        best = None if settings.metric is None else find_best_step(evaluations, settings.metric)
        if best is None:
            return FitResult(evaluations, self.step)
        self.recorder.load_best(best)
        return FitResult(evaluations, best)

    def is_over(self) -> bool:
        """Tell whether the last `patience` evaluations have not improved the best score. Their records decide alone."""
        patience, metric, evaluations = self.settings.patience, self.settings.metric, self.recorder.evaluations
        if patience is None or metric is None or self.step == self.settings.steps:
            return False
        best = find_best_step(evaluations, metric)
        return best is not None and sum(step > best for step in evaluations) >= patience

    def train(self, stop_signals: Sequence[int]) -> None:
        """Run the remaining steps; log, evaluate and save when they are due."""
        settings = self.settings
        if self.step == settings.steps or (self.step == 0 and 0 in settings.eval_steps):
            self.evaluate()  # after the last step only if metrics.jsonl was lost
        window: list[StepResult] = []
        with self.reporter.progress("training", settings.steps, "steps", self.step) as advance:
            for result in train_until_stopped(self.spec, self.context, stop_signals, self.is_over):
                step, last = result.step, result.step == settings.steps
                saving, evaluating = last or step in settings.save_steps, last or step in settings.eval_steps
                window.append(result)
                if evaluating:
                    result.read()  # no scores of a model that has diverged
                self.spec.watch.mark("wait")
                if saving or step % settings.log_every == 0:
                    advance(1, self.write_metrics(window))
                    window = []
                else:
                    advance(1)
                self.spec.watch.mark("log")
                if saving or evaluating:
                    gather_weights(self.spec)
                if evaluating:
                    self.evaluate()
                if saving and not last:
                    self.recorder.save()
                    self.spec.watch.mark("checkpoint")
        if window:  # after an interruption: the checkpoint must contain a record of all its steps
            self.write_metrics(window)
        gather_weights(self.spec)
        self.recorder.save()
        self.spec.watch.mark("checkpoint")

    def write_metrics(self, results: Sequence[StepResult]) -> str:
        """Log the metrics of some steps; return them as text."""
        sums = {name: sum(result.sums[name] for result in results) for name in results[0].sums}
        seconds = sum(result.seconds for result in results)  # after the numbers, for which a GPU may need time
        rates = {"learning_rate": results[-1].learning_rate, "gradient_norm": results[-1].gradient_norm}
        work = ({"tokens": sums["tokens"]} if "tokens" in sums else {}) | {"seconds": seconds}
        metrics = self.spec.summarize(MetricWindow(sums, len(results), seconds)) | rates | work
        self.recorder.write("train", metrics)
        if self.spec.diagnose and (text := self.spec.diagnose(results[-1].step, metrics)):
            self.reporter.note(text)
        return self.spec.format_metrics(metrics)

    def evaluate(self) -> None:
        """Score the model, and save it if it is the best so far; skip a step whose scores are already recorded."""
        metric, evaluations = self.settings.metric, self.recorder.evaluations
        if self.spec.evaluate is None or self.step in evaluations:
            return
        scores = self.spec.evaluate()
        is_best = metric is not None and all(scores[metric] > record[metric] for record in evaluations.values())
        self.recorder.write(self.settings.evaluation, scores)
        self.spec.watch.mark("evaluation")
        if is_best:
            self.recorder.save_best()
            self.spec.watch.mark("checkpoint")
        if self.spec.format_scores is not None:
            text = f"{self.settings.evaluation.replace('_', ' ')} after step {self.step:,}"
            self.reporter.record(Line(f"{text}: {self.spec.format_scores(scores)}{' *' if is_best else ''}"))
