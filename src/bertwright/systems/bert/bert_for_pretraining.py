"""BERT with the heads of pre-training (section 3.1): masked tokens and next-sentence prediction.

T tokens, B sequences, M predicted positions, H hidden size, E size of the embeddings (BERT: H), V vocabulary size.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.kernels.fused_ops import bias_activation, fill_blocks
from bertwright.kernels.linear_cross_entropy import linear_cross_entropy
from bertwright.models.encoder import TokenPredictor
from bertwright.models.heads import Pooler
from bertwright.models.initialization import initialize
from bertwright.models.linear import Linear
from bertwright.models.packing import TokenBatch
from bertwright.models.token_scores import score_next_tokens
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder


class MaskedLMHead(nn.Module):
    """Dense layer, activation and LayerNorm; then one logit per vocabulary token, by the word embeddings and a bias."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.dense = Linear(config.hidden_size, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """Compute the input of the masked-LM decoder, M × H → M × E.

        `logits` and the fused loss multiply it by the word embeddings.
        """
        states: Tensor = self.norm(bias_activation(self.dense.matmul(hidden), self.dense.bias, self.activation).float())
        return states.to(hidden.dtype)

    def logits(self, hidden: Tensor, word_embeddings: Tensor) -> Tensor:
        """Compute M × V float32 logits of states M × H."""
        states = fill_blocks(self(hidden))
        return F.linear(states, word_embeddings.to(states.dtype))[: len(hidden)].float() + self.bias


class PretrainingLogits(NamedTuple):
    """Logits of both pre-training tasks, float32."""

    tokens: Tensor
    """M × V, one row per predicted position."""
    next_sentence: Tensor
    """B × 2: column 0 for "B follows A", column 1 for "B is from elsewhere"."""


class MaskedLanguageModel(TokenPredictor):
    """An encoder in BERT's shape with a masked-LM head, whose decoder is tied to the word embeddings."""

    encoder: BertEncoder
    config: BertConfig
    encoder_type: ClassVar[type[BertEncoder]] = BertEncoder

    def __init__(self, config: BertConfig, seed: int = 0) -> None:
        super().__init__(self.encoder_type(config, seed=seed))
        self.add_heads(config)
        heads = tuple(name for name, _ in self.named_children() if name != "encoder")
        initialize(self, self.encoder.draw, seed, only=heads)

    def add_heads(self, config: BertConfig) -> None:
        """Add the modules of the heads, in the order in which messages name them."""
        self.masked_token = MaskedLMHead(config)

    @property
    def word_embeddings(self) -> Tensor:
        """V × E, shared by the embedding layer and the masked-LM decoder."""
        words: Tensor = self.encoder.embeddings.word.weight
        return words

    def cross_entropy(self, states: Tensor, labels: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        head = self.masked_token
        return linear_cross_entropy(head(states), self.word_embeddings, head.bias, labels, scale)

    def token_logits(self, batch: Any, positions: Tensor) -> Tensor:
        return self.masked_token.logits(self.encoder(batch, positions), self.word_embeddings)

    def score_tokens(self, batch: TokenBatch) -> Tensor:
        if not self.config.is_causal or self.config.is_reversed:
            return super().score_tokens(batch)
        logits = partial(self.masked_token.logits, word_embeddings=self.word_embeddings)
        return score_next_tokens(batch.packing, batch.input_ids, self.encoder(batch), logits)


class BertForPretraining(MaskedLanguageModel):
    """BERT with both pre-training heads."""

    def add_heads(self, config: BertConfig) -> None:
        self.pooler = Pooler(config.hidden_size)
        super().add_heads(config)
        self.next_sentence = Linear(config.hidden_size, 2)

    def forward(self, batch: TokenBatch, positions: Tensor) -> PretrainingLogits:
        """Compute the logits of the tokens at `positions` (M int64 into T) and of every next-sentence prediction."""
        hidden = self.encoder(batch)
        return PretrainingLogits(
            tokens=self.masked_token.logits(hidden[positions], self.word_embeddings),
            next_sentence=self.next_sentence(self.pooler(hidden[batch.packing.first_positions])).float(),
        )
