"""All layers of an encoder as one native call forward and one backward (`layers.h`), for bfloat16 on tile registers.

T tokens, of which R leave the last layer; H hidden size, A heads, F feed-forward size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.batching.batch import Batch
from bertwright.models.binding import CDraw, apply, call
from bertwright.models.config import BertConfig
from bertwright.models.products import TILE, tile_registers
from bertwright.models.products import halves as is_halves

PER_LAYER = 12  # parameters; `struct Parameters` of layers.h


class Form(NamedTuple):
    """What all layers share."""

    config: BertConfig
    draws: list[CDraw]
    """Three a layer: of attention's weights, and of the outputs of both sub-layers."""
    trains: bool
    """Whether there will be a backward pass, for which every layer keeps what it needs."""


def runs_whole(hidden: Tensor, parameters: Sequence[Tensor], config: BertConfig) -> bool:
    """Whether `whole_layers` serves; each layer's parameters must be all trained or all frozen."""
    widths = config.hidden_size, config.intermediate_size
    if not (is_halves(hidden) and tile_registers()) or any(width % TILE for width in widths) or config.head_size % 8:
        return False
    if not all(parameter.dtype == torch.float32 and parameter.is_contiguous() for parameter in parameters):
        return False
    trained = [parameter.requires_grad for parameter in parameters]
    firsts = range(0, len(trained), PER_LAYER)
    return all(len(set(trained[first : first + PER_LAYER])) == 1 for first in firsts)


def whole_layers(
    hidden: Tensor,
    batch: Batch,
    rows: Tensor | None,
    config: BertConfig,
    draws: list[CDraw],
    parameters: Sequence[Tensor],
) -> Tensor:
    """T H through every layer → T H, or R H with `rows`: what `Encoder.forward` says, with the same bits.

    `parameters`: each layer's twelve in the order of encoder.py; `draws`: three a layer.
    """
    trains = torch.is_grad_enabled() and any(given.requires_grad for given in (hidden, *parameters))
    form = Form(config, draws, trains)
    return apply(WholeLayers, hidden.contiguous(), batch.cu_seqlens, rows, form, *parameters)


class WholeLayers(torch.autograd.Function):
    """Keeps what its kernels would have kept one by one, in two blocks of memory."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, cu_seqlens: Tensor, rows: Tensor | None, form: Form, *parameters: Tensor
    ) -> Tensor:
        config = form.config
        width, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads
        count, tokens, chosen = config.num_layers, len(hidden), len(hidden) if rows is None else len(rows)
        assert len(parameters) == PER_LAYER * count, (len(parameters), count)
        assert len(form.draws) == 3 * count, (len(form.draws), count)
        expected = count * (4 * width * width + 2 * width * inner + 9 * width + inner)
        assert sum(map(Tensor.numel, parameters)) == expected, [parameter.shape for parameter in parameters]
        assert hidden.shape == (tokens, width), hidden.shape
        assert cu_seqlens.dtype == torch.int32, cu_seqlens.dtype
        boundaries = cu_seqlens.tolist()
        assert (boundaries[0], boundaries[-1]) == (0, tokens), (cu_seqlens, tokens)
        assert boundaries == sorted(boundaries), cu_seqlens
        assert rows is None or rows.dtype == torch.int64, rows
        if chosen and rows is not None:
            low, high = torch.aminmax(rows)
            assert 0 <= low <= high < tokens, (low, high, tokens)

        ctx.shape = (tokens, chosen, width, inner, heads)
        ctx.form = (int(config.causal), int(config.activation == "gelu_tanh"), config.layer_norm_eps)
        ctx.count = count
        ctx.draws = form.draws
        room = torch.empty(2, dtype=torch.int64)
        call("layers_room", room, count, int(form.trains), *ctx.shape)
        size, float_size = room.tolist()
        halves, floats = hidden.new_empty(size), torch.empty(float_size)
        y = hidden.new_empty(chosen, width)
        sequences = (cu_seqlens, len(cu_seqlens) - 1, rows)
        draws = (CDraw * len(form.draws))(*form.draws)
        places = (halves, floats, y, draws, count, int(form.trains))
        call("layers", hidden, parameters, *places, *sequences, *ctx.shape, *ctx.form)
        if form.trains:
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
        lowest = 0 if for_hidden else trained.index(True) // PER_LAYER
        draws = (CDraw * len(ctx.draws))(*ctx.draws)
        given = (dy.contiguous(), hidden, parameters, halves, floats, dhidden, gradients, lowest, draws, ctx.count)
        sequences = (cu_seqlens, len(cu_seqlens) - 1, rows)
        call("layers_backward", *given, *sequences, *ctx.shape, *ctx.form)
        return dhidden, None, None, None, *gradients
