"""The Transformer encoder of BERT (section 3; Vaswani et al. 2017) over sequences laid end to end.

T tokens of the whole batch, H hidden size, A heads, D head size (H = A · D), F feed-forward size.
"""

from __future__ import annotations

import zlib
from itertools import accumulate
from typing import cast

import torch
from torch import Tensor, nn

from bertwright import seeding
from bertwright.batching.batch import Batch
from bertwright.kernels.attention import attention
from bertwright.kernels.ffi import CMaskKey, c_mask_key
from bertwright.kernels.fused_encoder import (
    EncoderShape,
    can_fuse,
    fusable_parameters,
    fused_encoder,
    layer_parameters,
)
from bertwright.kernels.fused_ops import (
    Dropout,
    EmbeddingTables,
    LayerNormParams,
    add_dropout_norm,
    bias_gelu,
    embed_norm,
    linear,
)
from bertwright.models.config import BertConfig

SITES_PER_LAYER = 3  # attention probabilities, attention output, feed-forward output; the embeddings are site 0


class Linear(nn.Linear):
    """A dense layer that computes in its input's number type; its own weights stay float32, the optimizer's copy."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def matmul(self, x: Tensor) -> Tensor:
        """x Wᵀ, the bias left to the kernel that comes next and reads every element anyway."""
        return linear(x, self.weight)


class Embeddings(nn.Module):
    """Word + segment + position, then LayerNorm and dropout (figure 2)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.sparse = False
        """Whether the word table's gradient is a sparse tensor where that can be; bertwright's AdamW takes both."""
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_positions, config.hidden_size)
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, batch: Batch) -> Tensor:
        tables = EmbeddingTables(self.word.weight, self.position.weight, self.token_type.weight)
        on_output = dropout_for(self, self.config.hidden_dropout, batch)
        return embed_norm(batch, tables, layer_norm_params(self.norm), on_output, site=0, sparse=self.sparse)


class Layer(nn.Module):
    """Self-attention, then feed-forward; each followed by dropout, the residual and LayerNorm (post-LN)."""

    def __init__(self, config: BertConfig, number: int) -> None:
        super().__init__()
        self.config = config
        self.first_site = 1 + SITES_PER_LAYER * number
        width, inner = config.hidden_size, config.intermediate_size
        self.qkv = Linear(width, 3 * width)
        self.attention_output = Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.intermediate = Linear(width, inner)
        self.output = Linear(inner, width)
        self.output_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)

    def forward(self, hidden: Tensor, batch: Batch, rows: Tensor | None = None) -> Tensor:
        """T × H → T × H; with `iter_rows` (R int64) → R × H: only these tokens' states, for which all are attended to."""
        config, site = self.config, self.first_site
        on_weights, on_output = self.dropouts(batch, rows)

        qkv = self.qkv(hidden).unflatten(-1, (3, config.num_heads, config.head_size))  # T 3 A D
        context = attention(qkv, batch.cu_seqlens, batch.max_seqlen, on_weights, site, config.causal)  # T A D
        context = context.flatten(1)  # T H
        if rows is not None:  # from here on every token is on its own: R takes the place of T
            context, hidden = context[rows], hidden[rows]
        mixed = self.attention_output.matmul(context)  # T H
        norm = layer_norm_params(self.attention_norm)
        attended = add_dropout_norm(mixed, self.attention_output.bias, hidden, norm, on_output, site + 1)

        inner = self.intermediate.matmul(attended)  # T F
        inner = bias_gelu(inner, self.intermediate.bias, config.activation == "gelu_tanh")
        outer = self.output.matmul(inner)  # T H
        return add_dropout_norm(
            outer, self.output.bias, attended, layer_norm_params(self.output_norm), on_output, site + 2
        )

    def dropouts(self, batch: Batch, rows: Tensor | None) -> tuple[Dropout | None, Dropout | None]:
        """This batch's dropout of attention's weights, and of the sub-layers' outputs at `iter_rows`."""
        on_output = dropout_for(self, self.config.hidden_dropout, batch)
        return dropout_for(self, self.config.attention_dropout, batch), on_output and on_output._replace(positions=rows)

    def mask_keys(self, batch: Batch, rows: Tensor | None) -> list[CMaskKey]:
        """The same at their sites, for `fused_encoder`."""
        on_weights, on_output = self.dropouts(batch, rows)
        return [
            c_mask_key(drop, self.first_site + place) for place, drop in enumerate((on_weights, on_output, on_output))
        ]


class Encoder(nn.Module):
    """Token ids to one vector a token. Dropout acts in training mode alone, and its masks belong to the batch."""

    def __init__(self, config: BertConfig, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        """Number type of states and matrix products; parameters, LayerNorm, softmax and losses stay float32."""
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.num_layers))
        self.shape = EncoderShape(
            config.num_layers,
            config.hidden_size,
            config.intermediate_size,
            config.num_heads,
            config.causal,
            config.activation == "gelu_tanh",
            config.layer_norm_eps,
        )

    def forward(self, batch: Batch, rows: Tensor | None = None) -> Tensor:
        """The last layer's states, T × H; with `iter_rows` (R int64, distinct), those of these tokens alone, R × H.

        In bfloat16, on a CPU with units for it, all layers are one native call, and `Layer.forward` is not called.
        A state that nobody reads costs most of a layer. In pre-training one in six is read.
        """
        hidden = self.embed(batch)
        *layers, last = cast(list[Layer], list(self.layers))
        if can_fuse(hidden, self.shape):
            parameters = [parameter for layer in self.layers for parameter in layer_parameters(layer)]
            if fusable_parameters(parameters):
                mask_keys = [key for layer in layers for key in layer.mask_keys(batch, None)] + last.mask_keys(
                    batch, rows
                )
                return fused_encoder(hidden, batch, rows, self.shape, mask_keys, parameters)
        for layer in layers:
            hidden = layer(hidden, batch)
        return cast(Tensor, last(hidden, batch, rows))

    def hidden_states(self, batch: Batch) -> list[Tensor]:
        """The embeddings' and every layer's states: L + 1 of T × H."""
        return list(accumulate(self.layers, lambda hidden, layer: layer(hidden, batch), initial=self.embed(batch)))

    def embed(self, batch: Batch) -> Tensor:
        """What the first layer reads, T × H. Raises ValueError for a sequence longer than the learned positions."""
        if batch.max_seqlen > self.config.max_positions:
            raise ValueError(
                f"a sequence of {batch.max_seqlen} tokens; this model has {self.config.max_positions} positions "
                "(max_positions): cut the text into shorter pieces"
            )
        embedded: Tensor = self.embeddings(batch)
        return embedded.to(self.compute_dtype)


def layer_norm_params(norm: nn.LayerNorm) -> LayerNormParams:
    return LayerNormParams(norm.weight, norm.bias, norm.eps)


def dropout_for(module: nn.Module, rate: float, batch: Batch) -> Dropout | None:
    """This batch's dropout in training mode; none otherwise."""
    return Dropout(rate, batch.dropout_seed, batch.first_token) if module.training and rate > 0 else None


@torch.no_grad()
def initialize(model: nn.Module, std: float, seed: int, only: tuple[str, ...] = ("",)) -> None:
    """Weights from a normal distribution cut at two standard deviations, biases 0, LayerNorm 1 and 0 (Google's code).

    Every parameter's numbers belong to (seed, its name): the same whatever other parameters the model has.
    `only`: beginnings of the names to be set. On the meta device, where a model has shapes alone, nothing happens.
    """
    norms = {id(module.weight) for module in model.modules() if isinstance(module, nn.LayerNorm)}
    for name, parameter in model.named_parameters():
        if parameter.is_meta or not name.startswith(only):
            continue
        if parameter.ndim > 1:
            numbers = torch.Generator().manual_seed(seeding.derive_key(seed, zlib.crc32(name.encode())))
            start = torch.empty(parameter.shape)
            parameter.copy_(nn.init.trunc_normal_(start, std=std, a=-2 * std, b=2 * std, generator=numbers))
        else:
            parameter.fill_(1.0 if id(parameter) in norms else 0.0)
