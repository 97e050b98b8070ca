"""The processor: its name, the number of CPUs and the memory for this process; malloc's handling of large blocks."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MAX_THREADS = 1_024  # beyond some thousands OpenMP ends the process


def processor_name() -> str:
    """Return the processor's name in /proc/cpuinfo, or the architecture if it has none."""
    return read_cpuinfo("model name", "CPU part") or platform.machine()


def vendor() -> str:
    """Return the vendor that an x86-64 processor reports, such as GenuineIntel or AuthenticAMD; else ""."""
    return read_cpuinfo("vendor_id")


def read_cpuinfo(*names: str) -> str:
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
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_version_1 else ("cpu.max",)
        with suppress(OSError, ValueError):  # no limit is "max", or in version 1 -1
            quota, period = (int(text) for name in names for text in (folder / name).read_text("utf-8").split())
            smallest = min(smallest, quota / period if quota > 0 else math.inf)
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


def peak_resident_memory() -> int | None:
    """Return the most bytes of memory that this process has used; None on Windows.

    On Linux, `getrusage` counts the memory that the parent had when it started this process, too.
    """
    with suppress(OSError, AttributeError):
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
        return 1024 * int(found[1])  # type: ignore[index]
    with suppress(ImportError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak
    return None


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
    trim_malloc()


def trim_malloc() -> None:
    """Return freed memory to the system; with another C library than glibc, do nothing."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def _set_malloc(trim_threshold: int, mmap_max: int, mmap_threshold: int | None = None) -> None:
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-1, trim_threshold)  # M_TRIM_THRESHOLD of malloc.h
        mallopt(-4, mmap_max)  # M_MMAP_MAX
        if mmap_threshold is not None:
            mallopt(-3, mmap_threshold)  # M_MMAP_THRESHOLD
