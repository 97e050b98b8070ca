"""Kernel tests that may be skipped where `make test` requires the native kernels, and their number of threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator

import pytest
import torch

MAY_BE_SKIPPED = (
    "no GPU",
    "no clang++ on this machine",
    "no aarch64-linux-gnu-g++ on this machine",
    "no units for bfloat16",  # test_instruction_sets.py runs these tests, emulated
    "no units for int8",
    "got empty parameter set",  # no lower instruction set, or none to emulate
    "only root can create files of other users",
)


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Leave the number of threads as it was: later tests fork, and OpenMP's threads do not exist in a fork."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that is skipped for another reason, on Linux with BERTWRIGHT_REQUIRE_NATIVE=1."""
    report = yield
    if report.skipped and sys.platform == "linux" and os.environ.get("BERTWRIGHT_REQUIRE_NATIVE") == "1":
        assert isinstance(report.longrepr, tuple)
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith(MAY_BE_SKIPPED):
            report.outcome, report.longrepr = "failed", f"skipped although kernels are required: {reason}"
    return report
