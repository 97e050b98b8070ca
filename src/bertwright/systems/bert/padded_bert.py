"""BERT's encoder over padded sequences, for graphs that other programs run.

B sequences of N tokens, with padding at the end; H hidden size, A heads, D head size, E size of the embeddings.
"""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.kernels.reference import activate, spread_bias
from bertwright.models.encoder import PaddedEncoder
from bertwright.systems.bert.bert_encoder import BertEncoder, Layer
from bertwright.systems.bert.bert_for_pretraining import MaskedLMHead
from bertwright.systems.bert.other_embeddings import ProjectedEncoder

HIDDEN = -1e9  # score of a padding token: its share of the attention is 0


class PaddedLinear(nn.Module):
    """A dense layer whose matrix is stored as inputs × outputs: a graph then has a product and no transposition."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """Copy a weight, outputs × inputs, and a bias."""
        super().__init__()
        self.register_buffer("weight", weight.detach().float().T.contiguous())
        self.register_buffer("bias", None if bias is None else bias.detach().float().clone())

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = x @ self.weight  # type: ignore[operator]
        return product if self.bias is None else product + self.bias  # type: ignore[operator]


class PaddedLayer(nn.Module):
    """A layer of `Layer`, in operations that graphs have; the scale of the scores is part of the queries' weights."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        config = layer.config
        self.num_heads, self.activation = config.num_heads, config.activation
        weights, biases = layer.qkv.weight.chunk(3), layer.qkv.bias.chunk(3)
        scale = config.head_size**-0.5
        self.query = PaddedLinear(weights[0] * scale, biases[0] * scale)
        self.key, self.value = PaddedLinear(weights[1], biases[1]), PaddedLinear(weights[2], biases[2])
        self.attention_output = PaddedLinear(layer.attention_output.weight, layer.attention_output.bias)
        self.attention_norm, self.output_norm = layer.attention_norm, layer.output_norm
        self.intermediate = PaddedLinear(layer.intermediate.weight, layer.intermediate.bias)
        self.output = PaddedLinear(layer.output.weight, layer.output.bias)

    def forward(self, hidden: Tensor, scores: Tensor) -> Tensor:
        """Compute B × N × H → B × N × H; `scores` are added to the products of queries and keys, B A N N."""
        query, key, value = (split_heads(layer(hidden), self.num_heads) for layer in (self.query, self.key, self.value))
        shares = (query @ key.transpose(-1, -2) + scores).softmax(-1)  # B A N N
        context = (shares @ value).transpose(1, 2).flatten(2)  # B A N D -> B N H
        attended = self.attention_norm(self.attention_output(context) + hidden)
        intermediate = activate(self.intermediate(attended), self.activation)
        return cast(Tensor, self.output_norm(self.output(intermediate) + attended))


def split_heads(states: Tensor, num_heads: int) -> Tensor:
    """Return B × A × N × D of B × N × H."""
    return states.reshape(*states.shape[:2], num_heads, -1).transpose(1, 2)


class PaddedBert(PaddedEncoder):
    """The encoder of BERT, and of the systems with its layers, over padded sequences."""

    def __init__(self, encoder: BertEncoder) -> None:
        """Copy the weights of an encoder; layers that share their weights share them here."""
        super().__init__()
        embeddings = encoder.embeddings
        segments = embeddings.segment_vectors().detach()
        self.reads_segments = len(segments) > 1 and bool(segments.any())
        self.words, self.norm = embeddings.word, embeddings.norm
        self.segments = (
            nn.Embedding(len(segments), segments.shape[1], _weight=segments) if self.reads_segments else None
        )
        positions = embeddings.position_vectors().detach()
        self.register_buffer("positions", positions.clone() if self.reads_segments else positions + segments[0])
        projection = embeddings.projection if isinstance(encoder, ProjectedEncoder) else None
        self.projection = None if projection is None else PaddedLinear(projection.weight, projection.bias)
        stack, distinct = encoder.stack(), dict[int, int]()
        self.order = [distinct.setdefault(id(layer.qkv), len(distinct)) for layer in stack]
        firsts = [stack[self.order.index(number)] for number in range(len(distinct))]
        self.layers = nn.ModuleList(PaddedLayer(layer) for layer in firsts)
        self.position_bias = stack[0].position_bias  # where there is one, all layers share it

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        hidden = self.words(input_ids) + self.positions[:length]  # type: ignore[index]
        if self.segments is not None:
            hidden = hidden + self.segments(token_type_ids)
        hidden = self.norm(hidden)  # B N E
        if self.projection is not None:
            hidden = self.projection(hidden)  # B N H
        scores = (1 - attention_mask[:, None, None, :].float()) * HIDDEN
        if (bias := self.position_bias(length)) is not None:
            scores = scores + spread_bias(bias, length, length)
        for number in self.order:
            hidden = self.layers[number](hidden, scores)
        return cast(Tensor, hidden)


def masked_token_logits(head: MaskedLMHead, states: Tensor, word_embeddings: Tensor) -> Tensor:
    """Compute the logits M × V of states M × H, as `MaskedLMHead.logits` does, in operations that graphs have."""
    hidden = head.norm(activate(head.dense(states), head.activation))
    return F.linear(hidden, word_embeddings) + head.bias
