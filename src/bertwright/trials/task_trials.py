"""Trials on the files of a task: fine-tuning, heads on frozen features."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from bertwright.base.files import digest_bytes, read_json, remove_folder, remove_stale_parts
from bertwright.base.reporter import MUTE, Reporter
from bertwright.base.settings import default_table, to_table
from bertwright.finetuning.finetune_cost import CostEstimator, open_timed
from bertwright.finetuning.finetune_state import open_run
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import RESUME_OVERRIDES as FINETUNE_OVERRIDES
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.model_files import digest_model
from bertwright.tasks.prediction import evaluate_examples
from bertwright.tasks.presets import SPLITS, TaskSettings
from bertwright.text.sources import digest_input
from bertwright.training import checkpoint
from bertwright.training.context import execution_context
from bertwright.training.loop import DivergedError
from bertwright.training.run_folder import INITIAL_WEIGHTS, delete_weights
from bertwright.trials.probe import measure_probe, probe
from bertwright.trials.probe_data import EXAMPLES as PROBE_EXAMPLES
from bertwright.trials.probe_settings import RESUME_OVERRIDES as PROBE_OVERRIDES
from bertwright.trials.probe_settings import ProbeSettings
from bertwright.trials.runner import FORMER_RESULTS
from bertwright.trials.trial import ONE_LABEL, RESULT, Cost, Digests, Trial, start_or_resume

S = TypeVar("S", FinetuneSettings, ProbeSettings)


@dataclass(frozen=True)
class TaskTrial(Trial):
    """A trial on a task's files, with the model of its parent or a model folder."""

    settings: FinetuneSettings | ProbeSettings

    def digest_inputs(self) -> Digests:
        """Digest the task's files, and the model if no trial makes it."""
        return digest_task_inputs(self.settings.task, None if self.parents else self.settings.model)

    @property
    def selection(self) -> str:
        """Name of the score whose mean selects the rate."""
        return "dev"

    @property
    def likeness(self) -> Hashable:
        """Its kind, the task, and the sizes of the model."""
        return self.kind, self.settings.task, self.shape

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the result: all options of the task's preset, but no paths."""
        identity = super().identity
        table = identity["settings"]
        table.pop("model", None)  # the digests or the parents stand for it
        task = {name: value for name, value in table["task"].items() if name not in ("data", *SPLITS)}
        table["task"] = task | to_table(self.settings.task.build_task())
        return identity

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Defaults of the settings and of the task's options."""
        defaults = super().defaults
        return defaults | {"task": defaults["task"] | default_table(self.settings.task.build_task())}


@dataclass(frozen=True)
class Finetune(TaskTrial):
    """Fine-tuning of a trial's model, or of a model folder, scored on dev by its best evaluation."""

    settings: FinetuneSettings
    step: int | None = None
    """Checkpoint of the pre-training to start from; None: its last."""

    kind: ClassVar[str] = "finetune"
    described: ClassVar[str] = "fine-tuning"

    @cached_property
    def identity(self) -> dict[str, Any]:
        return super().identity | ({} if self.step is None else {"step": self.step})

    def run(self, folder: Path, parents: Sequence[Path], reporter: Reporter) -> Mapping[str, float]:
        """Fine-tune; return the scores on dev and on test, and the task's metric as "dev" and "test"."""
        finetune(self.started(folder, parents), reporter)
        report = read_json(folder / "report.json")
        scores = {split: values[report["metric"]] for split, values in report["scores"].items()}
        test = {f"test_{name}": value for name, value in report["scores"].get("test", {}).items()}
        return {**report["scores"].get("dev", {}), **test, **scores}

    def started(self, folder: Path, parents: Sequence[Path]) -> FinetuneSettings:
        """Return the settings to start the run in a folder, or to resume it."""
        return start_or_resume(with_model_of(self.settings, parents, self.step), folder, FINETUNE_OVERRIDES)

    def measure(self, models: Sequence[Path]) -> Cost:
        settings = with_model_of(self.settings, models)
        with execution_context(settings.device) as context:
            state, opening = open_timed(settings, context, MUTE)
            estimator = CostEstimator(state, context)
            seconds = estimator.estimate(settings).seconds
        # A run is opened and dev predicted twice: for its score, and for the per-example statistics.
        return Cost(2 * opening, seconds + estimator.dev, len(state.train.examples), settings.tuning.limit)

    def prune(self, folder: Path) -> None:
        delete_weights(folder, with_model=True)


@dataclass(frozen=True)
class LastStepFinetune(Finetune):
    """Fine-tuning whose last step is scored, with numbers for each dev example."""

    def run(self, folder: Path, parents: Sequence[Path], reporter: Reporter) -> Mapping[str, float]:
        """Fine-tune, then predict the dev examples with the last weights and write their numbers."""
        scores = super().run(folder, parents, reporter)
        settings = replace(self.started(folder, parents), resume=True)
        with execution_context(settings.device) as context:
            state = open_run(settings, context, reporter)
            assert state.dev is not None
            predictions = evaluate_examples(state.model, state.task, state.dev.examples, state.dev.encoded).predictions
        if numbers := state.task.example_scores(state.dev.examples, predictions):
            numbers.save(folder.parent / "dev.npz")
        return {**scores, ONE_LABEL: float(bool(state.task.single_class_warnings(predictions)))}


@dataclass(frozen=True)
class Probe(TaskTrial):
    """Heads on the frozen states of a trial's model, or of a model folder; one score per head."""

    settings: ProbeSettings

    kind: ClassVar[str] = "probe"
    described: ClassVar[str] = "heads on frozen features"

    @property
    def selection(self) -> str:
        """Name of the score whose mean selects the rate: the head's own."""
        return self.score

    def run(self, folder: Path, parents: Sequence[Path], reporter: Reporter) -> Mapping[str, float]:
        """Train the heads; return scores by the name of each head. What an earlier version has begun starts again."""
        if (folder / FORMER_RESULTS).is_file():
            remove_folder(folder)
        probe(start_or_resume(with_model_of(self.settings, parents), folder, PROBE_OVERRIDES), reporter)
        results = {path.parent.name: read_json(path) for path in sorted(folder.glob(f"runs/*/{RESULT}"))}
        if failures := [f"{name}: {result['failure']}" for name, result in results.items() if result["failure"]]:
            raise DivergedError(failures[0])
        return {name: result["scores"]["dev"] for name, result in results.items()}

    def measure(self, models: Sequence[Path]) -> Cost:
        settings = with_model_of(self.settings, models)
        (_, cost), heads = measure_probe(settings, MUTE), len(settings.seeds) * len(settings.learning_rates)
        return Cost(cost.opening, cost.features + heads * cost.heads, cost.examples, settings.limit)

    def examples_file(self, folder: Path) -> Path:
        """Return the file that the probe wrote for a head."""
        return folder / PROBE_EXAMPLES / f"{self.score}.npz"

    def prune(self, folder: Path) -> None:
        remove_stale_parts(folder)
        if (folder / "features").is_dir():
            remove_folder(folder / "features")


def with_model_of(settings: S, parents: Sequence[Path], step: int | None = None) -> S:
    """Return the settings with the model of the parent, or its checkpoint after a step; unchanged without a parent.

    A head reads [CLS] as in the paper unless the settings say otherwise, also where pre-training left out the pooler.
    """
    if not parents:
        return settings
    model = parents[0] / "model" if step is None else checkpoint.path_of(parents[0] / "checkpoints", step)
    settings = replace(settings, model=str(model))
    if settings.task.build_task().pooling is None:
        return settings
    if isinstance(settings, ProbeSettings):
        return replace(settings, pooling=settings.pooling or "cls")
    return replace(settings, tuning=replace(settings.tuning, pooling=settings.tuning.pooling or "cls"))


def digest_task_inputs(task: TaskSettings, model: str | None) -> Digests:
    """Return the digest of the content of each split's files, wherever they are, and of a model if one is given."""
    files = [
        (split, digest_bytes(*(digest_input(path).encode() for path in task.files(split))))
        for split in SPLITS
        if task.files(split)
    ]
    return tuple(files) if model is None else (*files, (INITIAL_WEIGHTS, digest_model(model)))
