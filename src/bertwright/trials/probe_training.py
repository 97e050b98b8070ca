"""Training of one head on frozen features: its batches, its steps, its scores.

R states that a task reads, K layers, H hidden size, C outputs, N examples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertwright.base.example_order import permute
from bertwright.base.ragged import flat_ranges, offsets_from_lengths
from bertwright.base.seeding import ProbeStream, derive_key
from bertwright.inference.feature_cache import Features, example_state_starts
from bertwright.kernels.dropout import Dropout
from bertwright.models.feature_head import FeatureHead
from bertwright.models.heads import TaskBatch
from bertwright.tasks.collation import collate
from bertwright.tasks.encoded import Ints, Outputs
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_data import SplitData
from bertwright.training.fit import TrainingSpec
from bertwright.training.loop import LossOutput
from bertwright.training.optimizer import Optimizer, OptimizerSettings
from bertwright.trials.probe_settings import ProbeSettings, ProbeTrial

POOL = 32  # batches whose examples are sorted by length together
SCORING_BATCH = 256  # examples
WARMUP_RATIO = 0.1


class HeadBatch(NamedTuple):
    """Examples as a head reads them."""

    states: Tensor
    """R × K × H float32."""
    lengths: list[int]
    """States of each example."""
    indices: Ints
    """R, their indices among all states of the split."""
    task: TaskBatch
    """The same examples for the task's loss."""


@dataclass(frozen=True)
class HeadData:
    """Split as a head reads it: the states of some layers."""

    split: SplitData
    features: Features
    layers: tuple[int, ...]
    device: torch.device

    @cached_property
    def state_starts(self) -> Ints:
        """N + 1: index of each example's first state."""
        return example_state_starts(self.split.encoded, len(self.split.examples))

    @cached_property
    def item_starts(self) -> Ints:
        """N + 1: index of each example's first item."""
        example_ids = self.split.encoded.example_ids[self.split.encoded.item_starts[:-1]]
        return offsets_from_lengths(np.bincount(example_ids, minlength=len(self.split.examples)))

    @cached_property
    def lengths(self) -> Ints:
        """N: states of each example."""
        return np.diff(self.state_starts)

    @cached_property
    def readable(self) -> Ints:
        """Indices of the examples that have states: a sentence without words has none."""
        return np.flatnonzero(self.lengths)

    def count_steps(self, batch_size: int) -> int:
        return math.ceil(len(self.readable) / batch_size)

    def batch(self, chosen: Ints) -> HeadBatch:
        """Return the batch of some examples, in the given order."""
        indices = flat_ranges(self.state_starts[chosen], self.lengths[chosen])
        items = flat_ranges(self.item_starts[chosen], np.diff(self.item_starts)[chosen])
        states = self.features.take(indices, self.layers).to(self.device)
        return HeadBatch(
            states, self.lengths[chosen].tolist(), indices, collate(self.split.encoded, items).to(self.device)
        )


def make_spec(
    head: FeatureHead, task: AnyTask, data: Mapping[str, HeadData], settings: ProbeSettings, trial: ProbeTrial
) -> TrainingSpec[HeadBatch]:
    """Return the batches, loss and schedule of a head's training on data["train"], and its evaluation on "dev"."""
    train = data["train"]
    optimization = OptimizerSettings(trial.learning_rate, warmup_ratio=WARMUP_RATIO, bias_correction=True)
    optimizer = Optimizer(dict(head.named_parameters()), optimization)

    def batches(first_step: int) -> Iterator[list[HeadBatch]]:
        chosen = (
            examples
            for epoch in range(settings.epochs)
            for examples in epoch_batches(train.lengths, settings.batch_size, trial.seed, epoch)
        )
        for examples in islice(chosen, first_step, None):
            yield [train.batch(examples)]

    def loss(batch: HeadBatch) -> LossOutput:
        """Compute the loss of a batch, with dropout keyed by the step."""
        key = derive_key(trial.seed, ProbeStream.DROPOUT, optimizer.steps)
        logits = head(batch.states, batch.lengths, Dropout(settings.dropout, key) if settings.dropout else None)
        value = task.loss(logits, batch.task) / max(batch.task.num_labels, 1)
        return LossOutput(value, {"loss": value.detach()})

    schedule = optimization.make_schedule(settings.epochs * train.count_steps(settings.batch_size))
    return TrainingSpec(head, optimizer, schedule, batches, loss, evaluate=lambda: score(head, task, data["dev"]))


def epoch_batches(lengths: Ints, batch_size: int, seed: int, epoch: int) -> list[Ints]:
    """Return the examples of each step of an epoch: all that have states, in batches of similar lengths.

    A random order is sorted by length within pools of many batches, then the batches are shuffled. An LSTM takes as
    many steps as its longest sequence has words; batches of mixed lengths were a third slower.

    >>> [chosen.tolist() for chosen in epoch_batches(np.array([3, 1, 0, 3, 1]), 2, seed=0, epoch=0)]
    [[4, 1], [0, 3]]
    """
    readable = np.flatnonzero(lengths)
    order = readable[permute(np.arange(len(readable)), len(readable), derive_key(seed, ProbeStream.ORDER, epoch))]
    pools = np.split(order, range(POOL * batch_size, len(order), POOL * batch_size))
    similar = np.concatenate([pool[np.argsort(lengths[pool], kind="stable")] for pool in pools])
    groups = np.split(similar, range(batch_size, len(similar), batch_size))
    return [
        groups[number]
        for number in permute(np.arange(len(groups)), len(groups), derive_key(seed, ProbeStream.BATCH_ORDER, epoch))
    ]


def score(head: FeatureHead, task: AnyTask, data: HeadData) -> dict[str, float]:
    return task.score(data.split.examples, predict(head, task, data))


def predict(head: FeatureHead, task: AnyTask, data: HeadData) -> list[Any]:
    return task.decode(data.split.examples, data.split.encoded, predict_logits(head, data))


@torch.inference_mode()
def predict_logits(head: FeatureHead, data: HeadData) -> Outputs:
    """Return the head's outputs for all states, R × C float32, without dropout."""
    logits = np.empty((len(data.split.encoded.positions), head.classifier.out_features), dtype=np.float32)
    order = data.readable[np.argsort(-data.lengths[data.readable], kind="stable")]
    for begin in range(0, len(order), SCORING_BATCH):
        batch = data.batch(order[begin : begin + SCORING_BATCH])
        logits[batch.indices] = head(batch.states, batch.lengths).cpu().numpy()
    return logits
