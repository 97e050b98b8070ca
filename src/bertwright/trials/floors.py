"""The floors of every table that train no network: the most frequent answer of a task, a linear model, a lookup."""

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
from bertwright.trials.task_trials import TaskTrial
from bertwright.trials.trial import Digests, Trial
from bertwright.vocabulary.word_tokenizer import WordRules, WordTokenizer

Predict = Callable[[Sequence[Any]], list[Any]]
"""A function from examples to predictions."""


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
        return super().identity | {"floor": self.row}

    def learn(self, task: AnyTask, examples: Mapping[str, Sequence[Any]]) -> Predict:
        return train_floor(self.row, task, examples).predict


def linear_floors(
    settings: FinetuneSettings, digests: Digests = (), parents: tuple[Trial, ...] = (), column: str = ""
) -> list[LinearFloor]:
    """Return the trials of the models without a network that a task has."""
    names = floor_names(settings.task.build_task())
    return [LinearFloor(f"{name.replace(' ', '-')}-floor", digests, parents, settings, name, column) for name in names]
