"""The C++ compilers of this machine: finding them, and compiling a source into a shared library."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# No -ffast-math: infinities and NaN must be preserved. Loops vectorize once errno and traps are off, contraction on.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
# -Wno-psabi: vectors are passed between functions of one file only.
LINUX_FLAGS = ("-fno-semantic-interposition", "-Wno-psabi")
REQUIREMENT = "the kernels need g++ 11 or clang++ 14, or newer"


class CompileError(Exception):
    """A failed compilation; the text is the compiler's first error."""


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: its command, which may have arguments (`ccache g++`), and what it prints for --version."""

    command: tuple[str, ...]
    version: str

    @property
    def is_clang(self) -> bool:
        return re.search("clang|oneAPI", self.version) is not None

    def __str__(self) -> str:
        return shlex.join([Path(self.command[0]).name, *self.command[1:]])


def candidates() -> list[str]:
    """Return the commands to try, in order."""
    return [name for name in (os.environ.get("CXX"), "g++", "c++", "clang++") if name]


def find_compilers() -> Iterator[Compiler]:
    """Yield the C++ compilers of this machine, each program once: `CXX` if set, g++, c++, clang++."""
    seen = set()
    for name in candidates():
        try:
            program, *arguments = [name] if shutil.which(name) else shlex.split(name) or [""]
        except ValueError:  # an unclosed quotation mark
            continue
        path = shutil.which(program)
        if path is None or (identity := (Path(path).resolve(), *arguments)) in seen:
            continue
        seen.add(identity)
        if version := _version((path, *arguments)):
            yield Compiler((path, *arguments), version)


@functools.cache
def _version(command: tuple[str, ...]) -> str | None:
    """Return what a compiler prints for --version; None if it cannot be run."""
    try:
        return subprocess.run(
            [*command, "--version"], capture_output=True, check=True, text=True, errors="replace", timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def read_sources(source: Path) -> list[bytes]:
    """Return the content of a source and of all headers that it includes, directly or through another header."""
    paths = [source.resolve()]
    for path in paths:  # grows meanwhile
        for name in re.findall(r'^#include "(.+)"', path.read_text(encoding="utf-8"), flags=re.M):
            header = (path.parent / name).resolve()
            paths += [header] if header not in paths else []
    return [path.read_bytes() for path in paths]


def uses_openmp(sources: list[bytes]) -> bool:
    return any(b"#pragma omp" in text for text in sources)


def bundled_openmp() -> Path | None:
    """Return the OpenMP library in torch's package. A second one in the process would start its own threads."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    folder = Path(torch.origin).parent / "lib"
    names = ("libgomp*.so*", "libomp*.so*", "libiomp5*.so*", "libomp*.dylib", "libiomp5*.dylib")
    return next((path for name in names for path in sorted(folder.glob(name))), None)


def compile_flags(compiler: Compiler, openmp: bool, march: Sequence[str]) -> list[str]:
    """Return the flags that compile a library; `march`: flags of the instruction set.

    Raises CompileError if the compiler needs another OpenMP library than torch's.
    """
    flags = [*FLAGS, *march, *(LINUX_FLAGS if sys.platform == "linux" else ())]
    if not openmp:
        return flags
    bundled = bundled_openmp()
    if bundled is not None and compiler.is_clang and bundled.name.startswith("libgomp"):
        raise CompileError(f"it needs libomp, but torch has {bundled.name}; use g++")
    if sys.platform == "darwin" and not compiler.is_clang:
        raise CompileError("it needs libgomp, but torch has libomp; use clang++")
    return [*flags, *(["-Xclang", "-fopenmp"] if sys.platform == "darwin" else ["-fopenmp"])]


def accepts(compiler: Compiler, flags: Sequence[str]) -> bool:
    """Return whether a compiler knows all flags."""
    command = [*compiler.command, *flags, "-fsyntax-only", "-x", "c++", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def compile_library(
    source: Path, compiler: Compiler, flags: Sequence[str], folder: Path, link_flags: Sequence[str] = ()
) -> Path:
    """Compile and link a source within `folder`; return the library. Raises CompileError.

    `link_flags`: more arguments of the linking command, such as a second source.

    The library names no OpenMP library: torch's is loaded first and resolves the symbols. Therefore compiling and
    linking are separate steps; -fopenmp in the second would add the system's OpenMP library.
    """
    compiled, linked = folder / "compiled.o", folder / "linked.so"
    unresolved = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    for command in (
        [*compiler.command, *flags, "-c", str(source), "-o", str(compiled)],
        [*compiler.command, "-shared", str(compiled), *link_flags, *unresolved, "-o", str(linked)],
    ):
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if result.returncode != 0:
            lines = result.stderr.splitlines() or [f"exit code {result.returncode}"]
            first = next((line for line in lines if "error" in line), lines[0])
            raise CompileError(first)
    return linked
