"""Compiling, caching and verifying native libraries, and doing without: on a small library in a cache of its own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertwright.kernels import compile as compilation
from bertwright.kernels import native_library
from bertwright.kernels.compile import CompileError, Compiler, compile_flags, find_compilers, uses_openmp
from bertwright.kernels.instruction_sets import InstructionSet, find_levels

needs_compiler = pytest.mark.skipif(not any(find_compilers()), reason="no C++ compiler on this machine")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can create files of other users")
SOURCE = """extern "C" long triple(long x) {
    long sum = 0;
#pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 3; i++) sum += x;
    return sum;
}
"""
NOBODY = 65_534
NO_FLAGS: list[str] = []


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create a package with one native source, and an empty cache."""
    folder = tmp_path / "package"
    (folder / "room").mkdir(parents=True)
    (folder / "room" / "small.cpp").write_text(SOURCE)
    monkeypatch.setattr(native_library, "PACKAGE", folder)
    monkeypatch.setenv("BERTWRIGHT_CACHE", str(tmp_path / "cache"))
    for name in ("BERTWRIGHT_NATIVE", "CXX"):
        monkeypatch.delenv(name, raising=False)
    native_library.load_library.cache_clear()
    yield folder
    native_library.load_library.cache_clear()


def load_again() -> ctypes.CDLL | None:
    native_library.load_library.cache_clear()
    return native_library.load_library("small")


def works() -> bool:
    library = load_again()
    return library is not None and library.triple(14) == 42


def run_elsewhere(package: Path, expression: str) -> subprocess.Popen[str]:
    """Start a process of its own that prints an expression with the `library`: here, the first one is still mapped."""
    program = (
        "import sys; from pathlib import Path; from bertwright.kernels import native_library\n"
        "native_library.PACKAGE = Path(sys.argv[1]); library = native_library.load_library('small')\n"
        f"print({expression})"
    )
    command = [sys.executable, "-c", program, str(package)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def list_cached(folder: Path, suffix: str = ".so") -> list[Path]:
    return sorted(folder.rglob(f"*{suffix}"))


def fake_compiler(path: Path, script: str) -> str:
    """Create a program that reports a version as a compiler does."""
    path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{path.name} 1.0"; exit 0; fi\n{script}\n')
    path.chmod(0o755)
    return str(path)


@needs_compiler
def test_source_is_compiled_once_and_again_when_it_or_a_header_changes(
    package: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert works()
    assert capfd.readouterr().err == "bertwright: compiling small.cpp for this machine, once (about 1 s)\n"
    (first,) = list_cached(tmp_path)
    written = first.stat().st_mtime_ns
    assert works()
    assert first.stat().st_mtime_ns == written
    assert capfd.readouterr().err == ""
    header = package / "room" / "outer.h"
    header.write_text('#include "../inner.h"\n')
    (package / "inner.h").write_text("")
    (package / "room" / "small.cpp").write_text(f'#include "{header.name}"\n{SOURCE}')
    assert works()
    (package / "inner.h").write_text("// a header of a header counts\n")
    assert works()
    assert len(list_cached(tmp_path)) == 3


@needs_compiler
@pytest.mark.parametrize("damage", ["cut", "bit", "other library", "no digest"])
def test_a_damaged_library_is_rebuilt(package: Path, tmp_path: Path, damage: str) -> None:
    assert works()
    (path,) = list_cached(tmp_path)
    whole, digest = path.read_bytes(), path.with_suffix(".blake2b")
    path.unlink()  # this process has the library mapped: damaging that file would end it with a bus error
    if damage == "cut":
        path.write_bytes(whole[:100])
    elif damage == "bit":
        path.write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
    elif damage == "other library":  # loadable, but lacks the function
        (package / "room" / "small.cpp").write_text('extern "C" long other() { return 1; }')
        assert load_again() is not None
        (other,) = {*list_cached(tmp_path)} - {path}
        path.write_bytes(other.read_bytes())
        (package / "room" / "small.cpp").write_text(SOURCE)
    else:
        path.write_bytes(whole)
        digest.unlink()
    native_library.load_library.cache_clear()
    assert run_elsewhere(package, "library.triple(5)").communicate(timeout=60)[0] == "15\n"
    assert path.read_bytes() == whole


@needs_compiler
def test_the_compiler_may_have_arguments(package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert works()
    plain = next(find_compilers()).command[0]
    monkeypatch.setenv("CXX", f"env LC_ALL=C {plain} -DUNUSED='a b'")
    assert next(find_compilers()).command[1:] == ("LC_ALL=C", plain, "-DUNUSED=a b")
    assert works()
    assert len(list_cached(tmp_path)) == 2


@needs_compiler
@pytest.mark.parametrize("broken", ["missing", "fails", "a quotation mark: '"])
def test_next_compiler_is_tried_after_a_broken_cxx(
    package: Path, broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = fake_compiler(tmp_path / "fails", "echo 'x.cpp: error: no' >&2; exit 1")
    monkeypatch.setenv("CXX", fails if broken == "fails" else broken)
    assert works()


@needs_compiler
def test_processes_that_start_together_compile_once(package: Path, tmp_path: Path) -> None:
    running = [run_elsewhere(package, "library.triple(5)") for _ in range(4)]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [out for out, _ in outputs] == ["15\n"] * 4
    assert sum(err.count("compiling small.cpp") for _, err in outputs) == 1
    assert len(list_cached(tmp_path)) == 1


@needs_compiler
def test_compiling_does_not_wait_for_another_library(package: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "native"
    folder.mkdir(parents=True, mode=0o700)
    with (folder / "kernels-other.lock").open("w") as file:
        assert native_library.try_lock(file)
        assert works()


@needs_compiler
def test_libraries_are_compiled_on_a_file_system_without_locks(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_lock(_: Any) -> bool:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(native_library, "try_lock", fail_to_lock)
    assert works()


@needs_compiler
@pytest.mark.parametrize("case", ["below a file", "no home", pytest.param("planted link", marks=needs_root)])
def test_without_a_usable_cache_python_is_used_and_the_variable_is_named(
    case: str,
    package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cache = tmp_path / "cache"
    if case == "no home":
        for name in ("BERTWRIGHT_CACHE", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)

        def fail_to_expand(self: Path) -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "expanduser", fail_to_expand)
    elif case == "below a file":
        cache.write_text("")
    else:  # of another user, to redirect what this user writes
        cache.mkdir()
        (cache / "native").symlink_to(package, target_is_directory=True)
        os.lchown(cache / "native", NOBODY, NOBODY)
    assert load_again() is None
    (line,) = capsys.readouterr().err.splitlines()
    assert "BERTWRIGHT_CACHE" in line
    assert case == "no home" or str(cache) in line
    assert not list_cached(tmp_path)


@needs_compiler
@needs_root
@pytest.mark.parametrize("planted", ["file of another user", "file that others can write to", "folder of another user"])
def test_a_library_that_others_could_have_written_is_not_loaded(
    planted: str, package: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Findings B2 and M4: the planted library, complete with its digest, would write a file when loaded."""
    assert works()
    (path,) = list_cached(tmp_path)
    folder = path.parent
    evil = tmp_path / "evil.cpp"
    evil.write_text(f'#include <cstdio>\nstatic int e = (fclose(fopen("{tmp_path}/PWNED", "w")), 1);\n{SOURCE}')
    subprocess.run(["g++", "-shared", "-fPIC", str(evil), "-o", str(path)], check=True)
    path.with_suffix(".blake2b").write_text(native_library.digest_file(path))
    path.chmod(0o777 if "can write" in planted else 0o755)
    if planted == "file of another user":
        os.chown(path, NOBODY, NOBODY)
    if planted == "folder of another user":
        os.chown(folder, NOBODY, NOBODY)
    capfd.readouterr()
    output, errors = run_elsewhere(package, "library is not None").communicate(timeout=60)
    assert not (tmp_path / "PWNED").exists()
    assert output == f"{planted != 'folder of another user'}\n"
    assert (f"note: {folder}" in errors) == (planted == "folder of another user")


@needs_compiler
def test_the_cache_is_private_under_any_umask(package: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert works()
        (path,) = list_cached(tmp_path)
        assert path.parent.stat().st_mode & 0o022 == 0
        assert path.stat().st_mode & 0o022 == 0
        path.parent.chmod(0o777)
        assert works()
        assert path.parent.stat().st_mode & 0o022 == 0
    finally:
        os.umask(before)


@pytest.mark.parametrize("name", ["no-such-compiler", "no-such-compiler -DX='a"])
def test_without_a_compiler_one_note_is_printed(
    package: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", name)
    monkeypatch.setenv("PATH", str(package))
    assert native_library.load_library("small") is None
    assert native_library.load_library("small") is None
    (line,) = capsys.readouterr().err.splitlines()
    assert f"no C++ compiler ({name}, g++, c++, clang++) found" in line


def test_bertwright_native_0_prints_nothing(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BERTWRIGHT_NATIVE", "0")
    assert native_library.load_library("small") is None
    assert capsys.readouterr().err == ""


def test_notes_have_no_control_characters(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(native_library, "find_compilers", lambda: iter(()))
    monkeypatch.setenv("CXX", "g++\x1b[2J")
    assert native_library.load_library("small") is None
    assert r"g++\x1b[2J, g++" in capsys.readouterr().err


@needs_compiler
def test_a_compiler_older_than_the_processor_compiles_for_the_best_level_that_it_knows(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    known = find_levels()[-1]
    newer = [InstructionSet(name, ("-march=of-2030",), frozenset()) for name in ("of-2031", "of-2030")]
    monkeypatch.setattr(native_library, "find_levels", lambda: [*newer, known])
    for _ in range(2):  # the second process finds the library of the first one
        assert load_again() is not None
    assert capfd.readouterr().err.count("compiling small.cpp") == 1
    assert len(list_cached(tmp_path)) == 1

    monkeypatch.setenv("BERTWRIGHT_ISA", "of-2031")  # no other level has the same bits
    assert load_again() is None
    assert "of-2030" in capfd.readouterr().err


@needs_compiler
def test_the_error_of_a_failing_compiler_is_printed(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (package / "room" / "small.cpp").write_text("int main( {\n")
    assert native_library.load_library("small") is None
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("bertwright: note: small.cpp could not be compiled or loaded (")
    assert "error:" in line
    assert "g++ 11" in line
    assert list_cached(tmp_path) == []


@needs_compiler
def test_a_cache_mounted_noexec_is_named(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_to_load(path: str, **_: Any) -> ctypes.CDLL:
        if path.endswith(".so"):
            raise OSError(f"{path}: failed to map segment from shared object")
        return SimpleNamespace()  # type: ignore[return-value]

    monkeypatch.setattr(ctypes, "CDLL", fail_to_load)
    assert native_library.load_library("small") is None
    line = capsys.readouterr().err.splitlines()[-1]
    assert str(tmp_path / "cache" / "native") in line
    assert "BERTWRIGHT_CACHE" in line
    assert "noexec" in line


def test_flags_follow_library_compiler_and_system(monkeypatch: pytest.MonkeyPatch) -> None:
    gcc = Compiler(("/usr/bin/g++",), "g++ (Debian 12.2.0-14) 12.2.0")
    clang = Compiler(("/usr/bin/clang++",), "Debian clang version 19.1.7")
    apple = Compiler(("/usr/bin/g++",), "Apple clang version 16.0.0")
    assert uses_openmp([b"", b"#pragma omp parallel\n"])
    assert not uses_openmp([b"int x;"])
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(compilation, "bundled_openmp", lambda: Path("/torch/lib/libgomp.so.1"))
    assert "-fopenmp" in compile_flags(gcc, True, NO_FLAGS)
    assert not [flag for flag in compile_flags(clang, False, NO_FLAGS) if "openmp" in flag]
    with pytest.raises(CompileError, match=r"libomp.*libgomp\.so\.1.*g\+\+"):  # two runtimes in one process
        compile_flags(clang, True, NO_FLAGS)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(compilation, "bundled_openmp", lambda: Path("/torch/lib/libomp.dylib"))
    flags = compile_flags(apple, True, NO_FLAGS)
    assert flags[-2:] == ["-Xclang", "-fopenmp"]
    assert "-fno-semantic-interposition" not in flags
    with pytest.raises(CompileError, match=r"libgomp.*libomp.*clang\+\+"):
        compile_flags(gcc, True, NO_FLAGS)


def test_openmp_of_torch_is_found_on_each_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lib").mkdir()
    origin = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(compilation.importlib.util, "find_spec", lambda _: origin)
    assert compilation.bundled_openmp() is None
    for name in ("libomp.dylib", "libgomp.so.1"):
        (tmp_path / "lib" / name).write_text("")
        assert compilation.bundled_openmp() == tmp_path / "lib" / name


@needs_compiler
def test_torch_and_the_kernels_share_one_openmp() -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("/proc/self/maps is Linux's")
    named = "from bertwright.kernels import native_library"
    for order in (f"import torch; {named}", named):
        program = (
            f"{order}; assert native_library.load_library('kernels'); import torch; torch.ones(9).exp()\n"
            "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'omp' in line}, sep='\\n')"
        )
        result = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
        )
        assert len(result.stdout.split()) == 1, result.stdout


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTWRIGHT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert native_library.cache_folder() == Path("/somewhere/bertwright/native")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert native_library.cache_folder() == Path.home() / ".cache/bertwright/native"


def test_on_windows_one_note_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    native_library.load_library.cache_clear()
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delenv("BERTWRIGHT_NATIVE", raising=False)
    assert native_library.load_library("kernels") is None
    native_library.load_library.cache_clear()
    (line,) = capsys.readouterr().err.splitlines()
    assert "Linux and macOS" in line


@pytest.mark.skipif(os.environ.get("BERTWRIGHT_REQUIRE_NATIVE") != "1", reason="set by `make test`")
def test_required_kernels_load() -> None:
    """Without this test, CI on a machine without a compiler would skip every kernel test and pass (finding L10)."""
    assert native_library.load_library("kernels") is not None
    assert native_library.load_library("wordpiece") is not None


@needs_compiler
def test_flags_depend_on_the_level_and_not_on_the_processor_model(package: Path, tmp_path: Path) -> None:
    """Findings M5 and L6: a level gives the same bits on all machines, and compiler caches can be shared."""
    log, real = tmp_path / "log", next(find_compilers()).command[0]
    logging = fake_compiler(tmp_path / "logging", f'echo "$@" >> {log}; exec {real} "$@"')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", logging)
        assert works()
    compiling = log.read_text().splitlines()[0].split()
    assert "-march=native" not in compiling
    for level in find_levels()[:1]:
        assert set(compiling) >= set(level.flags)
