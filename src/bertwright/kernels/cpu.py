"""The processor: its instruction set, the number of CPUs for this process; and malloc's handling of large blocks."""

from __future__ import annotations

import ctypes
import math
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MAX_THREADS = 1_024  # beyond some thousands OpenMP ends the process


class InstructionSet(NamedTuple):
    """An instruction set; a library compiled for it gives the same bits on all machines that have it."""

    name: str
    flags: tuple[str, ...]
    features: frozenset[str]
    """Features that /proc/cpuinfo lists on a processor with this instruction set."""


_V2 = frozenset("cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3".split())
_V3 = _V2 | frozenset("abm avx avx2 bmi1 bmi2 f16c fma movbe".split())
_V4 = _V3 | frozenset("avx512bw avx512cd avx512dq avx512f avx512vl".split())
_BF16 = _V4 | {"avx512_bf16"}
_AMX = _BF16 | {"amx_bf16", "amx_tile"}
_ARM_BF16 = frozenset("asimd asimdrdm atomics bf16 crc32".split())
# The levels of each architecture, best first. The tuning is fixed because it decides which products and sums are fused.
INSTRUCTION_SETS = {
    "x86_64": (
        InstructionSet(
            "x86-64-amx", ("-march=x86-64-v4", "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mtune=generic"), _AMX
        ),
        InstructionSet("x86-64-avx512bf16", ("-march=x86-64-v4", "-mavx512bf16", "-mtune=generic"), _BF16),
        InstructionSet("x86-64-v4", ("-march=x86-64-v4", "-mtune=generic"), _V4),
        InstructionSet("x86-64-v3", ("-march=x86-64-v3", "-mtune=generic"), _V3),
        InstructionSet("x86-64-v2", ("-march=x86-64-v2", "-mtune=generic"), _V2),
    ),
    "aarch64": (
        InstructionSet("armv8.2-a-bf16", ("-march=armv8.2-a+bf16", "-mtune=generic"), _ARM_BF16),
        InstructionSet("armv8-a", ("-march=armv8-a", "-mtune=generic"), frozenset({"asimd"})),
    ),
}


def find_levels() -> list[InstructionSet]:
    """Return the levels that this processor has, best first; none on systems without /proc/cpuinfo.

    `BERTWRIGHT_ISA` names the best one to use, for the same bits on different machines. Raises ValueError if this
    processor lacks it.
    """
    features = set(_read_cpuinfo("flags", "Features").split())
    levels = [level for level in INSTRUCTION_SETS.get(platform.machine(), ()) if level.features <= features]
    wanted = os.environ.get("BERTWRIGHT_ISA")
    if not wanted:
        return levels
    names = [level.name for level in levels]
    if wanted not in names:
        raise ValueError(f"BERTWRIGHT_ISA: expected one of {', '.join(names)} on this processor, got {wanted!r}")
    return levels[names.index(wanted) :]


def processor_name() -> str:
    """Return the processor's name in /proc/cpuinfo, or the architecture if it has none."""
    return _read_cpuinfo("model name", "CPU part") or platform.machine()


def vendor() -> str:
    """Return the vendor that an x86-64 processor reports, such as GenuineIntel or AuthenticAMD; else ""."""
    return _read_cpuinfo("vendor_id")


def _read_cpuinfo(*names: str) -> str:
    """Return the value of the first line of /proc/cpuinfo with one of these names; "" if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), "")


def available_cpus(processes: int = 1, root: Path = Path("/")) -> int:
    """Return the number of CPUs for each of `processes` equal processes on this machine, at least 1.

    `OMP_NUM_THREADS` decides if it is set, up to MAX_THREADS, unless it is 1 and there are several processes: torchrun
    sets that default. Otherwise the processes share the CPUs of the affinity mask, or of the container's quota if that
    is smaller.
    `root`: folder that holds `proc` and `sys`.
    """
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if wanted.isdecimal() and int(wanted) >= 1 and not (wanted == "1" and processes > 1):
        return min(int(wanted), MAX_THREADS)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, round(min(cpus, _cgroup_quota(root))) // processes)


def _cgroup_quota(root: Path) -> float:
    """Return the smallest CPU quota of this process's control groups, in CPUs; infinity if there is none."""
    smallest = math.inf
    for folder, is_version_1 in _control_groups(root, "cpu"):
        try:
            if is_version_1:
                quota, period = (
                    (folder / f"cpu.cfs_{name}_us").read_text(encoding="utf-8") for name in ("quota", "period")
                )
            else:
                quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
            if quota != "max" and int(quota) > 0:
                smallest = min(smallest, int(quota) / int(period))
        except (OSError, ValueError):
            pass
    return smallest


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes of memory of this machine, or of the container's limit if that is smaller; None on Windows.

    `root`: folder that holds `proc` and `sys`.
    """
    if not hasattr(os, "sysconf"):
        return None
    smallest = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder, is_version_1 in _control_groups(root, "memory"):
        name = "memory.limit_in_bytes" if is_version_1 else "memory.max"
        with suppress(OSError, ValueError):  # no limit is "max", or in version 1 a huge number
            smallest = min(smallest, int((folder / name).read_text(encoding="utf-8")))
    return smallest


def _control_groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folder of each control group of this process, and whether it is of version 1."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")  # version 1: one folder per controller
        group = mount / path.lstrip("/")
        for folder in [group, *group.parents]:  # inside a container, the group's own path may not exist
            yield folder, bool(controllers)
            if folder == mount:
                break


def configure_malloc() -> None:
    """Make malloc keep freed memory, so that each step reuses the large blocks of the last.

    Otherwise glibc maps every block above 32 MB, faults it in page by page and unmaps it, in every step. With
    another C library this function does nothing. `restore_malloc` undoes it.
    """
    _set_malloc(trim_threshold=-1, mmap_max=0)


def restore_malloc() -> None:
    """Restore malloc's behaviour, or the environment's settings, and return freed memory to the system.

    Once set, glibc's thresholds no longer adapt to the program, so they get the values they would reach.
    """
    _set_malloc(
        int(os.environ.get("MALLOC_TRIM_THRESHOLD_", 64 << 20)), int(os.environ.get("MALLOC_MMAP_MAX_", 65_536)),
        int(os.environ.get("MALLOC_MMAP_THRESHOLD_", 32 << 20)),
    )  # fmt: skip
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def _set_malloc(trim_threshold: int, mmap_max: int, mmap_threshold: int | None = None) -> None:
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, trim_threshold)  # M_TRIM_THRESHOLD of malloc.h
        mallopt(-4, mmap_max)  # M_MMAP_MAX
        if mmap_threshold is not None:
            mallopt(-3, mmap_threshold)  # M_MMAP_THRESHOLD
