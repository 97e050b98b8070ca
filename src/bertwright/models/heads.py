"""What stands on the encoder in pre-training: pooler, masked-token head, next-sentence head (section 3.1).

T tokens, B sequences, M predicted positions, H hidden size, V vocabulary size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.batching.batch import Batch
from bertwright.models.config import BertConfig
from bertwright.models.encoder import Encoder, Linear, initialize
from bertwright.models.kernels import bias_gelu


class Pooler(nn.Module):
    """tanh(dense([CLS])): one vector a sequence, from the state of its first token."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def forward(self, first: Tensor) -> Tensor:
        return torch.tanh(self.dense(first))  # B H -> B H


class MaskedTokenHead(nn.Module):
    """Dense, GELU and LayerNorm; then one logit a token of the vocabulary, by the word embeddings and an own bias."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.tanh = config.activation == "gelu_tanh"
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """What the decoder reads, M × H: its product with the word embeddings belongs to the loss, or to `logits`."""
        states: Tensor = self.norm(bias_gelu(self.dense.product(hidden), self.dense.bias, self.tanh).float())
        return states.to(hidden.dtype)

    def logits(self, hidden: Tensor, word_embeddings: Tensor) -> Tensor:
        """M × V float32 logits of states M × H."""
        states = self(hidden)
        return F.linear(states, word_embeddings.to(states.dtype)).float() + self.bias


class Predictions(NamedTuple):
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
        self.masked_token = MaskedTokenHead(config)
        self.next_sentence = Linear(config.hidden_size, 2)
        initialize(self, config.initializer_range, seed)

    @property
    def word_embeddings(self) -> Tensor:
        """V × H, read by the first layer and by the masked-token decoder alike."""
        return self.encoder.embeddings.word.weight

    def forward(self, batch: Batch, positions: Tensor) -> Predictions:
        """Logits for the tokens at `positions` (M int64 into T) and for every sequence's next-sentence question."""
        hidden = self.encoder(batch)
        return Predictions(
            tokens=self.masked_token.logits(hidden[positions], self.word_embeddings),
            next_sentence=self.next_sentence(self.pooler(hidden[batch.cu_seqlens[:-1]])).float(),
        )
