"""A dense layer and its cross entropy in one operation, which never stores the logits as a whole.

M predictions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels import reference
from bertwright.kernels.cpu_linear import is_native_bf16, matmul_nt, matmul_tn, pad_rows
from bertwright.kernels.ffi import Rows, call, check, check_range, new_float32, triton_ops, use_native, use_triton
from bertwright.kernels.gpu_linear import multiply, padded
from bertwright.kernels.reference import IGNORED_LABEL
from bertwright.kernels.triton_check import cross_entropy_example, works

# Maximum size of the logits in memory. Each chunk also costs a pass over the weight's gradient.
CHUNK_BYTES = {"cpu": 2**26, "cuda": 2**29}


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
