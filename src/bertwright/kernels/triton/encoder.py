"""All layers of an encoder on a GPU: cuBLAS's products and Triton kernels, one after another, without autograd between.

Layer by layer, Python and autograd take longer to start the kernels than a GPU takes to run them. T tokens enter,
R leave the last layer; H hidden size, A heads, D head size, F feed-forward size. States are bfloat16, parameters and
their gradients float32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels.dropout import MaskKey
from bertwright.kernels.fused_encoder import (
    KEYS_PER_LAYER,
    PARAMS_PER_LAYER,
    FusedArgs,
    LayerParameters,
    by_layer,
)
from bertwright.kernels.half_linear import half, multiply
from bertwright.kernels.triton.flash import Offsets, attention, attention_backward
from bertwright.kernels.triton.gelu import bias_gelu, bias_gelu_backward, column_sum
from bertwright.kernels.triton.layer_norm import add_dropout_norm, add_dropout_norm_backward


class FusedEncoder(torch.autograd.Function):
    """All layers, as `kernels/fused_encoder.py` calls them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, cu_seqlens: Tensor, positions: Tensor | None, args: FusedArgs, *parameters: Tensor
    ) -> Tensor:
        shape, sequences = args.shape, (cu_seqlens, cu_seqlens, args.max_seqlen, args.max_seqlen)
        saved: list[Tensor | None] = []
        for number, layer in enumerate(by_layer(parameters)):
            last = number + 1 == shape.num_layers
            hidden, tensors = forward_layer(hidden, sequences, positions if last else None, args, number, layer)
            saved += tensors
        if args.first_saved < shape.num_layers:
            ctx.args, ctx.num_saved = args, len(saved)
            ctx.save_for_backward(cu_seqlens, positions, *saved, *parameters)
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        args, shape = ctx.args, ctx.args.shape
        cu_seqlens, positions, *rest = ctx.saved_tensors
        sequences = (cu_seqlens, cu_seqlens, args.max_seqlen, args.max_seqlen)
        layers = by_layer(rest[ctx.num_saved :])
        per_layer = ctx.num_saved // (shape.num_layers - args.first_saved)
        saved = [rest[first : first + per_layer] for first in range(0, ctx.num_saved, per_layer)]
        gradients: list[Tensor | None] = []
        dhidden = dy.contiguous()
        for number in range(shape.num_layers - 1, args.first_saved - 1, -1):
            at = positions if number + 1 == shape.num_layers else None
            dhidden, of_layer = backward_layer(dhidden, sequences, at, args, number, layers[number], saved.pop())
            gradients = [*of_layer, *gradients]
        gradients = [None] * (PARAMS_PER_LAYER * args.first_saved) + gradients
        return dhidden, None, None, None, *gradients


def forward_layer(
    hidden: Tensor,
    sequences: Offsets,
    positions: Tensor | None,
    args: FusedArgs,
    number: int,
    layer: Any,
) -> tuple[Tensor, list[Tensor | None]]:
    """Compute one layer, T H → T H or, with `positions`, R H; return also what `backward_layer` needs."""
    shape, dtype, saves = args.shape, hidden.dtype, number >= args.first_saved
    attention_key, key1, key2 = layer_keys(args, number)

    def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, half(weight, dtype), None if bias is None else half(bias, dtype))

    qkv = dense(hidden, layer.qkv_weight, layer.qkv_bias).view(len(hidden), 3, shape.num_heads, -1)
    out, lse = attention(sequences, shape.causal, attention_key, [qkv])
    context, residual = out.flatten(1), hidden  # T H
    if positions is not None:  # from here on tokens do not interact: T becomes R
        context, residual = context[positions], hidden[positions]
    norm = (layer.attention_norm_weight, layer.attention_norm_bias, shape.layer_norm_eps)
    projected = dense(context, layer.attention_output_weight)
    attended, sum1, moments1 = add_dropout_norm(projected, layer.attention_output_bias, residual, norm, key1, saves)
    intermediate = dense(attended, layer.intermediate_weight)
    activated = bias_gelu(intermediate, layer.intermediate_bias, shape.tanh)
    norm = (layer.output_norm_weight, layer.output_norm_bias, shape.layer_norm_eps)
    output = dense(activated, layer.output_weight)
    y, sum2, moments2 = add_dropout_norm(output, layer.output_bias, attended, norm, key2, saves)
    if not saves:
        return y, []
    return y, [hidden, qkv, out, lse, context, sum1, moments1, attended, intermediate, activated, sum2, moments2]


def backward_layer(
    dy: Tensor,
    sequences: Offsets,
    positions: Tensor | None,
    args: FusedArgs,
    number: int,
    layer: Any,
    saved: list[Tensor],
) -> tuple[Tensor, Any]:
    """Return the gradient of the layer's input, and the gradients of its parameters as a `LayerParameters`."""
    hidden, qkv, out, lse, context, sum1, moments1, attended, intermediate, activated, sum2, moments2 = saved
    shape, dtype = args.shape, dy.dtype
    attention_key, key1, key2 = layer_keys(args, number)

    dout, dattended, sums2 = add_dropout_norm_backward(sum2, moments2, layer.output_norm_weight, dy, key2)
    output_weight = multiply(dout.T, activated)
    dactivated = dout @ half(layer.output_weight, dtype)
    dinter, intermediate_bias = bias_gelu_backward(intermediate, layer.intermediate_bias, dactivated, shape.tanh)
    intermediate_weight = multiply(dinter.T, attended)
    dattended.addmm_(dinter, half(layer.intermediate_weight, dtype))  # the residual's gradient and the product's
    dproj, dhidden, sums1 = add_dropout_norm_backward(sum1, moments1, layer.attention_norm_weight, dattended, key1)
    attention_output_weight = multiply(dproj.T, context)
    dcontext = dproj @ half(layer.attention_output_weight, dtype)
    if positions is not None:
        dcontext = torch.zeros_like(hidden).index_copy_(0, positions, dcontext)
        dhidden = torch.zeros_like(hidden).index_copy_(0, positions, dhidden)
    (dqkv,) = attention_backward(sequences, shape.causal, attention_key, [qkv], out, lse, dcontext.view(out.shape))
    dqkv = dqkv.flatten(1)  # T 3H
    qkv_weight, qkv_bias = multiply(dqkv.T, hidden), column_sum(dqkv)
    dhidden.addmm_(dqkv, half(layer.qkv_weight, dtype))
    gradients = LayerParameters(
        qkv_weight=qkv_weight,
        qkv_bias=qkv_bias,
        attention_output_weight=attention_output_weight,
        attention_output_bias=sums1[0],
        attention_norm_weight=sums1[1],
        attention_norm_bias=sums1[2],
        intermediate_weight=intermediate_weight,
        intermediate_bias=intermediate_bias,
        output_weight=output_weight,
        output_bias=sums2[0],
        output_norm_weight=sums2[1],
        output_norm_bias=sums2[2],
    )
    return dhidden, gradients


def layer_keys(args: FusedArgs, number: int) -> list[MaskKey]:
    """Return the keys of a layer's three masks."""
    return args.mask_keys[KEYS_PER_LAYER * number : KEYS_PER_LAYER * (number + 1)]
