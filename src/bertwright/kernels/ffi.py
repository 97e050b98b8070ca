"""Calls of the native kernels through ctypes.

Every C function takes tensors as pointers, integers as int64, other numbers as double, and last the number of threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from bertwright.kernels import native
from bertwright.kernels.dropout import Dropout, MaskKey

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}  # `enum Type` of simd.h


class CMaskKey(ctypes.Structure):
    """`MaskKey`, as `struct MaskKey` of dropout.h; a threshold of 0 keeps everything."""

    _fields_ = (
        ("key0", ctypes.c_uint32),
        ("key1", ctypes.c_uint32),
        ("threshold", ctypes.c_uint32),
        ("scale", ctypes.c_float),
        ("first_token", ctypes.c_int64),
        ("positions", ctypes.c_void_p),
    )
    positions_tensor: Tensor | None = None  # owns the memory of `positions`


def c_mask_key(dropout: Dropout | None, site: int) -> CMaskKey:
    """Derive the key of one site; without dropout, one that keeps everything."""
    key = dropout.mask_key(site) if dropout is not None else MaskKey(0, 0, 0, 1.0, 0, None)
    c_key = CMaskKey(*key[:-1], None if key.positions is None else address(key.positions))
    c_key.positions_tensor = key.positions
    return c_key


Argument = Tensor | CMaskKey | ctypes.c_void_p | int | float | None | ctypes.Array[Any] | Sequence[Tensor | None]


def call(function: str, *values: Argument) -> None:
    """Call a native kernel with torch's number of threads."""
    library = native.load_library("kernels")
    assert library is not None
    getattr(library, function)(*map(to_ctypes, values), ctypes.c_int64(torch.get_num_threads()))


def apply(function: type[torch.autograd.Function], *values: object) -> Tensor:
    """`function.apply` with the type that torch leaves out."""
    result: Tensor = function.apply(*values)  # type: ignore[no-untyped-call]
    return result


def to_ctypes(value: Argument) -> object:
    if isinstance(value, Tensor):
        return ctypes.c_void_p(address(value))
    if isinstance(value, int):
        return ctypes.c_int64(value)
    if isinstance(value, float):
        return ctypes.c_double(value)
    if isinstance(value, CMaskKey):
        return ctypes.byref(value)
    if value is None or isinstance(value, (ctypes.c_void_p, ctypes.Array)):
        return value
    return (ctypes.c_void_p * len(value))(*[None if item is None else address(item) for item in value])


def doubles(values: Iterable[float]) -> ctypes.Array[ctypes.c_double]:
    numbers = list(values)
    return (ctypes.c_double * len(numbers))(*numbers)


def address(tensor: Tensor) -> int:
    assert tensor.is_contiguous(), (tensor.shape, tensor.stride())
    assert tensor.is_cpu, tensor.device
    return tensor.data_ptr()


def row_pointer(matrix: Tensor) -> ctypes.c_void_p:
    """Return the address of a matrix whose rows may lie apart; the caller passes the row stride."""
    assert matrix.ndim == 2, matrix.shape
    assert matrix.stride(1) == 1 or matrix.shape[1] == 1, matrix.stride()
    assert matrix.is_cpu, matrix.device
    return ctypes.c_void_p(matrix.data_ptr())


def use_native(*tensors: Tensor) -> bool:
    """Return whether native kernels serve these tensors; otherwise the reference implementation does."""
    return all(x.is_cpu and x.dtype in DTYPE_CODES for x in tensors) and native.load_library("kernels") is not None
