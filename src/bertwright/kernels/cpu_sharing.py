"""Sharing the CPUs with other programs: how long OpenMP's threads spin, and how often the kernel may switch them.

A small model's step is hundreds of short parallel regions, and at the end of each a thread waits for the others. While
the CPUs are free, spinning is fastest. While other programs use them, the thread that is waited for may not be
running, and spinning spends the CPU time that it needs (docs/decisions/33-busy-machines.md).
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import bertwright
from bertwright.kernels.compile import bundled_openmp

CHECK_EVERY_S = 0.5
BUSY = 0.2  # CPUs: the machine is busy if this process's threads lack more of them, and other programs use more
SHORT_SLICE_NS = 100_000  # the shortest time slice that Linux grants
SETATTR_GETATTR = {"x86_64": (314, 315), "aarch64": (274, 275)}  # system calls, for which glibc 2.40 has no functions
TASKS = Path("/proc/self/task")


class SchedAttr(ctypes.Structure):
    """`struct sched_attr` of Linux, first version."""

    _fields_ = (
        ("size", ctypes.c_uint32), ("policy", ctypes.c_uint32), ("flags", ctypes.c_uint64), ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32), ("runtime", ctypes.c_uint64), ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )  # fmt: skip


@contextmanager
def share_cpus(threads: int) -> Iterator[None]:
    """Adapt this process to other programs until the block ends. Results do not depend on it.

    While they have to wait for CPUs, the threads of a process that computes with several no longer spin, and their time
    slices are short (Linux 6.12): their share of the CPUs stays, but a thread that is woken gets its turn sooner, so
    that the others wait less for it. Nothing changes on other systems, and if the user has set how threads wait.
    """
    if threads == 1 or not TASKS.is_dir() or not _may_limit_spinning():
        yield
        return
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(threads, over), name="CPU sharing", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _may_limit_spinning() -> bool:
    """Return whether torch's OpenMP library is libgomp, and its spinning is not a choice of the user."""
    ours, library = str(bertwright.SPIN_COUNT), bundled_openmp()
    is_ours = os.environ.get("GOMP_SPINCOUNT", ours) == ours and "OMP_WAIT_POLICY" not in os.environ
    return is_ours and library is not None and library.name.startswith("libgomp")


def _watch(threads: int, over: threading.Event) -> None:
    """Limit spinning and time slices while the machine is busy, until the event `over`."""
    clocks, limited = (time.perf_counter, cpu_delay, cpu_of_others), False
    with suppress(OSError, RuntimeError), ExitStack() as limit:  # a sandbox without such files; no more threads allowed
        now = [clock() for clock in clocks]
        while not over.wait(CHECK_EVERY_S):
            before, now = now, [clock() for clock in clocks]
            seconds, *passed = (late - early for late, early in zip(now, before, strict=True))
            busy = min(passed) > BUSY * seconds
            if busy and not limited:
                limit.enter_context(limited_spinning(threads))
                limit.enter_context(short_slices())
            elif limited and not busy:
                limit.close()
            limited = busy


def cpu_delay() -> float:
    """Return the seconds that the threads of this process have been ready to run while others had the CPUs."""
    nanoseconds = 0
    for task in TASKS.iterdir():
        with suppress(OSError, IndexError, ValueError):  # a thread that has ended; a kernel without these statistics
            nanoseconds += int((task / "schedstat").read_text(encoding="ascii").split()[1])
    return nanoseconds / 1e9


def cpu_of_others() -> float:
    """Return the CPU seconds that all other programs have used; on a free machine, only own threads wait for own ones.

    A container sees the programs of the whole machine.
    """
    user, nice, system = map(int, Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=4)[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK") - time.process_time()


@contextmanager
def limited_spinning(threads: int) -> Iterator[None]:
    """Let libgomp's `threads` threads sleep after 100 spins until the block ends, as if they outnumbered the CPUs.

    libgomp documents this under GOMP_SPINCOUNT, and has no function for the count. The threads that make all of them
    outnumber the CPUs are of a team that computes nothing; they sleep, and end with the thread that has started them.
    """
    openmp, body = ctypes.CDLL(str(bundled_openmp())), ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p)
    team, over = ctypes.c_uint(max(2, len(os.sched_getaffinity(0)) - threads + 2)), threading.Event()

    def hold() -> None:
        openmp.GOMP_parallel(body, None, team, ctypes.c_uint(0))
        over.wait()

    holder = threading.Thread(target=hold, name="limited spinning", daemon=True)
    holder.start()
    try:
        yield
    finally:
        over.set()
        holder.join()


@contextmanager
def short_slices() -> Iterator[None]:
    """Give the threads of this process, and those that they start, the shortest time slices until the block ends."""
    _set_slices(SHORT_SLICE_NS)
    try:
        yield
    finally:
        _set_slices(0)


def _set_slices(nanoseconds: int) -> None:
    """Set the time slice of this process's threads; 0: the system's default.

    A system that has no time slices of threads ignores or denies this.
    """
    if platform.machine() not in SETATTR_GETATTR:
        return
    setattr_call, getattr_call = SETATTR_GETATTR[platform.machine()]
    syscall, size = ctypes.CDLL(None).syscall, ctypes.sizeof(SchedAttr)
    for task in TASKS.iterdir():
        thread, attributes = int(task.name), SchedAttr()
        found = syscall(getattr_call, thread, ctypes.byref(attributes), size, 0) == 0
        if found and attributes.policy == os.SCHED_OTHER:
            attributes.runtime = nanoseconds
            syscall(setattr_call, thread, ctypes.byref(attributes), 0)
