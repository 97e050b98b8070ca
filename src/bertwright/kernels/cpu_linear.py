"""Matrix products in bfloat16 on a CPU: three per linear layer, and the product with the vocabulary.

T tokens, H and O input and output size of a layer, V vocabulary, M masked positions.

On a processor with bfloat16 units a linear layer is a native kernel (`gemm_bf16.h`) if its sizes are multiples of
TILE. Otherwise, and for the vocabulary, oneDNN multiplies, in the shapes for which it is fast (docs/decisions/13).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bertwright.kernels.ffi import DTYPE_CODES, Rows, bf16_isa, call, check, new_float32, use_native

TILE = 32  # equals TILE in csrc/pack.h
MIN_TRANSPOSE_ROWS = 256  # from this size on, transposing a matrix costs less than it saves in a product


def is_native_bf16(x: Tensor) -> bool:
    """Return whether x is a bfloat16 matrix that native kernels accept."""
    return x.dtype == torch.bfloat16 and x.ndim == 2 and use_native(x)


def is_tile_aligned(*sizes: int) -> bool:
    """Return whether all sizes are positive multiples of TILE."""
    return all(size > 0 and size % TILE == 0 for size in sizes)


def uses_native_linear(weight: Tensor) -> bool:
    """Return whether native kernels multiply bfloat16 states with this weight."""
    fits = weight.dtype in DTYPE_CODES and weight.is_contiguous() and weight.ndim == 2
    return fits and is_tile_aligned(*weight.shape) and bf16_isa() is not None


def check_operands(x: Tensor, weight: Tensor) -> None:
    check(uses_native_linear(weight), "linear: no native kernel for a weight {} {}", weight.dtype, weight.shape)
    check(x.ndim == 2 and x.shape[1] == weight.shape[1], "linear: got {} for a weight {}", x.shape, weight.shape)


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x · weightᵀ + bias, T H and O H → T O bfloat16; H and O are tile-aligned."""
    check_operands(x, weight)
    if bias is not None:
        check(bias.shape == weight.shape[:1], "linear: got a bias {} for a weight {}", bias.shape, weight.shape)
    y = x.new_empty(len(x), len(weight))
    float_bias = None if bias is None else bias.float().contiguous()
    call("linear_forward", weight.dtype, x, weight, float_bias, y, len(x), *reversed(weight.shape))
    return y


def linear_backward(
    dy: Tensor, x: Tensor, weight: Tensor, needed: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Compute dx T H bfloat16, dweight O H and dbias O float32, unrounded; None for each that is not `needed`."""
    check_operands(x, weight)
    check(dy.shape == (len(x), len(weight)), "linear: got a gradient {} for {}", dy.shape, (len(x), len(weight)))
    for_x, for_weight, for_bias = needed
    dx = torch.empty_like(x) if for_x else None
    dweight = new_float32(*weight.shape) if for_weight else None
    dbias = new_float32(len(weight)) if for_weight and for_bias else None
    operands = weight.dtype, dy, x, weight, dx, dweight, dbias
    call("linear_backward", *operands, len(x), *reversed(weight.shape))
    return dx, dweight, dy.sum(0, dtype=torch.float32) if for_bias and dbias is None else dbias


def matmul_nt(a: Tensor, b: Tensor) -> Tensor:
    """Compute a · bᵀ, M H and V H → M V, for a tall b (the vocabulary); rows of a bfloat16 result may have gaps."""
    if not should_transpose(a):
        return torch.mm(a, b.T)
    # oneDNN computes b · aᵀ in half the time, because it divides the many rows among threads.
    product = b.new_empty(len(b), padded_stride(len(a)))[:, : len(a)]
    return transpose(torch.mm(b, a.T, out=product))


def matmul_tn(a: Tensor, b: Tensor) -> Tensor:
    """Compute aᵀ · b; a bfloat16 `a` is transposed first, because oneDNN reads columns more slowly than rows."""
    return torch.mm(transpose(a) if should_transpose(a) else a.T, b)


def should_transpose(x: Tensor) -> bool:
    """Return whether transposing x before a product saves time."""
    return is_native_bf16(x) and len(x) >= MIN_TRANSPOSE_ROWS


def pad_rows(x: Tensor) -> Tensor:
    """Append rows of zeros, T H → T' H, where T' is one of few sizes and at most a sixteenth larger than T.

    oneDNN compiles code for each new shape. That takes milliseconds, longer than a product of a few hundred tokens, and
    packed batches have another T at every step.
    """
    step = max(16, 1 << max(len(x).bit_length() - 5, 0))
    missing = -len(x) % step
    if missing == 0:
        return x.contiguous()
    padded = x.new_empty(len(x) + missing, x.shape[1])
    padded[: len(x)] = x
    padded[len(x) :] = 0
    return padded


def transpose(x: Tensor) -> Tensor:
    """Transpose a bfloat16 matrix, R C → C R; rows may have gaps, and rows of the result have gaps of zeros."""
    check(x.dtype == torch.bfloat16, "transpose: expected bfloat16, got {}", x.dtype)
    check(x.ndim == 2, "transpose: expected a matrix, got {}", x.shape)
    rows, columns = x.shape
    y = x.new_empty(columns, padded_stride(rows))
    call("transpose", Rows(x), x.stride(0), y, y.shape[1], rows, columns)
    return y[:, :rows]


def padded_stride(columns: int) -> int:
    """Round up to whole cache lines, but not to a multiple of 512: such rows would share few sets of the cache."""
    stride = -(-columns // 32) * 32
    return stride + 32 if stride % 512 == 0 else stride
