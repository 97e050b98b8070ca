"""The optimizer's operations: AdamW, and the norm of all gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bertwright.kernels import reference
from bertwright.kernels.ffi import call, check, triton_ops, use_native, use_triton
from bertwright.kernels.gpu_linear import existing_copies, mark_current
from bertwright.kernels.reference import AdamStep
from bertwright.kernels.triton_check import optimizer_example, works


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
