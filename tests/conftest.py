"""Settings and fixtures of all tests."""

import io
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from hypothesis import settings
from rich.console import Console

from bertwright.kernels import ffi
from bertwright.training.metrics_log import plot_metrics
from helpers import text_reporter

pytest_plugins = [
    "interpreted_triton",
    "small_runs",
    "small_stores",
]  # the first before anything imports Triton; fixtures

# Programs and a plugin, which `--doctest-modules` must not import, and files of fixtures, which share a module name.
collect_ignore = ["kernels/emulated_kernels.py", "kernels/instruction_sets.py", "machines.py", "readme/update.py"]
collect_ignore += ["release.py"]
collect_ignore_glob = ["conftest.py", "*/conftest.py"]

# No test asserts a time: on a busy machine any example may take long.
settings.register_profile("bertwright", deadline=None)
settings.load_profile("bertwright")


# A shell's `&` starts programs with Ctrl-C ignored; tests send it, to this process and to others.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _handler)


# Files that take longest start first: a process that began one of them last would run alone for a minute.
LONGEST = [f"test_{name}.py" for name in ("instruction_sets", "experiment_runs", "pretrain", "readme", "finetune")]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the tests of `LONGEST` to the front."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of bfloat16 kernels on processors without units for them."""
    if item.get_closest_marker("bfloat16") and ffi.bf16_isa() is None:
        pytest.skip("no units for bfloat16")


PLOTS = [f"bertwright.{room}.run.plot_metrics" for room in ("pretraining", "finetuning", "translation")]


@pytest.fixture(scope="session", autouse=True)
def fast_runs() -> Iterator[None]:
    """Omit what takes most of the time of so small a run, and has tests of its own.

    Heads start at random unless a test asks for a fit. A run draws no plot without `with_plots`, measures no speed of
    matrix products, and times as few steps as possible. Nothing is flushed to the disk: no test cuts the power.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertwright.finetuning.settings.MAX_FITTED_ITEMS", 0)
        patch.setattr("bertwright.finetuning.settings.MAX_FITTED_PER_LABEL", 0)
        for name in PLOTS:
            patch.setattr(name, lambda *_: None)
        patch.setattr("bertwright.pretraining.run.measure_peak_flops", lambda *_: 1e11)
        patch.setattr("bertwright.training.cost.TIMED_S", 0.0)
        patch.setattr("os.fsync", lambda _: None)
        yield


@pytest.fixture
def with_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the plots of runs."""
    for name in PLOTS:
        monkeypatch.setattr(name, plot_metrics)


@pytest.fixture
def pipe_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | bytes | None], None]:
    """Makes a text, or any bytes, standard input; None closes it."""

    def pipe(content: str | bytes | None) -> None:
        given = content.encode() if isinstance(content, str) else content
        monkeypatch.setattr(sys, "stdin", None if given is None else io.TextIOWrapper(io.BytesIO(given)))

    return pipe


@pytest.fixture
def interrupted_in() -> Callable[..., AbstractContextManager[list[Any]]]:
    """Return a context manager that raises KeyboardInterrupt in the n-th call of a module's function.

    It yields the arguments of the calls before.
    """

    @contextmanager
    def interrupt(module: Any, name: str, call: int) -> Iterator[list[Any]]:
        function, calls = getattr(module, name), []

        def count_call(*given: Any) -> Any:
            if len(calls) == call - 1:
                raise KeyboardInterrupt
            calls.append(given)
            return function(*given)

        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module, name, count_call)
            yield calls

    return interrupt


@pytest.fixture
def reporter() -> Console:
    """A reporter whose output `helpers.read_output` returns."""
    return text_reporter()
