"""Native libraries: prebuilt in a wheel, or compiled once for this machine and cached; loaded with ctypes.

A native function is `extern "C"` in `NAME.cpp` within the package and has a Python implementation with the same result,
so a machine without a compiler is only slower. `BERTWRIGHT_NATIVE=0` selects Python, `compile` ignores prebuilt
libraries; `BERTWRIGHT_CACHE` moves the cache folder (default: `$XDG_CACHE_HOME/bertwright`, else
`~/.cache/bertwright`).

A wheel holds `kernels/prebuilt/NAME-LEVEL.so` for the levels of `cpu.LEVELS`; the best one for this processor is
loaded.

For each library the cache holds `NAME-KEY.so` and its digest `NAME-KEY.blake2b` or, if compilation failed, the message
`NAME-KEY.failed`. KEY is the digest of all that decides the library's content. Libraries are loaded only if no other
user can write to them and to their folder.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.util
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertwright.files import digest_bytes, digest_file, try_lock, write_text
from bertwright.kernels.compile import (
    REQUIREMENT,
    CompileError,
    Compiler,
    bundled_openmp,
    candidates,
    compile_flags,
    compile_library,
    find_compilers,
    read_sources,
    uses_openmp,
)
from bertwright.kernels.cpu import find_levels

PACKAGE = Path(__file__).parent.parent
PREBUILT = Path(__file__).parent / "prebuilt"
SECONDS_PER_BYTE = 6e-5  # of source: compile time on a processor of 2021
HOUR, DAY = 3_600, 86_400
UNUSED = 30 * DAY  # after this time without being loaded, a library is deleted
SLOWER = "the Python implementation is used, which is slower"


@functools.cache
def load_library(name: str) -> ctypes.CDLL | None:
    """Load the library of `NAME.cpp` and the headers beside it: prebuilt, from the cache, or compiled now.

    Returns None if `BERTWRIGHT_NATIVE=0`, or, with a note on stderr, if no compiler can compile it.
    """
    mode = os.environ.get("BERTWRIGHT_NATIVE")
    if mode == "0":
        return None
    if sys.platform == "win32":
        _warn(f"native kernels are built on Linux and macOS; {SLOWER}")
        return None
    (source,) = PACKAGE.rglob(f"{name}.cpp")
    sources, failures = read_sources(source), []
    prebuilt = [PREBUILT / f"{name}-{level.name}.so" for level in find_levels()]
    for path in prebuilt if mode != "compile" else []:
        if path.exists():
            try:
                if uses_openmp(sources):
                    _load_openmp()
                return ctypes.CDLL(str(path))
            except OSError as error:
                failures.append(str(error))
                break
    for compiler in find_compilers():
        try:
            return _load_with(compiler, source, sources)
        except (CompileError, OSError) as error:
            failures.append(f"{compiler}: {error}")
    if failures:
        _warn(f"{source.name} could not be compiled or loaded ({'; '.join(failures)}); {REQUIREMENT}; {SLOWER}")
    else:
        _warn(f"no C++ compiler ({', '.join(candidates())}) found; {REQUIREMENT}; {SLOWER}")
    return None


def describe_library(name: str) -> str:
    """Return a name that identifies a library's machine code, or "PyTorch" if there is none.

    In the cache, the name of a file has a digest of its sources; a prebuilt library gets one of its content.
    """
    library = load_library(name)
    if library is None:
        return "PyTorch"
    path = Path(library._name)
    return f"{path.stem}-{digest_file(path)[:16]}" if path.parent == PREBUILT else path.stem


@functools.cache
def triton_available() -> bool:
    """Return whether PyTorch can compile GPU kernels: it needs Triton, and Triton needs a C++ compiler."""
    if os.environ.get("BERTWRIGHT_NATIVE") == "0":
        return False
    return importlib.util.find_spec("triton") is not None and any(find_compilers())


def _warn(text: str) -> None:
    _print(f"note: {text}")


def _print(text: str) -> None:
    from bertwright.console import print_message  # imports rich, which only a message needs

    print_message(text)


def _load_with(compiler: Compiler, source: Path, sources: list[bytes]) -> ctypes.CDLL:
    """Load the library that a compiler makes of a source, from the first usable cache folder; compile it if needed.

    Raises CompileError if the compiler fails, OSError if no folder can be used.
    """
    openmp = uses_openmp(sources)
    levels = find_levels()
    flags = compile_flags(compiler, openmp, levels[0].flags if levels else ())
    if openmp:
        _load_openmp()
    key = digest_bytes(*sources, *(text.encode() for text in (*compiler.command, *flags, compiler.version)))
    failures = []
    for folder in cache_folders():
        library = folder / f"{source.stem}-{key}.so"
        try:
            if not is_intact(library):
                _build(library, source, compiler, flags)
            return _dlopen(library)
        except OSError as error:
            failures.append(str(error))
    raise OSError("; ".join(failures))


def _load_openmp() -> None:
    """Load torch's OpenMP library, which resolves the symbols of ours; a second one would start its own threads."""
    ctypes.CDLL(str(bundled_openmp() or "libgomp.so.1"), mode=ctypes.RTLD_GLOBAL)


def _dlopen(library: Path) -> ctypes.CDLL:
    try:
        loaded = ctypes.CDLL(str(library))
    except OSError:
        if os.statvfs(library).f_flag & getattr(os, "ST_NOEXEC", 0):  # macOS has no such constant
            fix = "set BERTWRIGHT_CACHE to another folder"
            raise OSError(f"{library.parent}: mounted noexec, libraries cannot be loaded from it; {fix}") from None
        raise
    if time.time() - library.stat().st_mtime > DAY and os.access(library, os.W_OK):
        os.utime(library)  # `_sweep` keeps what is in use
    return loaded


def is_intact(library: Path) -> bool:
    """Return whether a library is in the cache, undamaged, and cannot have been written by another user."""
    try:
        recorded = library.with_suffix(".blake2b").read_text(encoding="utf-8").strip()
        return _is_private(library.stat()) and digest_file(library) == recorded
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def _is_private(status: os.stat_result) -> bool:
    """Return whether only this user and root can write a file or folder."""
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _build(library: Path, source: Path, compiler: Compiler, flags: list[str]) -> None:
    """Compile a library into the cache; of several processes at the same time, one compiles and the others wait.

    Raises CompileError, without running the compiler if it failed within the last day; OSError if the folder cannot be
    written.
    """
    folder, failed = library.parent, library.with_suffix(".failed")
    with _hold_lock(library.with_suffix(".lock")):
        if is_intact(library):
            return
        if failed.exists() and time.time() - failed.stat().st_mtime < DAY:
            raise CompileError(f"{failed.read_text(encoding='utf-8').strip()} (delete {failed} to try again)")
        seconds = max(1, round(sum(map(len, read_sources(source))) * SECONDS_PER_BYTE))
        _print(f"compiling {source.name} for this machine, once (about {seconds} s)")
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build-") as work:
            try:
                built = compile_library(source, compiler, flags, Path(work))
            except CompileError as error:
                if error.transient:
                    raise OSError(str(error)) from None
                write_text(failed, f"{error}\n")
                raise
            built.chmod(0o755)
            write_text(library.with_suffix(".blake2b"), f"{digest_file(built)}\n")
            built.replace(library)
        _sweep(folder)


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """Acquire a lock file; on a file system without locks, proceed without it."""
    with path.open("w") as file:
        try:
            while not try_lock(file):
                time.sleep(0.05)
        except OSError:
            pass
        yield


def _sweep(folder: Path) -> None:
    """Delete temporaries of killed compilations, and unused libraries."""
    for path in folder.iterdir():
        try:
            age = time.time() - path.stat().st_mtime
            if path.name.startswith(".build-") and age > HOUR:
                shutil.rmtree(path)
            elif path.suffix in (".so", ".failed", ".lock") and age > UNUSED:
                path.unlink()
                if path.suffix == ".so":
                    path.with_suffix(".blake2b").unlink(missing_ok=True)
        except OSError:  # deleted by another process
            pass


def cache_folders() -> Iterator[Path]:
    """Yield the folders to load libraries from: the cache, then one in the temporary folder, then a new one there."""
    shared = Path(tempfile.gettempdir()) / f"bertwright-{os.geteuid()}"
    for folder in [cache_folder(), shared]:
        try:
            if folder is not None and _make_private(folder):
                yield folder
        except OSError:  # cannot be created or entered
            pass
    folder = Path(tempfile.mkdtemp(prefix="bertwright-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    yield folder


def _make_private(folder: Path) -> bool:
    """Create a folder, or make the user's own private; return whether only this user and root can write to it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    if status.st_uid == os.geteuid() and not _is_private(status):
        folder.chmod(status.st_mode & 0o755)
    if _is_private(folder.stat()) and folder.lstat().st_uid in (0, os.geteuid()):
        return True
    _warn(f"{folder}: other users can write to it, so nothing is loaded from it; chmod it, or set BERTWRIGHT_CACHE")
    return False


def cache_folder() -> Path | None:
    """Return the user's cache folder for libraries; None for a user without a home folder."""
    try:
        if chosen := os.environ.get("BERTWRIGHT_CACHE"):
            return Path(chosen).expanduser() / "native"
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bertwright" / "native"
    except RuntimeError:
        return None
