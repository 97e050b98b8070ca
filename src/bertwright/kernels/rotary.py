"""Rotary positions (Su et al. 2021): queries and keys are turned by angles that grow with the token's position.

T tokens, A heads, D head size. A score then depends on the distance of query and key, not on their positions.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels import reference
from bertwright.kernels.ffi import apply, call, check, check_range, use_native


def rotate(qkv: Tensor, position_ids: Tensor, max_positions: int, base: float) -> Tensor:
    """Turn queries and keys by the angles of their positions, T 3 A D → T 3 A D; the values stay as they are.

    `position_ids`: T int64, below `max_positions`. Pair n of a head's D / 2 pairs of numbers (n, n + D / 2) turns by
    position · base^(-2n / D).
    """
    size = qkv.shape[-1]
    check(qkv.ndim == 4 and qkv.shape[1] == 3 and size % 2 == 0, "rotate: expected T 3 A D, got {}", qkv.shape)
    tables = rotation_tables(base, size, max_positions, qkv.device)
    if use_native(qkv):
        check_range("rotate", position_ids, max_positions)
        return apply(Rotate, qkv.contiguous(), position_ids, *tables)
    return reference.rotate(qkv, *(table[position_ids] for table in tables))


@lru_cache(maxsize=8)
def rotation_tables(base: float, size: int, positions: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines of all angles, positions × D / 2 float32.

    The angles are rounded to float32 as in `transformers`: at position 8,000 that changes them by up to 0.0005.
    """
    with torch.inference_mode(False), torch.no_grad():
        rates = 1.0 / base ** (torch.arange(0, size, 2, dtype=torch.float32, device=device) / size)
        angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * rates
        return angles.cos(), angles.sin()


class Rotate(torch.autograd.Function):
    """Native rotation; the gradient is turned back."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, position_ids: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        check(position_ids.shape == qkv.shape[:1], "rotate: got {} positions for {}", position_ids.shape, qkv.shape)
        ctx.save_for_backward(position_ids, cosines, sines)
        return turn(qkv, position_ids, (cosines, sines), 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        position_ids, *tables = ctx.saved_tensors
        return turn(dy.contiguous(), position_ids, tuple(tables), -1.0), None, None, None


def turn(qkv: Tensor, position_ids: Tensor, tables: tuple[Tensor, ...], direction: float) -> Tensor:
    """Call the kernel; a direction of -1 turns back."""
    turned, (tokens, _, heads, size) = torch.empty_like(qkv), qkv.shape
    call("rotate", qkv.dtype, qkv, *tables, position_ids, direction, turned, tokens, heads, size)
    return turned
