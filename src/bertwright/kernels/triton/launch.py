"""Starts Triton kernels. Triton's own `cdiv` and `next_power_of_2` take microseconds when Python calls them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, on: Tensor, **options: Any) -> None:
    """Start a kernel on the device of a tensor, unless the grid is empty."""
    if all(grid):
        with torch.cuda.device_of(on):
            kernel[grid](*arguments, **options)


def cdiv(number: int, divisor: int) -> int:
    """Divide and round up."""
    return -(-number // divisor)


def next_power_of_2(number: int) -> int:
    """Round up to a power of two.

    >>> [next_power_of_2(number) for number in (1, 5, 64)]
    [1, 8, 64]
    """
    return 1 << (number - 1).bit_length()
