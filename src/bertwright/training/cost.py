"""Estimated cost of a training run in time, memory and disk space, from a few real steps on this machine."""

from __future__ import annotations

import statistics
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from bertwright.base.messages import format_duration
from bertwright.kernels.cpu import peak_resident_memory
from bertwright.training.context import ExecutionContext
from bertwright.training.fit import TrainingSpec, train_until_stopped
from bertwright.training.optimizer import Optimizer

M = TypeVar("M")
MIN_TIMED_STEPS, MAX_TIMED_STEPS = 3, 20  # without the first step, which fills caches
TIMED_S = 2.0  # seconds after which no more steps are timed


class CostEstimate(NamedTuple):
    """Estimated steps and seconds of one or more runs."""

    steps: int
    seconds: float
    evaluation_seconds: float = 0.0
    """Share of `seconds` that evaluations take; 0 if not measured."""
    memory: float | None = None
    """Bytes that a process uses at most; None if unknown."""


def describe_cost(
    cost: CostEstimate,
    context: ExecutionContext,
    model: nn.Module,
    optimizer: Optimizer,
    checkpoints: int,
    best: int = 0,
) -> dict[str, str]:
    """Return the cost of a run whose steps have been timed, as names and values for the terminal.

    `checkpoints`: maximum number of checkpoints in the run folder; `best`: more of them, without optimizer state.
    """
    memory = peak_memory(context)
    trained = sum(parameter.numel() for parameter in optimizer.parameters.values())
    disk = estimate_disk_space(sum(parameter.numel() for parameter in model.parameters()), trained, checkpoints, best)
    return {
        "steps": f"{cost.steps:,}",
        "estimated time": format_duration(cost.seconds),
        "memory": "unknown on this system" if memory is None else f"{format_bytes(memory)} per process",
        "disk space": f"{format_bytes(disk)} or less for checkpoints and model",
    }


def estimate_disk_space(weights: int, trained: int, checkpoints: int, best: int = 0) -> int:
    """Return the maximum bytes of a run's checkpoints and model.

    All contain the weights; each of the `checkpoints` also contains two moments of each trained weight.

    >>> estimate_disk_space(weights=1_000_000, trained=1_000_000, checkpoints=3)
    40000000
    >>> estimate_disk_space(weights=1_000_000, trained=1_000, checkpoints=3)
    16024000
    >>> estimate_disk_space(weights=1_000_000, trained=1_000_000, checkpoints=2, best=2)
    36000000
    """
    return 4 * (weights * (checkpoints + best + 1) + 2 * trained * checkpoints)


def time_steps(spec: TrainingSpec[M], context: ExecutionContext, first_step: int = 0) -> float:
    """Return the median seconds per optimizer step, measured on the batches from `first_step` on.

    The weights do not change, because the rate is 0; the optimizer's moments do.
    """
    timed = replace(spec, schedule=lambda _: 0.0, batches=lambda _: spec.batches(first_step))
    seconds: list[float] = []
    with closing(train_until_stopped(timed, context, ())) as results:
        for result in islice(results, 1 + MAX_TIMED_STEPS):
            seconds.append(result.seconds)
            if len(seconds) > MIN_TIMED_STEPS and sum(seconds[1:]) > TIMED_S:
                break
    return statistics.median(seconds[1:] or seconds)


def peak_memory(context: ExecutionContext) -> int | None:
    """Return the most bytes that this process has used, on its GPU if it has one; None if unknown."""
    if context.device.type == "cuda":
        return torch.cuda.max_memory_allocated(context.device)
    return peak_resident_memory()


def format_bytes(size: float) -> str:
    """Format a number of bytes.

    >>> format_bytes(1_440_000_000), format_bytes(15_300_000), format_bytes(900)
    ('1.4 GB', '15.3 MB', '0.9 kB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size / 1e3:,.1f} kB"
