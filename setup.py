"""Wheels with native libraries: `BERTWRIGHT_WHEEL=x86_64 pip wheel .` (or aarch64) compiles one per instruction set.

Without that variable the wheel is pure Python and compiles at first use. `CXX` names the compiler; it defaults to g++
for this machine's architecture and to Debian's cross-compiler for the other.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
# The only function that is newer than manylinux_2_28's C++ library; inlined allocations of g++ 11 and later call it.
SHIM = """#include <new>
namespace std { void __throw_bad_array_new_length() { throw bad_array_new_length(); } }
"""
MACHINE = os.environ.get("BERTWRIGHT_WHEEL")


class PlatformDistribution(Distribution):
    """Files that are installed where those of one architecture belong."""

    def has_ext_modules(self) -> bool:
        return bool(MACHINE)


class BuildPy(build_py):
    """Adds `bertwright/kernels/prebuilt/NAME-LEVEL.so`."""

    def run(self) -> None:
        super().run()
        if MACHINE:
            prebuild(MACHINE, Path(self.build_lib) / "bertwright" / "kernels" / "prebuilt")


class Wheel(bdist_wheel):
    """A wheel for any Python of one architecture."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", f"linux_{MACHINE}") if MACHINE else super().get_tag()


def prebuild(machine: str, folder: Path) -> None:
    """Compile the kernels for every level of an architecture, and the vocabulary's library for the lowest."""
    sys.path.insert(0, str(ROOT / "src"))
    from bertwright.kernels import compile as compilation
    from bertwright.kernels.instruction_sets import INSTRUCTION_SETS

    cross = "g++" if machine == platform.machine() else f"{machine}-linux-gnu-g++"
    os.environ["CXX"] = os.environ.get("CXX") or cross
    compiler = next(compilation.find_compilers())
    sources = {path.stem: path for path in (ROOT / "src").rglob("*.cpp")}
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        for level in (
            INSTRUCTION_SETS[machine] if name in ("kernels", "int8_scores") else INSTRUCTION_SETS[machine][-1:]
        ):
            openmp = compilation.uses_openmp(compilation.read_sources(source))
            flags = compilation.compile_flags(compiler, openmp, level.flags)
            with tempfile.TemporaryDirectory() as work:
                shim = Path(work) / "shim.cpp"
                shim.write_text(SHIM)
                link_flags = ["-fPIC", "-fvisibility=hidden", "-s", str(shim)]
                built = compilation.compile_library(source, compiler, flags, Path(work), link_flags)
                (folder / f"{name}-{level.name}.so").write_bytes(built.read_bytes())


setup(distclass=PlatformDistribution, cmdclass={"build_py": BuildPy, "bdist_wheel": Wheel})
