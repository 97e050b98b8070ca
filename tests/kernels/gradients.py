"""Results of operations with their gradients, for tests that compare two implementations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def with_gradients(function: Callable[..., Tensor], *operands: Any, **options: Any) -> list[Tensor]:
    """Return the result and the gradients of all floating-point operands, for a fixed gradient of the result."""
    own = [x.detach().clone().requires_grad_() if is_float(x) else x for x in operands]
    y = function(*own, **options)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(2)).to(y)
    return [y.detach(), *torch.autograd.grad(y, list(filter(is_float, own)), upstream)]


def is_float(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
