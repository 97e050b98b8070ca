"""The floors that every table has: the initial weights of a network, and the most frequent answer of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console

from bertwright.base.files import ensure_folder
from bertwright.finetuning.finetune_state import open_run
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.training.context import execution_context
from bertwright.trials.trial import Digests, StoreTrial, TaskTrial, digest_store, with_model_of, write_initial_model


@dataclass(frozen=True)
class InitialModel(StoreTrial):
    """The initial weights of a pre-training, as a model folder: a row without pre-training is fine-tuned from them."""

    kind: ClassVar[str] = "initial"
    described: ClassVar[str] = "initial weights"

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the weights: shape, initialization, objective and seed."""
        identity = super().identity
        table = identity["settings"]
        data = {name: table["data"][name] for name in ("objective", "seed")}
        return identity | {"settings": {"model": table["model"], "data": data}}

    def run(self, folder: Path, parents: Sequence[Path], console: Console) -> Mapping[str, float]:
        """Write the model; it has no scores."""
        if not (folder / "model").is_dir():  # else a process was killed before it wrote the result
            write_initial_model(self.settings, folder / "model")
        return {}

    def digest_inputs(self) -> Digests:
        """Digest the store, whose vocabulary the model has."""
        assert self.settings.store is not None
        return (("store", digest_store(self.settings.store)),)


@dataclass(frozen=True)
class FrequentAnswer(TaskTrial):
    """The score of the most frequent answer of the training examples, given to every example. It trains nothing."""

    settings: FinetuneSettings

    kind: ClassVar[str] = "frequent"
    described: ClassVar[str] = "most frequent answers"

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the result: the task and its examples."""
        identity = super().identity
        table = identity["settings"]
        tuning = {name: table["tuning"][name] for name in ("validation_fraction", "limit") if name in table["tuning"]}
        return identity | {"settings": {"task": table["task"], "tuning": tuning}}

    def run(self, folder: Path, parents: Sequence[Path], console: Console) -> Mapping[str, float]:
        """Score the answer on dev and, if there is one, on test; write its numbers per dev example."""
        settings = with_model_of(replace(self.settings, run=folder), parents)
        settings = replace(settings, tuning=replace(settings.tuning, head_init="random"))
        with execution_context(settings.device) as context:
            state = open_run(settings, context, console)
        task, scores = state.task, dict[str, float]()
        for split, prefix in ((state.dev, ""), (state.test, "test_")):
            if split is None:
                continue
            predictions = task.frequent_predictions(state.train.encoded, split.examples, split.encoded)
            scored = task.score(split.examples, predictions)
            scores |= {f"{prefix}{name}": value for name, value in scored.items()} | {split.name: scored[task.metric]}
            if split.name == "dev" and (numbers := task.example_scores(split.examples, predictions)):
                ensure_folder(folder)
                numbers.save(folder.parent / "dev.npz")
        return scores
