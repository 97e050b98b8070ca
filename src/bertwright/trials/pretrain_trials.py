"""Trials that give a pre-trained model, or the initial weights of one."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bertwright.base.files import digest_bytes, ensure_folder, read_json
from bertwright.base.reporter import Reporter
from bertwright.metrics.example_scores import ExampleScores
from bertwright.pretraining.evaluation import evaluate
from bertwright.pretraining.run import measure_cost, pretrain
from bertwright.pretraining.run import open_run as open_pretraining
from bertwright.pretraining.settings import RESUME_OVERRIDES as PRETRAIN_OVERRIDES
from bertwright.pretraining.settings import PretrainSettings
from bertwright.tokenstore.store import TokenStore, open_held_out
from bertwright.training.context import execution_context
from bertwright.training.metrics_log import with_current_names
from bertwright.trials.trial import CHOSEN_RATE, ENTROPY, LOSS_AT, RESULT, Cost, Digests, Trial, start_or_resume
from bertwright.vocabulary.open_tokenizer import open_tokenizer


@dataclass(frozen=True)
class StoreTrial(Trial):
    """A trial that gives a model with the shape and the vocabulary of a pre-training on the store."""

    settings: PretrainSettings

    @property
    def shape(self) -> Hashable:
        return self.settings.model

    def write_untrained(self, folder: Path) -> Path:
        """Write the initial weights into a run folder; return the folder."""
        write_initial_model(self.settings, folder / "model")
        return folder

    def digest_inputs(self) -> Digests:
        """Digest the store, whose vocabulary the model has."""
        assert self.settings.store is not None
        return (("store", digest_store(self.settings.store)),)


@dataclass(frozen=True)
class Pretrain(StoreTrial):
    """Pre-training on the store; the run's model and checkpoints remain."""

    kind: ClassVar[str] = "pretrain"
    described: ClassVar[str] = "pre-training"

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
        if not (folder / "model").is_dir():  # else a process was killed before it wrote the result
            write_initial_model(self.settings, folder / "model")
        return {}


def write_initial_model(settings: PretrainSettings, folder: Path) -> None:
    assert settings.store is not None
    tokenizer = open_tokenizer(settings.store / "tokenizer")
    model = settings.objective.new_model(settings.model, tokenizer.vocab_size, settings.data.seed)
    ensure_folder(folder.parent)
    settings.objective.write_model(folder, model, tokenizer)


def with_rate(settings: PretrainSettings, rate: float) -> PretrainSettings:
    return replace(settings, optimizer=replace(settings.optimizer, learning_rate=rate))


def digest_store(store: Path) -> str:
    """Return the digest of a store's vocabulary, token ids and documents, training and held out."""
    vocabulary = open_tokenizer(store / "tokenizer").digest
    parts = (TokenStore.open(store / "train", vocabulary, verify=False), open_held_out(store, vocabulary))
    arrays = (file.digest for part in parts for file in part.header.files)
    return digest_bytes(*(digest.encode() for digest in (vocabulary, *arrays)))
