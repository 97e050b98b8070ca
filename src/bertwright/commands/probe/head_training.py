"""One head on frozen features: its batches, its training, its scores; `runs.probe` compares many.

R states that a task reads, K layers of each, H hidden size, C outputs, N examples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertwright.batching.batch import offsets_from_lengths
from bertwright.batching.permutation import permute
from bertwright.commands.finetune.setup import SplitData
from bertwright.console import ProgressCallback
from bertwright.inference.feature_cache import Features, example_rows
from bertwright.kernels.dropout import Dropout
from bertwright.models.feature_head import FeatureHead
from bertwright.seeding import ProbeStream, derive_key
from bertwright.tasks.collation import collate, flat_ranges
from bertwright.tasks.task import Ints, Outputs, TaskBatch
from bertwright.tasks.task_io import AnyTask
from bertwright.training import schedules
from bertwright.training.loop import LossOutput, train_steps
from bertwright.training.optimizer import AdamW, OptimizerSettings

POOL = 32  # batches that are sorted by length together
SCORED_AT_ONCE = 256  # examples
WARMUP_SHARE = 0.1


class HeadBatch(NamedTuple):
    """Some examples, as a head reads them."""

    states: Tensor
    """R × K × H float32."""
    lengths: list[int]
    """Rows of each example."""
    rows: Ints
    """R, their places among all rows of the part."""
    task: TaskBatch
    """The same examples as the task's loss knows them."""


@dataclass(frozen=True)
class HeadData:
    """One part of the data as a head reads it: the states of some layers."""

    part: SplitData
    features: Features
    layers: tuple[int, ...]
    device: torch.device

    @cached_property
    def row_starts(self) -> Ints:
        """N + 1, where each example's rows start."""
        return example_rows(self.part.encoded, len(self.part.examples))

    @cached_property
    def item_starts(self) -> Ints:
        """N + 1, where each example's items start."""
        of_items = self.part.encoded.example_ids[:: self.part.encoded.sequences_per_item]
        return offsets_from_lengths(np.bincount(of_items, minlength=len(self.part.examples)))

    @cached_property
    def lengths(self) -> Ints:
        """N, the rows of each example."""
        return np.diff(self.row_starts)

    @cached_property
    def readable(self) -> Ints:
        """The examples that have rows at all: a sentence without words has none."""
        return np.flatnonzero(self.lengths)

    def batch(self, chosen: Ints) -> HeadBatch:
        """Some examples, in the order given."""
        rows = flat_ranges(self.row_starts[chosen], self.lengths[chosen])
        items = flat_ranges(self.item_starts[chosen], np.diff(self.item_starts)[chosen])
        states = self.features.take(rows, self.layers).to(self.device)
        return HeadBatch(states, self.lengths[chosen].tolist(), rows, collate(self.part.encoded, items).to(self.device))


class HeadHyperParams(NamedTuple):
    """How a head is trained."""

    epochs: int
    batch_size: int
    dropout: float
    learning_rate: float
    seed: int


class TrainedHead(NamedTuple):
    """What became of a head."""

    epoch: int
    """The one that was best on dev, from 1."""
    dev: dict[str, float]
    test: dict[str, float] | None


def train(
    head: FeatureHead, task: AnyTask, data: Mapping[str, HeadData], recipe: HeadHyperParams, advance: ProgressCallback
) -> TrainedHead:
    """Train a head on data["train"], score it on "dev" after every epoch, and the best of them on "test".

    The head is left as it was after that epoch. `advance` is told of steps done, of `total_steps`.
    """
    total = total_steps(data["train"], recipe)
    optimizer = AdamW(
        dict(head.named_parameters()), OptimizerSettings(recipe.learning_rate, WARMUP_SHARE, bias_correction=True)
    )
    rate = partial(
        schedules.linear_warmup_decay, peak=recipe.learning_rate, warmup=round(WARMUP_SHARE * total), total=total
    )

    def compute(batch: HeadBatch) -> LossOutput:
        key = derive_key(recipe.seed, ProbeStream.DROPOUT, optimizer.steps)
        drop = Dropout(recipe.dropout, key) if recipe.dropout else None
        loss = task.loss(head(batch.states, batch.lengths, drop), batch.task) / max(batch.task.num_labels, 1)
        return LossOutput(loss, {"loss": loss.detach()})

    best: TrainedHead | None = None
    for epoch in range(recipe.epochs):
        for _ in train_steps(compute, batches(data["train"], recipe, epoch), optimizer, rate):
            advance(1)
        dev = scores(head, task, data["dev"])
        if best is None or dev[task.metric] > best.dev[task.metric]:
            best = TrainedHead(epoch + 1, dev, None)
            weights = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    assert best is not None
    head.load_state_dict(weights)
    return best._replace(test=scores(head, task, data["test"])) if "test" in data else best


def total_steps(data: HeadData, recipe: HeadHyperParams) -> int:
    """Optimizer steps of a head's whole training."""
    return recipe.epochs * math.ceil(len(data.readable) / recipe.batch_size)


def batches(data: HeadData, recipe: HeadHyperParams, epoch: int) -> Iterator[list[HeadBatch]]:
    """An epoch's steps, each of one batch."""
    for chosen in epoch_batches(data.lengths, recipe.batch_size, recipe.seed, epoch):
        yield [data.batch(chosen)]


def epoch_batches(lengths: Ints, batch_size: int, seed: int, epoch: int) -> list[Ints]:
    """Which examples make up an epoch's steps: each of those of any length once, those of a batch alike in length.

    A random order is sorted by length within pools of many batches, and the batches come in a random order again. An
    LSTM takes as many steps as its longest run has words: with short runs beside it, a third of its speed was lost.

    >>> [chosen.tolist() for chosen in epoch_batches(np.array([3, 1, 0, 3, 1]), 2, seed=0, epoch=0)]
    [[4, 1], [0, 3]]
    """
    readable = np.flatnonzero(lengths)
    order = readable[permute(np.arange(len(readable)), len(readable), derive_key(seed, ProbeStream.ORDER, epoch))]
    pools = np.split(order, range(POOL * batch_size, len(order), POOL * batch_size))
    alike = np.concatenate([pool[np.argsort(lengths[pool], kind="stable")] for pool in pools])
    parts = np.split(alike, range(batch_size, len(alike), batch_size))
    return [
        parts[number]
        for number in permute(np.arange(len(parts)), len(parts), derive_key(seed, ProbeStream.BATCH_ORDER, epoch))
    ]


def scores(head: FeatureHead, task: AnyTask, data: HeadData) -> dict[str, float]:
    """The task's scores of a head's predictions."""
    examples, encoded = data.part.examples, data.part.encoded
    return task.score(examples, task.decode(examples, encoded, outputs(head, data)))


@torch.inference_mode()
def outputs(head: FeatureHead, data: HeadData) -> Outputs:
    """The head's outputs for all rows, R × C float32, dropout off."""
    found = np.empty((len(data.part.encoded.positions), head.classifier.out_features), dtype=np.float32)
    order = data.readable[np.argsort(-data.lengths[data.readable], kind="stable")]
    for begin in range(0, len(order), SCORED_AT_ONCE):
        batch = data.batch(order[begin : begin + SCORED_AT_ONCE])
        found[batch.rows] = head(batch.states, batch.lengths).cpu().numpy()
    return found
