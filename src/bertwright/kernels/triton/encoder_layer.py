"""A layer of an encoder on a GPU, forward and backward: cuBLAS's products and Triton kernels, without autograd.

T tokens enter, R leave the last layer; H hidden size, A heads, D head size, F feed-forward size. States are bfloat16,
parameters and their gradients float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.kernels.attention import Offsets
from bertwright.kernels.fused_encoder import KEYS_PER_LAYER, EncoderShape
from bertwright.kernels.gpu_linear import half, multiply
from bertwright.kernels.triton.dropout_masks import Key
from bertwright.kernels.triton.flash import attention, attention_backward
from bertwright.kernels.triton.gelu import bias_gelu, bias_gelu_backward, column_sum
from bertwright.kernels.triton.layer_norm import add_dropout_norm, add_dropout_norm_backward


class LayerInput(NamedTuple):
    """What a layer computes with, besides its parameters and the states."""

    shape: EncoderShape
    sequences: Offsets
    positions: Tensor | None
    """R int64: the tokens whose states leave the layer; None: all."""
    keys: Sequence[Key]
    """Keys of attention's mask, and of the masks of both sub-layers' outputs."""


class LayerGradients(NamedTuple):
    """Gradients of a layer's parameters, float32."""

    qkv_weight: Tensor
    qkv_bias: Tensor
    attention_output_weight: Tensor
    attention_sums: Tensor
    """3 H: of attention's output bias, and of the LayerNorm's weight and bias behind it."""
    intermediate_weight: Tensor
    intermediate_bias: Tensor
    output_weight: Tensor
    output_sums: Tensor
    """3 H: of the output's bias, and of the LayerNorm's weight and bias behind it."""

    @classmethod
    def empty(cls, layer: Any) -> LayerGradients:
        """Allocate the gradients of a layer's parameters."""
        sums = layer.output_bias.new_empty(3, len(layer.output_bias))
        own = layer._asdict() | {"attention_sums": sums, "output_sums": sums}
        return cls(*(torch.empty_like(own[name]) for name in cls._fields))

    def by_parameter(self) -> list[Tensor]:
        """Return them in the order of PARAMETER_NAMES, as new tensors that share their memory: autograd keeps these."""
        qkv_weight, qkv_bias, attention_weight, attention_sums, *others, output_weight, output_sums = self
        ordered = (qkv_weight, qkv_bias, attention_weight, *attention_sums, *others, output_weight, *output_sums)
        return [gradient.detach() for gradient in ordered]


def layer_inputs(
    shape: EncoderShape, sequences: tuple[Tensor, int], positions: Tensor | None, keys: Sequence[Key]
) -> list[LayerInput]:
    """Return the inputs of all layers.

    `sequences`: their offsets and the length of the longest; `positions`: of the last layer; `keys`: of all layers.
    """
    (cu_seqlens, longest), last = sequences, shape.num_layers - 1
    offsets = (cu_seqlens, cu_seqlens, longest, longest)
    return [
        LayerInput(
            shape,
            offsets,
            positions if number == last else None,
            keys[KEYS_PER_LAYER * number : KEYS_PER_LAYER * (number + 1)],
        )
        for number in range(shape.num_layers)
    ]


def forward_layers(
    hidden: Tensor, layers: Sequence[Any], inputs: Sequence[LayerInput], first_saved: int
) -> tuple[Tensor, list[list[Tensor]]]:
    """Compute all layers; return also what `backward_layer` needs for each layer from `first_saved` on."""
    saved = []
    for number, (layer, given) in enumerate(zip(layers, inputs, strict=True)):
        hidden, tensors = forward_layer(hidden, layer, given, number >= first_saved)
        if tensors:
            saved.append(tensors)
    return hidden, saved


def forward_layer(hidden: Tensor, layer: Any, given: LayerInput, saves: bool) -> tuple[Tensor, list[Tensor]]:
    """Compute one layer, T H → T H or, with positions, R H; return also what `backward_layer` needs if it `saves`.

    `layer`: the parameters, as a `LayerParameters`.
    """
    shape, sequences, positions, keys = given
    dtype = hidden.dtype

    def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.linear(x, half(weight, dtype), None if bias is None else half(bias, dtype))

    qkv = dense(hidden, layer.qkv_weight, layer.qkv_bias).unflatten(1, (3, shape.num_heads, -1))
    out, lse = attention(sequences, shape.causal, keys[0], [qkv])
    context, residual = out.flatten(1), hidden  # T H
    if positions is not None:  # from here on tokens do not interact: T becomes R
        context, residual = context[positions], hidden[positions]
    norm = (layer.attention_norm_weight, layer.attention_norm_bias, shape.layer_norm_eps)
    projected = dense(context, layer.attention_output_weight)
    attended, *saved1 = add_dropout_norm(projected, layer.attention_output_bias, residual, norm, keys[1], saves)
    intermediate = dense(attended, layer.intermediate_weight)
    activated = bias_gelu(intermediate, layer.intermediate_bias, shape.tanh)
    norm = (layer.output_norm_weight, layer.output_norm_bias, shape.layer_norm_eps)
    output = dense(activated, layer.output_weight)
    y, *saved2 = add_dropout_norm(output, layer.output_bias, attended, norm, keys[2], saves)
    tensors: list[Any] = [hidden, qkv, out, lse, context, *saved1, attended, intermediate, activated, *saved2]
    return y, tensors if saves else []


def backward_layer(
    dy: Tensor, layer: Any, given: LayerInput, saved: Sequence[Tensor], gradients: LayerGradients
) -> Tensor:
    """Return the gradient of the layer's input; write the gradients of its parameters to `gradients`.

    `saved`: what `forward_layer` returned.
    """
    hidden, qkv, out, lse, context, sum1, moments1, attended, intermediate, activated, sum2, moments2 = saved
    shape, sequences, positions, keys = given
    dtype = dy.dtype

    norm = layer.output_norm_weight
    doutput, dattended, _ = add_dropout_norm_backward(sum2, moments2, norm, dy, keys[2], gradients.output_sums)
    multiply(doutput.T, activated, gradients.output_weight)
    dactivated = doutput @ half(layer.output_weight, dtype)
    bias, dbias = layer.intermediate_bias, gradients.intermediate_bias
    dintermediate, _ = bias_gelu_backward(intermediate, bias, dactivated, shape.tanh, dbias)
    multiply(dintermediate.T, attended, gradients.intermediate_weight)
    # A product is added to the gradient of the residual without rounding it first.
    dattended.addmm_(dintermediate, half(layer.intermediate_weight, dtype))

    norm, sums = layer.attention_norm_weight, gradients.attention_sums
    dprojected, dhidden, _ = add_dropout_norm_backward(sum1, moments1, norm, dattended, keys[1], sums)
    multiply(dprojected.T, context, gradients.attention_output_weight)
    dcontext = dprojected @ half(layer.attention_output_weight, dtype)
    if positions is not None:
        dcontext = torch.zeros_like(hidden).index_copy_(0, positions, dcontext)
        dhidden = torch.zeros_like(hidden).index_copy_(0, positions, dhidden)
    operands = (sequences, shape.causal, keys[0], [qkv], out, lse, dcontext.view(out.shape))
    dqkv = attention_backward(*operands)[0].flatten(1)  # T 3H
    multiply(dqkv.T, hidden, gradients.qkv_weight)
    column_sum(dqkv, gradients.qkv_bias)
    return dhidden.addmm_(dqkv, half(layer.qkv_weight, dtype))
