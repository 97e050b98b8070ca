"""Calls of the native kernels (`kernels.cpp`) through ctypes, with checked argument types."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bertwright.kernels import native
from bertwright.kernels.dropout import Dropout, MaskKey

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}  # `enum DType` of simd.h
OUT_OF_MEMORY = 1

# The argument types of each function in the letters of `struct`: P pointer, q int64, d double. `call` adds `threads`.
SIGNATURES = {
    "bias_gelu": "qqPPPqq",
    "bias_gelu_backward": "qqPPPPPqq",
    "dropout": "qPPPqq",
    "add_dropout_norm": "qPPPPPdPPPPqq",
    "add_dropout_norm_backward": "qPPPPPPPPqq",
    "embed_norm": "qPPPPdPPPqq",
    "embed_norm_backward": "qPPPPPPPPqq",
    "add_rows": "PPPqq",
    "attention": "qPPqqqqPPP",
    "attention_backward": "qPPPPPqqqqPP",
    "cross_entropy": "qPqPPdPPPqq",
    "adamw": "PPPPPqP",
    "adamw_rows": "PPPPPPPqq",
    "square_sum": "PPqP",
    "transpose": "PqPqqq",
    "linear_forward": "qPPPPqqq",
    "linear_backward": "qPPPPPPqqq",
    "encoder_workspace_bytes": "PP",
    "encoder_forward": "PPPPPP",
    "encoder_backward": "PPPPPPPP",
}
C_TYPES = {"P": ctypes.c_void_p, "q": ctypes.c_int64, "d": ctypes.c_double}


class CMaskKey(ctypes.Structure):
    """`MaskKey` as `struct MaskKey` of dropout.h; a threshold of 0 keeps everything."""

    _fields_ = (
        ("key0", ctypes.c_uint32),
        ("key1", ctypes.c_uint32),
        ("threshold", ctypes.c_uint32),
        ("scale", ctypes.c_float),
        ("first_token", ctypes.c_int64),
        ("positions", ctypes.c_void_p),
    )
    positions_tensor: Tensor | None = None  # owns the memory of `positions`

    def check_tokens(self, count: int) -> None:
        """Raise ValueError unless the key's positions, if it has any, are `count`."""
        positions = self.positions_tensor
        if positions is not None:
            check(
                len(positions) == count,
                "dropout: expected one position per token, got {} for {}",
                len(positions),
                count,
            )


def c_mask_key(dropout: Dropout | None, site: int) -> CMaskKey:
    """Derive the mask key of one site; without dropout, one that keeps everything."""
    key = dropout.mask_key(site) if dropout is not None else MaskKey(0, 0, 0, 1.0, 0, None)
    positions = key.positions
    if positions is not None:
        check(positions.dtype == torch.int64, "dropout: expected int64 positions, got {}", positions.dtype)
        check(positions.ndim == 1, "dropout: expected positions in one dimension, got {}", positions.shape)
    c_key = CMaskKey(*key[:-1], None if positions is None else address(positions))
    c_key.positions_tensor = positions
    return c_key


def check(condition: bool, message: str, *values: object) -> None:
    """Raise ValueError with the formatted message unless the condition holds.

    Without it, native code could read or write outside its tensors. Unlike `assert`, it also runs under `python -O`.
    """
    if not condition:
        raise ValueError(message.format(*values))


Argument = (
    Tensor | ctypes.Structure | ctypes.c_void_p | int | float | None | ctypes.Array[Any] | Sequence[Tensor | None]
)


def call(name: str, *values: Argument) -> None:
    """Call a native kernel with torch's number of threads.

    Raises TypeError if an argument does not fit the signature, MemoryError if scratch memory cannot be allocated.
    """
    library = native.load_library("kernels")
    assert library is not None
    function, signature = getattr(library, name), SIGNATURES[name]
    if function.argtypes is None:
        function.argtypes = [C_TYPES[code] for code in (*signature, "q")]
        function.restype = ctypes.c_int64
    arguments = [_to_pointer(value) if code == "P" else value for code, value in zip(signature, values, strict=True)]
    if function(*arguments, torch.get_num_threads()) == OUT_OF_MEMORY:
        raise MemoryError(f"{name}: not enough memory; use smaller micro-batches")


def apply(function: type[torch.autograd.Function], *values: object) -> Tensor:
    """Call `function.apply`, with the return type that torch does not declare."""
    result: Tensor = function.apply(*values)  # type: ignore[no-untyped-call]
    return result


def _to_pointer(value: Argument) -> object:
    if isinstance(value, Tensor):
        return address(value)
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    if value is None or isinstance(value, (ctypes.c_void_p, ctypes.Array)):
        return value
    if isinstance(value, (int, float)):
        raise TypeError(f"expected a tensor, got {value}")
    return (ctypes.c_void_p * len(value))(*[None if item is None else address(item) for item in value])


def doubles(values: Iterable[float]) -> ctypes.Array[ctypes.c_double]:
    """Return an array of C doubles."""
    numbers = list(values)
    return (ctypes.c_double * len(numbers))(*numbers)


def address(tensor: Tensor) -> int:
    """Return the address of a contiguous CPU tensor's elements."""
    check(tensor.is_contiguous(), "expected a contiguous tensor, got {} with strides {}", tensor.shape, tensor.stride())
    check(tensor.is_cpu, "expected a CPU tensor, got one on {}", tensor.device)
    return tensor.data_ptr()


def row_pointer(matrix: Tensor) -> ctypes.c_void_p:
    """Return the address of a CPU matrix, whose rows may have gaps between them; the caller passes their stride."""
    check(matrix.ndim == 2, "expected a matrix, got {}", matrix.shape)
    check(matrix.stride(1) == 1 or matrix.shape[1] == 1, "expected contiguous rows, got strides {}", matrix.stride())
    check(matrix.is_cpu, "expected a CPU tensor, got one on {}", matrix.device)
    return ctypes.c_void_p(matrix.data_ptr())


def use_native(*tensors: Tensor) -> bool:
    """Return whether native kernels can process these tensors; otherwise the reference implementation does."""
    return all(x.is_cpu and x.dtype in DTYPE_CODES for x in tensors) and native.load_library("kernels") is not None


@cache
def bf16_isa() -> str | None:
    """Return the name of the bfloat16 micro-kernel in use (dispatch.h); None on a processor without bfloat16 units."""
    library = native.load_library("kernels")
    if library is None or not hasattr(library, "bf16_isa_name"):
        return None
    library.bf16_isa_name.restype = ctypes.c_char_p
    return str(library.bf16_isa_name().decode())
