"""Fused operations of the model: one call and one pass over memory instead of five.

T tokens, H hidden size, F intermediate size, V vocabulary, M masked positions.

On CPU these are native kernels (`kernels.cpp`); elsewhere, and without a compiler, `reference` computes the same in
plain PyTorch. Tensors are float32 or bfloat16, arithmetic is float32; the bits do not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels import reference
from bertwright.kernels.cpu_linear import (
    is_native_bf16,
    linear_backward,
    linear_forward,
    matmul_nt,
    matmul_tn,
    pad_rows,
    uses_native_linear,
)
from bertwright.kernels.dropout import Dropout, MaskKey, mask_key
from bertwright.kernels.ffi import (
    Rows,
    apply,
    call,
    check,
    check_positions,
    new_float32,
    triton_ops,
    use_native,
    use_triton,
)
from bertwright.kernels.gpu_linear import HalfLinear, existing_copies, mark_current, multiply, padded
from bertwright.kernels.reference import IGNORED_LABEL, AdamStep, EmbeddingTables, LayerNormParams
from bertwright.kernels.triton_check import (
    add_dropout_norm_example,
    bias_gelu_example,
    cross_entropy_example,
    dropout_example,
    embed_norm_example,
    example_rows,
    linear_reference,
    mask_sizes,
    optimizer_example,
    works,
)

# Maximum size of the logits in memory. Each chunk also costs a pass over the weight's gradient.
CHUNK_BYTES = {"cpu": 2**26, "cuda": 2**29}


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
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


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
    if dropout is not None and use_native(x):
        return apply(DropoutFunction, x, mask_key(dropout, site))
    if dropout is not None and use_triton(x):
        key = mask_key(dropout, site)
        if works("dropout", x, (*x.shape[1:], *mask_sizes(key)), lambda: dropout_example(x, key)):
            return apply(triton_ops().DropoutFunction, x, key)
    return reference.dropout(x, dropout.mask_key(site) if dropout else None)


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
    return reference.add_dropout_norm(x, bias, residual, norm, dropout.mask_key(site) if dropout else None)


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
    return reference.embed_norm(ids, tables, norm, dropout.mask_key(site) if dropout else None)


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


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Compute the cross entropy of hidden · weightᵀ + bias: M H, V H, V, labels M → (scale × sum, number correct).

    The logits are never stored as a whole: their gradients are computed together with the loss, with `scale` = 1 /
    number of labels of the whole step. Losses are in nats; M may be 0. A label is correct if its logit is the largest;
    a prediction with `IGNORED_LABEL` has neither loss nor gradient.
    """
    needs_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (hidden, weight, bias))
    return LinearCrossEntropy.apply(hidden, weight, bias, labels, scale, needs_gradient)  # type: ignore[no-untyped-call,no-any-return]


class LinearCrossEntropy(torch.autograd.Function):
    """Logits and loss in chunks of rows; each chunk of logits becomes its gradient in place."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, scale: float, needs_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        shapes = weight.shape, bias.shape, hidden.shape
        check(weight.shape == (len(bias), hidden.shape[1]), "linear_cross_entropy: got weight, bias, states {}", shapes)
        check(
            labels.shape == hidden.shape[:1], "linear_cross_entropy: got labels {} for {}", labels.shape, hidden.shape
        )
        check(labels.dtype == torch.int64, "linear_cross_entropy: expected int64 labels, got {}", labels.dtype)
        # On a GPU, zeros below the vocabulary: products with odd sizes take twice as long.
        compute_weight = padded(weight, hidden.dtype) if use_triton(hidden) else weight.to(hidden.dtype)
        float_bias = bias.float()
        sizes, logits = (len(bias), len(compute_weight), needs_gradient), hidden.new_empty(0, len(compute_weight))
        if use_triton(hidden) and not works(
            "cross entropy", hidden, sizes, lambda: cross_entropy_example(logits, float_bias, needs_gradient)
        ):
            compute_weight = compute_weight[: len(weight)]
        losses, correct = hidden.new_zeros((), dtype=torch.float64), labels.new_zeros(())
        gradients = LossGradients(torch.empty_like(hidden), torch.zeros_like(float_bias)) if needs_gradient else None
        dweight: Tensor | None = None
        for rows in row_chunks(hidden, len(weight)):
            # 1. Logits of this chunk; padding rows at their end save oneDNN from compiling a new shape.
            states = pad_rows(hidden[rows]) if is_native_bf16(hidden) else hidden[rows]
            logits, count = matmul_nt(states, compute_weight), len(labels[rows])
            # 2. Losses; the logits become their gradient.
            row_losses, row_correct = cross_entropy_(
                logits[:count], float_bias, labels[rows], scale, gradients.bias if gradients else None
            )
            losses += row_losses.sum(dtype=torch.float64)
            correct += row_correct.sum()
            # 3. Gradients of the states and the weight.
            if gradients:
                logits[count:] = 0
                gradients.hidden[rows] = torch.mm(logits, compute_weight)[:count]
                dweight = add_weight_gradient(logits, states, dweight, weight.dtype)
        if gradients:
            dweight = torch.zeros_like(weight) if dweight is None else dweight[: len(weight)]
            ctx.save_for_backward(gradients.hidden, dweight, gradients.bias.to(bias.dtype))
        ctx.mark_non_differentiable(correct)
        return (losses * scale).float(), correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        if upstream.device.type != "cpu" or upstream != 1:  # reading a GPU value costs more than multiplying
            gradients = [gradient * upstream.to(gradient.dtype) for gradient in gradients]
        return *gradients, None, None, None


class LossGradients(NamedTuple):
    """Gradients that `LinearCrossEntropy` computes together with the loss, in place."""

    hidden: Tensor  # M H
    bias: Tensor  # V float32


def row_chunks(hidden: Tensor, columns: int) -> Iterator[slice]:
    """Yield chunks of rows of equal size; their logits, `columns` per row, take at most CHUNK_BYTES.

    Sizes are equal because a small last chunk would cost as much as a full one.
    """
    at_once = CHUNK_BYTES.get(hidden.device.type, CHUNK_BYTES["cpu"])
    chunks = -(-hidden.element_size() * len(hidden) * columns // at_once)
    chunk_rows = -(-len(hidden) // max(chunks, 1))
    for first in range(0, len(hidden), max(chunk_rows, 1)):
        yield slice(first, first + chunk_rows)


def add_weight_gradient(dy: Tensor, x: Tensor, dweight: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return dyᵀ · x in this dtype, for dy T O and x T H, added to dweight if there is one."""
    if dy.dtype != dtype:
        product = multiply(dy.T, x) if use_triton(dy) else matmul_tn(dy, x)
        return product.to(dtype) if dweight is None else dweight.add_(product)
    return torch.mm(dy.T, x) if dweight is None else dweight.addmm_(dy.T, x)


def cross_entropy_(
    logits: Tensor, bias: Tensor, labels: Tensor, scale: float, dbias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return loss and correctness per row; with `dbias`, turn logits into their gradient and add its sum to dbias."""
    if use_triton(logits):
        result: tuple[Tensor, Tensor] = triton_ops().cross_entropy_(logits, bias, labels, scale, dbias)
        return result
    if not use_native(logits):
        return reference.cross_entropy_(logits, bias, labels, scale, dbias)
    check(labels.shape == logits.shape[:1], "cross_entropy_: got labels {} for {}", labels.shape, logits.shape)
    check(bias.shape == logits.shape[1:], "cross_entropy_: got a bias {} for {}", bias.shape, logits.shape)
    check_range("cross_entropy_", torch.where(labels == IGNORED_LABEL, 0, labels), logits.shape[1])
    losses, correct = new_float32(len(labels)), torch.empty_like(labels)
    added = None
    if dbias is not None:
        check(dbias.shape == bias.shape, "cross_entropy_: got a gradient {} for a bias {}", dbias.shape, bias.shape)
        added = torch.empty_like(dbias)
    operands = (Rows(logits), logits.stride(0), bias, labels, scale, losses, correct, added)
    call("cross_entropy", logits.dtype, *operands, *logits.shape)
    if dbias is not None and added is not None:
        dbias += added
    return losses, correct


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the Euclidean norm of all gradients together, float32 each, as a float64 scalar on their device."""
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    if use_triton(*gradients) and optimizer_works(gradients[0]):
        norm: Tensor = triton_ops().gradient_norm(gradients)
        return norm
    if not use_native(*gradients):
        return reference.gradient_norm(gradients)
    total = torch.empty((), dtype=torch.float64)
    call("square_sum", gradients, torch.tensor(sizes(gradients)), len(gradients), total)
    return torch.tensor(math.sqrt(total), dtype=torch.float64)  # torch's sqrt is a bit off for one number in a hundred


@torch.no_grad()
def optimizer_works(like: Tensor) -> bool:
    """Return whether Triton's optimizer may run."""
    return works("AdamW", like, (), lambda: optimizer_example(like))


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
    """Update in place with AdamW, in one pass over the four tensors of each parameter, all float32.

    The gradients may be overwritten. On a GPU, the bfloat16 copies of the parameters are written as well.
    """
    if not parameters:
        return None
    if use_triton(*parameters) and optimizer_works(parameters[0]):
        copies = existing_copies(parameters)
        triton_ops().adamw_(parameters, gradients, exp_avg, exp_avg_sq, copies, step)
        torch.autograd.graph.increment_version(parameters)
        return mark_current(parameters)
    if not use_native(*parameters):
        return reference.adamw_(list(parameters), list(gradients), list(exp_avg), list(exp_avg_sq), step)
    kinds = parameters, gradients, exp_avg, exp_avg_sq
    counts = sizes(parameters)
    for kind in kinds:
        check(sizes(kind) == counts, "adamw_: got sizes {} for parameters of {}", sizes(kind), counts)
    call("adamw", *kinds, torch.tensor(counts), len(counts), step)
    torch.autograd.graph.increment_version(parameters)  # autograd cannot see what native code writes
    return None


@torch.no_grad()
def adamw_rows_(
    parameter: Tensor, gradient: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, touched: Tensor, step: AdamStep
) -> None:
    """Update a table V H by a sparse gradient with dense rows, to the same bits as `adamw_`.

    `touched` (V uint8): 1 for the rows that had a gradient in any step; updated here.
    """
    check(use_native(parameter), "adamw_rows_: expected native kernels for a parameter on {}", parameter.device)
    gradient = gradient.coalesce()
    rows, values = gradient.indices()[0], gradient.values().contiguous()
    check(parameter.ndim == 2, "adamw_rows_: expected a matrix, got {}", parameter.shape)
    row_shape = parameter.shape[1:]
    check(values.shape[1:] == row_shape, "adamw_rows_: got rows {} for {}", values.shape[1:], row_shape)
    for tensor in (gradient, exp_avg, exp_avg_sq):
        check(tensor.shape == parameter.shape, "adamw_rows_: got {} for {}", tensor.shape, parameter.shape)
    check(touched.shape == (len(parameter),), "adamw_rows_: got touched {} for {}", touched.shape, parameter.shape)
    gradient_rows = torch.full((len(parameter),), -1)
    gradient_rows[rows] = torch.arange(len(rows))
    operands = (parameter, values, gradient_rows, touched, exp_avg, exp_avg_sq, step)
    call("adamw_rows", *operands, *parameter.shape)
    torch.autograd.graph.increment_version(parameter)


def check_range(name: str, ids: Tensor, size: int) -> None:
    """Raise ValueError unless all ids are rows of a table of this size; `name`: the function that got them."""
    if len(ids):
        low, high = (int(bound) for bound in torch.aminmax(ids))
        check(0 <= low <= high < size, "{}: expected ids from 0 to {}, got {} to {}", name, size - 1, low, high)
