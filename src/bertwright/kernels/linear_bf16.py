"""Matrix products in bfloat16 on a CPU: a dense layer's three, and that with the vocabulary.

T tokens, H and O the widths of a layer's input and output, V vocabulary size, M masked positions.

On a processor with units for bfloat16 a dense layer's are native kernels (`products.h`), for widths that fill tiles.
Elsewhere, for other widths and for the vocabulary, oneDNN multiplies, in the shapes that it is quick at
(docs/decisions/13).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from bertwright.kernels.ffi import DTYPE_CODES, call, row_pointer, use_native

TILE = 32  # that of tiles.h
MIN_TRANSPOSE_ROWS = 256  # rows from which the transpose of a matrix costs less than it saves in a product


def is_native_bf16(x: Tensor) -> bool:
    """Whether x is a bfloat16 matrix that native kernels take."""
    return x.dtype == torch.bfloat16 and x.ndim == 2 and use_native(x)


@cache
def bfloat16_units() -> bool:
    """Whether this processor multiplies bfloat16: on tile registers (AMX), or in vectors (AVX512-BF16)."""
    has = torch.zeros(1, dtype=torch.int64)
    call("bfloat16_units", has)
    return bool(has)


def is_tile_aligned(*widths: int) -> bool:
    """Whether native kernels multiply layers of these widths: they must be multiples of a tile's."""
    return all(width > 0 and width % TILE == 0 for width in widths) and bfloat16_units()


def uses_native_linear(weight: Tensor) -> bool:
    """Whether native kernels make a layer's products."""
    return weight.dtype in DTYPE_CODES and weight.is_contiguous() and is_tile_aligned(*weight.shape)


def dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x · weightᵀ + bias, T H and O H → T O bfloat16; H and O fill tiles."""
    y = x.new_empty(len(x), len(weight))
    float_bias = None if bias is None else bias.float().contiguous()
    call("dense", DTYPE_CODES[weight.dtype], x, weight, float_bias, y, len(x), *reversed(weight.shape))
    return y


def dense_gradients(
    dy: Tensor, x: Tensor, weight: Tensor, asked: Sequence[bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Those of `dense`: dx T H bfloat16, dweight O H and dbias O float32, unrounded; None for what is not `asked`."""
    for_x, for_weight, for_bias = asked
    dx = torch.empty_like(x) if for_x else None
    dweight = torch.empty(weight.shape) if for_weight else None
    dbias = torch.empty(len(weight)) if for_weight and for_bias else None
    given = DTYPE_CODES[weight.dtype], dy, x, weight, dx, dweight, dbias
    call("dense_backward", *given, len(x), *reversed(weight.shape))
    return dx, dweight, dy.sum(0, dtype=torch.float32) if for_bias and dbias is None else dbias


def matmul_nt(hidden: Tensor, weight: Tensor) -> Tensor:
    """hidden · weightᵀ, M H and V H → M V; the rows of a bfloat16 one may lie apart."""
    if not should_transpose(hidden):
        return torch.mm(hidden, weight.T)
    # oneDNN takes half the time for the product turned around, whose many rows it shares out among threads.
    turned = weight.new_empty(len(weight), padded_stride(len(hidden)))[:, : len(hidden)]
    return transpose(torch.mm(weight, hidden.T, out=turned))


def matmul_tn(a: Tensor, b: Tensor) -> Tensor:
    """aᵀ · b. For bfloat16, oneDNN's products are so much slower on columns than on rows that turning `a` pays."""
    return torch.mm(transpose(a) if should_transpose(a) else a.T, b)


def should_transpose(x: Tensor) -> bool:
    return is_native_bf16(x) and len(x) >= MIN_TRANSPOSE_ROWS


def pad_rows(x: Tensor) -> Tensor:
    """T H → T' H with zeros below, T' ≥ T of few different values: oneDNN makes machine code for each shape it meets.

    That takes milliseconds, longer than a product of a few hundred tokens; packed batches have another T every time.
    """
    step = max(16, 1 << max(len(x).bit_length() - 5, 0))  # at most a sixteenth more
    missing = -len(x) % step
    if missing == 0:
        return x.contiguous()
    filled = x.new_empty(len(x) + missing, x.shape[1])
    filled[: len(x)] = x
    filled[len(x) :] = 0
    return filled


def transpose(x: Tensor) -> Tensor:
    """The transpose of a bfloat16 matrix whose rows may lie apart, R C → C R; the result's do, with zeros between."""
    rows, columns = x.shape
    y = x.new_empty(columns, padded_stride(rows))
    call("transpose", row_pointer(x), x.stride(0), y, y.shape[1], rows, columns)
    return y[:, :rows]


def padded_stride(columns: int) -> int:
    """From one row to the next: whole cache lines, but no large power of two of them, which would share few places."""
    stride = -(-columns // 32) * 32
    return stride + 32 if stride % 512 == 0 else stride
