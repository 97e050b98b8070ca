"""A pytest plugin that runs the native kernels on an emulated processor: `pytest -p emulated_kernels tests/kernels`.

It compiles them with Debian's cross-compiler, as for a wheel, starts a process under qemu-user, and sends every call
there: the buffers, the arguments, and back the buffers. So the tests that hold the kernels to their reference
implementation in PyTorch hold those of the other processor to it, too.
"""

from __future__ import annotations

import atexit
import ctypes
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertwright.kernels import attention, ffi, fused_encoder, fused_ops, linear_bf16, native  # noqa: F401
from bertwright.kernels.compile import Compiler, compile_flags, compile_library
from bertwright.kernels.cpu import LEVELS

CROSS, EMULATOR, SYSTEM = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"
SOURCE = native.PACKAGE / "kernels" / "csrc" / "kernels.cpp"


class RowPointer(ctypes.c_void_p):
    """The address of a matrix, and the matrix."""

    matrix: Tensor


class Emulator:
    """A process on the emulated processor."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        compiler = Compiler((CROSS,), "g++")
        flags = compile_flags(compiler, True, LEVELS["aarch64"][0].flags)
        library = compile_library(SOURCE, compiler, flags, folder)
        caller = folder / "caller"
        # -fopenmp: the caller brings the OpenMP library, as torch does elsewhere.
        command = [CROSS, "-O1", "-fopenmp", "-Wl,--no-as-needed", "-rdynamic", str(Path(__file__).with_suffix(".cpp"))]
        subprocess.run([*command, "-o", str(caller)], check=True)
        self.process = subprocess.Popen(
            [EMULATOR, "-L", SYSTEM, str(caller), str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        atexit.register(self.process.kill)
        self.calls: dict[str, int] = {}
        self.positions: dict[int, Tensor] = {}  # mask keys hold their address alone

    def call(self, function: str, *values: Any) -> None:
        """Do what `ffi.call` does."""
        storages: dict[int, Any] = {}

        def place(tensor: Tensor | None) -> bytes:
            if tensor is None or tensor.numel() == 0:
                return struct.pack("<iQ", -1, 0)
            storage = tensor.untyped_storage()
            storages.setdefault(storage.data_ptr(), storage)
            number = list(storages).index(storage.data_ptr())
            return struct.pack("<iQ", number, tensor.data_ptr() - storage.data_ptr())

        def key(value: Any) -> bytes:
            return bytes(value)[: ffi.CMaskKey.positions.offset] + place(self.positions.get(value.positions or 0))

        def argument(code: str, value: Any) -> bytes:
            if code == "q":
                return b"i" + struct.pack("<q", value)
            if code == "d":
                return b"d" + struct.pack("<d", value)
            if isinstance(value, Tensor) or value is None:
                return b"p" + place(value)
            if isinstance(value, RowPointer):
                return b"p" + place(value.matrix)
            if isinstance(value, ffi.CMaskKey):
                return b"k" + struct.pack("<I", 1) + key(value)
            if isinstance(value, ctypes.Array):
                if issubclass(value._type_, ffi.CMaskKey):
                    return b"k" + struct.pack("<I", len(value)) + b"".join(map(key, value))
                return b"b" + struct.pack("<I", ctypes.sizeof(value)) + bytes(value)
            return b"a" + struct.pack("<I", len(value)) + b"".join(map(place, value))

        codes = ffi.SIGNATURES[function] + "q"
        arguments = [argument(*pair) for pair in zip(codes, [*values, torch.get_num_threads()], strict=True)]
        views = [(address, memory(address, storage.nbytes())) for address, storage in storages.items()]
        request = [struct.pack("<I", len(views))]
        for address, view in views:
            request += [struct.pack("<QQ", len(view), address % 64), bytes(view)]
        request += [struct.pack("<I", len(function)), function.encode(), struct.pack("<I", len(arguments)), *arguments]
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"".join(request))
        self.process.stdin.flush()
        for _, view in views:
            answer = self.process.stdout.read(len(view))
            assert len(answer) == len(view), f"{function} ended the emulated process"
            view[:] = answer
        self.calls[function] = self.calls.get(function, 0) + 1

    def row_pointer(self, matrix: Tensor) -> RowPointer:
        """Do what `ffi.row_pointer` does."""
        pointer = RowPointer(matrix.data_ptr())
        pointer.matrix = matrix
        return pointer


def memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B") if size else memoryview(bytearray())


emulator = Emulator()
find_address = ffi.address


def address(tensor: Tensor) -> int:
    found = find_address(tensor)
    if tensor.dtype == torch.int64:
        emulator.positions[found] = tensor
    return found


for module in [module for name, module in sys.modules.items() if name.startswith("bertwright.kernels.")]:
    for name, function in (("call", emulator.call), ("row_pointer", emulator.row_pointer), ("address", address)):
        if hasattr(module, name):
            setattr(module, name, function)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    told = ", ".join(f"{name} {count}" for name, count in sorted(emulator.calls.items()))
    terminalreporter.write_line(f"calls on {EMULATOR}: {told}")


def pytest_sessionfinish(session: Any) -> None:
    if not emulator.calls and session.exitstatus == 0:
        session.exitstatus = 1  # nothing was tested
