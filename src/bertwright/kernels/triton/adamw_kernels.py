"""Triton kernels over all parameters at once: the norm of the gradients, and AdamW.

Kernels get tables of addresses. A tensor is divided into chunks, one per program.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertwright.kernels.reference import AdamStep
from bertwright.kernels.triton.launch import launch

CHUNK, BLOCK = 8192, 1024  # elements per program, and at once
ALIGNMENT = 16  # bytes that one thread reads at once


@triton.jit
def chunk_bounds(chunks):
    """Return the number of this program's tensor, the chunk's first element, and the tensor's size."""
    row = chunks + tl.program_id(0) * 3
    return tl.load(row), tl.load(row + 1), tl.load(row + 2)


@triton.jit
def pointer(addresses, number, ALIGNED: tl.constexpr):
    """Return the address of a float32 tensor."""
    address = tl.load(addresses + number).to(tl.pointer_type(tl.float32))
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address


@triton.jit
def square_sum_kernel(addresses, chunks, partial, ALIGNED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    tensor, first, size = chunk_bounds(chunks)
    gradient = pointer(addresses, tensor, ALIGNED)
    total = tl.zeros([BLOCK], tl.float64)
    for step in range(CHUNK // BLOCK):
        at = tl.multiple_of(first, CHUNK) + step * BLOCK + tl.arange(0, BLOCK)
        g = tl.load(gradient + at, mask=at < size, other=0.0).to(tl.float64)
        total += g * g
    tl.store(partial + tl.program_id(0), tl.sum(total, 0))


@triton.jit(do_not_specialize=["count"])
def adamw_kernel(
    addresses, chunks, clip_scale, count, shrink, rate1, beta2, rate2, eps, step_size, inverse2,
    ALIGNED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update one chunk, unless the scale of the gradient is NaN.

    `shrink`: 1 - lr · weight decay; `rate1`, `rate2`: 1 - beta1, 1 - beta2; `inverse2`: 1 / sqrt(correction2).
    """
    tensor, first, size = chunk_bounds(chunks)
    clip = tl.load(clip_scale)
    if clip == clip:
        parameter = pointer(addresses, tensor, ALIGNED)
        gradient = pointer(addresses, tensor + count, ALIGNED)
        exp_avg = pointer(addresses, tensor + 2 * count, ALIGNED)
        exp_avg_sq = pointer(addresses, tensor + 3 * count, ALIGNED)
        copy = tl.load(addresses + tensor + 4 * count)
        for step in range(CHUNK // BLOCK):
            at = tl.multiple_of(first, CHUNK) + step * BLOCK + tl.arange(0, BLOCK)
            inside = at < size
            g = tl.load(gradient + at, mask=inside, other=0.0) * clip
            m = tl.load(exp_avg + at, mask=inside, other=0.0)
            v = tl.load(exp_avg_sq + at, mask=inside, other=0.0)
            p = tl.load(parameter + at, mask=inside, other=0.0)
            m += rate1 * (g - m)
            v = beta2 * v + rate2 * g * g
            p = p * shrink - step_size * (m / (tl.sqrt(v) * inverse2 + eps))
            tl.store(exp_avg + at, m, mask=inside)
            tl.store(exp_avg_sq + at, v, mask=inside)
            tl.store(parameter + at, p, mask=inside)
            if copy != 0:
                half = copy.to(tl.pointer_type(tl.bfloat16))
                if ALIGNED:
                    half = tl.multiple_of(half, 16)
                tl.store(half + at, p.to(tl.bfloat16), mask=inside)


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients together as a tensor on their device, float64."""
    gradients = [gradient.contiguous() for gradient in gradients]
    chunks = chunk_table(tuple(gradient.numel() for gradient in gradients), gradients[0].device)
    table, aligned = address_table([gradients])
    partial = torch.empty(len(chunks), dtype=torch.float64, device=chunks.device)
    launch(square_sum_kernel, (len(chunks),), table, chunks, partial, aligned, CHUNK, BLOCK, on=partial)
    return partial.sum().sqrt()


def adamw_(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    exp_avg: Sequence[Tensor],
    exp_avg_sq: Sequence[Tensor],
    copies: Sequence[Tensor | None],
    step: AdamStep,
) -> None:
    """Update in place with AdamW, float32; write the bfloat16 copies of the parameters that have one.

    `clip_scale` of the step may be a tensor on the device; if it is NaN, nothing changes.
    """
    gradients = [gradient.contiguous() for gradient in gradients]
    device = parameters[0].device
    chunks = chunk_table(tuple(parameter.numel() for parameter in parameters), device)
    table, aligned = address_table([parameters, gradients, exp_avg, exp_avg_sq, copies])
    clip_scale = torch.as_tensor(step.clip_scale, dtype=torch.float32, device=device)
    rates = (1.0 - step.lr * step.weight_decay, 1.0 - step.beta1, step.beta2, 1.0 - step.beta2)
    numbers = (len(parameters), *rates, step.eps, step.lr / step.correction1, step.correction2**-0.5)
    operands = (table, chunks, clip_scale, *numbers, aligned, CHUNK, BLOCK)
    launch(adamw_kernel, (len(chunks),), *operands, on=clip_scale)


@lru_cache(maxsize=64)
def chunk_table(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the chunks of tensors of these sizes: number of the tensor, first element, its size, int64."""
    rows = [(number, first, size) for number, size in enumerate(sizes) for first in range(0, size, CHUNK)]
    return torch.tensor(rows, dtype=torch.int64).view(-1, 3).to(device)


def address_table(kinds: Sequence[Sequence[Tensor | None]]) -> tuple[Tensor, bool]:
    """Return the addresses of tensors, one after another, 0 for None, and whether all are aligned."""
    addresses = tuple(0 if tensor is None else tensor.data_ptr() for kind in kinds for tensor in kind)
    first = kinds[0][0]
    device = torch.device("cpu") if first is None else first.device
    return _copy_addresses(addresses, device), all(address % ALIGNMENT == 0 for address in addresses)


@lru_cache(maxsize=64)
def _copy_addresses(addresses: tuple[int, ...], device: torch.device) -> Tensor:
    """Copy addresses to the device without waiting; an allocator often returns the addresses of the step before."""
    table = torch.tensor(addresses, dtype=torch.int64, pin_memory=device.type == "cuda")
    return table.to(device, non_blocking=True)
