"""Recorders save the metrics and weights of a run in its folder or, if it has no folder, in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from bertwright.base.files import remove_folder
from bertwright.training import checkpoint
from bertwright.training.context import ExecutionContext
from bertwright.training.loop import check_finite_weights
from bertwright.training.metrics_log import MetricLogger

if TYPE_CHECKING:
    from bertwright.training.fit import FitSettings, TrainingSpec


@contextmanager
def open_recorder(settings: FitSettings, spec: TrainingSpec[Any], context: ExecutionContext) -> Iterator[Recorder]:
    """Open the recorder of a run; records after the checkpoint that `spec` was restored from are dropped.

    Without a checkpoint, the scores before the first step are kept only with the weights that belong to them.

    Raises ValueError for metrics that cannot be read, and for a best checkpoint that is missing or damaged.
    """
    if settings.run is None:
        yield MemoryRecorder(settings, spec)
        return
    step = spec.optimizer.steps
    if step == 0 and settings.metric is not None and not checkpoint.path_of(settings.run / "best", step).is_dir():
        step = -1
    with ExitStack() as stack:
        log = MetricLogger(settings.run, step, settings.evaluation, settings.track)
        stack.push(lambda error, *_: log.close(finished=error is None))
        recorder = FolderRecorder(settings.run, settings, spec, context, log)
        for superseded in checkpoint.list_checkpoints(recorder.best):
            if checkpoint.step_of(superseded) > step:  # the resumed run writes it again
                remove_folder(superseded)
        if settings.metric is not None:
            if any(settings.metric not in record for record in log.evaluations.values()):
                raise ValueError(
                    f"{log.path}: a {settings.evaluation} record has no {settings.metric}; restore the file"
                )
            if (best := find_best_step(log.evaluations, settings.metric)) is not None:
                checkpoint.verify(checkpoint.path_of(recorder.best, best))
        yield recorder


@dataclass
class MemoryRecorder:
    """Evaluations, by step, and best weights, in memory."""

    settings: FitSettings
    spec: TrainingSpec[Any]
    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict)
    best_weights: dict[str, Tensor] = field(default_factory=dict)

    def write(self, kind: str, values: Mapping[str, float]) -> None:
        """Store the record if it is of an evaluation; other records are not needed."""
        step = self.spec.optimizer.steps
        if kind == self.settings.evaluation:
            self.evaluations[step] = {"kind": kind, "step": step} | dict(values)

    def save_best(self) -> None:
        self.save()
        self.best_weights = {name: tensor.clone() for name, tensor in self.spec.model.state_dict().items()}

    def save(self) -> None:
        """Raise DivergedError if the weights are not finite; save nothing, because this run cannot be resumed."""
        check_finite_weights(self.spec.model, self.spec.optimizer.steps)

    def load_best(self, step: int) -> None:
        self.spec.model.load_state_dict(self.best_weights)


@dataclass
class FolderRecorder:
    """Metrics and checkpoints in a run folder. Raises DivergedError before it writes weights that are not finite."""

    run: Path
    settings: FitSettings
    spec: TrainingSpec[Any]
    context: ExecutionContext
    log: MetricLogger

    @property
    def best(self) -> Path:
        return self.run / "best"

    @property
    def evaluations(self) -> Mapping[int, Mapping[str, Any]]:
        return self.log.evaluations

    def write(self, kind: str, values: Mapping[str, float]) -> None:
        self.log.write(kind, self.spec.optimizer.steps, values)

    def save_best(self) -> None:
        """Write a checkpoint without the optimizer's state, and delete superseded ones.

        If the run is killed before the next `save`, it resumes from an older step and needs the best checkpoint then.
        """
        step = self.spec.optimizer.steps
        checkpoint.save(self.best, step, self._write_model, {})
        resumed = -1  # step after which an interrupted run would continue
        if self.settings.resumable:
            latest = checkpoint.find_latest(self.run / "checkpoints")
            resumed = checkpoint.step_of(latest) if latest else 0
        for superseded in checkpoint.list_checkpoints(self.best):
            if resumed < checkpoint.step_of(superseded) < step:
                remove_folder(superseded)

    def save(self) -> None:
        """Flush the metrics, then write a checkpoint of this step and delete superseded checkpoints."""
        step = self.spec.optimizer.steps
        self.log.flush()
        if not self.settings.resumable:  # the caller writes the model
            check_finite_weights(self.spec.model, step)
        else:
            folder, state = self.run / "checkpoints", self.spec.optimizer.state()
            fields = {"environment": checkpoint.describe_environment(self.context)}
            carried = self.spec.carried.state() if self.spec.carried else None
            checkpoint.save(folder, step, self._write_model, state, fields, carried)
            checkpoint.prune(folder, self.settings.keep_last, self.settings.keep_every)
        for superseded in checkpoint.list_checkpoints(self.best)[:-1]:
            remove_folder(superseded)

    def load_best(self, step: int) -> None:
        assert self.spec.read_model is not None
        self.spec.read_model(checkpoint.path_of(self.best, step))

    def _write_model(self, folder: Path) -> None:
        check_finite_weights(self.spec.model, self.spec.optimizer.steps)
        assert self.spec.write_model is not None
        self.spec.write_model(folder)


@dataclass
class FollowingRecorder(MemoryRecorder):
    """What the other ranks do while rank 0 saves: they give their part of the optimizer's state."""

    def write(self, kind: str, values: Mapping[str, float]) -> None:
        """Write nothing."""

    def save(self) -> None:
        if self.settings.resumable:
            self.spec.optimizer.state()


Recorder = MemoryRecorder | FolderRecorder


def find_best_step(evaluations: Mapping[int, Mapping[str, Any]], metric: str) -> int | None:
    """Return the step of the first evaluation with the best score; None if there are no evaluations."""
    return max(evaluations, key=lambda step: evaluations[step][metric], default=None)
