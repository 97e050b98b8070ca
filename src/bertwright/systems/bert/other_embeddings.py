"""BERT's encoder with other embeddings: without segments, and of another size than the layers.

T tokens of the whole batch, H hidden size, E size of the embeddings.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from bertwright.models.linear import Linear
from bertwright.models.packing import TokenBatch
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder, Embeddings


class SegmentlessEmbeddings(Embeddings):
    """Word + position embeddings, then LayerNorm and dropout: all segments have the same vector, 0."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        del self.token_type

    def segment_vectors(self) -> Tensor:
        return self.word.weight.new_zeros(self.config.type_vocab_size, self.config.embedding_size)


class ProjectedEmbeddings(Embeddings):
    """BERT's embeddings of size E, and the layer that projects them to H."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.projection = Linear(config.embedding_size, config.hidden_size)


class ProjectedEncoder(BertEncoder):
    """BERT's layers on projected embeddings."""

    embeddings_type: ClassVar[type[nn.Module]] = ProjectedEmbeddings

    def embed(self, batch: TokenBatch) -> Tensor:
        """Compute the first layer's input, T × E → T × H."""
        projection: Any = self.embeddings.projection
        projected: Tensor = projection(super().embed(batch))
        return projected
