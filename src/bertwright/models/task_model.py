"""The model of a task: an encoder with a head (section 4).

T tokens, R positions that a task reads, C outputs of its head, H hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from bertwright.models.encoder import EncoderModel, TextEncoder
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import LinearHead, PooledHead, TaskBatch, TaskHead
from bertwright.models.initialization import initialize, truncated_normal
from bertwright.models.linear import make_dropout
from bertwright.models.pooling import pool_states


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
        initialize(self.head, truncated_normal(self.encoder.config.initializer_range), seed)

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
        rate = self.config.hidden_dropout if self.head.dropout_rate is None else self.head.dropout_rate
        drop = make_dropout(self, rate, batch.packing, positions)
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
