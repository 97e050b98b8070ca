"""The heads of tasks (section 4), and the batch that they read.

T tokens, B sequences, R positions that a task reads, C outputs of its head, H hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bertwright.base.ragged import Ints
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout
from bertwright.models.encoder import TextEncoder
from bertwright.models.head_spec import HeadSpec
from bertwright.models.linear import Linear
from bertwright.models.packing import PackedInput, Packing
from bertwright.models.pooling import pool_states


def is_untrained(layer: nn.Linear) -> bool:
    """Return whether a dense layer has its initial weights: its bias is initially 0, and only training changes it."""
    return not layer.bias.any()


class Pooler(nn.Module):
    """A dense layer with tanh on one state per sequence: its first token or, with a causal encoder, its last.

    Heads of other systems have another activation.
    """

    def __init__(self, hidden_size: int, activation: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size)
        self.activation = activation

    def forward(self, states: Tensor) -> Tensor:
        return self.activation(self.dense(states))  # B H -> B H


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
    num_sequences: int = 1
    """Number of sequences of the whole step."""

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


class VectorModules(Protocol):
    """Layers that follow the pooling of a text's states."""

    def transform(self, vectors: Tensor) -> Tensor:
        """Apply the layers, but no normalization, to N vectors."""


class TaskHead(nn.Module, ABC):
    """The module that fine-tuning adds to an encoder, from states to the input of a task's loss.

    A task type names its head by a `HeadSpec`, which gives a `LinearHead`, or builds another one (`Task.head_builder`).
    """

    reads_all_tokens: ClassVar[bool] = False
    """True if the head gets the states of all T tokens, False if of the R positions only."""
    has_standard_class: ClassVar[bool] = False
    """True if `config.json` names the model's class by the architecture's prefix and the task's suffix, as
    `transformers` names its own."""
    has_graph: ClassVar[bool] = False
    """True if a graph of padded sequences can contain the head."""

    dropout_rate: float | None = None
    """Rate of `drop`; None: the encoder's for states."""

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
    has_graph: ClassVar[bool] = True

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


class DenseHead(LinearHead):
    """A linear layer with a dropout rate of its own; a head of whole sequences has a dense layer before it.

    The dense layer is new in fine-tuning, unlike BERT's pooler, which pre-training trains.
    """

    def __init__(
        self,
        spec: HeadSpec,
        hidden_size: int,
        activation: Callable[[Tensor], Tensor],
        dropout_rate: float | None = None,
        drops_input: bool = False,
    ) -> None:
        """Build the head; `drops_input`: dropout acts before the dense layer, too."""
        super().__init__(spec, hidden_size, has_pooler=False)
        self.dropout_rate, self.drops_input = dropout_rate, drops_input
        if spec.reads_sequence_state:
            self.pooler = Pooler(hidden_size, activation)

    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> Tensor:
        """Compute logits R × C float32 of states R × H."""
        if self.pooler is not None:
            states = self.pooler(dropout(states, drop, 1) if self.drops_input else states)
        logits: Tensor = self.classifier(dropout(states, drop, 0).float())
        return logits


class PooledHead(TaskHead):
    """A linear layer on the pooled states of all tokens of each sequence; `transformers` has no such class."""

    reads_all_tokens: ClassVar[bool] = True
    has_graph: ClassVar[bool] = True

    def __init__(self, spec: HeadSpec, modes: Sequence[str], encoder: TextEncoder) -> None:
        """Build the head for modes of `pool_states`; "cls" is the last token of an encoder from left to right."""
        super().__init__(spec)
        self.modes = ["lasttoken" if mode == "cls" and encoder.ends_in_last_token else mode for mode in modes]
        self.classifier = Linear(len(modes) * encoder.config.hidden_size, spec.outputs)

    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> Tensor:
        """Compute logits B × C float32 of states T × H."""
        pooled = pool_states(states, batch.packing, self.modes)  # B modes·H
        return self.classify(pooled, drop and drop.select(batch.packing.first_positions))

    def classify(self, pooled: Tensor, drop: Dropout | None = None) -> Tensor:
        """Compute logits B × C float32 of pooled states."""
        logits: Tensor = self.classifier(dropout(pooled, drop, 0))
        return logits


class VectorHead(TaskHead):
    """The vector of each sequence: pooled states, and the further layers of a folder of sentence-transformers."""

    reads_all_tokens: ClassVar[bool] = True

    def __init__(self, spec: HeadSpec, modes: Sequence[str], modules: VectorModules, encoder: TextEncoder) -> None:
        """Build the head; `modules` are not trained, and describe the folder that is written."""
        super().__init__(spec)
        self.modes = ["lasttoken" if mode == "cls" and encoder.ends_in_last_token else mode for mode in modes]
        self.layers = modules

    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> Tensor:
        """Compute vectors B × outputs of states T × H, before a normalization."""
        return self.layers.transform(pool_states(states, batch.packing, self.modes))


class BothOrdersHead(TaskHead):
    """A linear layer on the sum of a pair's two states, one for each order of its texts (GPT, section 3.3: similarity).

    Before the sum is the pooler, if the encoder has one. `transformers` has no such class.
    """

    reads_all_tokens: ClassVar[bool] = True

    def __init__(self, spec: HeadSpec, encoder: TextEncoder) -> None:
        super().__init__(spec)
        hidden_size = encoder.config.hidden_size
        self.ends_in_last_token = encoder.ends_in_last_token
        self.pooler = Pooler(hidden_size) if encoder.has_pooler else None
        self.classifier = Linear(hidden_size, spec.outputs)

    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> Tensor:
        """Compute logits N × C float32 of states T × H; sequences 2 n and 2 n + 1 are the two orders of pair n."""
        positions = batch.packing.last_positions if self.ends_in_last_token else batch.packing.first_positions  # 2 N
        read = states[positions]
        if self.pooler is not None:
            read = self.pooler(read)
        read = dropout(read, drop and drop.select(positions), 0)
        logits: Tensor = self.classifier(read.view(len(read) // 2, 2, -1).float().sum(1))
        return logits
