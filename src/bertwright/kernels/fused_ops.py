"""Fused operations of the model: one call and one pass over memory instead of five.

T tokens, H hidden size, F intermediate size, O outputs.

On CPU these are native kernels (`kernels.cpp`); elsewhere, and without a compiler, `reference` computes the same in
plain PyTorch. Tensors are float32 or bfloat16, arithmetic is float32; the bits do not depend on the number of threads.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels import reference
from bertwright.kernels.cpu_linear import (
    is_native_bf16,
    linear_backward,
    linear_forward,
    matmul_tn,
    pad_rows,
    uses_native_linear,
)
from bertwright.kernels.dropout import Dropout, MaskKey, mask_key
from bertwright.kernels.ffi import (
    apply,
    call,
    check,
    check_positions,
    check_range,
    new_float32,
    triton_ops,
    use_native,
    use_triton,
)
from bertwright.kernels.gpu_linear import HalfLinear
from bertwright.kernels.reference import EmbeddingTables, LayerNormParams
from bertwright.kernels.triton_check import (
    add_dropout_norm_example,
    bias_gelu_example,
    dropout_example,
    embed_norm_example,
    example_rows,
    linear_reference,
    mask_sizes,
    works,
)

BLOCK_ROWS = 4  # of MKL's products
FEW_ROWS = 16  # per thread; with more rows, MKL leaves no thread an incomplete block


def bias_activation(x: Tensor, bias: Tensor, activation: str) -> Tensor:
    """Compute activation(x + bias), T F → T F, for "gelu", "gelu_tanh" or "relu"; relu has no native kernel."""
    if activation == "relu":
        return F.relu(x.float() + bias.float()).to(x.dtype)
    return bias_gelu(x, bias, activation == "gelu_tanh")


def bias_gelu(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """Compute gelu(x + bias), T F → T F, in the exact erf form or in the `tanh` approximation of Google's BERT."""
    if use_native(x):
        return apply(BiasGelu, x, bias, tanh)
    if use_triton(x) and gelu_works(x, bias, tanh):
        return apply(triton_ops().BiasGelu, x, bias, tanh)
    return reference.bias_gelu(x, bias, tanh)


def gelu_works(x: Tensor, bias: Tensor, tanh: bool) -> bool:
    """Return whether Triton's `BiasGelu` may run with these sizes."""
    return works("GELU", x, (x.shape[1], tanh), lambda: bias_gelu_example(x, bias, tanh))


class BiasGelu(torch.autograd.Function):
    """GELU; saves only x and recomputes the rest in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
        check(x.ndim == 2, "bias_gelu: expected a matrix, got {}", x.shape)
        check(bias.shape == x.shape[1:], "bias_gelu: got a bias {} for {}", bias.shape, x.shape)
        ctx.save_for_backward(x, bias)
        ctx.tanh = tanh
        y = torch.empty_like(x)
        call("bias_gelu", x.dtype, tanh, x, bias.float(), y, *x.shape)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, bias = ctx.saved_tensors
        dx, dbias = torch.empty_like(x), new_float32(*bias.shape)
        operands = (x, bias.float(), dy.contiguous(), dx, dbias)
        call("bias_gelu_backward", x.dtype, ctx.tanh, *operands, *x.shape)
        return dx, dbias.to(bias.dtype), None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x · weightᵀ + bias in the dtype of x, T H and O H → T O; the weight may be float32 if x is not."""
    if is_native_bf16(x):
        return apply(Linear, x, weight, bias)
    if x.dtype != weight.dtype and use_triton(x) and linear_works(x, weight, bias):
        return apply(HalfLinear, x, weight, bias)
    whole = fill_blocks(x)
    product = F.linear(whole, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
    return product if whole is x else product[: len(x)]


def fill_blocks(x: Tensor) -> Tensor:
    """Append rows of zeros to few rows in inference on a CPU, T H → T' H, where T' is a multiple of BLOCK_ROWS.

    MKL adds up in another order for one to three rows that are left of a thread's blocks. With whole blocks, the bits
    of a row do not depend on the number of rows: a text alone has the same vector as in a batch. An exported graph is
    for other libraries, and for any number of rows.
    """
    if x.device.type != "cpu" or x.ndim != 2 or torch.is_grad_enabled() or torch.compiler.is_exporting():
        return x
    missing = -len(x) % BLOCK_ROWS if len(x) < FEW_ROWS * torch.get_num_threads() else 0
    return torch.cat([x, x.new_zeros(missing, x.shape[1])]) if missing else x


def linear_works(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether `HalfLinear` may run with these sizes."""
    sizes = (*weight.shape, bias is not None)
    return works("dense layer", x, sizes, lambda: (HalfLinear.apply, linear_reference, example_rows(x), weight, bias))


class Linear(torch.autograd.Function):
    """`F.linear` of a bfloat16 state. Native kernels do not round the gradients of float32 weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.native = uses_native_linear(weight)
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        if ctx.native:
            x = x.contiguous()
            ctx.save_for_backward(x, weight)
            return linear_forward(x, weight, bias)
        padded, cast_weight = pad_rows(x), weight.to(x.dtype)
        ctx.save_for_backward(padded, cast_weight)
        return F.linear(padded, cast_weight, None if bias is None else bias.to(x.dtype))[: len(x)]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        if ctx.native:
            dx, dweight, dbias = linear_backward(dy.contiguous(), x, weight, ctx.needs_input_grad)
        else:
            padded = pad_rows(dy)
            dx = torch.mm(padded, weight)[: len(dy)] if for_x else None
            dweight = matmul_tn(padded, x) if for_weight else None
            dbias = dy.sum(0) if for_bias else None
        weight_dtype, bias_dtype = ctx.dtypes
        return (
            dx,
            None if dweight is None else dweight.to(weight_dtype),
            None if dbias is None else dbias.to(bias_dtype),
        )


def dropout(x: Tensor, dropout: Dropout | None, site: int) -> Tensor:
    """Apply dropout, T … → T …."""
    if dropout is None:
        return x
    key, sizes = dropout.mask_key(site), x.shape[1:]
    if use_native(x):
        return apply(DropoutFunction, x, key)
    if use_triton(x) and works("dropout", x, (*sizes, *mask_sizes(key)), lambda: dropout_example(x, key)):
        return apply(triton_ops().DropoutFunction, x, key)
    return reference.dropout(x, key)


class DropoutFunction(torch.autograd.Function):
    """Dropout; saves nothing and recomputes the mask in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, key: MaskKey) -> Tensor:
        check_positions(key, len(x))
        ctx.mask_key = key
        y = torch.empty_like(x)
        call("dropout", x.dtype, x, key, y, len(x), math.prod(x.shape[1:]))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return apply(DropoutFunction, dy.contiguous(), ctx.mask_key), None


def add_dropout_norm(
    x: Tensor, bias: Tensor, residual: Tensor, norm: LayerNormParams, dropout: Dropout | None, site: int
) -> Tensor:
    """Compute LayerNorm(residual + dropout(x + bias)), T H → T H: the end of each sub-layer."""
    key = mask_key(dropout, site)
    operands = (x, bias, residual, *norm, key, torch.is_grad_enabled())
    if use_native(x):
        return apply(AddDropoutNorm, *operands)
    if use_triton(x) and norm_works(*operands):
        return apply(triton_ops().AddDropoutNorm, *operands)
    return reference.add_dropout_norm(x, bias, residual, norm, key)


def norm_works(x: Tensor, *rest: Any, recorded: bool = False) -> bool:
    """Return whether Triton's `AddDropoutNorm` may run with these sizes; `rest`: its other operands.

    `recorded`: as part of a step that becomes a CUDA graph.
    """
    *_, key, _ = rest
    sizes = (x.shape[1], *mask_sizes(key), recorded)
    return works("LayerNorm", x, sizes, lambda: add_dropout_norm_example(x, *rest, recorded=recorded))


class AddDropoutNorm(torch.autograd.Function):
    """Residual and LayerNorm; saves their sum, and each row's mean and 1 / standard deviation."""

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
        check(x.ndim == 2, "add_dropout_norm: expected a matrix, got {}", x.shape)
        check(residual.shape == x.shape, "add_dropout_norm: got a residual {} for {}", residual.shape, x.shape)
        for vector in (bias, weight, norm_bias):
            check(vector.shape == x.shape[1:], "add_dropout_norm: got a vector {} for {}", vector.shape, x.shape)
        check_positions(key, len(x))
        y = torch.empty_like(x)
        summed, moments = (torch.empty_like(x), new_float32(len(x), 2)) if saves else (None, None)
        operands = (x, bias.float(), residual, weight.float(), norm_bias.float(), eps)
        call("add_dropout_norm", x.dtype, *operands, key, summed, moments, y, *x.shape)
        ctx.save_for_backward(summed, moments, weight)
        ctx.mask_key = key
        ctx.dtypes = bias.dtype, weight.dtype, norm_bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        summed, moments, weight = ctx.saved_tensors
        dresidual = torch.empty_like(summed)
        dx = torch.empty_like(summed) if ctx.mask_key.threshold else dresidual
        sums = new_float32(3, len(weight))
        operands = (summed, moments, weight.float(), dy.contiguous(), ctx.mask_key)
        call("add_dropout_norm_backward", dy.dtype, *operands, dx, dresidual, sums, *summed.shape)
        dbias, dweight, dnorm_bias = (total.to(dtype) for total, dtype in zip(sums, ctx.dtypes, strict=True))
        return dx, dbias, dresidual, dweight, dnorm_bias, None, None, None


def embed_norm(
    ids: tuple[Tensor, Tensor, Tensor],
    tables: EmbeddingTables,
    norm: LayerNormParams,
    dropout: Dropout | None,
    site: int,
    sparse: bool = False,
) -> Tensor:
    """Compute dropout(LayerNorm(word + position + token type)) → T H.

    `ids`: row of each token in the three `tables`, T int64 each.
    `sparse`: return the word table's gradient as a sparse tensor (native kernels only).
    """
    key = mask_key(dropout, site)
    if use_native(tables.word):
        return apply(EmbedNorm, *tables, *norm, key, sparse, *ids)
    operands, sizes = (*tables, *norm, key, *ids), (*map(len, tables), norm.weight.shape, *mask_sizes(key))
    if use_triton(tables.word) and works("embeddings", tables.word, sizes, lambda: embed_norm_example(*operands)):
        return apply(triton_ops().EmbedNorm, *operands)
    return reference.embed_norm(ids, tables, norm, key)


class EmbedNorm(torch.autograd.Function):
    """Embeddings; saves only each row's moments and looks the embeddings up again in the backward pass."""

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
        sparse: bool,
        *ids: Tensor,
    ) -> Tensor:
        tables = (word, position, token_type)
        check(word.ndim == 2, "embed_norm: expected matrices as tables, got {}", word.shape)
        for table, indices in zip(tables, ids, strict=True):
            check(table.shape[1:] == word.shape[1:], "embed_norm: got tables {} and {}", word.shape, table.shape)
            check(indices.shape == (len(ids[0]),), "embed_norm: expected {} ids, got {}", len(ids[0]), indices.shape)
            check_range("embed_norm", indices, len(table))
        for vector in (weight, norm_bias):
            check(vector.shape == word.shape[1:], "embed_norm: got a vector {} for {}", vector.shape, word.shape)
        check_positions(key, len(ids[0]))
        y, moments = word.new_empty(len(ids[0]), word.shape[1]), new_float32(len(ids[0]), 2)
        operands = (tables, ids, weight.float(), norm_bias.float(), eps, key)
        call("embed_norm", word.dtype, *operands, moments, y, *y.shape)
        ctx.save_for_backward(*tables, weight, moments, *ids)
        ctx.mask_key, ctx.sparse = key, sparse
        ctx.norm_bias_dtype = norm_bias.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        *tables, weight, moments = ctx.saved_tensors[:5]
        ids = ctx.saved_tensors[5:]
        dsummed, sums = new_float32(*dy.shape), new_float32(2, len(weight))
        operands = (tables, ids, moments, weight.float(), dy.contiguous(), ctx.mask_key)
        call("embed_norm_backward", dy.dtype, *operands, dsummed, sums, *dy.shape)
        gradients = []
        for number, (table, indices) in enumerate(zip(tables, ids, strict=True)):
            if ctx.sparse and number == 0:
                rows, row_of = indices.unique(return_inverse=True)
                values = table_gradient(dsummed, row_of, (len(rows), dy.shape[1])).to(table.dtype)
                gradients.append(
                    torch.sparse_coo_tensor(rows[None], values, table.shape, is_coalesced=True, check_invariants=False)
                )
            else:
                gradients.append(table_gradient(dsummed, indices, table.shape).to(table.dtype))
        return *gradients, sums[0].to(weight.dtype), sums[1].to(ctx.norm_bias_dtype), *(None,) * 6


def table_gradient(drows: Tensor, ids: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sum the gradients of all rows with the same id, float32."""
    check(drows.ndim == 2, "table_gradient: expected a matrix, got {}", drows.shape)
    check(ids.shape == drows.shape[:1], "table_gradient: got ids {} for {}", ids.shape, drows.shape)
    check(shape[1:] == drows.shape[1:], "table_gradient: got {} for a table {}", drows.shape, shape)
    check_range("table_gradient", ids, shape[0])
    dtable = new_float32(*shape).zero_()
    call("add_rows", drows, ids, dtable, *drows.shape)
    return dtable
