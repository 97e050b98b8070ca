"""The model's fused operations: one call and one pass over memory in place of five.

T tokens, H hidden size, F intermediate size, V vocabulary, M masked positions.
On CPU these are native kernels (`kernels.cpp`); elsewhere, and without a compiler, `reference` computes the same in
plain PyTorch.
Tensors are float32 or bfloat16, arithmetic is float32; the bits do not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels import reference
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.ffi import DTYPE_CODES, CMaskKey, apply, c_mask_key, call, doubles, row_pointer, use_native
from bertwright.kernels.linear_bf16 import (
    dense,
    dense_gradients,
    is_native_bf16,
    matmul_nt,
    matmul_tn,
    pad_rows,
    uses_native_linear,
)
from bertwright.kernels.reference import AdamStep, EmbeddingTables, LayerNormParams

if TYPE_CHECKING:
    from bertwright.batching.batch import Batch

__all__ = [
    "AdamStep",
    "Dropout",
    "EmbeddingTables",
    "LayerNormParams",
    "adamw_",
    "adamw_rows_",
    "add_dropout_norm",
    "bias_gelu",
    "dropout",
    "embed_norm",
    "gradient_norm",
    "linear",
    "linear_cross_entropy",
]

# Of logits at once, at most; each chunk also costs a pass over the weight's gradient.
CHUNK_BYTES = {"cpu": 2**26, "cuda": 2**29}


def bias_gelu(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """gelu(x + bias), T F → T F; `tanh` is the approximation of Google's BERT, else the exact erf form."""
    if use_native(x):
        return apply(BiasGelu, x, bias, tanh)
    return reference.bias_gelu(x, bias, tanh)


class BiasGelu(torch.autograd.Function):
    """Keeps x alone; the backward pass computes the rest again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
        assert bias.shape == x.shape[-1:], (x.shape, bias.shape)
        ctx.save_for_backward(x, bias)
        ctx.tanh = tanh
        y = torch.empty_like(x)
        call("bias_gelu", DTYPE_CODES[x.dtype], tanh, x, bias.float(), y, *rows_columns(x))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        dx, dbias = torch.empty_like(x), torch.empty(bias.shape)
        given = (x, bias.float(), dy.contiguous(), dx, dbias)
        call("bias_gelu_backward", DTYPE_CODES[x.dtype], ctx.tanh, *given, *rows_columns(x))
        return dx, dbias.to(bias.dtype), None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x · weightᵀ + bias in the number type of x, T H and O H → T O; `weight` may be float32 where x is not."""
    if is_native_bf16(x):
        return apply(Linear, x, weight, bias)
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


class Linear(torch.autograd.Function):
    """`F.linear` of a bfloat16 state. Gradients of float32 weights are never rounded where native kernels make them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.on_tiles = uses_native_linear(weight)
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        if ctx.on_tiles:
            x = x.contiguous()
            ctx.save_for_backward(x, weight)
            return dense(x, weight, bias)
        filled, cast_weight = pad_rows(x), weight.to(x.dtype)
        ctx.save_for_backward(filled, cast_weight)
        return F.linear(filled, cast_weight, None if bias is None else bias.to(x.dtype))[: len(x)]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        if ctx.on_tiles:
            dx, dweight, dbias = dense_gradients(dy.contiguous(), x, weight, ctx.needs_input_grad)
        else:
            filled = pad_rows(dy)
            dx = torch.mm(filled, weight)[: len(dy)] if for_x else None
            dweight = matmul_tn(filled, x) if for_weight else None
            dbias = dy.sum(0) if for_bias else None
        weight_type, bias_type = ctx.dtypes
        return dx, None if dweight is None else dweight.to(weight_type), None if dbias is None else dbias.to(bias_type)


def dropout(x: Tensor, dropout: Dropout | None, site: int) -> Tensor:
    """Dropout of a tensor whose first dimension are tokens, T … → T …"""
    if dropout is not None and use_native(x):
        return apply(DropoutFunction, x, c_mask_key(dropout, site))
    return reference.dropout(x, dropout and dropout.mask_key(site))


class DropoutFunction(torch.autograd.Function):
    """Keeps nothing: the mask is drawn again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask_key: CMaskKey) -> Tensor:
        ctx.mask_key = mask_key
        y = torch.empty_like(x)
        call("dropout", DTYPE_CODES[x.dtype], x, mask_key, y, *rows_columns(x))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return apply(DropoutFunction, dy.contiguous(), ctx.mask_key), None


def add_dropout_norm(
    x: Tensor, bias: Tensor, residual: Tensor, norm: LayerNormParams, dropout: Dropout | None, site: int
) -> Tensor:
    """LayerNorm(residual + dropout(x + bias)), T H → T H: the end of each sub-layer."""
    if use_native(x):
        return apply(AddDropoutNorm, x, bias, residual, *norm, c_mask_key(dropout, site))
    return reference.add_dropout_norm(x, bias, residual, norm, dropout and dropout.mask_key(site))


class AddDropoutNorm(torch.autograd.Function):
    """Keeps the sum that is normalised, and each row's mean and 1 / standard deviation."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor,
        residual: Tensor,
        weight: Tensor,
        norm_bias: Tensor,
        eps: float,
        mask_key: CMaskKey,
    ) -> Tensor:
        assert x.shape == residual.shape, (x.shape, residual.shape)
        assert x.dtype == residual.dtype, (x.dtype, residual.dtype)
        assert bias.shape == weight.shape == norm_bias.shape == x.shape[-1:], (x.shape, bias.shape, weight.shape)
        y, summed, moments = torch.empty_like(x), torch.empty_like(x), torch.empty(len(x), 2)
        given = (x, bias.float(), residual, weight.float(), norm_bias.float(), float(eps))
        call("add_dropout_norm", DTYPE_CODES[x.dtype], *given, mask_key, summed, moments, y, *rows_columns(x))
        ctx.save_for_backward(summed, moments, weight)
        ctx.mask_key = mask_key
        ctx.dtypes = bias.dtype, weight.dtype, norm_bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        summed, moments, weight = ctx.saved_tensors
        dresidual = torch.empty_like(summed)
        dx = torch.empty_like(summed) if ctx.mask_key.threshold else dresidual
        sums = torch.empty(3, len(weight))
        given = (summed, moments, weight.float(), dy.contiguous(), ctx.mask_key)
        call("add_dropout_norm_backward", DTYPE_CODES[dy.dtype], *given, dx, dresidual, sums, *rows_columns(summed))
        dbias, dweight, dnorm_bias = (total.to(dtype) for total, dtype in zip(sums, ctx.dtypes, strict=True))
        return dx, dbias, dresidual, dweight, dnorm_bias, None, None


def embed_norm(
    batch: Batch,
    tables: EmbeddingTables,
    norm: LayerNormParams,
    dropout: Dropout | None,
    site: int,
    sparse: bool = False,
) -> Tensor:
    """dropout(LayerNorm(word + position + token type)) → T H.

    `sparse`: return the word table's gradient as a sparse tensor (native kernels only).
    """
    ids = (batch.input_ids, batch.position_ids, batch.token_type_ids)
    if use_native(tables.word):
        return apply(EmbedNorm, *tables, *norm, c_mask_key(dropout, site), sparse, *ids)
    return reference.embed_norm(ids, tables, norm, dropout and dropout.mask_key(site))


class EmbedNorm(torch.autograd.Function):
    """Keeps each row's moments alone; the sum of the embeddings is looked up again."""

    @staticmethod
    def forward(
        ctx: Any,
        word: Tensor,
        position: Tensor,
        token_type: Tensor,
        weight: Tensor,
        norm_bias: Tensor,
        eps: float,
        mask_key: CMaskKey,
        sparse: bool,
        *ids: Tensor,
    ) -> Tensor:
        tables = (word, position, token_type)
        for table, places in zip(tables, ids, strict=True):
            assert table.dtype == word.dtype, (table.dtype, word.dtype)
            assert places.dtype == torch.int64, places.dtype
            assert places.shape == ids[0].shape, (places.shape, ids[0].shape)
            check_range(places, len(table))
        y, moments = word.new_empty(len(ids[0]), word.shape[1]), torch.empty(len(ids[0]), 2)
        given = (tables, ids, weight.float(), norm_bias.float(), float(eps), mask_key)
        call("embed_norm", DTYPE_CODES[word.dtype], *given, moments, y, *y.shape)
        ctx.save_for_backward(*tables, weight, moments, *ids)
        ctx.mask_key, ctx.sparse = mask_key, sparse
        ctx.norm_bias_dtype = norm_bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        *tables, weight, moments = ctx.saved_tensors[:5]
        ids = ctx.saved_tensors[5:]
        dsummed, sums = torch.empty(dy.shape), torch.empty(2, len(weight))
        given = (tables, ids, moments, weight.float(), dy.contiguous(), ctx.mask_key)
        call("embed_norm_backward", DTYPE_CODES[dy.dtype], *given, dsummed, sums, *dy.shape)
        gradients = []
        for number, (table, places) in enumerate(zip(tables, ids, strict=True)):
            if ctx.sparse and number == 0:
                rows, places = places.unique(return_inverse=True)
                values = table_gradient(dsummed, places, (len(rows), dy.shape[1])).to(table.dtype)
                gradients.append(
                    torch.sparse_coo_tensor(rows[None], values, table.shape, is_coalesced=True, check_invariants=False)
                )
            else:
                gradients.append(table_gradient(dsummed, places, table.shape).to(table.dtype))
        return *gradients, sums[0].to(weight.dtype), sums[1].to(ctx.norm_bias_dtype), *(None,) * 6


def table_gradient(drows: Tensor, places: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The sum of the rows' gradients at their places in the table, float32."""
    dtable = torch.zeros(shape)
    call("add_rows", drows, places, dtable, *drows.shape)
    return dtable


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Cross entropy of hidden · weightᵀ + bias: M H, V H, V, labels M → (scale × sum of losses, number correct).

    The logits are never stored whole, and their gradients are made together with the loss; `scale` = 1 / count of the
    whole step makes these right at once. Losses in nats; M may be 0. `correct`: the label has the highest logit.
    """
    return LinearCrossEntropy.apply(hidden, weight, bias, labels, scale, torch.is_grad_enabled())  # type: ignore[no-untyped-call,no-any-return]


class LinearCrossEntropy(torch.autograd.Function):
    """Works on some rows of logits at a time, turning each chunk into its gradient in place."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, scale: float, trains: bool
    ) -> tuple[Tensor, Tensor]:
        assert weight.shape == (len(bias), hidden.shape[1]), (weight.shape, bias.shape, hidden.shape)
        assert labels.shape == hidden.shape[:1], (labels.shape, hidden.shape)
        assert labels.dtype == torch.int64, labels.dtype
        compute_weight = weight.to(hidden.dtype)
        float_bias = bias.float()
        losses, correct = hidden.new_zeros((), dtype=torch.float64), labels.new_zeros(())
        dhidden, dbias = torch.empty_like(hidden), torch.zeros_like(float_bias)
        dweight = torch.zeros_like(weight) if trains and len(hidden) == 0 else torch.empty_like(weight)
        at_once = CHUNK_BYTES.get(hidden.device.type, CHUNK_BYTES["cpu"])
        chunks = -(-hidden.element_size() * len(hidden) * len(weight) // at_once)
        chunk_rows = -(-len(hidden) // max(chunks, 1))  # all of one size, for a small last one would cost as much
        for first in range(0, len(hidden), max(chunk_rows, 1)):
            rows = slice(first, first + chunk_rows)
            given = pad_rows(hidden[rows]) if is_native_bf16(hidden) else hidden[rows]
            logits, count = matmul_nt(given, compute_weight), len(labels[rows])
            row_losses, row_correct = cross_entropy_(
                logits[:count], float_bias, labels[rows], scale, dbias if trains else None
            )
            losses += row_losses.sum(dtype=torch.float64)
            correct += row_correct.sum()
            if trains:
                logits[count:] = 0
                dhidden[rows] = torch.mm(logits, compute_weight)[:count]
                add_weight_gradient(logits, given, dweight, new=first == 0)
        if trains:
            ctx.save_for_backward(dhidden, dweight, dbias.to(bias.dtype))
        ctx.mark_non_differentiable(correct)
        return (losses * scale).float(), correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        if upstream.device.type != "cpu" or upstream != 1:  # elsewhere, looking would cost more than multiplying
            gradients = [gradient * upstream.to(gradient.dtype) for gradient in gradients]
        return *gradients, None, None, None


def add_weight_gradient(dy: Tensor, x: Tensor, dweight: Tensor, new: bool) -> None:
    """dweight (+)= dyᵀ · x, for dy T O and x T H; the product in its factors' type, the sum in the weight's."""
    if dy.dtype == dweight.dtype:
        torch.mm(dy.T, x, out=dweight) if new else dweight.addmm_(dy.T, x)
    elif new:
        dweight.copy_(matmul_tn(dy, x))
    else:
        dweight += matmul_tn(dy, x)


def cross_entropy_(
    logits: Tensor, bias: Tensor, labels: Tensor, scale: float, dbias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Losses and correctness of each row; with `dbias`, logits become their gradient and its sum is added there."""
    if not use_native(logits):
        return reference.cross_entropy_(logits, bias, labels, scale, dbias)
    check_range(labels, logits.shape[1])
    losses, correct = torch.empty(len(labels)), torch.empty_like(labels)
    added = torch.empty_like(dbias) if dbias is not None else None
    given = (row_pointer(logits), logits.stride(0), bias, labels, float(scale), losses, correct, added)
    call("cross_entropy", DTYPE_CODES[logits.dtype], *given, *logits.shape)
    if dbias is not None and added is not None:
        dbias += added
    return losses, correct


def gradient_norm(gradients: Sequence[Tensor]) -> float:
    """The Euclidean norm of all gradients together, float32 each, summed in double precision."""
    if not gradients:
        return 0.0
    if not use_native(*gradients):
        return reference.gradient_norm(gradients).item()
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    total = torch.empty((), dtype=torch.float64)
    call("square_sum", gradients, torch.tensor(sizes(gradients)), len(gradients), total)
    return math.sqrt(total.item())


def sizes(tensors: Sequence[Tensor]) -> list[int]:
    return [tensor.numel() for tensor in tensors]


@torch.no_grad()
def adamw_(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor],
    step: AdamStep,
) -> None:
    """One AdamW update in place, in one pass over the four tensors of each parameter, all float32.

    The gradients may be used up.
    """
    if not parameters:
        return None
    if not use_native(*parameters):
        return reference.adamw_(list(parameters), list(gradients), list(exp_avg), list(exp_avg_sq), step)
    kinds = parameters, gradients, exp_avg, exp_avg_sq
    counts = sizes(parameters)
    assert all(sizes(kind) == counts for kind in kinds), [sizes(kind) for kind in kinds]
    assert {tensor.dtype for kind in kinds for tensor in kind} == {torch.float32}
    call("adamw", *kinds, torch.tensor(counts), len(counts), doubles(step))
    torch.autograd.graph.increment_version(parameters)  # autograd cannot see what native code writes
    return None


@torch.no_grad()
def adamw_rows_(
    parameter: Tensor, gradient: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, touched: Tensor, step: AdamStep
) -> None:
    """`adamw_` with the same bits for a table V H whose gradient is a sparse tensor with dense rows.

    `touched` (V uint8): the rows that had a gradient in any step; brought up to date here.
    """
    assert use_native(parameter), parameter.device
    gradient = gradient.coalesce()
    rows, values = gradient.indices()[0], gradient.values().contiguous()
    assert {tensor.dtype for tensor in (parameter, values, exp_avg, exp_avg_sq)} == {torch.float32}
    assert parameter.shape == exp_avg.shape == exp_avg_sq.shape == gradient.shape
    assert touched.shape == parameter.shape[:1], touched.shape
    places = torch.full((len(parameter),), -1)
    places[rows] = torch.arange(len(rows))
    given = (parameter, values, places, touched, exp_avg, exp_avg_sq, doubles(step))
    call("adamw_rows", *given, *parameter.shape)
    torch.autograd.graph.increment_version(parameter)


def rows_columns(x: Tensor) -> tuple[int, int]:
    return len(x), math.prod(x.shape[1:])


def check_range(ids: Tensor, size: int) -> None:
    """Native code would read outside its table."""
    if len(ids):
        low, high = torch.aminmax(ids)
        assert 0 <= low <= high < size, f"ids from {low} to {high} for a table of {size}"
