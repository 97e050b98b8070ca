"""Trials: the runs of a series, each with its row, column and seed, identified by their content.

A trial's key is the digest of the settings that decide its result, of its input files, and of the trials whose models
it starts from. Two tables with a pre-training in common run it once. Settings with their default value are not in the
key: finished trials are still found when a later version has one setting more. A result has all settings beside it, so
that a default that has changed since is noticed.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from bertwright.base.files import digest_bytes, remove_folder
from bertwright.base.reporter import MUTE, Reporter
from bertwright.base.settings import default_table, to_table
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.pretraining.settings import PretrainSettings
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.run_folder import find_changed_settings
from bertwright.trials.probe_settings import ProbeSettings

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


R = TypeVar("R", PretrainSettings, FinetuneSettings, ProbeSettings)


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
