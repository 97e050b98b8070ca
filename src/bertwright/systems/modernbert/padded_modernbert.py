"""ModernBERT's encoder over padded sequences, for graphs that other programs run.

B sequences of N tokens, with padding at the end; H hidden size, A heads, D head size.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from bertwright.kernels.reference import activate
from bertwright.kernels.rotary import rotation_tables
from bertwright.models.encoder import PaddedEncoder
from bertwright.systems.bert.padded_bert import HIDDEN, PaddedLinear, split_heads
from bertwright.systems.modernbert.modernbert import ModernBertEncoder, ModernBertLayer


class PaddedModernLayer(nn.Module):
    """A layer of `ModernBertLayer`, in operations that graphs have."""

    def __init__(self, layer: ModernBertLayer) -> None:
        super().__init__()
        config = layer.config
        self.num_heads, self.activation, self.window = config.num_heads, config.activation, layer.window
        self.scale = config.head_size**-0.5
        self.attention_norm = getattr(layer, "attention_norm", nn.Identity())
        self.feed_forward_norm = layer.feed_forward_norm
        self.qkv, self.attention_output = PaddedLinear(layer.qkv.weight), PaddedLinear(layer.attention_output.weight)
        self.intermediate, self.output = PaddedLinear(layer.intermediate.weight), PaddedLinear(layer.output.weight)
        cosines, sines = rotation_tables(layer.base, config.head_size, config.max_positions, layer.qkv.weight.device)
        self.register_buffer("cosines", cosines)
        self.register_buffer("sines", sines)

    def forward(self, hidden: Tensor, scores: Tensor, distances: Tensor) -> Tensor:
        """Compute B × N × H → B × N × H; `scores` are added to the products of queries and keys, `distances` N × N."""
        parts = self.qkv(self.attention_norm(hidden)).chunk(3, -1)
        query, key, value = (split_heads(part, self.num_heads) for part in parts)
        if self.window is not None:
            scores = scores + (distances > self.window).float() * HIDDEN
        shares = (self.turn(query) * self.scale @ self.turn(key).transpose(-1, -2) + scores).softmax(-1)  # B A N N
        hidden = hidden + self.attention_output((shares @ value).transpose(1, 2).flatten(2))
        activated, gate = self.intermediate(self.feed_forward_norm(hidden)).chunk(2, -1)
        return hidden + cast(Tensor, self.output(activate(activated, self.activation) * gate))

    def turn(self, states: Tensor) -> Tensor:
        """Rotate B × A × N × D by the positions of the tokens."""
        first, second = states.chunk(2, -1)
        cosines, sines = self.cosines[: states.shape[2]], self.sines[: states.shape[2]]  # type: ignore[index]
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


class PaddedModernBert(PaddedEncoder):
    """The encoder of ModernBERT over padded sequences."""

    reads_segments = False

    def __init__(self, encoder: ModernBertEncoder) -> None:
        """Copy the weights of an encoder."""
        super().__init__()
        self.words, self.norm = encoder.embeddings.word, encoder.embeddings.norm
        self.layers = nn.ModuleList(PaddedModernLayer(cast(ModernBertLayer, layer)) for layer in encoder.stack())
        self.final_norm = encoder.final_norm

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        hidden, positions = self.norm(self.words(input_ids)), torch.arange(input_ids.shape[1])
        scores = (1 - attention_mask[:, None, None, :].float()) * HIDDEN
        distances = (positions[:, None] - positions).abs()
        for layer in self.layers:
            hidden = layer(hidden, scores, distances)
        return cast(Tensor, self.final_norm(hidden))
