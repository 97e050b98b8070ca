"""C++ beside the Python that calls it: compiled once for this machine, cached, loaded with ctypes.

A native function is `extern "C"` in `NAME.cpp` somewhere in the package and has a twin in Python with the same result,
so a machine without a compiler is slower and nothing else. `BERTWRIGHT_NATIVE=0` asks for the twins;
`BERTWRIGHT_CACHE` moves the cache folder (else `$XDG_CACHE_HOME/bertwright`, else `~/.cache/bertwright`).
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bertwright.files import digest_bytes, sync

PACKAGE = Path(__file__).parent.parent
# No -ffast-math: a number that is not finite must arrive as such. What is left off are errno, traps and strict fusing.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fPIC",
    "-fopenmp",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fno-semantic-interposition",
    "-Wno-psabi",  # vectors are passed between functions of one file only
)


class CompileError(Exception):
    """The compiler's first error line."""


@functools.cache
def load_library(name: str) -> ctypes.CDLL | None:
    """Load the library made of `NAME.cpp` and the headers beside it, compiling it if this machine has not yet.

    Returns None, with one note on stderr, where that cannot be done: the caller then uses the Python twin.
    """
    if os.environ.get("BERTWRIGHT_NATIVE") == "0":
        return None
    compiler = find_compiler()
    if compiler is None:
        return None
    (source,) = PACKAGE.rglob(f"{name}.cpp")
    try:
        return _dlopen(source, compiler)
    except (CompileError, OSError, subprocess.CalledProcessError) as error:
        _warn(f"{source.name} could not be built or loaded ({error}); Python does its work, more slowly")
        return None


@functools.cache
def find_compiler() -> tuple[str, ...] | None:
    """The C++ compiler as a command: `CXX` if set, which may have arguments (ccache g++), else g++, else c++."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "c++"]
    for name in names:
        try:
            program, *arguments = [name] if shutil.which(name) else shlex.split(name) or [""]
        except ValueError:  # a quotation mark that nothing closes
            continue
        if path := shutil.which(program):
            return path, *arguments
    _warn(f"no C++ compiler ({', '.join(names)}) found; Python does the native kernels' work, several times slower")
    return None


@functools.cache
def triton_available() -> bool:
    """Whether PyTorch can make GPU kernels of Python here: with Triton, and the compiler that Triton needs."""
    if os.environ.get("BERTWRIGHT_NATIVE") == "0":
        return False
    return importlib.util.find_spec("triton") is not None and find_compiler() is not None


def _warn(text: str) -> None:
    print(f"bertwright: note: {text}\n", end="", file=sys.stderr, flush=True)  # at once: other ranks write there, too


def _dlopen(source: Path, compiler: Sequence[str]) -> ctypes.CDLL:
    """The library made of a source; one that a power cut or a full disk has left broken in the cache is built anew."""
    path = _build(source, compiler)
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        if os.statvfs(path).f_flag & os.ST_NOEXEC:
            way_out = "let BERTWRIGHT_CACHE name another folder"
            raise OSError(f"nothing can be run from {path.parent}, mounted noexec; {way_out}") from None
        return ctypes.CDLL(str(_build(source, compiler, anew=True)))


def _build(source: Path, compiler: Sequence[str], anew: bool = False) -> Path:
    """The compiled library's path in the cache; its name is the digest of all that decides its content.

    `anew`: in place of the one that is there.
    """
    texts = [path.read_bytes() for path in [source, *sorted(source.parent.glob("*.h"))]]
    openmp = bundled_openmp()
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=True).stdout
    key = digest_bytes(
        *texts, " ".join([*compiler[1:], *FLAGS]).encode(), str(openmp).encode(), version, cpu_fingerprint().encode()
    )
    file_name = f"{source.stem}-{key}.so"
    folder = cache_folder()
    if (folder / file_name).exists() and not anew:
        return folder / file_name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        workplace = tempfile.TemporaryDirectory(dir=folder, prefix=".build-")
    except OSError:  # a cache that cannot be written: this process compiles for itself
        folder = Path(tempfile.mkdtemp(prefix="bertwright-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        workplace = tempfile.TemporaryDirectory(dir=folder, prefix=".build-")
    with workplace as part:
        # Renaming is atomic: of processes that compile at once the last one wins, with the same content.
        made = compile_library(source, compiler, openmp, Path(part))
        sync(made)
        return made.replace(folder / file_name)


def compile_library(source: Path, compiler: Sequence[str], openmp: Path | None, folder: Path) -> Path:
    """Compile and link in two steps, since -fopenmp at linking would ask for the system's OpenMP."""
    compiled, linked = folder / "compiled.o", folder / "linked.so"
    link = [str(openmp), f"-Wl,-rpath,{openmp.parent}"] if openmp else ["-fopenmp"]
    for command in (
        [*compiler, *FLAGS, "-c", str(source), "-o", str(compiled)],
        [*compiler, "-shared", str(compiled), "-Wl,--as-needed", *link, "-o", str(linked)],
    ):
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if result.returncode != 0:
            lines = result.stderr.splitlines() or [f"exit code {result.returncode}"]
            raise CompileError(next((line for line in lines if "error" in line), lines[0]))
    return linked


def bundled_openmp() -> Path | None:
    """The OpenMP library that torch brings: two of them in one process would each start threads for every core."""
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        return None
    return next(iter(sorted((Path(torch.origin).parent / "lib").glob("libgomp*.so*"))), None)


def cache_folder() -> Path:
    if chosen := os.environ.get("BERTWRIGHT_CACHE"):
        return Path(chosen).expanduser() / "native"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bertwright" / "native"


def cpu_fingerprint() -> str:
    """What -march=native depends on; a cache folder may be shared by unlike machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    told = (line for line in lines if line.startswith(("flags", "Features", "CPU part", "model name")))
    return "\n".join([platform.machine(), *sorted(set(told))])


def configure_malloc() -> None:
    """Let malloc keep what is freed, so that each step finds its large blocks in place of asking the system again.

    glibc otherwise maps every block above 32 MB, faults it in page by page, and unmaps it, in every step.
    Elsewhere this does nothing.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, mmap_max = -1, -4  # M_TRIM_THRESHOLD, M_MMAP_MAX of malloc.h
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(trim_threshold, -1)
    mallopt(mmap_max, 0)
