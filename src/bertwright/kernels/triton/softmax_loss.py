"""Triton kernel: cross entropy over the vocabulary; the logits become their gradient. M rows, V columns."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertwright.kernels.triton.gelu import column_sum
from bertwright.kernels.triton.launch import launch

COLUMNS = 4096  # read at once
WARPS = 8


@triton.jit(do_not_specialize=["scale"])
def cross_entropy_kernel(
    logits, bias, labels, scale, losses, correct, stride, V: tl.constexpr, PADDED: tl.constexpr,
    GRADIENT: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Compute one row; columns from V to PADDED have no logits, and their gradient is 0."""
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    logits += row * stride
    top = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    best = tl.full((), 0, tl.int32)  # the first column with the largest logit
    for first in range(0, V, COLS):
        column = first + tl.arange(0, COLS)
        x = tl.load(logits + column, mask=column < V, other=-float("inf")).to(tl.float32)
        x += tl.load(bias + column, mask=column < V, other=0.0)
        new_top = tl.maximum(top, tl.max(x, 0))
        best = tl.where(new_top > top, tl.min(tl.where(x == new_top, column, V), 0), best)
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(x - new_top), 0)
        top = new_top
    counts = label >= 0
    at_label = tl.load(logits + label, mask=counts, other=0.0).to(tl.float32)
    at_label += tl.load(bias + label, mask=counts, other=0.0)
    tl.store(losses + row, tl.where(counts, tl.log(total) + top - at_label, 0.0))
    tl.store(correct + row, (counts & (best == label)).to(tl.int64))
    if GRADIENT:
        factor = tl.where(counts, scale / total, 0.0)
        tl.debug_barrier()  # the label's logit is read before another warp overwrites it
        for first in range(0, PADDED, COLS):
            column = first + tl.arange(0, COLS)
            x = tl.load(logits + column, mask=column < V, other=-float("inf")).to(tl.float32)
            x += tl.load(bias + column, mask=column < V, other=0.0)
            gradient = tl.exp(x - top) * factor - tl.where((column == label) & counts, scale, 0.0)
            tl.store(logits + column, gradient.to(logits.dtype.element_ty), mask=column < PADDED)


def cross_entropy_(
    logits: Tensor, bias: Tensor, labels: Tensor, scale: float, dbias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return loss and correctness per row, for logits of at least V columns and a bias of V, float32.

    With `dbias`, turn the logits into their gradient, 0 in further columns, and add its sum to dbias.
    """
    rows, padded = logits.shape
    losses, correct = logits.new_empty(rows, dtype=torch.float32), torch.empty_like(labels)
    operands = (logits, bias, labels, scale, losses, correct, logits.stride(0))
    constants = (len(bias), padded, dbias is not None, COLUMNS)
    launch(cross_entropy_kernel, (rows,), *operands, *constants, on=logits, num_warps=WARPS)
    if dbias is not None:
        dbias += column_sum(logits)[: len(bias)]
    return losses, correct
