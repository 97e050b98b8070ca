"""Triton kernels: GELU of states with a bias, and column sums. T rows, F columns."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels.triton.launch import cdiv, launch

ROWS, COLUMNS = 2, 1024  # of a tile
TILES = 16  # tiles per program of a kernel that sums rows
SQRT_HALF, INV_SQRT_2PI = tl.constexpr(0.7071067811865476), tl.constexpr(0.3989422804014327)
TANH_SLOPE, CUBIC = tl.constexpr(2 * 0.7978845608028654), tl.constexpr(0.044715)  # sqrt(2/π); tanh as a sigmoid


@triton.jit
def normal(z, EXACT: tl.constexpr):
    """Return the normal distribution Φ(z), and exp(-z²/2).

    Not EXACT: within 7.5e-8, in half the instructions (Abramowitz and Stegun 1964, 7.1.26).
    """
    peak = tl.exp(-0.5 * z * z)
    if EXACT:
        share = 0.5 * (1.0 + tl.erf(z * SQRT_HALF))
    else:
        t = 1.0 / (1.0 + 0.3275911 * SQRT_HALF * tl.abs(z))
        series = ((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736
        tail = 0.5 * (series * t + 0.254829592) * t * peak
        share = tl.where(z < 0.0, tail, 1.0 - tail)
    return share, peak


@triton.jit(do_not_specialize=["rows"])
def gelu_kernel(x, bias, y, rows, columns: tl.constexpr, TANH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    valid = (row < rows) & (column < columns)
    at = row * columns + column
    b = tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
    z = tl.load(x + at, mask=valid, other=0.0).to(tl.float32) + b
    if TANH:
        share = tl.sigmoid((z + z * z * z * CUBIC) * TANH_SLOPE)
    else:
        share, _ = normal(z, x.dtype.element_ty == tl.float32)
    tl.store(y + at, (z * share).to(y.dtype.element_ty), mask=valid)


@triton.jit(do_not_specialize=["rows"])
def gelu_backward_kernel(
    x, bias, dy, dx, partial, rows,
    columns: tl.constexpr, TANH: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Write dx, and the sum over this program's rows to `partial`, programs × columns."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    b = tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, COLS), tl.float32)
    for tile in range(TILES):
        row = (program * TILES + tile) * ROWS + tl.arange(0, ROWS)[:, None]
        valid = (row < rows) & (column < columns)
        at = row * columns + column
        z = tl.load(x + at, mask=valid, other=0.0).to(tl.float32) + b
        d = tl.load(dy + at, mask=valid, other=0.0).to(tl.float32)
        if TANH:
            s = tl.sigmoid((z + z * z * z * CUBIC) * TANH_SLOPE)
            slope = s + z * s * (1.0 - s) * TANH_SLOPE * (1.0 + z * z * CUBIC * 3.0)
        else:
            share, peak = normal(z, x.dtype.element_ty == tl.float32)
            slope = share + z * INV_SQRT_2PI * peak
        d *= slope
        tl.store(dx + at, d.to(dx.dtype.element_ty), mask=valid)
        total += d
    tl.store(partial + program * columns + column, tl.sum(total, 0)[None, :], mask=column < columns)


@triton.jit(do_not_specialize=["rows", "stride"])
def column_sum_kernel(
    x, partial, rows, stride,
    columns: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Write the sum over this program's rows to `partial`, programs × columns."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLS + tl.arange(0, COLS)[None, :]
    total = tl.zeros((ROWS, COLS), tl.float32)
    for tile in range(TILES):
        row = (program * TILES + tile) * ROWS + tl.arange(0, ROWS)[:, None]
        valid = (row < rows) & (column < columns)
        total += tl.load(x + row * stride + column, mask=valid, other=0.0).to(tl.float32)
    sums = tl.sum(total, 0)[None, :]
    tl.store(partial + program * columns + column, sums, mask=column < columns)


def bias_gelu(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """Compute gelu(x + bias), T F → T F."""
    y, (rows, columns) = torch.empty_like(x), x.shape
    grid = (cdiv(rows, ROWS), cdiv(columns, COLUMNS))
    launch(gelu_kernel, grid, x, bias, y, rows, columns, tanh, ROWS, COLUMNS, on=x)
    return y


def bias_gelu_backward(
    x: Tensor, bias: Tensor, dy: Tensor, tanh: bool, dbias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return dx, T F, and the bias's gradient, F float32, which is `dbias` if given."""
    rows, columns = x.shape
    grid = (cdiv(rows, ROWS * TILES), cdiv(columns, COLUMNS))
    dx, partial = torch.empty_like(dy), dy.new_empty(grid[0], columns, dtype=torch.float32)
    launch(gelu_backward_kernel, grid, x, bias, dy, dx, partial, rows, columns, tanh, ROWS, COLUMNS, TILES, on=x)
    return dx, torch.sum(partial, 0, out=dbias)


class BiasGelu(torch.autograd.Function):
    """`bias_gelu` with gradients; saves only x and recomputes the rest in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x, bias)
        ctx.tanh = tanh
        return bias_gelu(x, bias, tanh)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        dx, dbias = bias_gelu_backward(x, bias, dy.contiguous(), ctx.tanh)
        return dx, dbias.to(bias.dtype), None


def column_sum(x: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the sum of each column, R C → C float32, in `out` if given, in a fixed order; rows may have gaps."""
    rows, columns = x.shape
    grid = (cdiv(rows, ROWS * TILES), cdiv(columns, COLUMNS))
    partial = x.new_empty(grid[0], columns, dtype=torch.float32)
    launch(column_sum_kernel, grid, x, partial, rows, x.stride(0), columns, ROWS, COLUMNS, TILES, on=x)
    return torch.sum(partial, 0, out=out)
