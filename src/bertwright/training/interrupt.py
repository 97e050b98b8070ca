"""Ctrl-C during training: the step in hand is finished, on every rank alike, and can then be saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bertwright.pretraining.data import prefetch
from bertwright.training.context import ExecutionContext
from bertwright.training.loop import LossModule, LRSchedule, StepReport, train_steps
from bertwright.training.optimizer import AdamW

M = TypeVar("M")


@contextmanager
def graceful_shutdown() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM fill the list that this gives, so that the step in hand is finished and saved.

    A second Ctrl-C ends the program at once.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received  # signals come to the main thread, and only there may they be listened to
        return

    def note(number: int, _frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def train_until_stopped(
    received: list[int],
    objective: LossModule[M],
    batches: Iterator[list[M]],
    optimizer: AdamW,
    rate: LRSchedule,
    place: ExecutionContext,
    all_used: bool = True,
) -> Iterator[StepReport]:
    """The loop's steps on this rank, their batches made ahead; ends early, on all ranks alike, once a signal came.

    `all_used`: every parameter takes part in every step, which saves the ranks a search.
    """
    trained: Any = objective
    if place.world_size > 1:
        trained = DistributedDataParallel(objective, find_unused_parameters=not all_used)
    with closing(prefetch(batches)) as ahead:
        for report in train_steps(trained, ahead, optimizer, rate):
            yield report
            if _on_any_rank(bool(received), place):
                return


def _on_any_rank(flag: bool, place: ExecutionContext) -> bool:
    """Whether the flag is up on some rank: ranks must stop at the same step."""
    if place.world_size == 1:
        return flag
    raised = torch.tensor(float(flag), device=place.device)
    dist.all_reduce(raised)
    return bool(raised > 0)
