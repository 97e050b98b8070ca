"""The floors of every table: initial weights, the most frequent answer of a task, models without a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from bertwright.base.files import ensure_folder
from bertwright.base.reporter import Reporter
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tasks.linear_floor import floor_names, train_floor
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_data import read_splits
from bertwright.trials.trial import Digests, StoreTrial, TaskTrial, Trial, digest_store, write_initial_model
from bertwright.vocabulary.word_tokenizer import WordRules, WordTokenizer

Predict = Callable[[Sequence[Any]], list[Any]]
"""A function from examples to predictions."""


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

    def run(self, folder: Path, parents: Sequence[Path], reporter: Reporter) -> Mapping[str, float]:
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

    def run(self, folder: Path, parents: Sequence[Path], reporter: Reporter) -> Mapping[str, float]:
        """Score the floor on dev and, if there is one, on test, without a model; write its numbers per dev example."""
        settings = self.settings
        task, examples = read_splits(settings.task, settings.tuning.validation_fraction, settings.tuning.limit)
        predict, scores = self.learn(task, examples), dict[str, float]()
        for name, given in examples.items():
            if name == "train":
                continue
            prefix, predictions = "" if name == "dev" else f"{name}_", predict(given)
            scored = task.score(given, predictions)
            scores |= {f"{prefix}{key}": value for key, value in scored.items()} | {name: scored[task.metric]}
            if name == "dev" and (numbers := task.example_scores(given, predictions)):
                ensure_folder(folder)
                numbers.save(folder.parent / "dev.npz")
        return scores

    def learn(self, task: AnyTask, examples: Mapping[str, Sequence[Any]]) -> Predict:
        """Return the function that predicts examples; it learns from the ones of "train"."""
        rules = WordRules(split_punctuation=not task.reads_words)
        tokenizer = WordTokenizer.learn(task.texts(examples["train"]), rules, min_count=1)
        train = task.encode(examples["train"], tokenizer)
        return lambda given: task.frequent_predictions(train, given, task.encode(given, tokenizer, labeled=False))


@dataclass(frozen=True)
class LinearFloor(FrequentAnswer):
    """The scores of a model without a network, a linear one or a lookup, whose name is the row."""

    kind: ClassVar[str] = "linear"
    described: ClassVar[str] = "models without a network"

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the result."""
        return super().identity | {"floor": self.row}

    def learn(self, task: AnyTask, examples: Mapping[str, Sequence[Any]]) -> Predict:
        """Train the floor."""
        return train_floor(self.row, task, examples).predict


def linear_floors(
    settings: FinetuneSettings, digests: Digests = (), parents: tuple[Trial, ...] = (), column: str = ""
) -> list[LinearFloor]:
    """Return the trials of the models without a network that a task has."""
    names = floor_names(settings.task.build_task())
    return [LinearFloor(f"{name.replace(' ', '-')}-floor", digests, parents, settings, name, column) for name in names]
