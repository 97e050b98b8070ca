"""The Transformer of Vaswani et al. 2017, "Attention is all you need": an encoder and a decoder, over packed pairs.

S tokens of all sources, T tokens of all targets, N hypotheses of a decoding step, t tokens of each hypothesis, H hidden
size, A heads, D head size, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.base.settings import check_limit, check_minimum
from bertwright.kernels.attention import attention, cross_attention
from bertwright.kernels.fused_ops import add_dropout_norm, dropout, linear
from bertwright.models.beam_search import StepDecoder
from bertwright.models.initialization import Weight, initialize, sinusoidal_positions
from bertwright.models.linear import Linear, make_dropout
from bertwright.models.packing import Packing, PairBatch, TokenBatch
from bertwright.models.shapes import format_shape
from bertwright.systems.bert.bert_encoder import layer_norm_params
from bertwright.systems.transformer.defaults import SIZES
from bertwright.systems.translation_models import TranslationModel


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes and constants of a Transformer, checked on construction."""

    vocab_size: int
    """Number of tokens in the vocabulary that sources and targets share, V."""
    hidden_size: int = 512
    """Size H of every token's state (table 3, d_model)."""
    num_layers: int = 6
    """Layers of the encoder, and as many of the decoder (section 3.1)."""
    num_heads: int = 8
    """Attention heads A; each has H / A dimensions (section 3.2.2)."""
    intermediate_size: int = 2048
    """Size of the feed-forward layers (section 3.3, d_ff)."""
    dropout: float = 0.1
    """Dropout of each sub-layer's output, and of the embeddings with their positions (section 5.4)."""
    layer_norm_eps: float = 1e-5
    """Added to the variance in LayerNorm; the paper states none, this is the value of PyTorch and Marian."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size")
        check_limit(self, "from 0 to below 1", "dropout")
        check_limit(self, "above 0", "layer_norm_eps")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size = {self.hidden_size}: expected a multiple of num_heads = {self.num_heads}; heads have "
                "hidden_size / num_heads dimensions"
            )

    def __str__(self) -> str:
        return f"{self.num_layers} + {format_shape(self.num_layers, self.hidden_size, self.num_heads)}"

    @classmethod
    def from_size(cls, size: str, vocab_size: int, **changes: Any) -> TransformerConfig:
        """Return one of `SIZES`, with any other field changed by name.

        >>> str(TransformerConfig.from_size("base", vocab_size=37_000))
        '6 + L6 H512 A8'
        """
        return cls(vocab_size, **(SIZES[size] | changes))


class Sublayer(nn.Module):
    """The end that all sub-layers share: LayerNorm(x + Dropout(Sublayer(x))), section 3.1 (post-norm)."""

    def __init__(self, config: TransformerConfig, inner_size: int, site: int) -> None:
        """Build the output projection; `site`: number of the sub-layer's dropout mask."""
        super().__init__()
        self.num_heads, self.dropout, self.site = config.num_heads, config.dropout, site
        self.output = Linear(inner_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def add_and_norm(self, inner: Tensor, residual: Tensor, packing: Packing | None) -> Tensor:
        """Project the sub-layer's inner states, drop, add the residual and normalize; no packing: no dropout."""
        norm = self.norm
        if packing is None:  # a step of decoding has few rows, and PyTorch's functions cost less per call
            summed = (residual + self.output(inner)).float()
            return F.layer_norm(summed, norm.normalized_shape, norm.weight, norm.bias, norm.eps).to(inner.dtype)
        drop = make_dropout(self, self.dropout, packing)
        projected = self.output.matmul(inner)
        return add_dropout_norm(projected, self.output.bias, residual, layer_norm_params(norm), drop, self.site)

    def split_heads(self, projected: Tensor, parts: int) -> Tensor:
        """Reshape T × parts · H to T × parts × A × D."""
        return projected.view(len(projected), parts, self.num_heads, -1)


class SelfAttention(Sublayer):
    """Multi-head attention of a sequence to itself; in the decoder to earlier positions only (section 3.2.3)."""

    def __init__(self, config: TransformerConfig, site: int, causal: bool) -> None:
        super().__init__(config, config.hidden_size, site)
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.causal = causal

    def forward(self, hidden: Tensor, packing: Packing) -> Tensor:  # T H → T H
        qkv = self.split_heads(self.qkv(hidden), 3)  # T 3 A D
        context = attention(qkv, packing.cu_seqlens, packing.max_seqlen, None, 0, self.causal)
        return self.add_and_norm(context.flatten(1), hidden, packing)

    def step(self, hidden: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the states of one new token per hypothesis, N × H.

        `past`: keys and values of the earlier tokens, N t 2 A D. Also return them with the new token's, N t+1 2 A D.
        """
        qkv = self.split_heads(self.qkv(hidden), 3)  # N 3 A D
        past = torch.cat([past, qkv[:, None, 1:]], dim=1)
        count, length = past.shape[:2]
        queries = torch.arange(count + 1, dtype=torch.int32, device=hidden.device)
        context = cross_attention(qkv[:, 0], past.flatten(0, 1), queries, queries * length, 1, length)
        return self.add_and_norm(context.flatten(1), hidden, None), past


class CrossAttention(Sublayer):
    """Multi-head attention of the decoder's queries to the encoder's keys and values (section 3.2.3)."""

    def __init__(self, config: TransformerConfig, site: int) -> None:
        super().__init__(config, config.hidden_size, site)
        self.q = Linear(config.hidden_size, config.hidden_size)
        self.kv = Linear(config.hidden_size, 2 * config.hidden_size)

    def read(self, memory: Tensor) -> Tensor:
        """Compute the keys and values of the encoder's states, S × H → S 2 A D."""
        return self.split_heads(self.kv(memory), 2)

    def forward(
        self, hidden: Tensor, kv: Tensor, queries: Sequences, source: Packing, packing: Packing | None
    ) -> Tensor:
        """Compute T × H → T × H; `queries`: bounds of the decoder's rows that belong to each source."""
        q = self.split_heads(self.q(hidden), 1)[:, 0]  # T A D
        bounds = (queries.cu_seqlens, source.cu_seqlens, queries.max_seqlen, source.max_seqlen)
        context = cross_attention(q, kv, *bounds)
        return self.add_and_norm(context.flatten(1), hidden, packing)


class FeedForward(Sublayer):
    """Two linear maps with a ReLU between, at each position (section 3.3)."""

    def __init__(self, config: TransformerConfig, site: int) -> None:
        super().__init__(config, config.intermediate_size, site)
        self.inner = Linear(config.hidden_size, config.intermediate_size)

    def forward(self, hidden: Tensor, packing: Packing | None) -> Tensor:  # T H → T H
        return self.add_and_norm(F.relu(self.inner(hidden)), hidden, packing)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, config: TransformerConfig, first_site: int) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, first_site, causal=False)
        self.feed_forward = FeedForward(config, first_site + 1)

    def forward(self, hidden: Tensor, source: Packing) -> Tensor:  # S H → S H
        states: Tensor = self.feed_forward(self.self_attention(hidden, source), source)
        return states


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the encoder's states, and feed-forward."""

    def __init__(self, config: TransformerConfig, first_site: int) -> None:
        super().__init__()
        self.self_attention = SelfAttention(config, first_site, causal=True)
        self.cross_attention = CrossAttention(config, first_site + 1)
        self.feed_forward = FeedForward(config, first_site + 2)

    def forward(self, hidden: Tensor, target: Packing, memory: Tensor, source: Packing) -> Tensor:
        """Compute T × H → T × H; `memory`: the encoder's states, S × H."""
        hidden = self.self_attention(hidden, target)
        queries = Sequences(target.cu_seqlens, target.max_seqlen)
        hidden = self.cross_attention(hidden, self.cross_attention.read(memory), queries, source, target)
        states: Tensor = self.feed_forward(hidden, target)
        return states

    def step(
        self, hidden: Tensor, past: Tensor, kv: Tensor, queries: Sequences, source: Packing
    ) -> tuple[Tensor, Tensor]:
        """Compute the states of one new token per hypothesis, N × H, and the keys and values up to it."""
        hidden, past = self.self_attention.step(hidden, past)
        hidden = self.cross_attention(hidden, kv, queries, source, None)
        states: Tensor = self.feed_forward(hidden, None)
        return states, past


class Sequences(NamedTuple):
    """Bounds of sequences that lie end to end."""

    cu_seqlens: Tensor  # B + 1 int32
    max_seqlen: int


class Transformer(TranslationModel):
    """Encoder and decoder with one table of vectors: for sources, for targets and, transposed, for the softmax.

    Its initial weights are a function of the seed. Dropout acts in training mode only.
    """

    architecture: ClassVar[str] = "transformer"
    config: TransformerConfig

    def __init__(self, config: TransformerConfig, compute_dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        """Dtype of states and matrix products; parameters, LayerNorm, softmax and losses stay float32."""
        layers = config.num_layers
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        # Dropout sites 0 and 1 are the embeddings of sources and targets.
        self.encoder_layers = nn.ModuleList(EncoderLayer(config, 2 + 2 * n) for n in range(layers))
        self.decoder_layers = nn.ModuleList(DecoderLayer(config, 2 + 2 * layers + 3 * n) for n in range(layers))
        self.positions = torch.empty(0, config.hidden_size)  # grows with the sequences (section 3.5)
        initialize(self, draw_glorot, seed)

    def forward(self, batch: PairBatch) -> Tensor:
        """Compute the decoder's last states, T × H; each depends on its source and on earlier target tokens only."""
        return self.decode(batch.target, self.encode(batch.source), batch.source.packing)

    def encode(self, source: TokenBatch) -> Tensor:
        """Compute the encoder's last states, S × H."""
        hidden = self.embed(source, site=0)
        for layer in self.encoder_layers:
            hidden = layer(hidden, source.packing)
        return hidden

    def decode(self, target: TokenBatch, memory: Tensor, source: Packing) -> Tensor:
        """Compute the decoder's last states, T × H, from the encoder's states, S × H."""
        hidden = self.embed(target, site=1)
        for layer in self.decoder_layers:
            hidden = layer(hidden, target.packing, memory, source)
        return hidden

    def embed(self, batch: TokenBatch, site: int) -> Tensor:
        """Compute dropout(√H · word + position), T × H (sections 3.4 and 3.5)."""
        embedded = self.add_positions(batch.input_ids, batch.packing.position_ids, batch.packing.max_seqlen)
        return dropout(embedded, make_dropout(self, self.config.dropout, batch.packing), site)

    def add_positions(self, ids: Tensor, position_ids: Tensor, length: int) -> Tensor:
        """Compute √H · word + position, T × H; `length`: the number of positions in use."""
        if length > len(self.positions):
            self.positions = sinusoidal_positions(2 * length, self.config.hidden_size)
        self.positions = self.positions.to(ids.device)
        words = F.embedding(ids, self.words.weight) * math.sqrt(self.config.hidden_size)
        return (words + F.embedding(position_ids, self.positions)).to(self.compute_dtype)

    def logits(self, states: Tensor) -> Tensor:
        """Compute the logits of the next token, T × H → T × V."""
        return linear(states, self.words.weight)

    def softmax_weights(self) -> tuple[Tensor, Tensor]:
        """Return the matrix and the biases of the next token's logits, V × H and V; the biases are 0."""
        weight = self.words.weight
        return weight, torch.zeros(len(weight), device=weight.device)

    def start_decoding(self, source: TokenBatch) -> StepDecoder:
        return CachedDecoder(self, source)


class CachedDecoder:
    """A Transformer's decoder with the keys and values of all earlier tokens and of the sources.

    The hypotheses of a source are queries of one sequence of keys, so the source's keys and values are stored once.
    """

    def __init__(self, model: Transformer, source: TokenBatch) -> None:
        config, memory = model.config, model.encode(source)
        self.model, self.source = model, source.packing
        self.layers = cast(list[DecoderLayer], list(model.decoder_layers))
        self.memory = [layer.cross_attention.read(memory) for layer in self.layers]  # S 2 A D each
        empty = memory.new_empty(len(source.packing), 0, 2, config.num_heads, config.hidden_size // config.num_heads)
        self.past = [empty] * config.num_layers  # N t 2 A D each
        self.length = 0

    def advance(self, tokens: Tensor, parents: Tensor, sources: Tensor) -> Tensor:
        device = self.source.cu_seqlens.device
        counts = np.zeros(len(self.source), np.int32)
        counts[sources.numpy()] = beam = len(tokens) // len(sources)
        bounds = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)).to(device)
        tokens, parents = tokens.to(device), parents.to(device)
        hidden = self.model.add_positions(tokens, torch.full_like(tokens, self.length), self.length + 1)
        self.length += 1
        for number, layer in enumerate(self.layers):
            past = self.past[number].index_select(0, parents)
            kv, queries = self.memory[number], Sequences(bounds, beam)
            hidden, self.past[number] = layer.step(hidden, past, kv, queries, self.source)
        return self.model.logits(hidden).cpu()


def draw_glorot(weight: Weight) -> None:
    """Draw matrices with Glorot's bound, embeddings with σ = H^-0.5; biases are 0 (tensor2tensor).

    Each part of stacked projections has the bound of a matrix of its own.
    """
    values = weight.values
    if isinstance(weight.owner, nn.Embedding):
        weight.draw_normal(weight.owner.embedding_dim**-0.5)
    elif values.ndim > 1:
        for part in values.chunk({"qkv": 3, "kv": 2}.get(weight.name.split(".")[-2], 1)):
            nn.init.xavier_uniform_(part, generator=weight.rng)
    else:
        values.fill_(1.0 if weight.name.endswith("norm.weight") else 0.0)
