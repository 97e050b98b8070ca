"""Calls of the native kernels (`kernels.cpp`) through ctypes, with checked argument types.

The library describes its own functions and structures (`interface.h`); nothing is declared here.
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertwright.kernels import native_library
from bertwright.kernels.dropout import MaskKey

DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1}  # `enum DType` of simd.h
OUT_OF_MEMORY = 1
NUMBERS: dict[str, type[Any]] = {
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
# Pointers to elements of tensors. void*: elements of the dtype that is the function's first argument.
ELEMENTS = {
    "float*": torch.float32,
    "bfloat16*": torch.bfloat16,
    "double*": torch.float64,
    "int32_t*": torch.int32,
    "int64_t*": torch.int64,
    "int8_t*": torch.int8,
    "uint8_t*": torch.uint8,
    "Moments*": torch.float32,  # two per row
}


class StructureType(NamedTuple):
    """A C structure; Python passes named tuples with the same fields in the same order."""

    ctype: type[ctypes.Structure]
    fields: tuple[str, ...]
    kinds: tuple[str, ...]  # type of each field


class Interface(NamedTuple):
    """Argument types of each function, and the structures, by name."""

    functions: dict[str, list[str]]
    structures: dict[str, StructureType]


def parse_interface(text: str) -> Interface:
    """Parse what `describe_interface` of kernels.cpp returns: one line per structure and function.

    >>> parse_interface("move Point* int64_t").functions
    {'move': ['Point*', 'int64_t']}
    >>> parse_interface("struct Point 8 float x float y").structures["Point"].fields
    ('x', 'y')
    """
    interface = Interface({}, {})
    for name, *words in map(str.split, text.splitlines()):
        if name != "struct":
            interface.functions[name] = words
            continue
        structure, size, *words = words
        kinds, fields = tuple(words[::2]), tuple(words[1::2])
        ctype_fields = [(field, NUMBERS.get(kind, ctypes.c_void_p)) for field, kind in zip(fields, kinds, strict=True)]
        ctype = type(structure, (ctypes.Structure,), {"_fields_": ctype_fields})
        check(ctypes.sizeof(ctype) == int(size), "{}: {} bytes, but {} in C++", structure, ctypes.sizeof(ctype), size)
        interface.structures[structure] = StructureType(ctype, fields, kinds)
    return interface


class Rows(NamedTuple):
    """A matrix that may have gaps between its rows; the caller also passes the stride to the kernel."""

    matrix: Tensor


@cache
def _interface(library: ctypes.CDLL) -> Interface:
    """Read the description of a library, and declare its functions to ctypes."""
    library.describe_interface.restype = ctypes.c_char_p
    interface = parse_interface(library.describe_interface().decode())
    for name, types in interface.functions.items():
        function = getattr(library, name)
        function.argtypes = [NUMBERS.get(kind, ctypes.c_void_p) for kind in types]
        function.restype = ctypes.c_int64
    return interface


def check_positions(mask_key: MaskKey, tokens: int) -> None:
    """Raise ValueError unless the key's positions, if it has any, are one per token."""
    if mask_key.positions is not None:
        shape = mask_key.positions.shape
        check(shape == (tokens,), "dropout: expected positions of {} tokens, got a tensor {}", tokens, shape)


def check(condition: bool, message: str, *values: object) -> None:
    """Raise ValueError with the formatted message unless the condition holds.

    Native code could read or write outside its tensors. Unlike `assert`, the check also runs under `python -O`.
    """
    if not condition:
        raise ValueError(message.format(*values))


def check_range(name: str, ids: Tensor, size: int) -> None:
    """Raise ValueError unless all ids are rows of a table of this size; `name`: the function that got them."""
    if len(ids):
        low, high = (int(bound) for bound in torch.aminmax(ids))
        check(0 <= low <= high < size, "{}: expected ids from 0 to {}, got {} to {}", name, size - 1, low, high)


def call(name: str, *values: object) -> None:
    """Call a native kernel with torch's number of threads.

    A dtype becomes its code, a tensor (None: null) the address of its elements, a sequence of tensors an array of
    addresses; a named tuple becomes a structure, a list of named tuples an array of structures. Raises ValueError if a
    tensor has another dtype than the kernel expects, is not contiguous or not on the CPU; TypeError if another argument
    does not fit; MemoryError if scratch memory cannot be allocated.
    """
    library = _load(name)
    interface = _interface(library)
    kinds, values = interface.functions[name], (*values, torch.get_num_threads())
    if len(values) != len(kinds):
        raise TypeError(f"{name}: expected {len(kinds)} arguments, got {len(values)}")
    dtype = values[0] if isinstance(values[0], torch.dtype) else None
    arguments: list[object] = []
    try:
        for kind, value in zip(kinds, values, strict=True):
            arguments.append(_convert(kind, value, dtype, interface))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}, argument {len(arguments)}: {error}") from None
    if getattr(library, name)(*arguments) == OUT_OF_MEMORY:
        raise MemoryError(f"{name}: not enough memory; use smaller micro-batches")


class Prepared(NamedTuple):
    """An argument of `call` that was converted once, for many calls, and the tensors whose addresses it has."""

    converted: Any
    tensors: list[Any]


def prepare(kind: str, values: list[Any]) -> Prepared:
    """Convert a list of tensors or structures for a kernel, with the errors of `call`; `kind`: its type in C++."""
    return Prepared(_convert(kind, values, None, _interface(_load(kind))), values)


def _load(wanted: str) -> ctypes.CDLL:
    library = native_library.load_library("kernels")
    if library is None:
        raise RuntimeError(f"{wanted}: native kernels are not available")
    return library


def apply(function: type[torch.autograd.Function], *values: object) -> Tensor:
    """Call `function.apply`, with the return type that torch does not declare."""
    result: Tensor = function.apply(*values)  # type: ignore[no-untyped-call]
    return result


def _convert(kind: str, value: Any, dtype: torch.dtype | None, interface: Interface) -> Any:
    """Convert an argument, or a field of a structure, to what ctypes passes as this type."""
    if kind in NUMBERS:
        return DTYPE_CODES[value] if isinstance(value, torch.dtype) else value
    if value is None:
        return None
    if isinstance(value, (Tensor, Rows)):
        return _address(value, ELEMENTS.get(kind, dtype))
    if isinstance(value, Prepared):
        return value.converted
    if kind.endswith("**"):
        elements = ELEMENTS.get(kind[:-1], dtype)
        addresses = [None if item is None else _address(item, elements) for item in value]
        return (ctypes.c_void_p * len(addresses))(*addresses)
    structure = interface.structures.get(kind[:-1])
    if structure is None:
        raise TypeError(f"expected a tensor, got {value!r}")
    if isinstance(value, list):
        return (structure.ctype * len(value))(*(_fill(structure, item, dtype, interface) for item in value))
    return ctypes.byref(_fill(structure, value, dtype, interface))


def _address(value: Tensor | Rows, dtype: torch.dtype | None) -> int:
    """Return the address of a tensor's elements. Raises ValueError unless native code can read them."""
    tensor = value.matrix if isinstance(value, Rows) else value
    if tensor.dtype != dtype:
        raise ValueError(f"expected {dtype}, got {tensor.dtype}")
    if not tensor.is_cpu:
        raise ValueError(f"expected a CPU tensor, got one on {tensor.device}")
    if not (_has_separate_rows(tensor) if isinstance(value, Rows) else tensor.is_contiguous()):
        raise ValueError(f"expected a contiguous tensor, got {tensor.shape} with strides {tensor.stride()}")
    return tensor.data_ptr()


def _fill(structure: StructureType, value: Any, dtype: torch.dtype | None, interface: Interface) -> ctypes.Structure:
    """Copy a named tuple into a new structure."""
    if value._fields != structure.fields:
        raise ValueError(f"expected the fields {structure.fields}, got {value._fields}")
    converted: list[object] = []
    try:
        for kind, item in zip(structure.kinds, value, strict=True):
            converted.append(_convert(kind, item, dtype, interface))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{value._fields[len(converted)]}: {error}") from None
    return structure.ctype(*converted)


def _has_separate_rows(matrix: Tensor) -> bool:
    """Return whether a matrix has contiguous rows that do not overlap."""
    if matrix.ndim != 2:
        return False
    (rows, columns), (row_stride, column_stride) = matrix.shape, matrix.stride()
    return (column_stride == 1 or columns == 1) and (row_stride >= columns or rows <= 1)


def new_float32(*shape: int) -> Tensor:
    """Return a new float32 tensor on the CPU, uninitialized, whatever PyTorch's default dtype and device are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


def use_native(*tensors: Tensor) -> bool:
    """Return whether native kernels can process these tensors; otherwise the reference implementation does."""
    return (
        all(x.is_cpu and x.dtype in DTYPE_CODES for x in tensors) and native_library.load_library("kernels") is not None
    )


def use_triton(*tensors: Tensor) -> bool:
    """Return whether Triton kernels can process these tensors, on a GPU."""
    on_gpu = all(x.is_cuda and x.dtype in DTYPE_CODES for x in tensors)
    return on_gpu and native_library.triton_available() and not native_library.triton_problems


@cache
def triton_ops() -> Any:
    """Import the operations of `kernels/triton`, which need Triton."""
    return importlib.import_module("bertwright.kernels.triton.ops")


@cache
def bf16_isa() -> str | None:
    """Return the name of the bfloat16 micro-kernel in use (bf16_isa.h); None on a processor without bfloat16 units."""
    return _ask_name("bf16_isa_name")


@cache
def int8_isa() -> str | None:
    """Return the name of the instructions that multiply int8 (int8_linear.h); None if the library has none."""
    return _ask_name("int8_isa_name")


def _ask_name(function: str) -> str | None:
    """Return the name that a function of the library returns; None if the library lacks it."""
    library = native_library.load_library("kernels")
    if library is None or not hasattr(library, function):
        return None
    ask = getattr(library, function)
    ask.restype = ctypes.c_char_p
    return str(ask().decode())
