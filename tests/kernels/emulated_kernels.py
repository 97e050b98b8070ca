"""A pytest plugin that runs the native kernels on an emulated ARM processor: `pytest -p emulated_kernels …`.

It compiles them with Debian's cross-compiler, as for a wheel, and starts a process under qemu-user. Every call is sent
there: the buffers and the arguments, and back the buffers. So the same tests that compare the kernels of this machine
with their reference implementations compare those of the other processor. `EMULATED_LEVEL` selects an instruction set
of instruction_sets.INSTRUCTION_SETS; the default is the best.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertwright.kernels import (  # noqa: F401
    adamw,
    attention,
    cpu_linear,
    ffi,
    fused_encoder,
    fused_ops,
    int8_linear,
    linear_cross_entropy,
    native_library,
)
from bertwright.kernels.compile import Compiler, compile_flags, compile_library
from bertwright.kernels.ffi import Rows
from bertwright.kernels.instruction_sets import INSTRUCTION_SETS

CROSS, SYSTEM = "aarch64-linux-gnu-g++", "/usr/aarch64-linux-gnu"
EMULATOR = ["qemu-aarch64", "-cpu", "max", "-L", SYSTEM]
SOURCE = native_library.PACKAGE / "kernels" / "csrc" / "kernels.cpp"


class Emulator:
    """A process on the emulated processor."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        levels = {level.name: level for level in INSTRUCTION_SETS["aarch64"]}
        self.level = levels[os.environ.get("EMULATED_LEVEL") or next(iter(levels))]
        compiler = Compiler((CROSS,), "g++")
        library = compile_library(SOURCE, compiler, compile_flags(compiler, True, self.level.flags), folder)
        content = library.read_bytes()
        self.bf16_isa = "neon_bf16" if b"bf16_isa_name" in content else None
        self.int8_isa = "neon_dot" if b"int8_isa_name" in content else None
        caller = folder / "caller"
        # -fopenmp: the caller loads the OpenMP library, as torch does elsewhere.
        command = [CROSS, "-O1", "-fopenmp", "-Wl,--no-as-needed", "-rdynamic", str(Path(__file__).with_suffix(".cpp"))]
        subprocess.run([*command, "-o", str(caller)], check=True)
        self.process = subprocess.Popen(
            [*EMULATOR, str(caller), str(library)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        atexit.register(self.process.kill)
        assert self.process.stdout is not None
        description = b"".join(iter(lambda: self.process.stdout.read(1), b"\0"))  # type: ignore[union-attr]
        self.interface = ffi.parse_interface(description.decode())
        self.calls: dict[str, int] = {}

    def call(self, function: str, *values: Any) -> None:
        """Call a kernel, like `ffi.call`."""
        storages: dict[int, Any] = {}

        def pointer(value: Tensor | Rows | None) -> bytes:
            tensor = value.matrix if isinstance(value, Rows) else value
            if tensor is None or tensor.numel() == 0:
                return struct.pack("<iQ", -1, 0)
            storage = tensor.untyped_storage()
            storages.setdefault(storage.data_ptr(), storage)
            number = list(storages).index(storage.data_ptr())
            return struct.pack("<iQ", number, tensor.data_ptr() - storage.data_ptr())

        def block(content: bytes, pointers: dict[int, Any]) -> bytes:
            written = (struct.pack("<I", offset) + pointer(tensor) for offset, tensor in pointers.items())
            return b"b" + struct.pack("<II", len(content), len(pointers)) + content + b"".join(written)

        def structures(structure: ffi.StructureType, items: list[Any]) -> bytes:
            content, pointers = b"", {}
            for item in items:
                filled = structure.ctype()
                for field, kind, value in zip(structure.fields, structure.kinds, item, strict=True):
                    if kind in ffi.NUMBERS:
                        setattr(filled, field, value)
                    else:
                        pointers[len(content) + getattr(structure.ctype, field).offset] = value
                content += bytes(filled)
            return block(content, pointers)

        def argument(kind: str, value: Any) -> bytes:
            if isinstance(value, ffi.Prepared):
                value = value.tensors
            if isinstance(value, torch.dtype):
                value = ffi.DTYPE_CODES[value]
            if kind in ("int64_t", "double"):
                return b"q" + struct.pack("<q", value) if kind == "int64_t" else b"d" + struct.pack("<d", value)
            if structure := self.interface.structures.get(kind.removesuffix("*")):
                return structures(structure, value if isinstance(value, list) else [value])
            if kind.endswith("**"):
                return block(bytes(8 * len(value)), {8 * number: tensor for number, tensor in enumerate(value)})
            return b"p" + pointer(value)

        kinds = self.interface.functions[function]
        arguments = [argument(*pair) for pair in zip(kinds, [*values, torch.get_num_threads()], strict=True)]
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


def memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B") if size else memoryview(bytearray())


emulator = Emulator()
for module in [module for name, module in sys.modules.items() if name.startswith("bertwright.kernels.")]:
    for name, function in (
        ("call", emulator.call),
        ("bf16_isa", lambda: emulator.bf16_isa),
        ("int8_isa", lambda: emulator.int8_isa),
    ):
        if hasattr(module, name):
            setattr(module, name, function)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts = ", ".join(f"{name} {count}" for name, count in sorted(emulator.calls.items()))
    terminalreporter.write_line(f"calls on {emulator.level.name}, emulated: {counts}")


def pytest_sessionfinish(session: Any) -> None:
    if not emulator.calls and session.exitstatus == 0:
        session.exitstatus = 1  # nothing was tested
