"""Native libraries: prebuilt in a wheel, or compiled once for this machine and cached; loaded with ctypes.

A native function is `extern "C"` in `NAME.cpp` within the package and has a Python implementation with the same result,
so a machine without a compiler is only slower. `BERTWRIGHT_NATIVE=0` selects Python, `BERTWRIGHT_NATIVE=compile`
ignores prebuilt libraries; `BERTWRIGHT_CACHE` moves the cache folder (default: `$XDG_CACHE_HOME/bertwright`, else
`~/.cache/bertwright`).

A wheel holds `kernels/prebuilt/NAME-LEVEL.so` for the levels of `instruction_sets.INSTRUCTION_SETS`; the best one for
this processor is loaded.

The cache holds `NAME-KEY.so` and its digest `NAME-KEY.blake2b` for each library. KEY is the digest of sources, flags
and compiler. Libraries are loaded only if no other user can write to them and to their folder.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from bertwright.base.files import digest_bytes, digest_file, try_lock, user_cache, write_text
from bertwright.base.messages import print_message
from bertwright.kernels.compile import (
    REQUIREMENT,
    CompileError,
    Compiler,
    accepts,
    bundled_openmp,
    candidates,
    compile_flags,
    compile_library,
    find_compilers,
    read_sources,
    uses_openmp,
)
from bertwright.kernels.instruction_sets import find_levels

PACKAGE = Path(__file__).parent.parent
PREBUILT = Path(__file__).parent / "prebuilt"
SECONDS_PER_BYTE = 6e-5  # compile time per byte of source on a processor of 2021
SLOWER = "the Python implementation is used, which is slower"


@functools.cache
def load_library(name: str) -> ctypes.CDLL | None:
    """Load the library of `NAME.cpp` and its headers: prebuilt, from the cache, or compiled now.

    Returns None if `BERTWRIGHT_NATIVE=0`, or, with a note on stderr, if it cannot be compiled or loaded.
    """
    mode = os.environ.get("BERTWRIGHT_NATIVE")
    if mode == "0":
        return None
    if sys.platform == "win32":
        print_message(f"note: native kernels are built on Linux and macOS; {SLOWER}")
        return None
    (source,) = PACKAGE.rglob(f"{name}.cpp")
    sources, failures = read_sources(source), []
    prebuilt = [PREBUILT / f"{name}-{level.name}.so" for level in find_levels() if mode != "compile"]
    try:
        if path := next(filter(Path.exists, prebuilt), None):
            return _dlopen(path, sources)
    except OSError as error:
        failures.append(str(error))
    for compiler in find_compilers():
        try:
            return _load_with(compiler, source, sources)
        except CompileError as error:
            failures.append(f"{compiler}: {error}")
        except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home folder
            print_message(
                f"note: {error}; set BERTWRIGHT_CACHE to a folder of yours that is not mounted noexec; {SLOWER}"
            )
            return None
    problem = f"no C++ compiler ({', '.join(candidates())}) found"
    if failures:
        problem = f"{source.name} could not be compiled or loaded ({'; '.join(failures)})"
    print_message(f"note: {problem}; {REQUIREMENT}; {SLOWER}")
    return None


def describe_library(name: str) -> str:
    """Return a name of a library's instruction set and code, with a digest, or "PyTorch" if there is no library."""
    library = load_library(name)
    if library is None:
        return "PyTorch"
    path = Path(library._name)
    return f"{path.stem}-{digest_file(path)[:16]}" if path.parent == PREBUILT else path.stem


@functools.cache
def triton_available() -> bool:
    """Return whether kernels for a GPU can be compiled: by Triton, which needs a compiler for its launchers.

    If not, prints a note, once.
    """
    if os.environ.get("BERTWRIGHT_NATIVE") == "0":
        return False
    missing = "no Triton (pip install triton)" if importlib.util.find_spec("triton") is None else ""
    missing = missing or ("" if any(find_compilers()) else f"no C++ compiler ({', '.join(candidates())})")
    if missing:
        print_message(f"note: {missing} found, so the GPU runs PyTorch's operations one by one, which is slower")
    return not missing


triton_problems: list[str] = []
"""The failed check of a Triton kernel, after which this process does without them (`kernels/triton_check.py`)."""


def disable_triton(problem: str) -> None:
    """Run PyTorch's operations instead of Triton's kernels from now on, and print why."""
    triton_problems.append(problem)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "triton"))
    print_message(
        f"note: a Triton kernel failed its check on this GPU, so this process computes everything with PyTorch's "
        f"operations, which are slower but right; please report this line with the name of the GPU: {versions}; "
        f"{problem}"
    )


def _load_with(compiler: Compiler, source: Path, sources: list[bytes]) -> ctypes.CDLL:
    """Load a library from the cache; compile it if needed.

    Raises CompileError if the compiler fails, OSError if the cache cannot be used, RuntimeError without a home folder.
    """
    folder = cache_folder()
    _make_private(folder)
    levels = [level.flags for level in find_levels()] or [()]
    if os.environ.get("BERTWRIGHT_ISA"):
        del levels[1:]  # the others have other bits
    while True:
        flags = compile_flags(compiler, uses_openmp(sources), levels[0])
        key = digest_bytes(*sources, *(text.encode() for text in (*compiler.command, *flags, compiler.version)))
        library = folder / f"{source.stem}-{key}.so"
        if is_intact(library):
            break
        if len(levels) == 1 or accepts(compiler, flags):
            _build(library, source, compiler, flags)
            break
        del levels[0]  # the compiler is older than the processor
    return _dlopen(library, sources)


def _dlopen(library: Path, sources: list[bytes]) -> ctypes.CDLL:
    """Load a library, after torch's OpenMP library, which resolves its symbols.

    Another OpenMP library would start its own threads.
    """
    if uses_openmp(sources):
        ctypes.CDLL(str(bundled_openmp() or "libgomp.so.1"), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(library))


def cache_folder() -> Path:
    """Return the user's cache folder for libraries. Raises RuntimeError for a user without a home folder."""
    return user_cache() / "native"


def _make_private(folder: Path) -> None:
    """Create a folder, or make the user's own private. Raises OSError if another user can write to it."""
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    status = folder.stat()
    if status.st_uid == os.geteuid() and not _is_private(status):
        folder.chmod(status.st_mode & 0o755)
    if not _is_private(folder.stat()) or folder.lstat().st_uid not in (0, os.geteuid()):
        raise OSError(f"{folder}: other users can write to it, so nothing is loaded from it")


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def is_intact(library: Path) -> bool:
    """Return whether a library is in the cache, undamaged, and cannot have been written by another user."""
    try:
        recorded = library.with_suffix(".blake2b").read_text(encoding="utf-8").strip()
        return _is_private(library.stat()) and digest_file(library) == recorded
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _build(library: Path, source: Path, compiler: Compiler, flags: list[str]) -> None:
    """Compile a library into the cache; if several processes do so at the same time, only one compiles."""
    with library.with_suffix(".lock").open("w") as lock:
        with suppress(OSError):  # a file system without locks
            while not try_lock(lock):
                time.sleep(0.05)
        if is_intact(library):
            return
        seconds = max(1, round(sum(map(len, read_sources(source))) * SECONDS_PER_BYTE))
        print_message(f"compiling {source.name} for this machine, once (about {seconds} s)")
        with tempfile.TemporaryDirectory(dir=library.parent, prefix=".build-") as work:
            built = compile_library(source, compiler, flags, Path(work))
            built.chmod(0o755)
            write_text(library.with_suffix(".blake2b"), f"{digest_file(built)}\n")
            built.replace(library)
