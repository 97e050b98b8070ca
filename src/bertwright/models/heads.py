"""What stands on the encoder: the heads of pre-training (section 3.1), and the one layer of each task (section 4).

T tokens, B sequences, M predicted positions, R states that a task reads, C outputs of its head, H hidden size,
V vocabulary size.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.batching.batch import Batch
from bertwright.kernels.fused_ops import bias_gelu, dropout
from bertwright.models.config import BertConfig
from bertwright.models.encoder import SITES_PER_LAYER, Encoder, Linear, dropout_for, initialize


class Pooler(nn.Module):
    """tanh(dense([CLS])): one vector a sequence, from the state of its first token."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(self, first: Tensor) -> Tensor:
        return torch.tanh(self.dense(first))  # B H -> B H


class MaskedLMHead(nn.Module):
    """Dense, GELU and LayerNorm; then one logit a token of the vocabulary, by the word embeddings and an own bias."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.tanh = config.activation == "gelu_tanh"
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """What the decoder reads, M × H: its product with the word embeddings belongs to the loss, or to `logits`."""
        states: Tensor = self.norm(bias_gelu(self.dense.matmul(hidden), self.dense.bias, self.tanh).float())
        return states.to(hidden.dtype)

    def logits(self, hidden: Tensor, word_embeddings: Tensor) -> Tensor:
        """M × V float32 logits of states M × H."""
        states = self(hidden)
        return F.linear(states, word_embeddings.to(states.dtype)).float() + self.bias


class PretrainingLogits(NamedTuple):
    """Logits of both pre-training tasks, float32."""

    tokens: Tensor
    """M × V, one row for each asked position."""
    next_sentence: Tensor
    """B × 2: column 0 for "B follows A", column 1 for "B is from elsewhere"."""


class BertForPretraining(nn.Module):
    """The encoder with both pre-training heads; the masked-token decoder is tied to the word embeddings."""

    def __init__(self, config: BertConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.pooler = Pooler(config)
        self.masked_token = MaskedLMHead(config)
        self.next_sentence = Linear(config.hidden_size, 2)
        initialize(self, config.initializer_range, seed)

    @property
    def word_embeddings(self) -> Tensor:
        """V × H, read by the first layer and by the masked-token decoder alike."""
        return self.encoder.embeddings.word.weight

    def forward(self, batch: Batch, positions: Tensor) -> PretrainingLogits:
        """Logits for the tokens at `positions` (M int64 into T) and for every sequence's next-sentence question."""
        hidden = self.encoder(batch)
        return PretrainingLogits(
            tokens=self.masked_token.logits(hidden[positions], self.word_embeddings),
            next_sentence=self.next_sentence(self.pooler(hidden[batch.cu_seqlens[:-1]])).float(),
        )


class HeadSpec(NamedTuple):
    """What a task reads from the encoder, and how many numbers it makes of each state that it reads."""

    kind: Literal["sequence", "choice", "token", "span"]
    """sequence, choice: one vector a sequence, the pooled [CLS]; token: each word's first token; span: every token."""
    outputs: int
    """C: labels, or 1 for a regression or a choice's score, or 2 for the start and the end of a span."""

    @property
    def pooled(self) -> bool:
        return self.kind in ("sequence", "choice")


class BertForTask(nn.Module):
    """The encoder with one linear layer on it: what fine-tuning adds to BERT, for every kind of task (section 4)."""

    def __init__(self, config: BertConfig, head: HeadSpec, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.head = head
        self.encoder = Encoder(config)
        self.pooler = Pooler(config) if head.pooled else None
        self.classifier = Linear(config.hidden_size, head.outputs)
        initialize(self, config.initializer_range, seed)

    def forward(self, batch: Batch, rows: Tensor) -> Tensor:
        """Logits R × C, float32, of the states at `iter_rows` (R int64 into T)."""
        states = self.encoder(batch, rows)  # R H
        if self.pooler is not None:
            states = self.pooler(states)
        if self.head.kind != "span":  # Google's code drops nothing out there
            drop = dropout_for(self, self.config.hidden_dropout, batch)
            site = 1 + SITES_PER_LAYER * self.config.num_layers
            states = dropout(states, drop and drop._replace(positions=rows), site)
        logits: Tensor = self.classifier(states.float())  # a few numbers a row, of which bfloat16 would make ties
        return logits
