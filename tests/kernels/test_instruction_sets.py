"""The kernel tests on other instruction sets, and the warnings of two compilers for every instruction set."""

from __future__ import annotations

import platform
import shutil
import subprocess
from typing import Any

import instruction_sets
import pytest

from bertwright.kernels import native_library
from bertwright.kernels.compile import FLAGS
from bertwright.kernels.instruction_sets import INSTRUCTION_SETS, InstructionSet

needs_gcc = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")


def check(result: subprocess.CompletedProcess[str], passed: str) -> None:
    assert result.returncode == 0, result.stdout + result.stderr
    assert passed in result.stdout


LOWER = [*instruction_sets.native_targets()][1:]  # all other tests run on the best one


@needs_gcc
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != LOWER[-1])) for name in LOWER])
def test_kernels_on_a_lower_instruction_set_pass(name: str) -> None:
    check(instruction_sets.run(instruction_sets.native_targets()[name], "-k", "not compiles"), " passed")


def missing_micro_kernels() -> list[Any]:
    """Return emulated targets for the bfloat16 micro-kernels that this processor cannot run; one library serves all.

    They are slow tests but for one, where the processor has no bfloat16 units at all.
    """
    if platform.machine() != "x86_64":
        return []
    available = {target.bf16_isa for target in instruction_sets.native_targets().values()}
    missing = [name for name in ("amx", "amx-denied") if instruction_sets.EMULATED[name].bf16_isa not in available]
    is_slow = {name: name != "amx" or available != {None} for name in missing}
    return [pytest.param(name, marks=[pytest.mark.slow] * is_slow[name]) for name in missing]


@needs_gcc
@pytest.mark.parametrize("name", missing_micro_kernels())
def test_emulated_bfloat16_kernels_pass(name: str) -> None:
    """Without this test, no bfloat16 kernel would be tested on processors without units for it.

    Of the whole encoder two variants of 36 are tested, because emulation is slow; the slow tests run all.
    """
    few = "not False-gelu and not -reversed and not -none and not layers.1"
    selected = ("-m", "bfloat16", "-k", few, "tests/kernels/test_ffi.py")
    check(instruction_sets.run(instruction_sets.EMULATED[name], *selected), " passed")


@needs_gcc
@pytest.mark.slow
@pytest.mark.parametrize("name", ["avx-vnni", "avx512", "avx512-vnni", "amx"])
def test_emulated_int8_kernels_pass(name: str) -> None:
    check(instruction_sets.run(instruction_sets.EMULATED[name], "-k", "int8"), " passed")


@needs_gcc
@pytest.mark.slow
@pytest.mark.parametrize("name", instruction_sets.EMULATED)
def test_kernels_on_an_emulated_instruction_set_pass(name: str) -> None:
    check(instruction_sets.run(instruction_sets.EMULATED[name]), " passed")


def compilations(compiler: str, machine: str) -> list[Any]:
    """Return a compiler with each instruction set of a machine; every second one is left to the slow tests."""
    return [
        pytest.param(compiler, level, marks=[pytest.mark.slow] * (number % 2), id=f"{compiler}-{level.name}")
        for number, level in enumerate(INSTRUCTION_SETS[machine])
    ]


@pytest.mark.parametrize(
    ("compiler", "level"),
    [
        *compilations("g++", "x86_64"),
        *compilations("clang++", "x86_64"),
        *compilations("aarch64-linux-gnu-g++", "aarch64"),
    ],
)
def test_sources_compile_without_warnings(compiler: str, level: InstructionSet) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on this machine")
    (source,) = native_library.PACKAGE.rglob("kernels.cpp")
    flags = [*FLAGS, *level.flags, "-fopenmp", "-Wno-psabi", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    result = subprocess.run([compiler, *flags, str(source)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_amx_is_compiled_by_each_compiler(compiler: str) -> None:
    """The macro for AMX has another name in clang 14."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on this machine")
    (source,) = native_library.PACKAGE.rglob("kernels.cpp")
    command = [compiler, "-E", *INSTRUCTION_SETS["x86_64"][0].flags, str(source)]
    assert "namespace amx" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
