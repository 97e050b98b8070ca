"""The decoder of TSDAE (2104.06979): it writes a text again from the one vector of a damaged copy.

Its layers are the encoder's own with causal attention and, between attention and feed-forward, a cross attention. That
has a single key, so that each weight of its softmax is 1, and only its values and its output layer count. B texts,
T tokens of the texts to be written, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bertwright.kernels.attention import attention
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import add_dropout_norm, embed_norm
from bertwright.kernels.linear_cross_entropy import linear_cross_entropy
from bertwright.kernels.reference import EmbeddingTables
from bertwright.models.encoder import TextEncoder
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch, VectorHead, VectorModules
from bertwright.models.linear import Linear
from bertwright.models.packing import Packing
from bertwright.systems.bert.bert_encoder import BertEncoder, layer_norm_params
from bertwright.systems.bert.bert_for_pretraining import MaskedLMHead


class WrittenTokens(NamedTuple):
    """What predicts the tokens of the texts of a batch."""

    states: Tensor
    """T × H."""
    weight: Tensor
    """V × H, the word embeddings."""
    bias: Tensor
    """V."""

    def loss(self, ids: Tensor) -> Tensor:
        """Compute the sum of the cross entropies of T tokens."""
        return linear_cross_entropy(self.states, self.weight, self.bias, ids)[0]


class CrossAttention(nn.Module):
    """Attention of all tokens of a text to one vector, the residual and LayerNorm."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.value = Linear(hidden_size, hidden_size)
        self.output = Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=eps)

    def forward(self, hidden: Tensor, vectors: Tensor, text: Tensor) -> Tensor:
        """Compute T × H from states T × H, vectors B × H and the number of each token's text, T."""
        attended = self.output.matmul(self.value(vectors))[text]
        return add_dropout_norm(attended, self.output.bias, hidden, layer_norm_params(self.norm), None, 0)


class DenoisingHead(VectorHead):
    """Vectors of texts; in training, what their decoder predicts. The decoder has no dropout."""

    def __init__(self, spec: HeadSpec, modes: Sequence[str], modules: VectorModules, encoder: TextEncoder) -> None:
        """Add the decoder's own layers to the head. Raises ValueError for an encoder other than a BERT."""
        super().__init__(spec, modes, modules, encoder)
        if type(encoder) is not BertEncoder or spec.outputs != encoder.config.hidden_size:
            raise ValueError(
                f"vector_loss = 'tsdae': expected a BERT with vectors of its hidden size, got a {encoder.model_type} "
                f"with {spec.outputs} numbers; choose simcse"
            )
        config = encoder.config
        self.cross = nn.ModuleList(
            CrossAttention(config.hidden_size, config.layer_norm_eps) for _ in range(config.num_layers)
        )
        self.written = MaskedLMHead(config)
        self.shared: tuple[BertEncoder] = (encoder,)  # in a tuple, so that its parameters are not the head's

    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> Tensor | WrittenTokens:  # type: ignore[override]
        """Compute vectors B × H or, in training, what predicts the tokens of all texts, column 0 of `batch.labels`."""
        vectors = super().forward(states, batch, drop)
        if not self.training:
            return vectors
        (encoder,), first = self.shared, batch.input.input_ids[0]  # type: ignore[attr-defined]
        ids, places = batch.labels.unbind(1)
        hidden = self.decode(vectors.to(states.dtype), ids, places, first)
        return WrittenTokens(self.written(hidden), encoder.embeddings.word.weight, self.written.bias)

    def decode(self, vectors: Tensor, ids: Tensor, places: Tensor, first: Tensor) -> Tensor:
        """Compute the decoder's states T × H from B × H vectors; `ids` and `places`: T tokens, and where in their text.

        The state of a token depends on `first`, which is [CLS], and on the tokens before it.
        """
        (encoder,) = self.shared
        starts = (places == 0).nonzero()[:, 0].cpu().numpy()
        lengths = np.diff(starts, append=len(ids))
        packing = Packing.of(lengths).to(ids.device)
        read = ids.roll(1)
        read[packing.first_positions] = first
        hidden = self.embed(read, packing.position_ids)
        text = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(ids.device)
        bounds = packing.cu_seqlens, packing.max_seqlen
        for layer, cross in zip(encoder.stack(), self.cross, strict=True):
            context = attention(layer.project(hidden, packing), *bounds, None, 0, causal=True).flatten(1)
            hidden = cross(layer.attend(context, hidden, None), vectors, text)
            hidden = layer.feed_forward(hidden, None)
        return hidden

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embed T tokens without dropout, T × H."""
        (encoder,) = self.shared
        module = encoder.embeddings
        tables = EmbeddingTables(module.word.weight, module.position_vectors(), module.segment_vectors())
        embedded = embed_norm((ids, positions, torch.zeros_like(ids)), tables, layer_norm_params(module.norm), None, 0)
        return embedded.to(encoder.compute_dtype)
