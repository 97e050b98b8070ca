"""Linear layers in int8 on a CPU, for inference: int8 weights, and activations that are rounded row by row.

Weights have a scale per output and 129 levels, half of int8's range: two products of AVX2's instruction then fit into
16 bits, and all instruction sets have the same integers. A row of activations has 256 levels between its smallest and
its largest number. Sums of integers are exact, so that a row's result does not depend on the other rows (decision 32).

T tokens, R tokens whose states leave the last layer, K depth, O outputs, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bertwright.kernels import reference
from bertwright.kernels.attention import check_sequences, head_size_vectorizable
from bertwright.kernels.ffi import Prepared, call, check, check_range, int8_isa, new_float32, prepare
from bertwright.kernels.fused_encoder import EncoderArgs
from bertwright.kernels.reference import ACTIVATIONS, WEIGHT_LEVELS

MAX_DEPTH = 1 << 16  # the sum of so many products of bytes fits into 32 bits


class Int8Weight(NamedTuple):
    """A linear layer's weight in int8; without native kernels `values` are O × K, else panels of them."""

    values: Tensor
    scales: Tensor  # O float32
    sums: Tensor  # O int32: sums of the whole numbers of each output
    depth: int
    is_packed: bool

    @property
    def num_outputs(self) -> int:
        return len(self.scales)


def quantize_weight(weight: Tensor) -> Int8Weight:
    """Round a weight, O × K float32, to int8. Raises ValueError for numbers that are not finite."""
    scales = weight.abs().amax(1).float() / WEIGHT_LEVELS
    if not bool(scales.isfinite().all()):
        raise ValueError("int8: expected finite weights, got an infinity or NaN; use another dtype")
    check(weight.shape[1] <= MAX_DEPTH, "int8: expected at most {} inputs, got {}", MAX_DEPTH, weight.shape[1])
    values = (weight / torch.where(scales == 0, 1, scales)[:, None]).round().to(torch.int8).contiguous()
    sums = values.sum(1, dtype=torch.int32)
    if int8_isa() is None:
        return Int8Weight(values, scales, sums, weight.shape[1], False)
    size = torch.empty(1, dtype=torch.int64)
    call("int8_panel_bytes", weight.shape[1], len(weight), size)
    panels = torch.empty(int(size), dtype=torch.int8)
    call("int8_pack", values, panels, weight.shape[1], len(weight))
    return Int8Weight(panels, scales, sums, weight.shape[1], True)


def int8_linear(x: Tensor, weight: Int8Weight, bias: Tensor | None = None, activation: str = "") -> Tensor:
    """Compute activation(x · weightᵀ + bias), T K float32 → T O, from x in 8 bits; for ACTIVATIONS."""
    check(x.ndim == 2 and x.shape[1] == weight.depth, "int8_linear: got {} for {} inputs", x.shape, weight.depth)
    check(x.dtype == torch.float32, "int8_linear: expected float32, got {}", x.dtype)
    check(bias is None or bias.shape == (weight.num_outputs,), "int8_linear: got a bias of another size")
    check(activation in ACTIVATIONS, "int8_linear: expected one of {}, got {}", ACTIVATIONS, activation)
    if not weight.is_packed:
        return reference.int8_linear(x, weight.values, weight.scales, bias, activation)
    y = new_float32(len(x), weight.num_outputs)
    call("int8_linear", x.contiguous(), make_layer(weight, bias), ACTIVATIONS.index(activation), y, len(x))
    return y


class Int8Layer(NamedTuple):
    """The fields of `struct Int8Layer` in csrc/int8_linear.h."""

    panels: Tensor
    scales: Tensor
    sums: Tensor
    bias: Tensor | None
    depth: int
    columns: int


def make_layer(weight: Int8Weight, bias: Tensor | None) -> Int8Layer:
    """Combine a weight in panels and a bias for the kernels."""
    return Int8Layer(*weight[:3], bias, weight.depth, weight.num_outputs)


LINEAR_NAMES = ("qkv", "attention_output", "intermediate", "output")  # of an encoder's layer


class Int8Stack(NamedTuple):
    """The layers of an encoder, checked and converted for the native call once, not for every batch."""

    addresses: list[int]
    """Of its tensors; if one has moved, the stack is made again."""
    layers: Prepared
    norms: Prepared
    shape: tuple[int, int, int]
    """Number of layers, hidden size, intermediate size."""


def make_stack(
    weights: Sequence[Int8Weight], vectors: Sequence[Tensor], num_layers: int, addresses: list[int]
) -> Int8Stack:
    """Combine four weights for each layer, in the order of LINEAR_NAMES, with the vectors between them.

    `vectors`: a bias for each weight; then of each layer weight and bias of both LayerNorms.
    """
    layers = [make_layer(weight, bias) for weight, bias in zip(weights, vectors, strict=False)]
    norms, size, inner = list(vectors[len(layers) :]), layers[0].depth, layers[2].columns
    expected = [(size, 3 * size), (size, size), (size, inner), (inner, size)] * num_layers
    shapes = [(layer.depth, layer.columns) for layer in layers]
    check(shapes == expected, "int8_encoder: expected layers {}, got {}", expected, shapes)
    fits = all(layer.bias is not None and layer.bias.shape == (layer.columns,) for layer in layers)
    fits = fits and len(norms) == 4 * num_layers and all(vector.shape == (size,) for vector in norms)
    check(fits, "int8_encoder: a LayerNorm or bias does not fit")
    return Int8Stack(addresses, prepare("Int8Layer*", layers), prepare("float**", norms), (num_layers, size, inner))


def int8_encoder(hidden: Tensor, stack: Int8Stack, args: EncoderArgs) -> Tensor:
    """Compute all layers of an encoder in one native call, T H float32 → R H."""
    shape, size = (args.num_layers, args.hidden_size, args.intermediate_size), args.hidden_size
    check(shape == stack.shape, "int8_encoder: expected layers and sizes {}, got {}", stack.shape, shape)
    check(hidden.shape == (args.tokens, size), "int8_encoder: got {} for {} tokens", hidden.shape, args.tokens)
    head_size, rest = divmod(size, args.num_heads)
    check(not rest and head_size_vectorizable(head_size), "int8_encoder: got heads of size {}", head_size)
    check_sequences(args.cu_seqlens, args.tokens)
    if args.positions is not None:
        check_range("int8_encoder", args.positions, args.tokens)
    y = new_float32(args.selected, size)
    call("int8_encoder", args, stack.layers, stack.norms, hidden.contiguous(), y)
    return y
