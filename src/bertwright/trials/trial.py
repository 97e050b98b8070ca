"""Trials: the runs of a series, each with its row, column and seed, identified by their content.

A trial's key is the digest of the settings that decide its result, of its input files, and of the trials whose models
it starts from. Two tables with a pre-training in common run it once. Settings with their default value are not in the
key: finished trials are still found when a later version has one setting more. A result has all settings beside it, so
that a default that has changed since is noticed.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from bertwright.base.files import digest_bytes, ensure_folder, read_json, remove_folder, remove_stale_parts
from bertwright.base.reporter import MUTE, Reporter
from bertwright.base.settings import default_table, to_table
from bertwright.finetuning.finetune_cost import CostEstimator
from bertwright.finetuning.finetune_state import open_run
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import RESUME_OVERRIDES as FINETUNE_OVERRIDES
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.model_files import digest_model
from bertwright.metrics.example_scores import ExampleScores
from bertwright.pretraining.evaluation import evaluate
from bertwright.pretraining.run import measure_cost, pretrain
from bertwright.pretraining.run import open_run as open_pretraining
from bertwright.pretraining.settings import RESUME_OVERRIDES as PRETRAIN_OVERRIDES
from bertwright.pretraining.settings import PretrainSettings
from bertwright.tasks.prediction import evaluate_examples
from bertwright.tasks.presets import SPLITS, TaskSettings
from bertwright.text.sources import digest_input
from bertwright.tokenstore.store import TokenStore, open_held_out
from bertwright.training import checkpoint
from bertwright.training.context import execution_context
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.metrics_log import with_current_names
from bertwright.training.run_folder import INITIAL_WEIGHTS, delete_weights, find_changed_settings
from bertwright.trials.head_results import RESULTS_FILE, read_results
from bertwright.trials.probe import EXAMPLES as PROBE_EXAMPLES
from bertwright.trials.probe import measure_probe, parse_result, probe
from bertwright.trials.probe_settings import RESUME_OVERRIDES as PROBE_OVERRIDES
from bertwright.trials.probe_settings import ProbeSettings
from bertwright.vocabulary.open_tokenizer import open_tokenizer

RESULT = "result.json"  # scores of a trial, in its folder
CHOSEN_RATE, LOSS_AT = "learning_rate", "loss at "  # scores of a choice of rates: the chosen one, the loss at each
ONE_LABEL = "one_label"  # score of a fine-tuning: 1 if all predictions on dev are one label
ENTROPY = "unigram_entropy"  # score of a pre-training: the loss, in nats, of a model that ignores its input
RESULTS_VERSION = 6  # raise it if the same settings give other numbers: earlier results are then not reused
# Settings that decide where to compute and what to print, and paths, whose content is in the key instead.
NOT_IN_KEY = (
    "run", "resume", "micro_batch_size", "pad_batches", "log_every", "store", "features", "keep_checkpoints",
    "show_examples", "track", "linear_floor",
)  # fmt: skip

Digests = tuple[tuple[str, str], ...]
"""Name and digest of each input file or folder."""


class TrialSettings(Protocol):
    """Settings of a trial, a frozen dataclass."""

    @property
    def device(self) -> DeviceSettings: ...


class Cost(NamedTuple):
    """Estimated seconds of a trial."""

    fixed: float = 0.0
    """Seconds that no size changes: to open a run, or to evaluate a pre-training."""
    training: float = 0.0
    """Seconds of all steps and predictions."""
    examples: int = 1
    """Training examples of a task."""
    limit: int | None = None
    """Limit of the examples of each split with which the trial was measured."""

    @property
    def seconds(self) -> float:
        """Total."""
        return self.fixed + self.training

    def with_limit(self, limit: int | None) -> float:
        """Return the total under another limit, in proportion to the training examples.

        A task with fewer examples than the present limit was measured whole, so that a larger limit adds none.
        """
        is_cut = self.limit is not None and self.examples >= self.limit
        examples = self.examples if limit is None else limit if is_cut else min(limit, self.examples)
        return self.fixed + self.training * examples / self.examples


@dataclass(frozen=True)
class Trial(ABC):
    """A run of a series, and the number that it gives to a cell of the table.

    Trials of several cells may be the same run: only what decides its result is in its key.
    """

    name: str
    """Description for people; in a series with a folder of its own, also the name of the run's folder."""
    digests: Digests
    """Input files and folders that no trial makes."""
    parents: tuple[Trial, ...]
    """Trials whose models this one reads."""
    settings: TrialSettings
    """Settings of the run; its folder and the folder of its model are set when it starts."""
    row: str = ""
    column: str = ""
    seed: int = 0
    pretraining: int = 0
    """Seed of pre-training."""
    learning_rate: float = 0.0
    """If a cell has several rates, the one with the best mean counts."""
    score: str = "dev"
    """Name of the cell's number among the scores of the run."""

    kind: ClassVar[str]
    """Name in keys and folders."""
    described: ClassVar[str]
    """What trials of this kind do, for people."""
    needs_all_parents: ClassVar[bool] = True
    """False: the trial runs if one of its parents has not failed."""

    @abstractmethod
    def run(self, folder: Path, parents: Sequence[Path], reporter: Reporter) -> Mapping[str, float]:
        """Start or resume the run in a folder; return its scores by name. `parents`: run folders of the parents."""

    def measure(self, models: Sequence[Path]) -> Cost:
        """Estimate the time from a few steps; by default none, for a run that copies files or counts labels.

        `models`: run folders with untrained models in place of the parents' models.
        """
        return Cost()

    @property
    def likeness(self) -> Hashable:
        """Everything in which trials of a series differ and on which their time depends."""
        return self.kind

    @property
    def shape(self) -> Hashable:
        """Sizes of the models that the trial makes or reads."""
        return tuple(parent.shape for parent in self.parents)

    def write_untrained(self, folder: Path) -> Path:
        """Write an untrained model with the shape of the trial's model into a run folder; return the folder."""
        self.run(folder, write_untrained(self.parents, folder), MUTE)
        return folder

    @property
    def selection(self) -> str:
        """Name of the score whose mean selects the rate: never one on test."""
        return self.score

    def digest_inputs(self) -> Digests:
        """Digest the input files as they are now; by default none: the run reads what other trials have written."""
        return ()

    def count_generations(self) -> int:
        """Return the number of trials that must run one after another before this one."""
        return max((1 + parent.count_generations() for parent in self.parents), default=0)

    def check_inputs(self) -> None:
        """Raise ValueError if the input files have changed since the trial was planned."""
        if self.digests and (changed := sorted({name for name, _ in {*self.digests} - {*self.digest_inputs()}})):
            raise ValueError(
                f"{self.name}: {', '.join(changed)} changed since the run was planned; start the command again"
            )

    def prune(self, folder: Path) -> None:  # noqa: B027  # most trials keep everything
        """Delete what no other trial reads, once the result is written, and what a killed process left."""

    def examples_file(self, folder: Path) -> Path:
        """Return the file with the per-example statistics of the trial's score, of the run in a folder."""
        return folder.parent / f"{self.score}.npz"

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the result; the device counts only by its dtype."""
        table = {name: value for name, value in to_table(self.settings).items() if name not in NOT_IN_KEY}
        table["device"] = {"dtype": self.settings.device.dtype}
        inputs = {"inputs": dict(self.digests), "parents": [parent.identity for parent in self.parents]}
        return {"version": RESULTS_VERSION, "kind": self.kind, "settings": table} | inputs

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Defaults of the settings in the identity."""
        return default_table(self.settings)

    @cached_property
    def key(self) -> str:
        """Digest of the identity without settings that have their default value, the parents by their keys."""
        settings = find_differences(self.identity["settings"], self.defaults)
        content = self.identity | {"settings": settings, "parents": [parent.key for parent in self.parents]}
        return digest_bytes(json.dumps(content, sort_keys=True).encode())[:16]


@dataclass(frozen=True)
class StoreTrial(Trial):
    """A trial that gives a model with the shape and the vocabulary of a pre-training on the store."""

    settings: PretrainSettings

    @property
    def shape(self) -> Hashable:
        """Settings of the model."""
        return self.settings.model

    def write_untrained(self, folder: Path) -> Path:
        """Write the initial weights into a run folder; return the folder."""
        write_initial_model(self.settings, folder / "model")
        return folder


@dataclass(frozen=True)
class Pretrain(StoreTrial):
    """Pre-training on the store; the run's model and checkpoints remain."""

    kind: ClassVar[str] = "pretrain"
    described: ClassVar[str] = "pre-training"

    def digest_inputs(self) -> Digests:
        """Digest the store."""
        assert self.settings.store is not None
        return (("store", digest_store(self.settings.store)),)

    def run(self, folder: Path, parents: Sequence[Path], reporter: Reporter) -> Mapping[str, float]:
        """Pre-train; return the scores of the last evaluation on held-out documents, and the unigram entropy.

        The loss on each held-out sequence is written as the numbers behind the perplexity.
        """
        settings = start_or_resume(self.settings, folder, PRETRAIN_OVERRIDES)
        pretrain(settings, reporter)
        with execution_context(settings.device) as context:
            opened = open_pretraining(replace(settings, resume=True), context, reporter)
            sums = []
            for batch in opened.held_out[0].validation_batches(settings.eval_sequences, micro_batch_size=1):
                losses = evaluate(opened.objective, opened.model, [batch.to(context.device)])
                sums.append((losses[opened.objective.loss_metric] * batch.num_predictions, batch.num_predictions))
        ExampleScores("loss", np.array(sums)).save(folder.parent / "perplexity.npz")
        evaluation: dict[str, float] | None = read_json(folder / "report.json")["held_out_after"]
        named = with_current_names(evaluation or {})
        scores = {name: value for name, value in named.items() if isinstance(value, float)}
        baseline = opened.train[0].measure_baseline()
        return scores if baseline is None else scores | {ENTROPY: baseline}

    def measure(self, models: Sequence[Path]) -> Cost:
        """Estimate the time from a few steps and evaluations."""
        cost = measure_cost(self.settings)
        return Cost(cost.evaluation_seconds, cost.seconds - cost.evaluation_seconds)

    @property
    def likeness(self) -> Hashable:
        """Model, objective and share of masked tokens."""
        return self.settings.model, self.settings.data.objective, self.settings.data.mlm_probability


@dataclass(frozen=True)
class BestRate(StoreTrial):
    """The best of pre-trainings that differ in their peak rate alone: the one with the lowest held-out loss.

    Its run folder has links to the model and the checkpoints of that pre-training. `settings`: of the first of them.
    """

    kind: ClassVar[str] = "best-rate"
    described: ClassVar[str] = "choice of the rate"
    needs_all_parents: ClassVar[bool] = False

    def run(self, folder: Path, parents: Sequence[Path], reporter: Reporter) -> Mapping[str, float]:
        """Link the best pre-training; return its scores, its rate, and the held-out loss at each rate."""
        results = dict[float, tuple[Path, dict[str, float]]]()
        for trial, parent in zip(self.parents, parents, strict=True):
            result = read_json(parent.parent / RESULT)
            if not result["failure"]:
                assert isinstance(trial, Pretrain)
                results[trial.settings.optimizer.learning_rate] = (parent, with_current_names(result["scores"]))
        loss = self.settings.objective.loss_metric
        best = min(results, key=lambda rate: results[rate][1].get(loss, math.inf))
        parent, scores = results[best]
        ensure_folder(folder)
        for name in ("model", "checkpoints"):
            (folder / name).unlink(missing_ok=True)  # of a process that was killed before it wrote the result
            (folder / name).symlink_to(os.path.relpath(parent / name, folder))
        for numbers in parent.parent.glob("*.npz"):
            shutil.copyfile(numbers, folder.parent / numbers.name)
        losses = {f"{LOSS_AT}{rate:g}": scored[loss] for rate, (_, scored) in results.items() if loss in scored}
        return scores | losses | {CHOSEN_RATE: best}


@dataclass(frozen=True)
class SameRate(Pretrain):
    """Pre-training with another seed at the peak rate that its parent, a `BestRate`, chose."""

    def run(self, folder: Path, parents: Sequence[Path], reporter: Reporter) -> Mapping[str, float]:
        """Pre-train; return the scores of the pre-training, and its rate."""
        rate = read_json(parents[0].parent / RESULT)["scores"][CHOSEN_RATE]
        trial = Pretrain(self.name, self.digests, (), with_rate(self.settings, rate))
        return {**trial.run(folder, (), reporter), CHOSEN_RATE: rate}


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
        """Everything that decides the result."""
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
        """Estimate the time from a few steps and predictions."""
        settings = with_model_of(self.settings, models)
        with execution_context(settings.device) as context:
            started = time.perf_counter()
            state = open_run(settings, context, MUTE)
            opening = time.perf_counter() - started
            estimator = CostEstimator(state, context)
            seconds = estimator.estimate(settings).seconds
        # A run is opened and dev predicted twice: for its score, and for the per-example statistics.
        return Cost(2 * opening, seconds + estimator.dev, len(state.train.examples), settings.tuning.limit)

    def prune(self, folder: Path) -> None:
        """Delete all weights."""
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
        """Train the heads; return scores by the name of each head."""
        probe(start_or_resume(with_model_of(self.settings, parents), folder, PROBE_OVERRIDES), reporter)
        metric = read_json(folder / "report.json")["metric"]
        results = read_results(folder / RESULTS_FILE, lambda record: parse_result(record, metric))
        return {result.trial.name: result.dev[metric] for result in results}

    def measure(self, models: Sequence[Path]) -> Cost:
        """Estimate the time from heads on a few examples."""
        settings = with_model_of(self.settings, models)
        cost, heads = measure_probe(settings), len(settings.seeds) * len(settings.learning_rates)
        return Cost(cost.opening, cost.features + heads * cost.heads, cost.examples, settings.limit)

    def examples_file(self, folder: Path) -> Path:
        """Return the file that the probe wrote for a head."""
        return folder / PROBE_EXAMPLES / f"{self.score}.npz"

    def prune(self, folder: Path) -> None:
        """Delete the cached states."""
        remove_stale_parts(folder)
        if (folder / "features").is_dir():
            remove_folder(folder / "features")


def write_initial_model(settings: PretrainSettings, folder: Path) -> None:
    """Write a model with the initial weights of a pre-training."""
    assert settings.store is not None
    tokenizer = open_tokenizer(settings.store / "tokenizer")
    model = settings.objective.new_model(settings.model, tokenizer.vocab_size, settings.data.seed)
    ensure_folder(folder.parent)
    settings.objective.write_model(folder, model, tokenizer)


def find_differences(table: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a table that differ from their defaults, tables within it likewise.

    >>> find_differences({"steps": 10, "seed": 0, "data": {"seed": 1}}, {"seed": 0, "limit": 8, "data": {"seed": 1}})
    {'steps': 10}
    """
    differences = dict[str, Any]()
    for name, value in table.items():
        default = defaults.get(name)
        if isinstance(value, dict) and isinstance(default, dict):
            value, default = find_differences(value, default), {}
        if value != default:
            differences[name] = value
    return differences


def find_contradictions(recorded: Any, present: Any, path: str = "") -> list[str]:
    """Return "NAME: VALUE before, VALUE now" for each value that two identities of a trial name and do not share.

    >>> find_contradictions({"data": {"seed": 1}, "steps": 5}, {"data": {"seed": 2}, "limit": 8})
    ['data.seed: 1 before, 2 now']
    """
    if isinstance(recorded, dict) and isinstance(present, dict):
        shared = [(f"{path}{name}", recorded[name], present[name]) for name in recorded if name in present]
    elif isinstance(recorded, list) and isinstance(present, list) and len(recorded) == len(present):
        shared = [(f"{path}{number}", *pair) for number, pair in enumerate(zip(recorded, present, strict=True))]
    else:
        return [] if recorded == present else [f"{path.removesuffix('.')}: {recorded} before, {present} now"]
    return [line for name, before, now in shared for line in find_contradictions(before, now, f"{name}.")]


S = TypeVar("S", FinetuneSettings, ProbeSettings)
R = TypeVar("R", PretrainSettings, FinetuneSettings, ProbeSettings)


def with_rate(settings: PretrainSettings, rate: float) -> PretrainSettings:
    """Return the settings of a pre-training with another peak rate."""
    return replace(settings, optimizer=replace(settings.optimizer, learning_rate=rate))


def with_model_of(settings: S, parents: Sequence[Path], step: int | None = None) -> S:
    """Return the settings with the model of the parent, or its checkpoint after a step; unchanged without a parent.

    A head reads [CLS] as in the paper unless the settings say otherwise, also where pre-training left out the pooler.
    """
    if not parents:
        return settings
    model = parents[0] / "model" if step is None else checkpoint.path_of(parents[0] / "checkpoints", step)
    settings = replace(settings, model=str(model))
    if not hasattr(settings.task.build_task(), "pooling"):
        return settings
    if isinstance(settings, ProbeSettings):
        return replace(settings, pooling=settings.pooling or "cls")
    return replace(settings, tuning=replace(settings.tuning, pooling=settings.tuning.pooling or "cls"))


def start_or_resume(settings: R, run: Path, resume_overrides: tuple[str, ...]) -> R:
    """Return settings to start the run in a folder, or to resume it if it has begun.

    A run that began with the same task files or model in another folder is deleted, to start again: a resumed run reads
    the files that its settings name.
    """
    has_begun = (run / "settings.toml").is_file()
    settings = replace(settings, run=run, resume=has_begun)
    if has_begun and find_changed_settings(settings, resume_overrides):
        remove_folder(run)
        settings = replace(settings, resume=False)
    return settings


def digest_task_inputs(task: TaskSettings, model: str | None) -> Digests:
    """Return the digest of the content of each split's files, wherever they are, and of a model if one is given."""
    files = [
        (split, digest_bytes(*(digest_input(path).encode() for path in task.files(split))))
        for split in SPLITS
        if task.files(split)
    ]
    return tuple(files) if model is None else (*files, (INITIAL_WEIGHTS, digest_model(model)))


def digest_store(store: Path) -> str:
    """Return the digest of a store's vocabulary, token ids and documents, training and held out."""
    vocabulary = open_tokenizer(store / "tokenizer").digest
    parts = (TokenStore.open(store / "train", vocabulary, verify=False), open_held_out(store, vocabulary))
    arrays = (file.digest for part in parts for file in part.header.files)
    return digest_bytes(*(digest.encode() for digest in (vocabulary, *arrays)))


def all_trials(trials: Iterable[Trial]) -> list[Trial]:
    """Return trials and the trials that they need, each run once, parents before their children."""
    by_key: dict[str, Trial] = {}
    for trial in trials:
        for needed in (*all_trials(trial.parents), trial):
            by_key.setdefault(needed.key, needed)
    return list(by_key.values())


def write_untrained(trials: Iterable[Trial], folder: Path) -> list[Path]:
    """Write an untrained model for each trial into a folder; return their run folders."""
    return [trial.write_untrained(folder / str(number)) for number, trial in enumerate(trials)]
