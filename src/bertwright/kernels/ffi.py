"""Calls of the native kernels (`kernels.cpp`) through ctypes, with checked argument types."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from bertwright.kernels import native
from bertwright.kernels.dropout import Dropout, MaskKey

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}  # `enum DType` of simd.h
DTYPES = tuple(DTYPE_CODES)  # by code
OUT_OF_MEMORY = 1

# The argument types of each function. Numbers: q int64, d double. Pointers to elements: T of the dtype whose code is
# the first argument, F float32, B bfloat16, D float64, I int32, Q int64, U uint8. P: pointer to a structure. `call`
# adds `threads`.
SIGNATURES = {
    "bias_gelu": "qqTFTqq",
    "bias_gelu_backward": "qqTFTTFqq",
    "dropout": "qTPTqq",
    "add_dropout_norm": "qTFTFFdPTFTqq",
    "add_dropout_norm_backward": "qTFFTPTTFqq",
    "embed_norm": "qTQFFdPFTqq",
    "embed_norm_backward": "qTQFFTPFFqq",
    "add_rows": "FQFqq",
    "attention": "qTIqqqqPTF",
    "attention_backward": "qTTFTIqqqqPT",
    "cross_entropy": "qTqFQdFQFqq",
    "adamw": "FFFFQqD",
    "adamw_rows": "FFQUFFDqq",
    "square_sum": "FQqD",
    "transpose": "BqBqqq",
    "linear_forward": "qBTFBqqq",
    "linear_backward": "qBBTBFFqqq",
    "encoder_workspace_bytes": "PQ",
    "encoder_forward": "PBFPUB",
    "encoder_backward": "PBBFPUBF",
}
NUMBERS = {"q": ctypes.c_int64, "d": ctypes.c_double}
ELEMENTS = {
    "F": torch.float32,
    "B": torch.bfloat16,
    "D": torch.float64,
    "I": torch.int32,
    "Q": torch.int64,
    "U": torch.uint8,
}


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

    Raises ValueError if a tensor has another dtype than the signature says, is not contiguous or not on the CPU;
    TypeError if another argument does not fit the signature; MemoryError if scratch memory cannot be allocated.
    """
    library = native.load_library("kernels")
    if library is None:
        raise RuntimeError(f"{name}: native kernels are not available")
    function, signature = getattr(library, name), SIGNATURES[name]
    if function.argtypes is None:
        function.restype = ctypes.c_int64  # first: other threads take `argtypes` as the sign that both are set
        function.argtypes = [NUMBERS.get(code, ctypes.c_void_p) for code in (*signature, "q")]
    arguments: list[object] = []
    for code, value in zip(signature, values, strict=True):
        if code in NUMBERS:
            arguments.append(value)
        else:
            dtype = DTYPES[cast(int, values[0])] if code == "T" else ELEMENTS.get(code)
            arguments.append(_to_pointer(f"{name}, argument {len(arguments)}", value, dtype))
    if function(*arguments, torch.get_num_threads()) == OUT_OF_MEMORY:
        raise MemoryError(f"{name}: not enough memory; use smaller micro-batches")


def apply(function: type[torch.autograd.Function], *values: object) -> Tensor:
    """Call `function.apply`, with the return type that torch does not declare."""
    result: Tensor = function.apply(*values)  # type: ignore[no-untyped-call]
    return result


def _to_pointer(name: str, value: Argument, dtype: torch.dtype | None) -> object:
    """Convert an argument; raises TypeError or ValueError with its name unless it is a pointer to this dtype."""
    if isinstance(value, ctypes.Structure):
        return ctypes.byref(value)
    if value is None or isinstance(value, (ctypes.c_void_p, ctypes.Array)):
        return value
    if isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a tensor, got {value}")
    tensors = [value] if isinstance(value, Tensor) else value
    for tensor in tensors:
        if tensor is not None:
            check(tensor.dtype == dtype, "{}: expected {}, got {}", name, dtype, tensor.dtype)
    addresses = [None if tensor is None else address(tensor) for tensor in tensors]
    return addresses[0] if isinstance(value, Tensor) else (ctypes.c_void_p * len(addresses))(*addresses)


def doubles(values: Iterable[float]) -> ctypes.Array[ctypes.c_double]:
    """Return an array of C doubles."""
    numbers = list(values)
    return (ctypes.c_double * len(numbers))(*numbers)


def address(tensor: Tensor) -> int:
    """Return the address of a contiguous CPU tensor's elements."""
    check(tensor.is_contiguous(), "expected a contiguous tensor, got {} with strides {}", tensor.shape, tensor.stride())
    check(tensor.is_cpu, "expected a CPU tensor, got one on {}", tensor.device)
    return tensor.data_ptr()


def new_float32(*shape: int) -> Tensor:
    """Return a new float32 tensor on the CPU, uninitialized, whatever PyTorch's default dtype and device are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def row_pointer(matrix: Tensor) -> ctypes.c_void_p:
    """Return the address of a CPU matrix, whose rows may have gaps between them; the caller passes their stride.

    The caller also checks the dtype, which `call` cannot do.
    """
    check(matrix.ndim == 2, "expected a matrix, got {}", matrix.shape)
    rows, columns = matrix.shape
    row_stride, column_stride = matrix.stride()
    check(column_stride == 1 or columns == 1, "expected contiguous rows, got strides {}", matrix.stride())
    check(row_stride >= columns or rows <= 1, "expected separate rows, got strides {}", matrix.stride())
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
