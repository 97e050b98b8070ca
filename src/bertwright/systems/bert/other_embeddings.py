"""BERT's encoder with other embeddings: without segments, and of another size than the layers.

T tokens of the whole batch, H hidden size, E size of the embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

from torch import Tensor, nn

from bertwright.base.settings import check_minimum
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


@dataclass(frozen=True)
class ProjectedConfig(BertConfig):
    """Sizes and constants of an encoder whose embeddings are projected to the hidden size."""

    embedding_size: int = 128
    """Size E of the embeddings."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimum(self, 1, "embedding_size")

    @property
    def has_projection(self) -> bool:
        return True

    @property
    def num_embedding_parameters(self) -> int:
        projection = (self.embedding_size + 1) * self.hidden_size if self.has_projection else 0
        return super().num_embedding_parameters + projection


class ProjectedEmbeddings(Embeddings):
    """BERT's embeddings of size E, and the layer that projects them to H."""

    def __init__(self, config: ProjectedConfig) -> None:
        super().__init__(config)
        self.projection = Linear(config.embedding_size, config.hidden_size) if config.has_projection else None


class ProjectedEncoder(BertEncoder):
    """BERT's layers on projected embeddings."""

    embeddings_type: ClassVar[type[nn.Module]] = ProjectedEmbeddings

    def embed(self, batch: TokenBatch) -> Tensor:
        """Compute the first layer's input, T × E → T × H."""
        embedded, projection = super().embed(batch), self.embeddings.projection
        return embedded if projection is None else cast(Tensor, projection(embedded))
