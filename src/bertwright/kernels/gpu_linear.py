"""Dense layers of bfloat16 states on a GPU, and the bfloat16 copies of their float32 weights.

T tokens, H and O input and output size. A copy is made when a layer first needs it; the fused AdamW then writes it
together with the weight, so that nothing is cast at each use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels.ffi import triton_ops, use_triton
from bertwright.kernels.weak_tensors import WeakTensorMap

ROWS = 64  # matrices have copies with a multiple of so many rows: products with odd sizes take twice as long


class WeightCopy:
    """The copy of a weight, made when it is first needed, and the state of the weight that it was made of."""

    def __init__(self) -> None:
        self.tensor: Tensor | None = None
        self.version = self.address = 0

    def mark_current(self, weight: Tensor) -> None:
        """State that the copy equals the weight."""
        self.version, self.address = weight._version, weight.data_ptr()

    def current(self, weight: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Return the copy, or None if there is none in this dtype, or the weight has changed."""
        is_current = (weight._version, weight.data_ptr()) == (self.version, self.address)
        return self.tensor if is_current and self.tensor is not None and self.tensor.dtype == dtype else None


_copies = WeakTensorMap[WeightCopy]()


def keep_copies(weights: Iterable[Tensor]) -> None:
    """Keep copies of these weights from their first use on, if they are float32 on a GPU.

    A change through `weight.data` is not noticed, as it is not by autograd.
    """
    for weight in weights:
        if (
            use_triton(weight)
            and weight.dtype == torch.float32
            and not weight.is_inference()
            and not _copies.get(weight)
        ):
            _copies[weight] = WeightCopy()


def existing_copies(weights: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the copies that exist, which a kernel may write together with the weights."""
    copies = map(_copies.get, weights)
    return [None if copy is None else copy.tensor for copy in copies]


def mark_current(weights: Sequence[Tensor]) -> None:
    """State that the existing copies equal the weights again."""
    for weight in weights:
        if copy := _copies.get(weight):
            copy.mark_current(weight)


def half(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a weight in another dtype, from its copy if one is kept."""
    if weight.dtype == dtype or _copies.get(weight) is None:
        return weight.to(dtype)
    copy = padded(weight, dtype)
    return copy if len(copy) == len(weight) else copy[: len(weight)]


def padded(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a matrix in another dtype with zeros below, up to a multiple of ROWS; a vector without."""
    copy = _copies.get(weight)
    if copy is not None and (current := copy.current(weight, dtype)) is not None:
        return current
    rows = len(weight) if weight.ndim == 1 else -(-len(weight) // ROWS) * ROWS
    with torch.inference_mode(False), torch.no_grad():
        tensor = weight.new_zeros(rows, *weight.shape[1:], dtype=dtype)
        tensor[: len(weight)] = weight
    if copy is not None and dtype == torch.bfloat16:
        copy.tensor = tensor
        copy.mark_current(weight)
    return tensor


def copy_address(weight: Tensor, dtype: torch.dtype) -> int:
    """Return the address of a weight's copy, which is made if it is not there yet; 0 if none is kept."""
    return 0 if _copies.get(weight) is None else padded(weight, dtype).data_ptr()


def multiply(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Compute a · b as float32, unrounded, in `out` if given."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32, out=out)
    return torch.mm(a.float(), b.float(), out=out)


class HalfLinear(torch.autograd.Function):
    """`F.linear` in the dtype of the states, with unrounded gradients of float32 weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        copy = half(weight, x.dtype)
        # A new copy would last until the backward pass; a weight that ranks divide (FSDP2) takes no memory meanwhile.
        ctx.save_for_backward(x, weight if _copies.get(weight) is None else copy)
        ctx.bias_dtype = None if bias is None else bias.dtype
        return F.linear(x, copy, None if bias is None else half(bias, x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        rows = dy.flatten(0, -2)
        dx = F.linear(dy, half(weight, dy.dtype).T) if for_x else None
        dweight = multiply(rows.T, x.flatten(0, -2)) if for_weight else None
        return dx, dweight, sum_rows(rows).to(ctx.bias_dtype) if for_bias else None


def sum_rows(x: Tensor) -> Tensor:
    """Return the sum of each column, float32."""
    total: Tensor = triton_ops().column_sum(x.contiguous()) if use_triton(x) else x.sum(0, dtype=torch.float32)
    return total
