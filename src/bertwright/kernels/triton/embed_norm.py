"""Triton kernels: the sum of three embeddings with LayerNorm and dropout, and dropout alone. T rows, H columns."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels.dropout import MaskKey
from bertwright.kernels.triton.dropout_masks import MASK_NUMBERS, keep, mask_args, read_key, row_words, token_indices
from bertwright.kernels.triton.launch import cdiv, launch
from bertwright.kernels.triton.layer_norm import BACKWARD, FORWARD, backward_programs, norm_gradient, normalize

COLUMNS = 1024  # of a tile of `dropout_kernel`
BINARY = 2  # rows of a table of token types whose gradient is summed with the other sums


@triton.jit
def embedding_sum(word, position, token_type, ids0, ids1, ids2, row, inside, rows, columns: tl.constexpr):
    """Return word + position + token type of some rows, 0 outside the matrix."""
    column = tl.arange(0, inside.shape[1])[None, :]
    row0 = tl.load(ids0 + row, mask=row < rows, other=0)[:, None] * columns + column
    row1 = tl.load(ids1 + row, mask=row < rows, other=0)[:, None] * columns + column
    row2 = tl.load(ids2 + row, mask=row < rows, other=0)[:, None] * columns + column
    z = tl.load(word + row0, mask=inside, other=0.0).to(tl.float32)
    z += tl.load(position + row1, mask=inside, other=0.0).to(tl.float32)
    return z + tl.load(token_type + row2, mask=inside, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["rows", *MASK_NUMBERS])
def embed_norm_kernel(
    word, position, token_type, ids0, ids1, ids2, weight, norm_bias, moments, y, rows, eps,
    positions, numbers, first_token: tl.int64, key0, key1, threshold, scale,
    columns: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    first_token, key0, key1 = read_key(numbers, first_token, key0, key1)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLS)[None, :]
    vector = column < columns
    inside = (row < rows)[:, None] & vector
    z = embedding_sum(word, position, token_type, ids0, ids1, ids2, row, inside, rows, columns)
    mean, inverse = normalize(z, inside, eps, columns)
    tl.store(moments + 2 * row, mean, mask=row < rows)
    tl.store(moments + 2 * row + 1, inverse, mask=row < rows)
    w = tl.load(weight + column, mask=vector, other=0.0).to(tl.float32)
    c = tl.load(norm_bias + column, mask=vector, other=0.0).to(tl.float32)
    value = (z - mean[:, None]) * inverse[:, None] * w + c
    if DROPOUT:
        word0, word1 = row_words(token_indices(row, positions, first_token, row < rows), key0, key1)
        value = tl.where(keep(word0[:, None], word1[:, None], column, threshold), value * scale, 0.0)
    tl.store(y + row.to(tl.int64)[:, None] * columns + column, value.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "tiles", *MASK_NUMBERS])
def embed_norm_backward_kernel(
    word, position, token_type, ids0, ids1, ids2, weight, moments, dy, dsummed, partial, rows, tiles,
    positions, numbers, first_token: tl.int64, key0, key1, threshold, scale,
    columns: tl.constexpr, DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the sum of embeddings, and sums over rows to `partial`, programs × 4 × columns.

    These are the gradients of LayerNorm's weight and bias, and of the token types 0 and 1.
    """
    first_token, key0, key1 = read_key(numbers, first_token, key0, key1)
    column = tl.arange(0, COLS)[None, :]
    vector = column < columns
    w = tl.load(weight + column, mask=vector, other=0.0).to(tl.float32)
    dweight = tl.zeros((ROWS, COLS), tl.float32)
    dnorm_bias = tl.zeros((ROWS, COLS), tl.float32)
    dtype0 = tl.zeros((ROWS, COLS), tl.float32)
    dtype1 = tl.zeros((ROWS, COLS), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile * ROWS + tl.arange(0, ROWS)
        inside = (row < rows)[:, None] & vector
        at = row.to(tl.int64)[:, None] * columns + column
        z = embedding_sum(word, position, token_type, ids0, ids1, ids2, row, inside, rows, columns)
        mean = tl.load(moments + 2 * row, mask=row < rows, other=0.0)
        inverse = tl.load(moments + 2 * row + 1, mask=row < rows, other=0.0)
        d = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        if DROPOUT:
            word0, word1 = row_words(token_indices(row, positions, first_token, row < rows), key0, key1)
            d = tl.where(keep(word0[:, None], word1[:, None], column, threshold), d * scale, 0.0)
        normalized = tl.where(inside, (z - mean[:, None]) * inverse[:, None], 0.0)
        dweight += d * normalized
        dnorm_bias += d
        d = norm_gradient(d * w, normalized, inverse, columns)
        tl.store(dsummed + at, d, mask=inside)
        d = tl.where(inside, d, 0.0)
        second = (tl.load(ids2 + row, mask=row < rows, other=0) == 1)[:, None]
        dtype0 += tl.where(second, 0.0, d)
        dtype1 += tl.where(second, d, 0.0)
    sums = partial + tl.program_id(0) * 4 * columns + column
    tl.store(sums, tl.sum(dweight, 0)[None, :], mask=vector)
    tl.store(sums + columns, tl.sum(dnorm_bias, 0)[None, :], mask=vector)
    tl.store(sums + 2 * columns, tl.sum(dtype0, 0)[None, :], mask=vector)
    tl.store(sums + 3 * columns, tl.sum(dtype1, 0)[None, :], mask=vector)


@triton.jit(do_not_specialize=MASK_NUMBERS)
def dropout_kernel(
    x, y, positions, numbers, first_token: tl.int64, key0, key1, threshold, scale, columns, COLS: tl.constexpr
):  # fmt: skip
    first_token, key0, key1 = read_key(numbers, first_token, key0, key1)
    row = tl.program_id(0)
    column = tl.program_id(1) * COLS + tl.arange(0, COLS)
    at = row.to(tl.int64) * columns + column
    word0, word1 = row_words(token_indices(row, positions, first_token, row >= 0), key0, key1)
    value = tl.load(x + at, mask=column < columns, other=0.0).to(tl.float32)
    value = tl.where(keep(word0, word1, column, threshold), value * scale, 0.0)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=column < columns)


class EmbedNorm(torch.autograd.Function):
    """dropout(LayerNorm(word + position + token type)); looks the embeddings up again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        word: Tensor,
        position: Tensor,
        token_type: Tensor,
        weight: Tensor,
        norm_bias: Tensor,
        eps: float,
        key: MaskKey,
        *ids: Tensor,
    ) -> Tensor:
        tables, (rows, columns) = (word, position, token_type), (len(ids[0]), word.shape[1])
        for table, indices in zip(tables, ids, strict=True):
            torch._assert_async(((indices >= 0) & (indices < len(table))).all())
        y, moments = word.new_empty(rows, columns), word.new_empty(rows, 2, dtype=torch.float32)
        tile = FORWARD.shape(columns)
        operands = (*tables, *ids, weight, norm_bias, moments, y, rows, eps, *mask_args(key))
        constants, grid = (columns, key.threshold != 0, *tile), (cdiv(rows, tile[0]),)
        launch(embed_norm_kernel, grid, *operands, *constants, on=y, num_warps=FORWARD.warps)
        ctx.save_for_backward(*tables, weight, moments, *ids)
        ctx.mask_key, ctx.norm_bias_dtype = key, norm_bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        *tables, weight, moments = ctx.saved_tensors[:5]
        ids, key = ctx.saved_tensors[5:], ctx.mask_key
        rows, columns = dy.shape
        tile = BACKWARD.shape(columns)
        programs = backward_programs(rows, tile[0])
        dsummed = torch.empty_like(dy, dtype=torch.float32, memory_format=torch.contiguous_format)
        partial = dsummed.new_empty(programs, 4, columns)
        operands = (*tables, *ids, weight, moments, dy.contiguous(), dsummed, partial)
        numbers = (rows, cdiv(rows, tile[0]), *mask_args(key), columns, key.threshold != 0, *tile)
        launch(embed_norm_backward_kernel, (programs,), *operands, *numbers, on=dsummed, num_warps=BACKWARD.warps)
        sums = partial.sum(0)
        gradients: list[Tensor | None] = []
        for number, (table, indices) in enumerate(zip(tables, ids, strict=True)):
            if not ctx.needs_input_grad[number]:
                gradients.append(None)
            elif number == BINARY and len(table) == BINARY:
                gradients.append(sums[2:].to(table.dtype))
            else:  # sorts the ids, so the sums have a fixed order
                dtable = torch.ops.aten.embedding_dense_backward(dsummed, indices, len(table), -1, False)
                gradients.append(dtable.to(table.dtype))
        return *gradients, sums[0].to(weight.dtype), sums[1].to(ctx.norm_bias_dtype), *(None,) * 5


class DropoutFunction(torch.autograd.Function):
    """Dropout, T … → T …; saves nothing and recomputes the mask in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, key: MaskKey) -> Tensor:
        ctx.mask_key = key
        rows, columns = len(x), math.prod(x.shape[1:])
        x = x.contiguous()
        y = torch.empty_like(x)
        grid = (rows, cdiv(columns, COLUMNS))
        launch(dropout_kernel, grid, x, y, *mask_args(key), columns, COLUMNS, on=x)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dx: Tensor = DropoutFunction.apply(dy, ctx.mask_key)
        return dx, None
