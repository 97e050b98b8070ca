"""Sharing the CPUs with other programs: threads, time slices, results."""

from __future__ import annotations

import ctypes
import itertools
import os
import platform
import sys
import time
from collections.abc import Callable

import pytest
import torch

import bertwright
from bertwright.kernels import cpu_sharing
from bertwright.kernels.compile import bundled_openmp

pytestmark = pytest.mark.skipif(not cpu_sharing.TASKS.is_dir(), reason="only Linux lists the threads of a process")
needs_libgomp = pytest.mark.skipif(
    sys.platform != "linux" or not str(bundled_openmp()).rpartition("/")[2].startswith("libgomp"), reason="no libgomp"
)


def count_threads() -> int:
    return len([*cpu_sharing.TASKS.iterdir()])


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


@needs_libgomp
def test_spinning_and_slices_are_limited_while_threads_wait_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads that limit spinning start when the delay grows, and end when it grows no longer."""
    delay, growth = 0.0, 1.0

    def grow() -> float:
        nonlocal delay
        delay += growth
        return delay

    monkeypatch.setattr(cpu_sharing, "CHECK_EVERY_S", 0.01)
    monkeypatch.setattr(cpu_sharing, "cpu_delay", grow)
    monkeypatch.setattr(cpu_sharing, "cpu_of_others", lambda: 2 * delay)
    monkeypatch.setenv("GOMP_SPINCOUNT", str(bertwright.SPIN_COUNT))
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    before, own_slice = count_threads(), slice_of_this_thread()
    short = own_slice and cpu_sharing.SHORT_SLICE_NS  # 0 before Linux 6.12 and in some sandboxes
    with cpu_sharing.share_cpus(2):
        wait_until(lambda: count_threads() >= before + 3)  # a team, its owner, the watcher
        wait_until(lambda: slice_of_this_thread() == short)
        growth = 0.0
        wait_until(lambda: count_threads() == before + 1)
        wait_until(lambda: slice_of_this_thread() == own_slice)
        growth = 1.0
        wait_until(lambda: count_threads() >= before + 3)
    wait_until(lambda: count_threads() == before)
    assert slice_of_this_thread() == own_slice


@pytest.mark.parametrize("variable", [{"GOMP_SPINCOUNT": "77"}, {"OMP_WAIT_POLICY": "active"}])
def test_the_users_choice_of_waiting_is_not_changed(monkeypatch: pytest.MonkeyPatch, variable: dict[str, str]) -> None:
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    before = count_threads()
    with cpu_sharing.share_cpus(2):
        assert count_threads() == before


def test_one_thread_changes_nothing() -> None:
    before = count_threads(), slice_of_this_thread()
    with cpu_sharing.share_cpus(1):
        assert (count_threads(), slice_of_this_thread()) == before


def slice_of_this_thread() -> int:
    """Return the time slice in nanoseconds; 0 if the kernel has none of its own for each thread."""
    if platform.machine() not in cpu_sharing.SETATTR_GETATTR:
        return 0
    attributes = cpu_sharing.SchedAttr()
    call = cpu_sharing.SETATTR_GETATTR[platform.machine()][1]
    assert ctypes.CDLL(None).syscall(call, 0, ctypes.byref(attributes), ctypes.sizeof(attributes), 0) == 0
    return int(attributes.runtime)


@pytest.mark.skipif(platform.machine() not in cpu_sharing.SETATTR_GETATTR, reason="a processor without known calls")
def test_short_slices_leave_the_priority_as_it_is() -> None:
    before, priority = slice_of_this_thread(), os.nice(0)
    with cpu_sharing.short_slices():
        assert slice_of_this_thread() == (before and cpu_sharing.SHORT_SLICE_NS)
        assert os.nice(0) == priority
    assert slice_of_this_thread() == before


@needs_libgomp
def test_results_do_not_depend_on_limited_spinning() -> None:
    torch.set_num_threads(2)
    left, right = torch.randn(257, 384), torch.randn(384, 300)
    free = left @ right
    with cpu_sharing.limited_spinning(2):
        limited = [left @ right for _ in range(20)]
    assert all(torch.equal(free, product) for product in limited)


@needs_libgomp
def test_own_threads_that_wait_for_each_other_do_not_limit_spinning(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that makes batches waits for spinning ones on a machine that nobody else uses."""
    delays = itertools.count()
    monkeypatch.setattr(cpu_sharing, "CHECK_EVERY_S", 0.001)
    monkeypatch.setattr(cpu_sharing, "cpu_delay", lambda: float(next(delays)))
    monkeypatch.setattr(cpu_sharing, "cpu_of_others", lambda: 0.0)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", str(bertwright.SPIN_COUNT))
    before = count_threads()
    with cpu_sharing.share_cpus(2):
        for _ in range(20):
            time.sleep(0.002)
            assert count_threads() <= before + 1
    assert next(delays) > 2


def test_the_clocks_of_a_busy_machine_do_not_run_backwards() -> None:
    for clock in (cpu_sharing.cpu_delay, cpu_sharing.cpu_of_others):
        first = clock()
        assert clock() >= first - 0.05  # the kernel's ticks, and own work between them
        assert first >= 0
