"""Helpers for tests of whole runs: run a command in this process or in one that is killed, and compare results."""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from rich.console import Console, RenderableType
from safetensors.torch import load_file
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from bertwright.base.files import read_json, write_json
from bertwright.cli.render.terminal import TerminalReporter
from bertwright.training.metrics_log import read_metrics
from bertwright.training.optimizer import Optimizer

R = TypeVar("R")
S = TypeVar("S")
M = TypeVar("M", bound=torch.nn.Module)
Wait = Callable[[BaseProcess, Path], object]  # gets a process and its run folder; returns when to kill the process
TIMINGS = ("tokens_per_second", "sequences_per_second", "utilization", "seconds")


def run_with_output(command: Callable[[S, TerminalReporter], R], settings: S, columns: int = 100) -> tuple[R, str]:
    """Run a command; returns its result and what it printed."""
    printed = io.StringIO()
    result = command(settings, TerminalReporter(Console(file=printed, width=columns)))
    return result, printed.getvalue()


def run_and_capture(command: Callable[[S, TerminalReporter], object], settings: S, columns: int = 100) -> str:
    """Run a command; returns what it printed."""
    return run_with_output(command, settings, columns)[1]


def print_lines(what: RenderableType, columns: int = 80) -> list[str]:
    """Print an object of rich; returns the lines without spaces at their ends."""
    printed = io.StringIO()
    Console(file=printed, width=columns).print(what)
    return [line.rstrip() for line in printed.getvalue().split("\n")]


def randomize(model: M, scale: float = 0.1) -> M:
    """Change all parameters of a model for inference: if one were 0 or 1, no test would see it lost or swapped."""
    numbers = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=numbers))
    return model.eval()


def same_parameters(model: torch.nn.Module, other: torch.nn.Module) -> bool:
    """Return whether two models have the same parameters, bit by bit."""
    ours, theirs = dict(model.named_parameters()), dict(other.named_parameters())
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def edit_config(folder: Path, **changes: object) -> None:
    """Change fields of a model folder's `config.json`."""
    write_json(folder / "config.json", read_json(folder / "config.json") | changes)


def load_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Load the weights of a model folder by name."""
    return load_file(folder / "model.safetensors")


def read_weight_file(folder: Path) -> bytes:
    """Read the bytes of a model folder's weights."""
    return (folder / "model.safetensors").read_bytes()


def same_weights(one: Path, other: Path) -> bool:
    """Return whether the weight files of two model folders are equal, byte by byte."""
    return read_weight_file(one) == read_weight_file(other)


@contextmanager
def failing_after(calls: int, owner: type, method: str) -> Iterator[None]:
    """Let a method raise OSError after some calls, until the block ends; the block must raise it."""
    left, unbroken = iter(range(calls)), getattr(owner, method)

    def fail(*arguments: Any) -> Any:
        if next(left, None) is None:
            raise OSError("the disk is gone")
        return unbroken(*arguments)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(OSError, match="gone"):
        patched.setattr(owner, method, fail)
        yield


def read_untimed(run: Path) -> list[dict[str, Any]]:
    """Read the records of a run's metrics.jsonl without the values that a clock decides."""
    return [{name: value for name, value in record.items() if name not in TIMINGS} for record in read_metrics(run)]


def start_process(command: Callable[[Any], object], settings: Any) -> BaseProcess:
    """Start a command in a fork of this process, which starts at once."""
    process = multiprocessing.get_context("fork").Process(target=_run_silently, args=(command, settings))
    process.start()
    return process


def _run_silently(command: Callable[[Any], object], settings: Any) -> None:
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    _run_with_one_thread(command, settings)


def run_until_killed(command: Callable[[Any], object], settings: Any) -> None:
    """Run a command that ends its own process with SIGKILL."""
    process = start_process(command, settings)
    process.join(timeout=300)
    assert process.exitcode == -signal.SIGKILL


def run_on_ranks(ranks: int, function: Callable[..., R], *arguments: Any, max_restarts: int = 0) -> dict[int, R]:
    """Run a function in processes that torchrun's launcher forks, which start at once; return its results by rank.

    If one of them fails, all are restarted, at most `max_restarts` times.
    """
    for name in ("torch._dynamo", "torch.distributed.fsdp"):  # imported here once, not in each process
        importlib.import_module(name)
    config = LaunchConfig(
        1, 1, ranks, run_id="test", rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=max_restarts,
        monitor_interval=0.05, start_method="fork",
    )  # fmt: skip
    results: dict[int, R] = elastic_launch(config, _run_with_one_thread)(function, *arguments)
    return results


def _run_with_one_thread(function: Callable[..., R], *arguments: Any) -> R:
    """Run a function in a forked process: the threads that OpenMP has started in its parent do not exist here."""
    torch.set_num_threads(1)
    return function(*arguments)


def kill_until_done(command: Callable[[Any], object], settings: Any, wait: Wait, max_kills: int) -> int:
    """Run a command, SIGKILL it when `wait` returns, resume it, until one process finishes; returns the kills.

    After `max_kills` the next process is not killed.
    """

    def start() -> BaseProcess:
        return start_process(command, replace(settings, resume=(settings.run / "settings.toml").exists()))

    return kill_processes(start, lambda process: wait(process, settings.run), max_kills)


def kill_processes(start: Callable[[], BaseProcess], wait: Callable[[BaseProcess], None], max_kills: int) -> int:
    """Start a process and SIGKILL it when `wait` returns, until one ends by itself; returns the number of kills."""
    kills = 0
    while True:
        process = start()
        if kills < max_kills:
            wait(process)
        else:
            process.join()
        if process.exitcode is None:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode != -signal.SIGKILL:
            assert process.exitcode == 0
            return kills
        kills += 1


def check_killed_runs(command: Callable[[Any], object], unbroken: Any, wait: Wait, kills: int) -> None:
    """Assert that runs with the settings of a finished run end with the same bits, however often they are killed.

    A run may finish before it has been killed often enough; then another one starts.
    """
    done = 0
    while done < kills:
        broken = replace(unbroken, run=unbroken.run.with_name(f"broken-{done}"))
        done += kill_until_done(command, broken, wait, kills - done)
        assert same_weights(unbroken.run / "model", broken.run / "model")
        assert read_untimed(broken.run) == read_untimed(unbroken.run)
        assert not list(broken.run.rglob(".*.part-*"))


@contextmanager
def interrupt_at_step(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Press Ctrl-C during a step of the run in the block, which finishes and saves that step."""
    step = Optimizer.step

    def with_signal(optimizer: Optimizer, learning_rate: float, norm: float) -> None:
        if optimizer.steps == number - 1:
            os.kill(os.getpid(), signal.SIGINT)
        step(optimizer, learning_rate, norm)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt, match=f"step {number} is saved"):
        patch.setattr(Optimizer, "step", with_signal)
        yield


def check_interrupted_run(
    command: Callable[[Any], object], settings: Any, step: int, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Assert that a run which is interrupted at a step and resumed ends with the bits of the run of `settings`.

    Returns the settings of the interrupted run, which is beside the other one.
    """
    command(settings)
    broken = replace(settings, run=settings.run.with_name("broken"))
    with interrupt_at_step(step, monkeypatch):
        command(broken)
    command(replace(broken, resume=True))
    assert same_weights(settings.run / "model", broken.run / "model")
    return broken
