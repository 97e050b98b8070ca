"""All layers of an encoder at once, in bfloat16, on CPUs with units for it and on GPUs.

On a CPU, one native call forward and one backward (`encoder.h`); on a GPU, Triton kernels (`triton/cuda_graphs.py`).

T tokens enter, R leave the last layer; H hidden size, A heads, F feed-forward size.
"""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels.attention import attention_works, check_sequences, head_size_vectorizable
from bertwright.kernels.cpu_linear import is_native_bf16, is_tile_aligned
from bertwright.kernels.dropout import MaskKey
from bertwright.kernels.ffi import apply, bf16_isa, call, check, check_positions, check_range, triton_ops, use_triton
from bertwright.kernels.fused_ops import gelu_works, linear_works, norm_works
from bertwright.kernels.reference import ACTIVATIONS

# A layer's parameters; with "_" for ".", the fields of `struct LayerParameters` in csrc/encoder.h.
PARAMETER_NAMES = tuple(
    f"{module}.{name}"
    for module in ("qkv", "attention_output", "attention_norm", "intermediate", "output", "output_norm")
    for name in ("weight", "bias")
)
PARAMS_PER_LAYER, KEYS_PER_LAYER = len(PARAMETER_NAMES), 3
LayerParameters = namedtuple("LayerParameters", [name.replace(".", "_") for name in PARAMETER_NAMES])  # type: ignore[misc]
layer_parameters = attrgetter(*PARAMETER_NAMES)
"""Return a layer's parameters in the order of PARAMETER_NAMES."""


class EncoderShape(NamedTuple):
    """Sizes and constants of an encoder."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    causal: bool
    activation: str
    """One of ACTIVATIONS."""
    layer_norm_eps: float

    @property
    def tanh(self) -> bool:
        """True if GELU is the tanh approximation."""
        return self.activation == "gelu_tanh"

    @property
    def parameter_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of a layer's parameters, in the order of PARAMETER_NAMES."""
        hidden, intermediate = self.hidden_size, self.intermediate_size
        linear = [
            [(out, size), (out,)]
            for out, size in ((3 * hidden, hidden), (hidden, hidden), (intermediate, hidden), (hidden, intermediate))
        ]
        qkv, attention_output, feed_forward, output = linear
        norm = [(hidden,), (hidden,)]
        return [*qkv, *attention_output, *norm, *feed_forward, *output, *norm]


class EncoderArgs(NamedTuple):
    """The fields of `struct EncoderArgs` in csrc/encoder_args.h."""

    cu_seqlens: Tensor  # B + 1 int32
    positions: Tensor | None  # R int64: the tokens whose states leave the last layer
    bias: Tensor | None  # A (2 reach + 1) float32, added to attention's scores by the distance of key and query; int8
    reach: int
    sequences: int  # B
    num_layers: int
    first_saved: int  # the lowest layer that the backward pass reaches; num_layers if there is none
    has_positions: bool  # the address of `positions` is null also if R is 0
    tokens: int  # T
    selected: int  # R
    hidden_size: int
    intermediate_size: int
    num_heads: int
    causal: bool
    activation: int
    eps: float


class FusedArgs(NamedTuple):
    """Arguments that are not tensors."""

    shape: EncoderShape
    mask_keys: list[MaskKey]
    """Three per layer: for attention's weights, and for the outputs of both sub-layers."""
    first_saved: int
    """The lowest layer that the backward pass reaches; their number if there is none."""
    max_seqlen: int


def can_fuse(hidden: Tensor, shape: EncoderShape) -> bool:
    """Return whether `fused_encoder` supports this machine and these sizes; it also needs fitting parameters."""
    head_size, rest = divmod(shape.hidden_size, shape.num_heads)
    if shape.activation == "relu" or shape.num_layers == 0 or rest or not head_size_vectorizable(head_size):
        return False
    if use_triton(hidden):
        return hidden.dtype == torch.bfloat16 and head_size <= triton_ops().MAX_HEAD_SIZE
    aligned = is_tile_aligned(shape.hidden_size, shape.intermediate_size)
    return aligned and is_native_bf16(hidden) and bf16_isa() is not None


def _kernels_work(
    hidden: Tensor, max_seqlen: int, shape: EncoderShape, mask_keys: Sequence[MaskKey], parameters: Sequence[Tensor]
) -> bool:
    """Return whether `fused_encoder` may run: on a GPU, whether its kernels have passed their checks."""
    if not use_triton(hidden):
        return True
    layer, recorded = by_layer(parameters)[0], torch.is_grad_enabled()
    attention_key, key, *_, last_key = mask_keys
    qkv = hidden.new_empty(0, 3, shape.num_heads, shape.hidden_size // shape.num_heads)
    intermediate = hidden.new_empty(0, shape.intermediate_size)
    norm = (layer.attention_norm_weight, layer.attention_norm_bias, shape.layer_norm_eps)
    add_norm = (hidden, layer.output_bias, hidden, *norm)
    return (
        attention_works([qkv], (max_seqlen, max_seqlen), shape.causal, attention_key, recorded)
        and gelu_works(intermediate, layer.intermediate_bias, shape.tanh)
        and norm_works(*add_norm, key, recorded, recorded=recorded)
        and norm_works(*add_norm, last_key, recorded, recorded=recorded)
        and linear_works(hidden, layer.qkv_weight, layer.qkv_bias)
    )


def _are_fusable(parameters: Sequence[Tensor]) -> bool:
    """Return whether all are float32, and each layer is trained or frozen as a whole, as `fused_encoder` requires.

    Parameters that ranks divide are no plain tensors: only their layers can gather them.
    """
    if not all(type(parameter) in (Tensor, torch.nn.Parameter) for parameter in parameters):
        return False
    trained = [parameter.requires_grad for parameter in parameters]
    firsts = range(0, len(trained), PARAMS_PER_LAYER)
    return all(parameter.dtype == torch.float32 and parameter.is_contiguous() for parameter in parameters) and all(
        len(set(trained[first : first + PARAMS_PER_LAYER])) == 1 for first in firsts
    )


def fused_encoder(
    hidden: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    positions: Tensor | None,
    shape: EncoderShape,
    mask_keys: list[MaskKey],
    parameters: Sequence[Tensor],
) -> Tensor | None:
    """Compute every layer, T H → T H or, with `positions`, R H, as `BertEncoder.forward` does layer by layer.

    `parameters`: `layer_parameters` of each layer; `mask_keys`: three per layer. Returns None for parameters that the
    kernels cannot read, and on a GPU whose kernels have failed their checks. On a CPU the bits are the same; on a GPU,
    the gradients of the two branches of a residual are added without rounding between.
    """
    check(can_fuse(hidden, shape), "fused_encoder: no kernel for {} {} and {}", hidden.dtype, hidden.shape, shape)
    if not (_are_fusable(parameters) and _kernels_work(hidden, max_seqlen, shape, mask_keys, parameters)):
        return None
    positions = None if positions is None else positions.contiguous()
    trained = [hidden.requires_grad, *(parameter.requires_grad for parameter in parameters)]
    first_saved = shape.num_layers
    if torch.is_grad_enabled() and any(trained):
        first_saved = max(trained.index(True) - 1, 0) // PARAMS_PER_LAYER
    args = FusedArgs(shape, mask_keys, first_saved, max_seqlen)
    function = triton_ops().FusedEncoder if use_triton(hidden) else FusedEncoder
    return apply(function, hidden.contiguous(), cu_seqlens, positions, args, *parameters)


def release_memory() -> None:
    """Free what encoders keep on a GPU between the steps of a training (`triton/cuda_graphs.py`)."""
    if graphs := sys.modules.get("bertwright.kernels.triton.cuda_graphs"):
        graphs.release_memory()


class FusedEncoder(torch.autograd.Function):
    """All layers; saves the states that the single kernels would save, until the end of the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, cu_seqlens: Tensor, positions: Tensor | None, args: FusedArgs, *parameters: Tensor
    ) -> Tensor:
        shape, tokens = args.shape, len(hidden)
        selected = tokens if positions is None else len(positions)
        shapes = [tuple(parameter.shape) for parameter in parameters]
        check(shapes == shape.parameter_shapes * shape.num_layers, "parameters: got shapes {} for {}", shapes, shape)
        keys = args.mask_keys
        check(len(keys) == KEYS_PER_LAYER * shape.num_layers, "got {} mask keys for {}", len(keys), shape)
        check(hidden.shape == (tokens, shape.hidden_size), "hidden: got {} for {}", hidden.shape, shape)
        check_sequences(cu_seqlens, tokens)
        if positions is not None:
            check(positions.dtype == torch.int64, "positions: expected int64, got {}", positions.dtype)
            check(positions.ndim == 1, "positions: expected one dimension, got {}", positions.shape)
            check_range("positions", positions, tokens)
        for number, key in enumerate(keys):
            check_positions(key, selected if number >= len(keys) - 2 else tokens)

        c_args = encoder_args(shape, cu_seqlens, positions, tokens, args.first_saved)
        size = torch.empty((), dtype=torch.int64)
        call("encoder_workspace_bytes", c_args, size)
        workspace, y = torch.empty(int(size), dtype=torch.uint8), hidden.new_empty(selected, shape.hidden_size)
        call("encoder_forward", c_args, hidden, by_layer(parameters), keys, workspace, y)
        if args.first_saved < shape.num_layers:
            ctx.args = args
            ctx.save_for_backward(hidden, cu_seqlens, positions, workspace, *parameters)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, cu_seqlens, positions, workspace, *parameters = ctx.saved_tensors
        for_hidden, _, _, _, *trained = ctx.needs_input_grad
        dhidden = torch.empty_like(hidden) if for_hidden else None
        gradients = [
            torch.empty_like(parameter) if needed else None
            for parameter, needed in zip(parameters, trained, strict=True)
        ]
        c_args = encoder_args(ctx.args.shape, cu_seqlens, positions, len(hidden), ctx.args.first_saved)
        operands = (dy.contiguous(), hidden, by_layer(parameters), ctx.args.mask_keys, workspace, dhidden)
        call("encoder_backward", c_args, *operands, by_layer(gradients))
        return dhidden, None, None, None, *gradients


def by_layer(parameters: Sequence[Tensor | None]) -> list[Any]:
    """Group the parameters of all layers, or their gradients, by layer, as `LayerParameters`."""
    return [LayerParameters(*layer) for layer in zip(*[iter(parameters)] * PARAMS_PER_LAYER, strict=True)]


def encoder_args(
    shape: EncoderShape,
    cu_seqlens: Tensor,
    positions: Tensor | None,
    tokens: int,
    first_saved: int,
    bias: Tensor | None = None,
) -> EncoderArgs:
    """Collect the arguments of a native call for all layers, in bfloat16 or in int8; the latter may have a bias."""
    return EncoderArgs(
        cu_seqlens=cu_seqlens,
        positions=positions,
        bias=bias,
        reach=0 if bias is None else bias.shape[1] // 2,
        sequences=len(cu_seqlens) - 1,
        num_layers=shape.num_layers,
        first_saved=first_saved,
        has_positions=positions is not None,
        tokens=tokens,
        selected=tokens if positions is None else len(positions),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_heads=shape.num_heads,
        causal=shape.causal,
        activation=ACTIVATIONS.index(shape.activation),
        eps=shape.layer_norm_eps,
    )
