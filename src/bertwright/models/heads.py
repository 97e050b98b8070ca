"""Models: an encoder with the heads of pre-training (section 3.1), or with the one linear layer of a task (section 4).

T tokens, B sequences, M predicted positions, R positions that a task reads, C outputs of its head, H hidden size,
V vocabulary size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.kernels.fused_ops import bias_activation, dropout
from bertwright.models.config import BertConfig
from bertwright.models.encoder import BertEncoder, Linear, make_dropout
from bertwright.models.head_spec import HeadSpec
from bertwright.models.initialization import initialize
from bertwright.models.packing import TokenBatch
from bertwright.models.text_encoder import EncoderConfig, TextEncoder


class EncoderModel(nn.Module):
    """A text encoder by itself; subclasses add heads."""

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    @property
    def config(self) -> EncoderConfig:
        """Configuration of the encoder."""
        return self.encoder.config


def is_untrained(layer: nn.Linear) -> bool:
    """Return whether a dense layer has its initial weights: its bias is initially 0, and only training changes it."""
    return not layer.bias.any()


class Pooler(nn.Module):
    """A dense layer with tanh on one state per sequence: of its first token or, with a causal encoder, of its last."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.dense = Linear(hidden_size, hidden_size)

    def forward(self, states: Tensor) -> Tensor:
        return torch.tanh(self.dense(states))  # B H -> B H


class MaskedLMHead(nn.Module):
    """Dense layer, activation and LayerNorm; then one logit per vocabulary token, by the word embeddings and a bias."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute the input of the masked-LM decoder, M × H → M × H.

        `logits` and the fused loss multiply it by the word embeddings.
        """
        states: Tensor = self.norm(bias_activation(self.dense.matmul(hidden), self.dense.bias, self.activation).float())
        return states.to(hidden.dtype)

    def logits(self, hidden: Tensor, word_embeddings: Tensor) -> Tensor:
        """Compute M × V float32 logits of states M × H."""
        states = self(hidden)
        return F.linear(states, word_embeddings.to(states.dtype)).float() + self.bias


class PretrainingLogits(NamedTuple):
    """Logits of both pre-training tasks, float32."""

    tokens: Tensor
    """M × V, one row per predicted position."""
    next_sentence: Tensor
    """B × 2: column 0 for "B follows A", column 1 for "B is from elsewhere"."""


class BertForPretraining(EncoderModel):
    """BERT with both pre-training heads; the masked-LM decoder is tied to the word embeddings."""

    encoder: BertEncoder

    def __init__(self, config: BertConfig, seed: int = 0) -> None:
        super().__init__(BertEncoder(config, seed=seed))
        self.pooler = Pooler(config.hidden_size)
        self.masked_token = MaskedLMHead(config)
        self.next_sentence = Linear(config.hidden_size, 2)
        initialize(self, config.initializer_range, seed, only=("pooler", "masked_token", "next_sentence"))

    @property
    def config(self) -> BertConfig:
        """Configuration of the encoder."""
        return self.encoder.config

    @property
    def word_embeddings(self) -> Tensor:
        """V × H, shared by the embedding layer and the masked-LM decoder."""
        return self.encoder.embeddings.word.weight

    def forward(self, batch: TokenBatch, positions: Tensor) -> PretrainingLogits:
        """Compute the logits of the tokens at `positions` (M int64 into T) and of every next-sentence prediction."""
        hidden = self.encoder(batch)
        return PretrainingLogits(
            tokens=self.masked_token.logits(hidden[positions], self.word_embeddings),
            next_sentence=self.next_sentence(self.pooler(hidden[batch.packing.first_positions])).float(),
        )


class EncoderForTask(EncoderModel):
    """An encoder with a linear layer: all that fine-tuning adds, for every type of task (section 4)."""

    def __init__(self, encoder: TextEncoder, head: HeadSpec, seed: int = 0) -> None:
        """Add a head to an encoder; the head's initial weights are a function of the seed."""
        super().__init__(encoder)
        self.head = head
        hidden_size = encoder.config.hidden_size
        self.pooler = Pooler(hidden_size) if head.reads_sequence_state and encoder.has_pooler else None
        self.classifier = Linear(hidden_size, head.outputs)
        initialize(self, encoder.config.initializer_range, seed, only=("pooler", "classifier"))

    def forward(self, batch: TokenBatch, positions: Tensor) -> Tensor:
        """Compute logits R × C, float32, of the states at `positions` (R int64 into T).

        With a causal encoder, a sequence-level head reads the last token of every sequence instead, because
        the first token attends only to itself. (`transformers` always reads the first token, see decision 17.)
        """
        if self.head.reads_sequence_state and self.config.is_causal:
            positions = self.encoder.pooled_positions(batch.packing)
        states = self.encoder(batch, positions)  # R H
        if self.pooler is not None:
            states = self.pooler(states)
        if self.head.kind != "span":  # Google's code has no dropout there
            drop = make_dropout(self, self.config.hidden_dropout, batch.packing, positions)
            states = dropout(states, drop, self.encoder.num_dropout_sites)
        logits: Tensor = self.classifier(states.float())  # in float32: bfloat16 would round different scores to ties
        return logits
