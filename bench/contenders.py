"""Contenders of a benchmark as processes of their own, so that the memory and the idle threads of one slow no other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from bertwright.kernels.cpu import peak_resident_memory

PAUSE = 0.3  # seconds between two turns: idle threads of some libraries spin for up to 0.2 s
OPEN = ExitStack()
"""Contexts that stay open until this process ends."""
Variables = dict[str, str] | None
"""Further environment variables of a process."""

_work: Callable[..., Any]  # of the process of a contender


class Turn(NamedTuple):
    """What a contender did in one turn."""

    seconds: float
    result: Any
    peak: int
    """Most bytes of memory so far, of the GPU if the process computes on one."""


def _prepare(make: Callable[[], Callable[..., Any]]) -> None:
    global _work
    _work = make()


def _take_turn(arguments: tuple[Any, ...]) -> Turn:
    started = time.perf_counter()
    result = _work(*arguments)
    seconds = time.perf_counter() - started
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    peak = torch.cuda.max_memory_allocated() if on_gpu else peak_resident_memory()
    return Turn(seconds, result, peak or 0)


class Contender:
    """A process of its own that prepares its work once, and does it in each turn."""

    def __init__(self, make: Callable[[], Callable[..., Any]], environment: Variables = None) -> None:
        """Start the process. `make`: what prepares the work."""
        self.pool = ProcessPoolExecutor(1, get_context("spawn"), _prepare, (make,))
        with patch.dict(os.environ, environment or {}):
            self.pool.submit(int)

    def start(self, *arguments: Any) -> Future[Turn]:
        return self.pool.submit(_take_turn, arguments)


def take_turns_apart(contenders: Mapping[str, Contender], rounds: int, *arguments: Any) -> dict[str, list[Turn]]:
    """Let the contenders work in turns, first once that does not count."""
    turns: dict[str, list[Turn]] = {name: [] for name in contenders}
    for number in range(1 + rounds):
        for name, contender in contenders.items():
            turn = contender.start(*arguments).result()
            time.sleep(PAUSE)
            turns[name] += [turn] * (number > 0)
    return turns


def run_alone(function: Callable[..., Any], *arguments: Any, environment: Variables = None) -> Any:
    """Run a function in a new process, whose memory is its own; return its result."""
    with patch.dict(os.environ, environment or {}), ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()
