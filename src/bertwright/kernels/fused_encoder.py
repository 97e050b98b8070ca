"""All layers of an encoder as one native call forward and one backward (`layers.h`), on processors with bfloat16 units.

T tokens, of which R leave the last layer; H hidden size, A heads, F feed-forward size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.batching.batch import Batch
from bertwright.kernels.attention import check_sequences, head_size_vectorizable
from bertwright.kernels.ffi import CMaskKey, apply, call
from bertwright.kernels.fused_ops import check_range
from bertwright.kernels.linear_bf16 import is_native_bf16, is_tile_aligned
from bertwright.models.config import BertConfig

PARAMS_PER_LAYER = 12  # parameters; `struct Parameters` of layers.h


class FusedArgs(NamedTuple):
    """What is no tensor."""

    config: BertConfig
    mask_keys: list[CMaskKey]
    """Three a layer: of attention's weights, and of the outputs of both sub-layers."""
    first: int
    """The lowest layer that the backward pass will reach, and so keeps what it needs; without one, their number."""


def can_fuse(hidden: Tensor, config: BertConfig) -> bool:
    """Whether this machine and these widths can do with `fused_encoder`."""
    widths = config.hidden_size, config.intermediate_size
    return head_size_vectorizable(config.head_size) and is_native_bf16(hidden) and is_tile_aligned(*widths)


def fusable_parameters(parameters: Sequence[Tensor]) -> bool:
    """Whether these are float32, and each layer's all trained or all frozen, as `fused_encoder` has them."""
    trained = [parameter.requires_grad for parameter in parameters]
    firsts = range(0, len(trained), PARAMS_PER_LAYER)
    return all(parameter.dtype == torch.float32 and parameter.is_contiguous() for parameter in parameters) and all(
        len(set(trained[first : first + PARAMS_PER_LAYER])) == 1 for first in firsts
    )


def fused_encoder(
    hidden: Tensor,
    batch: Batch,
    rows: Tensor | None,
    config: BertConfig,
    mask_keys: list[CMaskKey],
    parameters: Sequence[Tensor],
) -> Tensor:
    """T H through every layer → T H, or R H with `iter_rows`: what `Encoder.forward` says, with the same bits.

    `parameters`: each layer's twelve in the order of encoder.py, `fusable_parameters`; `mask_keys`: three a layer.
    """
    rows = None if rows is None else rows.contiguous()
    trained = [hidden.requires_grad, *(parameter.requires_grad for parameter in parameters)]
    first = config.num_layers
    if torch.is_grad_enabled() and any(trained):
        first = max(trained.index(True) - 1, 0) // PARAMS_PER_LAYER
    form = FusedArgs(config, mask_keys, first)
    return apply(FusedEncoder, hidden.contiguous(), batch.cu_seqlens, rows, form, *parameters)


class FusedEncoder(torch.autograd.Function):
    """Keeps the states that its kernels would have kept one by one, until the end of the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, cu_seqlens: Tensor, rows: Tensor | None, form: FusedArgs, *parameters: Tensor
    ) -> Tensor:
        config = form.config
        width, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads
        count, tokens, chosen = config.num_layers, len(hidden), len(hidden) if rows is None else len(rows)
        assert len(parameters) == PARAMS_PER_LAYER * count, (len(parameters), count)
        assert len(form.mask_keys) == 3 * count, (len(form.mask_keys), count)
        expected = count * (4 * width * width + 2 * width * inner + 9 * width + inner)
        assert sum(map(Tensor.numel, parameters)) == expected, [parameter.shape for parameter in parameters]
        assert hidden.shape == (tokens, width), hidden.shape
        check_sequences(cu_seqlens, tokens)
        if rows is not None:
            assert rows.dtype == torch.int64, rows.dtype
            check_range(rows, tokens)

        ctx.mask_keys = form.mask_keys
        ctx.shape = (count, form.first, int(rows is not None), tokens, chosen, width, inner, heads)
        ctx.form = (int(config.causal), int(config.activation == "gelu_tanh"), config.layer_norm_eps)
        room = torch.empty(2, dtype=torch.int64)
        call("layers_room", room, *ctx.shape)
        size, float_size = room.tolist()
        halves, floats = hidden.new_empty(size), torch.empty(float_size)
        y = hidden.new_empty(chosen, width)
        sequences = (cu_seqlens, len(cu_seqlens) - 1, rows)
        mask_keys = (CMaskKey * len(form.mask_keys))(*form.mask_keys)
        call("layers", hidden, parameters, halves, floats, y, mask_keys, *sequences, *ctx.shape, *ctx.form)
        if form.first < count:
            ctx.save_for_backward(hidden, cu_seqlens, rows, halves, floats, *parameters)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, cu_seqlens, rows, halves, floats, *parameters = ctx.saved_tensors
        for_hidden, _, _, _, *trained = ctx.needs_input_grad
        dhidden = torch.empty_like(hidden) if for_hidden else None
        gradients = [
            torch.empty_like(parameter) if asked else None for parameter, asked in zip(parameters, trained, strict=True)
        ]
        mask_keys = (CMaskKey * len(ctx.mask_keys))(*ctx.mask_keys)
        given = (dy.contiguous(), hidden, parameters, halves, floats, dhidden, gradients, mask_keys)
        sequences = (cu_seqlens, len(cu_seqlens) - 1, rows)
        call("layers_backward", *given, *sequences, *ctx.shape, *ctx.form)
        return dhidden, None, None, None, *gradients
