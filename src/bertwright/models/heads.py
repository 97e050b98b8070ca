"""An encoder by itself or with the head of a task (section 4), and the heads.

T tokens, B sequences, R positions that a task reads, C outputs of its head, H hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bertwright.base.ragged import Ints
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout
from bertwright.models.encoder import EncoderConfig, TextEncoder
from bertwright.models.head_spec import HeadSpec
from bertwright.models.initialization import initialize
from bertwright.models.linear import Linear, make_dropout
from bertwright.models.packing import PackedInput, Packing
from bertwright.models.pooling import pool_states


class EncoderModel(nn.Module):
    """A text encoder by itself; subclasses add heads."""

    not_computed: tuple[str, ...] = ()
    """Parameters of its folder that belong to layers which this model does not have."""

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    @property
    def config(self) -> EncoderConfig:
        return self.encoder.config

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def depth_of(self, parameter: str) -> int:
        """Return the depth of a parameter by its name, as `TextEncoder.depth_of` does; a head is above all layers."""
        inside = parameter.removeprefix("encoder.")
        return self.encoder.depth_of(inside) if inside != parameter else self.encoder.head_depth


def is_untrained(layer: nn.Linear) -> bool:
    """Return whether a dense layer has its initial weights: its bias is initially 0, and only training changes it."""
    return not layer.bias.any()


class Pooler(nn.Module):
    """A dense layer with tanh on one state per sequence: its first token or, with a causal encoder, its last."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size)

    def forward(self, states: Tensor) -> Tensor:
        return torch.tanh(self.dense(states))  # B H -> B H


@dataclass(frozen=True)
class TaskBatch:
    """Items of a task as the model reads them, packed."""

    input: PackedInput
    positions: Tensor
    """R int64, positions in the batch whose states the head reads, sequence by sequence."""
    position_counts: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """B, number of positions in each sequence."""
    labels: Tensor = field(default_factory=lambda: torch.zeros(0))
    """Targets: int64, in a regression float32."""
    num_labels: int = 0
    """Number of labels of the whole step, by which its loss is divided."""
    num_next_tokens: int = 0
    """Number of tokens of the whole step that follow another one of their sequence: a language model's targets."""

    @property
    def packing(self) -> Packing:
        return self.input.packing

    def to(self, device: torch.device) -> TaskBatch:
        """Copy to a device, without waiting if the memory is pinned."""
        return replace(
            self,
            input=self.input.to(device),
            positions=self.positions.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
        )


class TaskHead(nn.Module, ABC):
    """The module that fine-tuning adds to an encoder, from states to the input of a task's loss.

    A task type names its head by a `HeadSpec`, which gives a `LinearHead`, or builds another one (`Task.head_builder`).
    """

    reads_all_tokens: ClassVar[bool] = False
    """True if the head gets the states of all T tokens, False if of the R positions only."""
    has_standard_class: ClassVar[bool] = False
    """True if `config.json` names the model's class by the architecture's prefix and the task's suffix, as
    `transformers` names its own."""

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        self.spec = spec

    @property
    def num_scores(self) -> int:
        """Numbers per position that `scores` returns, C."""
        return self.spec.outputs

    @abstractmethod
    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> Any:
        """Compute the output that `Task.loss` gets, from states R × H or T × H; `drop`: dropout of these states."""

    def scores(self, output: Any, batch: TaskBatch) -> Tensor:
        """Return the scores R × C float32 that `Task.decode` gets; by default the output is one.

        A head whose output has several parts, or that decodes sequences as a whole, overrides it.
        """
        scores: Tensor = output
        return scores


class PathScores(Protocol):
    """Output of a head that scores all tags of a sentence together; such heads are listed in `tasks.tagging.TAG_HEADS`.

    The head's `scores` have a column for each tag's log-probability, and a last one with the best path's tags.
    """

    def negative_log_likelihood(self, tags: Tensor, lengths: Ints, /) -> Tensor:
        """Return the sum over B sentences of -log p(tags), from `tags` (R int64) and words per sentence (B)."""


class LinearHead(TaskHead):
    """One linear layer, as in the paper (section 4); before it the pooler, if the encoder has one."""

    has_standard_class: ClassVar[bool] = True

    def __init__(self, spec: HeadSpec, hidden_size: int, has_pooler: bool, has_bias: bool = True) -> None:
        super().__init__(spec)
        self.pooler = Pooler(hidden_size) if has_pooler and spec.reads_sequence_state else None
        self.classifier = Linear(hidden_size, spec.outputs, bias=has_bias)

    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> Tensor:
        """Compute logits R × C float32 of states R × H."""
        if self.pooler is not None:
            states = self.pooler(states)
        if self.spec.kind != "span":  # Google's code has no dropout there
            states = dropout(states, drop, 0)
        logits: Tensor = self.classifier(states.float())  # in float32: bfloat16 would round different scores to ties
        return logits


class PooledHead(TaskHead):
    """A linear layer on the pooled states of all tokens of each sequence; `transformers` has no such class."""

    reads_all_tokens: ClassVar[bool] = True

    def __init__(self, spec: HeadSpec, modes: Sequence[str], encoder: TextEncoder) -> None:
        """Build the head for modes of `pool_states`; "cls" is the last token of a causal encoder."""
        super().__init__(spec)
        self.modes = ["lasttoken" if mode == "cls" and encoder.config.is_causal else mode for mode in modes]
        self.classifier = Linear(len(modes) * encoder.config.hidden_size, spec.outputs)

    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> Tensor:
        """Compute logits B × C float32 of states T × H."""
        pooled = pool_states(states, batch.packing, self.modes)  # B modes·H
        logits: Tensor = self.classifier(dropout(pooled, drop and drop.select(batch.packing.first_positions), 0))
        return logits


class BothOrdersHead(TaskHead):
    """A linear layer on the sum of a pair's two states, one for each order of its texts (GPT, section 3.3: similarity).

    Before the sum is the pooler, if the encoder has one. `transformers` has no such class.
    """

    reads_all_tokens: ClassVar[bool] = True

    def __init__(self, spec: HeadSpec, encoder: TextEncoder) -> None:
        super().__init__(spec)
        hidden_size = encoder.config.hidden_size
        self.is_causal = encoder.config.is_causal
        self.pooler = Pooler(hidden_size) if encoder.has_pooler else None
        self.classifier = Linear(hidden_size, spec.outputs)

    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> Tensor:
        """Compute logits N × C float32 of states T × H; sequences 2 n and 2 n + 1 are the two orders of pair n."""
        positions = batch.packing.last_positions if self.is_causal else batch.packing.first_positions  # 2 N
        read = states[positions]
        if self.pooler is not None:
            read = self.pooler(read)
        read = dropout(read, drop and drop.select(positions), 0)
        logits: Tensor = self.classifier(read.view(len(read) // 2, 2, -1).float().sum(1))
        return logits


class BatchPredictor(EncoderModel, ABC):
    """A model that computes numbers for the positions of a batch: a task's scores, or states as features."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Numbers per position, C."""

    @abstractmethod
    def predict_batch(self, batch: TaskBatch) -> Tensor:
        """Compute the numbers of each position, R × C float32."""


class EncoderForTask(BatchPredictor):
    """An encoder with the head of a task, for every type of task (section 4)."""

    def __init__(self, encoder: TextEncoder, head: HeadSpec | TaskHead, seed: int = 0) -> None:
        """Add a head to an encoder; the head's initial weights are a function of the seed."""
        super().__init__(encoder)
        if isinstance(head, HeadSpec):
            own = encoder.own_head(head)
            head = own or LinearHead(head, encoder.config.hidden_size, encoder.has_pooler)
        self.head = head
        self.initialize_head(seed)

    def initialize_head(self, seed: int) -> None:
        initialize(self.head, self.encoder.config.initializer_range, seed)

    @property
    def num_outputs(self) -> int:
        return self.head.num_scores

    def forward(self, batch: TaskBatch) -> Any:
        """Compute the head's output.

        With a causal encoder, a sequence-level head reads the last token of every sequence, because the first token
        attends only to itself. (`transformers` always reads the first token, see decision 17.)
        """
        positions = self.read_positions(batch)
        return self.apply_head(self.encoder(batch.input, positions), batch, positions)

    def forward_with_states(self, batch: TaskBatch) -> tuple[Any, Tensor]:
        """Compute the head's output, and the states of all tokens, T × H, for an auxiliary loss."""
        positions = self.read_positions(batch)
        states: Tensor = self.encoder(batch.input)
        return self.apply_head(states if positions is None else states[positions], batch, positions), states

    def read_positions(self, batch: TaskBatch) -> Tensor | None:
        """Return the positions of the states that the head reads, R int64; None: all T."""
        if self.head.reads_all_tokens:
            return None
        if self.head.spec.reads_sequence_state and self.config.is_causal:
            return self.encoder.pooled_positions(batch.packing)
        return batch.positions

    def apply_head(self, states: Tensor, batch: TaskBatch, positions: Tensor | None) -> Any:
        """Compute the head's output from the states at `read_positions`."""
        drop = make_dropout(self, self.config.hidden_dropout, batch.packing, positions)
        return self.head(states, batch, drop and drop.after(self.encoder.num_dropout_sites))

    @torch.no_grad()
    def scale_pooled_head(self, batch: TaskBatch) -> None:
        """Divide the initial weights of a `PooledHead` by the size of the vectors that it reads, measured on a batch.

        Pooled states of some encoders are several times smaller than the output of a trained pooler, whose elements are
        near 1 or -1. The logits then have about the same deviation in both cases.
        """
        if isinstance(self.head, PooledHead):
            pooled = pool_states(self.encoder(batch.input), batch.packing, self.head.modes)
            self.head.classifier.weight /= pooled.square().mean().sqrt() * len(self.head.modes) ** 0.5

    def predict_batch(self, batch: TaskBatch) -> Tensor:
        return self.head.scores(self(batch), batch)
