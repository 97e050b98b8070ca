"""Instruction sets that native libraries are compiled for, and those that this processor has: add yours here.

A new width of vectors or a new micro-kernel also enters in `csrc/target.h`.
"""

from __future__ import annotations

import os
import platform
from typing import NamedTuple

from bertwright.kernels.cpu import read_cpuinfo


class InstructionSet(NamedTuple):
    """An instruction set; a library compiled for it gives the same bits on all machines that have it."""

    name: str
    flags: tuple[str, ...]
    features: frozenset[str]
    """Features that /proc/cpuinfo lists on a processor with this instruction set."""


_V2 = frozenset("cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3".split())
_V3 = _V2 | frozenset("abm avx avx2 bmi1 bmi2 f16c fma movbe".split())
_V4 = _V3 | frozenset("avx512bw avx512cd avx512dq avx512f avx512vl".split())
_VNNI = _V4 | {"avx512_vnni"}
_BF16 = _VNNI | {"avx512_bf16"}
_AMX = _BF16 | {"amx_bf16", "amx_int8", "amx_tile"}
_AMX_FLAGS = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")
_ARM_DOT = frozenset("asimd asimddp asimdrdm atomics crc32".split())
# The levels of each architecture, best first. The tuning is fixed because it decides which products and sums are fused.
INSTRUCTION_SETS = {
    "x86_64": (
        InstructionSet(
            "x86-64-amx",
            ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", *_AMX_FLAGS, "-mtune=generic"),
            _AMX,
        ),
        InstructionSet(
            "x86-64-avx512bf16", ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mtune=generic"), _BF16
        ),
        InstructionSet("x86-64-avx512vnni", ("-march=x86-64-v4", "-mavx512vnni", "-mtune=generic"), _VNNI),
        InstructionSet("x86-64-v4", ("-march=x86-64-v4", "-mtune=generic"), _V4),
        InstructionSet("x86-64-avxvnni", ("-march=x86-64-v3", "-mavxvnni", "-mtune=generic"), _V3 | {"avx_vnni"}),
        InstructionSet("x86-64-v3", ("-march=x86-64-v3", "-mtune=generic"), _V3),
        InstructionSet("x86-64-v2", ("-march=x86-64-v2", "-mtune=generic"), _V2),
    ),
    "aarch64": (
        InstructionSet("armv8.2-a-bf16", ("-march=armv8.2-a+dotprod+bf16", "-mtune=generic"), _ARM_DOT | {"bf16"}),
        InstructionSet("armv8.2-a-dotprod", ("-march=armv8.2-a+dotprod", "-mtune=generic"), _ARM_DOT),
        InstructionSet("armv8-a", ("-march=armv8-a", "-mtune=generic"), frozenset({"asimd"})),
    ),
}


def find_levels() -> list[InstructionSet]:
    """Return the levels that this processor has, best first; none on systems without /proc/cpuinfo.

    `BERTWRIGHT_ISA` names the best one to use, for the same bits on different machines. Raises ValueError if this
    processor lacks it.
    """
    features = set(read_cpuinfo("flags", "Features").split())
    levels = [level for level in INSTRUCTION_SETS.get(platform.machine(), ()) if level.features <= features]
    wanted = os.environ.get("BERTWRIGHT_ISA")
    if not wanted:
        return levels
    names = [level.name for level in levels]
    if wanted not in names:
        raise ValueError(f"BERTWRIGHT_ISA: expected one of {', '.join(names)} on this processor, got {wanted!r}")
    return levels[names.index(wanted) :]
