"""How tensors and numbers cross into the native kernels.

Every C function takes tensors as pointers, whole numbers as int64 and others as double, and last the number of threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from bertwright.kernels import native
from bertwright.kernels.dropout import Draw, Dropout

TYPES = {torch.float32: 0, torch.bfloat16: 1}  # `enum Type` of lanes.h


class CDraw(ctypes.Structure):
    """`Draw`, as `struct Draw` of dropout.h; a threshold of 0 keeps everything."""

    _fields_ = (
        ("key0", ctypes.c_uint32),
        ("key1", ctypes.c_uint32),
        ("threshold", ctypes.c_uint32),
        ("scale", ctypes.c_float),
        ("first_token", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
    )
    given: Tensor | None = None  # what `rows` points into, which must live as long


def drawn_at(dropout: Dropout | None, site: int) -> CDraw:
    """One site's dropout, or none."""
    draw = dropout.at(site) if dropout is not None else Draw(0, 0, 0, 1.0, 0, None)
    drawn = CDraw(*draw[:-1], None if draw.rows is None else address(draw.rows))
    drawn.given = draw.rows
    return drawn


Argument = Tensor | CDraw | ctypes.c_void_p | int | float | None | ctypes.Array[Any] | Sequence[Tensor | None]


def call(function: str, *values: Argument) -> None:
    """Call a native kernel with torch's number of threads."""
    library = native.load_library("kernels")
    assert library is not None
    getattr(library, function)(*map(crossing, values), ctypes.c_int64(torch.get_num_threads()))


def apply(function: type[torch.autograd.Function], *values: object) -> Tensor:
    """`function.apply` with the type that torch leaves out."""
    result: Tensor = function.apply(*values)  # type: ignore[no-untyped-call]
    return result


def crossing(value: Argument) -> object:
    if isinstance(value, Tensor):
        return ctypes.c_void_p(address(value))
    if isinstance(value, int):
        return ctypes.c_int64(value)
    if isinstance(value, float):
        return ctypes.c_double(value)
    if isinstance(value, CDraw):
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


def row_address(matrix: Tensor) -> ctypes.c_void_p:
    """Of a matrix whose rows may lie apart; how far is for the caller to pass."""
    assert matrix.ndim == 2, matrix.shape
    assert matrix.stride(1) == 1 or matrix.shape[1] == 1, matrix.stride()
    assert matrix.is_cpu, matrix.device
    return ctypes.c_void_p(matrix.data_ptr())


def runs_native(*tensors: Tensor) -> bool:
    """Whether native kernels serve these tensors, else their twins do."""
    return all(x.is_cpu and x.dtype in TYPES for x in tensors) and native.load_library("kernels") is not None
