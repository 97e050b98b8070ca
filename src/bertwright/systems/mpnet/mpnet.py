"""MPNet (Song et al. 2020, arXiv 2004.09297): RoBERTa's network without segments, and a bias by relative positions.

A number per head and distance of two tokens is added to their score in every layer; distances share 32 buckets, as in
T5 (Raffel et al. 2020, section 2.1).

A heads, N tokens of the longest sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from bertwright.systems.bert.bert_encoder import BertEncoder, Layer
from bertwright.systems.bert.other_embeddings import SegmentlessEmbeddings
from bertwright.systems.roberta.roberta import RobertaConfig, RobertaEmbeddings, RobertaEncoder, RobertaForMaskedLM

NUM_BUCKETS = 32
FIRST_SHARED = 8  # the smallest distance whose bucket has several distances
LAST_DISTANCE = 128  # from here on all distances share a bucket


@dataclass(frozen=True)
class MpnetConfig(RobertaConfig):
    """Sizes and constants of an MPNet."""

    layer_norm_eps: float = 1e-12

    @property
    def num_embedding_parameters(self) -> int:
        """Number of parameters of the embeddings and of the bias.

        >>> MpnetConfig(vocab_size=30_527).num_parameters
        109518527
        """
        segments = self.segment_vectors * self.hidden_size
        return super().num_embedding_parameters - segments + NUM_BUCKETS * self.num_heads


class MpnetEmbeddings(SegmentlessEmbeddings, RobertaEmbeddings):
    """RoBERTa's embeddings without segments, and the bias of each bucket of distances."""

    def __init__(self, config: MpnetConfig) -> None:
        super().__init__(config)
        self.relative = nn.Embedding(NUM_BUCKETS, config.num_heads)

    def position_bias(self, length: int) -> Tensor:
        """Return the bias of each head and distance, A × (2 N - 1), from N - 1 tokens ahead to N - 1 tokens behind."""
        weight = self.relative.weight
        return weight[buckets(torch.arange(1 - length, length, device=weight.device))].T


class MpnetLayer(Layer):
    """BERT's layer with a bias of attention, which all layers share."""

    shared_bias: Callable[[int], Tensor]

    def position_bias(self, length: int) -> Tensor:
        return self.shared_bias(length)


class MpnetEncoder(RobertaEncoder):
    """MPNet's embeddings and layers; its initial weights are a function of the seed."""

    model_type: ClassVar[str] = "mpnet"
    embeddings_type: ClassVar[type[nn.Module]] = MpnetEmbeddings
    layer_type: ClassVar[type[Layer]] = MpnetLayer

    def stack(self) -> list[Layer]:
        layers = super().stack()
        for layer in layers:
            cast(MpnetLayer, layer).shared_bias = self.embeddings.position_bias
        return layers


class MpnetForMaskedLM(RobertaForMaskedLM):
    """MPNet with its masked-LM head."""

    encoder_type: ClassVar[type[BertEncoder]] = MpnetEncoder


def buckets(distances: Tensor) -> Tensor:
    """Return the bucket of each distance, in tokens from query to key: half of the buckets are for keys ahead.

    >>> buckets(torch.tensor([-200, -9, -8, -1, 0, 1, 8, 200])).tolist()
    [15, 8, 8, 1, 0, 17, 24, 31]
    """
    half = NUM_BUCKETS // 2
    size = distances.abs()
    share = torch.log(size.clamp(min=1).float() / FIRST_SHARED) / math.log(LAST_DISTANCE / FIRST_SHARED)
    shared = (FIRST_SHARED + (share * (half - FIRST_SHARED)).long()).clamp(max=half - 1)
    return torch.where(size < FIRST_SHARED, size, shared) + half * (distances > 0)
