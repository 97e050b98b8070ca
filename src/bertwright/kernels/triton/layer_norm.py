"""Triton kernels: dropout, residual and LayerNorm at the end of a sub-layer. T rows, H columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels.dropout import MaskKey
from bertwright.kernels.triton.dropout_masks import (
    MASK_NUMBERS,
    Key,
    keep,
    mask_args,
    read_key,
    row_words,
    token_indices,
)
from bertwright.kernels.triton.launch import cdiv, launch, next_power_of_2

PROGRAMS = 1056  # eight per multiprocessor of an H100; a constant, so that sums have the same order on every GPU


class Tile(NamedTuple):
    """Elements of a tile, which consists of whole rows, and the warps of a program."""

    elements: int
    warps: int

    def shape(self, columns: int) -> tuple[int, int]:
        """Return its rows and columns."""
        width = next_power_of_2(columns)
        return max(self.elements // width, 1), width


FORWARD, BACKWARD = Tile(1024, 1), Tile(1024, 1)


def backward_programs(rows: int, tile_rows: int) -> int:
    return min(cdiv(rows, tile_rows), PROGRAMS)


@triton.jit
def normalize(z, inside, eps, columns: tl.constexpr):
    """Return mean and 1 / standard deviation of each row; elements of z that are not `inside` are 0."""
    mean = tl.sum(z, 1) / columns
    centred = tl.where(inside, z - mean[:, None], 0.0)
    return mean, 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / columns + eps)


@triton.jit
def norm_gradient(d, normalized, inverse, columns: tl.constexpr):
    """Return the gradient of LayerNorm's input from d = dy · weight, which is 0 outside the matrix."""
    along = tl.sum(d * normalized, 1) / columns
    mean = tl.sum(d, 1) / columns
    return (d - mean[:, None] - normalized * along[:, None]) * inverse[:, None]


@triton.jit(do_not_specialize=["rows", *MASK_NUMBERS])
def add_dropout_norm_kernel(
    x, bias, residual, weight, norm_bias, summed, moments, y, rows, eps,
    positions, numbers, first_token: tl.int64, key0, key1, threshold, scale,
    columns: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    first_token, key0, key1 = read_key(numbers, first_token, key0, key1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLS)[None, :]
    inside = (row < rows)[:, None] & (column < columns)
    at = row.to(tl.int64)[:, None] * columns + column
    vector = column < columns
    b = tl.load(bias + column, mask=vector, other=0.0).to(tl.float32)
    z = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + b
    if DROPOUT:
        word0, word1 = row_words(token_indices(row, positions, first_token, row < rows), key0, key1)
        z = tl.where(keep(word0[:, None], word1[:, None], column, threshold), z * scale, 0.0)
    z += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    mean, inverse = normalize(z, inside, eps, columns)
    if summed is not None:
        tl.store(summed + at, z.to(summed.dtype.element_ty), mask=inside)
        tl.store(moments + 2 * row, mean, mask=row < rows)
        tl.store(moments + 2 * row + 1, inverse, mask=row < rows)
    w = tl.load(weight + column, mask=vector, other=0.0).to(tl.float32)
    c = tl.load(norm_bias + column, mask=vector, other=0.0).to(tl.float32)
    value = (z - mean[:, None]) * inverse[:, None] * w + c
    tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "tiles", *MASK_NUMBERS])
def add_dropout_norm_backward_kernel(
    summed, moments, weight, dy, dx, dresidual, partial, rows, tiles,
    positions, numbers, first_token: tl.int64, key0, key1, threshold, scale,
    columns: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write dx and dresidual (dx alone without dropout), and sums over rows to `partial`, programs × 3 × columns."""
    first_token, key0, key1 = read_key(numbers, first_token, key0, key1)
    column = tl.arange(0, COLS)[None, :]
    vector = column < columns
    w = tl.load(weight + column, mask=vector, other=0.0).to(tl.float32)
    dbias = tl.zeros((ROWS, COLS), tl.float32)
    dweight = tl.zeros((ROWS, COLS), tl.float32)
    dnorm_bias = tl.zeros((ROWS, COLS), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & vector
        at = row.to(tl.int64)[:, None] * columns + column
        mean = tl.load(moments + 2 * row, mask=row < rows, other=0.0)
        inverse = tl.load(moments + 2 * row + 1, mask=row < rows, other=0.0)
        z = tl.load(summed + at, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        normalized = tl.where(inside, (z - mean[:, None]) * inverse[:, None], 0.0)
        dweight += d * normalized
        dnorm_bias += d
        d = norm_gradient(d * w, normalized, inverse, columns)
        if DROPOUT:
            tl.store(dresidual + at, d.to(dresidual.dtype.element_ty), mask=inside)
            word0, word1 = row_words(token_indices(row, positions, first_token, row < rows), key0, key1)
            d = tl.where(keep(word0[:, None], word1[:, None], column, threshold), d * scale, 0.0)
        tl.store(dx + at, d.to(dx.dtype.element_ty), mask=inside)
        dbias += tl.where(inside, d, 0.0)
    sums = partial + tl.program_id(0) * 3 * columns + column
    tl.store(sums, tl.sum(dbias, 0)[None, :], mask=vector)
    tl.store(sums + columns, tl.sum(dweight, 0)[None, :], mask=vector)
    tl.store(sums + 2 * columns, tl.sum(dnorm_bias, 0)[None, :], mask=vector)


def add_dropout_norm(
    x: Tensor, bias: Tensor, residual: Tensor, norm: tuple[Tensor, Tensor, float], key: Key, saves: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Compute LayerNorm(residual + dropout(x + bias)), T H; return it and, if it `saves` them, the sum and its moments.

    `norm`: weight, bias and epsilon of LayerNorm.
    """
    (rows, columns), (weight, norm_bias, eps) = x.shape, norm
    y = torch.empty_like(x)
    summed, moments = (torch.empty_like(x), x.new_empty(rows, 2, dtype=torch.float32)) if saves else (None, None)
    tile = FORWARD.shape(columns)
    operands = (x, bias, residual, weight, norm_bias, summed, moments, y, rows, eps, *mask_args(key))
    constants, grid = (columns, key.threshold != 0, *tile), (cdiv(rows, tile[0]),)
    launch(add_dropout_norm_kernel, grid, *operands, *constants, on=x, num_warps=FORWARD.warps)
    return y, summed, moments


def add_dropout_norm_backward(
    summed: Tensor, moments: Tensor, weight: Tensor, dy: Tensor, key: Key, sums: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x and of the residual (without dropout, the same tensor), T H, and of the vectors, 3 H.

    The vectors are the bias of x, and LayerNorm's weight and bias; their gradients are `sums` if given.
    """
    (rows, columns), drops, tile = summed.shape, key.threshold != 0, BACKWARD.shape(summed.shape[1])
    dx = torch.empty_like(summed)
    dresidual = torch.empty_like(summed) if drops else dx
    programs = backward_programs(rows, tile[0])
    partial = summed.new_empty(programs, 3, columns, dtype=torch.float32)
    operands = (summed, moments, weight, dy, dx, dresidual, partial)
    numbers = (rows, cdiv(rows, tile[0]), *mask_args(key), columns, drops, *tile)
    launch(add_dropout_norm_backward_kernel, (programs,), *operands, *numbers, on=dx, num_warps=BACKWARD.warps)
    return dx, dresidual, torch.sum(partial, 0, out=sums)


class AddDropoutNorm(torch.autograd.Function):
    """`add_dropout_norm` with gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor,
        residual: Tensor,
        weight: Tensor,
        norm_bias: Tensor,
        eps: float,
        key: MaskKey,
        saves: bool,
    ) -> Tensor:
        norm = (weight, norm_bias, eps)
        y, summed, moments = add_dropout_norm(x.contiguous(), bias, residual.contiguous(), norm, key, saves)
        ctx.save_for_backward(summed, moments, weight)
        ctx.mask_key = key
        ctx.dtypes = bias.dtype, weight.dtype, norm_bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        summed, moments, weight = ctx.saved_tensors
        dx, dresidual, sums = add_dropout_norm_backward(summed, moments, weight, dy.contiguous(), ctx.mask_key)
        dbias, dweight, dnorm_bias = (total.to(dtype) for total, dtype in zip(sums, ctx.dtypes, strict=True))
        return dx, dbias, dresidual, dweight, dnorm_bias, None, None, None
