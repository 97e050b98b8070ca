"""Jobs of the floors that every table has: the initial weights of a network, and the most frequent answer of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from bertwright.base.files import ensure_folder
from bertwright.base.reporter import Reporter
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.huggingface import load_config
from bertwright.interop.model_files import model_folder
from bertwright.pretraining.settings import PretrainSettings
from bertwright.tasks.task_data import read_splits, within_positions
from bertwright.trials.jobs import Digests, Job, TaskJob, digest_store
from bertwright.vocabulary.open_tokenizer import open_tokenizer


@dataclass(frozen=True)
class InitialModelJob(Job):
    """The initial weights of a pre-training, as a model folder: a row without pre-training is fine-tuned from them."""

    settings: PretrainSettings

    kind: ClassVar[str] = "initial"
    described: ClassVar[str] = "initial weights"

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the weights: shape, initialization, objective and seed."""
        identity = super().identity
        table = identity["settings"]
        data = {name: table["data"][name] for name in ("objective", "seed")}
        return identity | {"settings": {"model": table["model"], "data": data}}

    def digest_inputs(self) -> Digests:
        """Digest the store, whose vocabulary the model has."""
        assert self.settings.store is not None
        return (("store", digest_store(self.settings.store)),)

    def execute(self, run: Path, parents: Sequence[Path], reporter: Reporter) -> Mapping[str, float]:
        """Write the model; it has no scores."""
        if not (run / "model").is_dir():  # else a process was killed before it wrote the result
            write_initial_model(self.settings, run / "model")
        return {}


def write_initial_model(settings: PretrainSettings, folder: Path) -> None:
    """Write a model with the initial weights of a pre-training."""
    assert settings.store is not None
    tokenizer = open_tokenizer(settings.store / "tokenizer")
    model = settings.objective.new_model(settings.model, tokenizer.vocab_size, settings.data.seed)
    ensure_folder(folder.parent)
    settings.objective.write_model(folder, model, tokenizer)


@dataclass(frozen=True)
class FrequentAnswerJob(TaskJob):
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

    def execute(self, run: Path, parents: Sequence[Path], reporter: Reporter) -> Mapping[str, float]:
        """Score the answer on dev and, if there is one, on test; write its numbers per dev example."""
        settings, tuning = self.settings, self.settings.tuning
        folder = parents[0] / "model" if parents else model_folder(settings.model)
        tokenizer = open_tokenizer(folder)
        task, examples = read_splits(settings.task, tuning.validation_fraction, tuning.limit)
        task = within_positions(task, settings.task.overrides, load_config(folder).max_positions)
        train = task.encode(examples["train"], tokenizer)
        scores: dict[str, float] = {}
        for split in ("dev", "test"):
            if split not in examples:
                continue
            encoded = task.encode(examples[split], tokenizer, labeled=False)
            predictions = task.frequent_predictions(train, examples[split], encoded)
            scored = task.score(examples[split], predictions)
            if split == "test":
                scores |= {f"test_{name}": value for name, value in scored.items()}
                continue
            scores |= scored | {"dev": scored[task.metric]}
            if numbers := task.example_scores(examples[split], predictions):
                ensure_folder(run)
                numbers.save(self.examples_file(run, "dev"))
        return scores
