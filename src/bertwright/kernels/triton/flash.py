"""Triton kernels: attention over packed sequences, with the dropout masks of the other backends.

T tokens of B sequences, A heads, D head size. The gradients of q, k and v are written into one tensor, T 3 A D; every
sum has a fixed order. Softmax in powers of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels.attention import Offsets, split
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

MAX_HEAD_SIZE = 128
LOG2_E = tl.constexpr(1.4426950408889634)


class Blocks(NamedTuple):
    """Queries and keys per tile, the warps of a program, and the tiles that it loads ahead."""

    queries: int
    keys: int
    warps: int
    stages: int


def forward_blocks(max_seqlen: int, operand: Tensor) -> Blocks:
    """Choose tiles for a forward pass; `max_seqlen`: of the keys."""
    size = 64 if operand.element_size() == 2 and operand.shape[-1] <= 64 else 32
    keys = min(size, max(next_power_of_2(max_seqlen), 16))
    return Blocks(keys, keys, 4, 2)


def backward_blocks(max_seqlen: int, operand: Tensor) -> Blocks:
    """Choose tiles for a backward pass; a tile with all keys computes the gradients of queries, too."""
    size = 128 if operand.element_size() == 2 and operand.shape[-1] <= 64 else 32
    keys = min(size, max(next_power_of_2(max_seqlen), 16))
    return Blocks(min(keys, 32), keys, 4, 2)


@triton.jit
def bounds(cu_seqlens, sequence):
    """Return the first token of a sequence, int64, and its length."""
    first = tl.load(cu_seqlens + sequence)
    return first.to(tl.int64), tl.load(cu_seqlens + sequence + 1) - first


@triton.jit
def load_rows(base, rows, stride, length, D: tl.constexpr, WIDTH: tl.constexpr):
    """Load one head's vectors of some positions of a sequence, rows × WIDTH; zeros after its end."""
    column = tl.arange(0, WIDTH)[None, :]
    inside = (rows < length)[:, None]
    if D != WIDTH:
        inside = inside & (column < D)
    return tl.load(base + rows[:, None] * stride + column, mask=inside, other=0.0)


@triton.jit
def store_rows(base, rows, stride, length, values, D: tl.constexpr, WIDTH: tl.constexpr):
    column = tl.arange(0, WIDTH)[None, :]
    inside = (rows < length)[:, None]
    if D != WIDTH:
        inside = inside & (column < D)
    tl.store(base + rows[:, None] * stride + column, values.to(base.dtype.element_ty), mask=inside)


@triton.jit
def add_bias(scores, bias, reach, head, queries, keys, inside):
    """Add the bias of the distance of each query and key; their positions broadcast to the scores."""
    if bias is not None:
        added = tl.load(bias + (head * (2 * reach + 1) + reach + keys - queries), mask=inside, other=0.0)
        scores += added * LOG2_E
    return scores


@triton.jit(do_not_specialize=["tiles", "reach", *MASK_NUMBERS])
def attention_kernel(
    q, k, v, cu_q, cu_k, bias, reach, out, lse, tiles, stride_q, stride_k, score_scale,
    positions, numbers, first_token: tl.int64, key0, key1, threshold, scale,
    HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute one tile of queries of one head of one sequence."""
    first_token, key0, key1 = read_key(numbers, first_token, key0, key1)
    head, sequence = tl.program_id(1), tl.program_id(0) // tiles
    first_q, length_q = bounds(cu_q, sequence)
    first_k, length_k = bounds(cu_k, sequence)
    start = tl.program_id(0) % tiles * QUERIES
    if start >= length_q:
        return
    rows = start + tl.arange(0, QUERIES)
    queries = load_rows(q + first_q * stride_q + head * D, rows, stride_q, length_q, D, WIDTH)
    k += first_k * stride_k + head * D
    v += first_k * stride_k + head * D
    if DROPOUT:
        tokens = token_indices(first_q + rows, positions, first_token, rows < length_q)
        word0, word1 = row_words(tokens * HEADS + head, key0, key1)
    top = tl.full([QUERIES], -float("inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    context = tl.zeros([QUERIES, WIDTH], tl.float32)
    end = length_k
    if CAUSAL:
        end = tl.minimum(end, start + QUERIES + length_k - length_q)
    for first in range(0, end, KEYS):
        columns = first + tl.arange(0, KEYS)
        keys = load_rows(k, columns, stride_k, length_k, D, WIDTH)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * score_scale
        visible = (columns < length_k)[None, :]
        inside = visible & (rows < length_q)[:, None]
        scores = add_bias(scores, bias, reach, head, rows[:, None], columns[None, :], inside)
        if CAUSAL:
            visible = visible & (columns[None, :] <= (rows + (length_k - length_q))[:, None])
        scores = tl.where(visible, scores, -float("inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        safe_top = tl.where(new_top == -float("inf"), 0.0, new_top)
        weights = tl.exp2(scores - safe_top[:, None])
        shrink = tl.exp2(top - safe_top)
        total = total * shrink + tl.sum(weights, 1)
        if DROPOUT:
            stays = keep(word0[:, None], word1[:, None], columns[None, :], threshold)
            weights = tl.where(stays, weights * scale, 0.0)
        values = load_rows(v, columns, stride_k, length_k, D, WIDTH)
        context = context * shrink[:, None]
        context = tl.dot(weights.to(values.dtype), values, context, input_precision="ieee")
        top = new_top
    seen = total > 0.0  # a query without keys has the result 0
    total = tl.where(seen, total, 1.0)
    context = tl.where(seen[:, None], context / total[:, None], 0.0)
    store_rows(out + first_q * (HEADS * D) + head * D, rows, HEADS * D, length_q, context, D, WIDTH)
    tl.store(lse + (first_q + rows) * HEADS + head, top + tl.log2(total), mask=rows < length_q)


@triton.jit
def key_gradients(
    queries, dout, context, lse_row, keys, values, rows, columns, length_q, length_k, bias, reach, head, word0, word1,
    score_scale, threshold, scale, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Return dropped weights and the gradient of the scores, keys × queries each."""
    scores = tl.dot(keys, tl.trans(queries), input_precision="ieee") * score_scale
    visible = (columns < length_k)[:, None] & (rows < length_q)[None, :]
    scores = add_bias(scores, bias, reach, head, rows[None, :], columns[:, None], visible)
    if CAUSAL:
        visible = visible & (columns[:, None] <= (rows + (length_k - length_q))[None, :])
    weights = tl.where(visible, tl.exp2(scores - lse_row[None, :]), 0.0)
    dweights = tl.dot(values, tl.trans(dout), input_precision="ieee")
    dropped = weights
    if DROPOUT:
        stays = keep(word0[None, :], word1[None, :], columns[:, None], threshold)
        dropped = tl.where(stays, weights * scale, 0.0)
        dweights = tl.where(stays, dweights * scale, 0.0)
    delta = tl.sum(dout.to(tl.float32) * context.to(tl.float32), 1)
    return dropped, weights * (dweights - delta[None, :])


@triton.jit(do_not_specialize=["tiles", "reach", *MASK_NUMBERS])
def attention_backward_kernel(
    q, k, v, cu_q, cu_k, bias, reach, out, lse, dout, dq, dk, dv, dbias, tiles, stride_q, stride_k, score_scale,
    positions, numbers, first_token: tl.int64, key0, key1, threshold, scale,
    HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WRITE_DQ: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of one tile of keys; with WRITE_DQ, the tile has all keys, and dq is computed as well.

    dbias, B A (reach + 1) (2 reach + 1): the gradient of the bias for each query and distance.
    """
    first_token, key0, key1 = read_key(numbers, first_token, key0, key1)
    head, sequence = tl.program_id(1), tl.program_id(0) // tiles
    first_q, length_q = bounds(cu_q, sequence)
    first_k, length_k = bounds(cu_k, sequence)
    start = tl.program_id(0) % tiles * KEYS
    if start >= length_k:
        return
    columns = start + tl.arange(0, KEYS)
    at_keys = first_k * stride_k + head * D
    keys = load_rows(k + at_keys, columns, stride_k, length_k, D, WIDTH)
    values = load_rows(v + at_keys, columns, stride_k, length_k, D, WIDTH)
    dkeys = tl.zeros([KEYS, WIDTH], tl.float32)
    dvalues = tl.zeros([KEYS, WIDTH], tl.float32)
    at_queries = first_q * stride_q + head * D
    at_out = first_q * (HEADS * D) + head * D
    begin = 0
    if CAUSAL:
        begin = tl.maximum(start - (length_k - length_q), 0) // QUERIES * QUERIES
    for first in range(begin, length_q, QUERIES):
        rows = first + tl.arange(0, QUERIES)
        queries = load_rows(q + at_queries, rows, stride_q, length_q, D, WIDTH)
        drows = load_rows(dout + at_out, rows, HEADS * D, length_q, D, WIDTH)
        context = load_rows(out + at_out, rows, HEADS * D, length_q, D, WIDTH)
        lse_row = tl.load(lse + (first_q + rows) * HEADS + head, mask=rows < length_q, other=0.0)
        word0, word1 = rows, rows
        if DROPOUT:
            tokens = token_indices(first_q + rows, positions, first_token, rows < length_q)
            word0, word1 = row_words(tokens * HEADS + head, key0, key1)
        dropped, dscores = key_gradients(
            queries, drows, context, lse_row, keys, values, rows, columns, length_q, length_k, bias, reach, head,
            word0, word1, score_scale, threshold, scale, CAUSAL, DROPOUT,
        )  # fmt: skip
        if bias is not None:
            row = (sequence.to(tl.int64) * HEADS + head) * (reach + 1) + rows[None, :]
            place = row * (2 * reach + 1) + reach + columns[:, None] - rows[None, :]
            tl.store(dbias + place, dscores, mask=(columns < length_k)[:, None] & (rows < length_q)[None, :])
        dvalues = tl.dot(dropped.to(drows.dtype), drows, dvalues, input_precision="ieee")
        dscores = dscores.to(queries.dtype)
        dkeys = tl.dot(dscores, queries, dkeys, input_precision="ieee")
        if WRITE_DQ:
            dqueries = tl.dot(tl.trans(dscores), keys, input_precision="ieee") * (score_scale / LOG2_E)
            store_rows(dq + at_queries, rows, stride_q, length_q, dqueries, D, WIDTH)
    store_rows(dk + at_keys, columns, stride_k, length_k, dkeys * (score_scale / LOG2_E), D, WIDTH)
    store_rows(dv + at_keys, columns, stride_k, length_k, dvalues, D, WIDTH)


@triton.jit(do_not_specialize=["tiles", "reach", *MASK_NUMBERS])
def attention_dq_kernel(
    q, k, v, cu_q, cu_k, bias, reach, out, lse, dout, dq, tiles, stride_q, stride_k, score_scale,
    positions, numbers, first_token: tl.int64, key0, key1, threshold, scale,
    HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Compute dq of one tile of queries."""
    first_token, key0, key1 = read_key(numbers, first_token, key0, key1)
    head, sequence = tl.program_id(1), tl.program_id(0) // tiles
    first_q, length_q = bounds(cu_q, sequence)
    first_k, length_k = bounds(cu_k, sequence)
    start = tl.program_id(0) % tiles * QUERIES
    if start >= length_q:
        return
    rows = start + tl.arange(0, QUERIES)
    at_queries = first_q * stride_q + head * D
    at_out = first_q * (HEADS * D) + head * D
    queries = load_rows(q + at_queries, rows, stride_q, length_q, D, WIDTH)
    drows = load_rows(dout + at_out, rows, HEADS * D, length_q, D, WIDTH)
    context = load_rows(out + at_out, rows, HEADS * D, length_q, D, WIDTH)
    lse_row = tl.load(lse + (first_q + rows) * HEADS + head, mask=rows < length_q, other=0.0)
    word0, word1 = rows, rows
    if DROPOUT:
        tokens = token_indices(first_q + rows, positions, first_token, rows < length_q)
        word0, word1 = row_words(tokens * HEADS + head, key0, key1)
    dqueries = tl.zeros([QUERIES, WIDTH], tl.float32)
    at_keys = first_k * stride_k + head * D
    end = length_k
    if CAUSAL:
        end = tl.minimum(end, start + QUERIES + length_k - length_q)
    for first in range(0, end, KEYS):
        columns = first + tl.arange(0, KEYS)
        keys = load_rows(k + at_keys, columns, stride_k, length_k, D, WIDTH)
        values = load_rows(v + at_keys, columns, stride_k, length_k, D, WIDTH)
        _, dscores = key_gradients(
            queries, drows, context, lse_row, keys, values, rows, columns, length_q, length_k, bias, reach, head,
            word0, word1, score_scale, threshold, scale, CAUSAL, DROPOUT,
        )  # fmt: skip
        dqueries = tl.dot(tl.trans(dscores.to(keys.dtype)), keys, dqueries, input_precision="ieee")
    store_rows(dq + at_queries, rows, stride_q, length_q, dqueries * (score_scale / LOG2_E), D, WIDTH)


def attention(
    sequences: Offsets, causal: bool, key: Key, operands: Sequence[Tensor], bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute T A D from `operands`: qkv T 3 A D, or q Tq A D and kv Tkv 2 A D; all contiguous.

    `bias`: as in `biased_attention`. Returns the result, and the logarithm of each softmax's sum, T A float32, which
    the backward pass needs.
    """
    q, k, v = split(operands)
    cu_q, cu_k, max_q, max_k = sequences
    (tokens, heads, _), blocks = q.shape, forward_blocks(max_k, q)
    out, lse = q.new_empty(q.shape), q.new_empty(tokens, heads, dtype=torch.float32)
    tiles = cdiv(max_q, blocks.queries)
    tensors = (q, k, v, cu_q, cu_k, bias, reach_of(bias), out, lse, tiles)
    grid = ((len(cu_q) - 1) * tiles, heads)
    constants = (*common_args(q, k, key), causal, key.threshold != 0, blocks.queries, blocks.keys)
    launch(attention_kernel, grid, *tensors, *constants, on=q, num_warps=blocks.warps, num_stages=blocks.stages)
    return out, lse


def attention_backward(
    sequences: Offsets, causal: bool, key: Key, operands: Sequence[Tensor], out: Tensor, lse: Tensor, dout: Tensor,
    bias: Tensor | None = None,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of the operands and of the bias, from the results of `attention` and their gradient.

    The gradient of a bias takes twice the memory of all scores.
    """
    cu_q, cu_k, max_q, max_k = sequences
    q, k, v = split(operands)
    gradients = [torch.zeros_like(x) if len(operands) > 1 else torch.empty_like(x) for x in operands]
    dq, dk, dv = split(gradients)
    blocks, (_, heads, _) = backward_blocks(max_k, q), q.shape
    tensors: tuple[Any, ...] = (q, k, v, cu_q, cu_k, bias, reach_of(bias), out, lse, dout, dq)
    constants = (*common_args(q, k, key), causal, key.threshold != 0, blocks.queries, blocks.keys)
    key_tiles, count = cdiv(max_k, blocks.keys), len(cu_q) - 1
    options = {"num_warps": blocks.warps, "num_stages": blocks.stages}
    grid, numbers = (count * key_tiles, heads), (key_tiles, *constants, key_tiles == 1)
    shape = None if bias is None else (count, heads, reach_of(bias) + 1, bias.shape[1])
    dbias = None if shape is None else q.new_zeros(shape, dtype=torch.float32)
    launch(attention_backward_kernel, grid, *tensors, dk, dv, dbias, *numbers, on=q, **options)
    if key_tiles > 1:
        tiles = cdiv(max_q, blocks.queries)
        launch(attention_dq_kernel, (count * tiles, heads), *tensors, tiles, *constants, on=q, **options)
    return gradients if dbias is None else [*gradients, dbias.sum((0, 2))]


def reach_of(bias: Tensor | None) -> int:
    """Return the largest distance of query and key that has a bias."""
    return 0 if bias is None else bias.shape[1] // 2


class Attention(torch.autograd.Function):
    """`attention` with gradients; saves operands, output and one number per query and head, no weights."""

    @staticmethod
    def forward(
        ctx: Any, sequences: Offsets, causal: bool, key: MaskKey, bias: Tensor | None, *operands: Tensor
    ) -> Tensor:
        out, lse = attention(sequences, causal, key, operands, bias)
        cu_q, cu_k, *ctx.max_seqlens = sequences
        ctx.save_for_backward(out, lse, cu_q, cu_k, bias, *operands)
        ctx.causal, ctx.mask_key = causal, key
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        out, lse, cu_q, cu_k, bias, *operands = ctx.saved_tensors
        results = (operands, out, lse, dout.contiguous(), bias)
        gradients = attention_backward((cu_q, cu_k, *ctx.max_seqlens), ctx.causal, ctx.mask_key, *results)
        return None, None, None, gradients.pop() if bias is not None else None, *gradients


def common_args(q: Tensor, k: Tensor, key: Key) -> tuple[Any, ...]:
    """Return strides, the factor of the scores (softmax in powers of two), the mask, heads, and the head's size."""
    _, heads, size = q.shape
    factor = size**-0.5 * LOG2_E.value
    width = max(next_power_of_2(size), 16)
    return q.stride(0), k.stride(0), factor, *mask_args(key._replace(positions=None)), heads, size, width
