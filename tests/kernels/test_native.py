"""Compiling, caching and doing without: with a small library of its own, in a cache folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertwright.kernels import native

needs_compiler = pytest.mark.skipif(native.find_compiler() is None, reason="no C++ compiler on this machine")
SOURCE = """extern "C" long triple(long x) {
    long sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 3; i++) sum += x;
    return sum;
}
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with one native source, an empty cache, and nothing remembered from other tests."""
    folder = tmp_path / "package"
    (folder / "room").mkdir(parents=True)
    (folder / "room" / "small.cpp").write_text(SOURCE)
    monkeypatch.setattr(native, "PACKAGE", folder)
    monkeypatch.setenv("BERTWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BERTWRIGHT_NATIVE", raising=False)
    for function in (native.load_library, native.find_compiler):
        function.cache_clear()
    yield folder
    for function in (native.load_library, native.find_compiler):
        function.cache_clear()


def compiled(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "native").iterdir())


@needs_compiler
def test_compiles_once_and_again_when_source_or_header_changes(package: Path, tmp_path: Path) -> None:
    library = native.load_library("small")
    assert library is not None
    assert library.triple(14) == 42
    (first,) = compiled(tmp_path)  # and no unfinished build beside it
    written = first.stat().st_mtime_ns
    native.load_library.cache_clear()
    assert native.load_library("small") is not None
    assert first.stat().st_mtime_ns == written
    (package / "room" / "beside.h").write_text("// any header may matter\n")
    native.load_library.cache_clear()
    assert native.load_library("small") is not None
    assert len(compiled(tmp_path)) == 2


@needs_compiler
def test_a_library_that_is_broken_in_the_cache_is_built_anew(
    package: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    compiler = native.find_compiler()
    assert compiler is not None
    path = native._build(package / "room" / "small.cpp", compiler)
    path.write_bytes(path.read_bytes()[:100])
    library = native.load_library("small")
    assert library is not None
    assert library.triple(14) == 42
    assert not capfd.readouterr().err


@needs_compiler
def test_the_compiler_may_be_given_with_arguments(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = native.find_compiler()
    assert plain is not None
    native.find_compiler.cache_clear()
    monkeypatch.setenv("CXX", f"env LC_ALL=C {plain[0]} -DUNUSED='a b'")
    compiler = native.find_compiler()
    assert compiler is not None
    assert compiler[1:] == ("LC_ALL=C", plain[0], "-DUNUSED=a b")
    source = package / "room" / "small.cpp"
    assert native._dlopen(source, compiler).triple(2) == 6
    assert native._build(source, compiler) != native._build(source, plain)


@needs_compiler
def test_processes_that_compile_at_once_do_not_disturb_each_other(package: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from bertwright.kernels import native\n"
        "native.PACKAGE = Path(sys.argv[1]); print(native.load_library('small').triple(5))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(package)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [process.communicate(timeout=60)[0] for process in running] == ["15\n"] * 4
    assert len(compiled(tmp_path)) == 1


@needs_compiler
def test_a_cache_that_cannot_be_written_is_done_without(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BERTWRIGHT_CACHE", str(tmp_path / "file" / "below"))
    library = native.load_library("small")
    assert library is not None
    assert library.triple(2) == 6


@pytest.mark.parametrize("name", ["no-such-compiler", "g++ -DX='a"])
def test_no_compiler_gives_one_note(
    package: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", name)
    assert native.load_library("small") is None
    native.load_library.cache_clear()
    assert native.load_library("small") is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"bertwright: note: no C++ compiler ({name}) found; Python does the native")


def test_native_0_is_silent(package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BERTWRIGHT_NATIVE", "0")
    assert native.load_library("small") is None
    assert capsys.readouterr().err == ""


@needs_compiler
def test_a_failing_compiler_is_quoted(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "room" / "small.cpp").write_text("int main( {\n")
    assert native.load_library("small") is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bertwright: note: small.cpp could not be built or loaded (")
    assert "error:" in line
    assert compiled(tmp_path) == []


@needs_compiler
def test_a_cache_that_nothing_can_be_run_from_is_named(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    native._build(package / "room" / "small.cpp", native.find_compiler() or []).write_bytes(b"not to be mapped")
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    assert native.load_library("small") is None
    (line,) = capsys.readouterr().err.splitlines()
    assert "could not be built or loaded (nothing can be run from" in line
    assert f"{tmp_path / 'cache' / 'native'}, mounted noexec; let BERTWRIGHT_CACHE name another folder" in line


@needs_compiler
def test_one_openmp_serves_torch_and_us() -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("/proc/self/maps is Linux's")
    program = (
        "from bertwright.kernels import ffi, native; import torch\n"
        "assert native.load_library('kernels'); torch.ones(9).exp()\n"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line}, sep='\\n')"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert len(result.stdout.split()) == 1, result.stdout


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTWRIGHT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert native.cache_folder() == Path("/somewhere/bertwright/native")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert native.cache_folder() == Path.home() / ".cache/bertwright/native"


def test_keeping_freed_memory_keeps_large_blocks_out_of_mmap() -> None:
    if sys.platform != "linux":
        pytest.skip("glibc only")
    program = (
        "import ctypes, platform; from bertwright.kernels import native; native.configure_malloc()\n"
        "c = ctypes.CDLL(None); c.malloc.restype = ctypes.c_void_p; c.malloc.argtypes = [ctypes.c_size_t]\n"
        "c.free.argtypes = [ctypes.c_void_p]\n"
        "block = c.malloc(100 << 20); c.free(block); assert c.malloc(100 << 20) == block\n"
        "heap = next(line for line in open('/proc/self/maps') if '[heap]' in line).split()[0]\n"
        "low, high = (int(part, 16) for part in heap.split('-'))\n"
        "print(platform.libc_ver()[0], low <= block < high)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.split() in (["glibc", "True"], ["False"])
