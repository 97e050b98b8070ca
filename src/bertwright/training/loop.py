"""The one training loop: batches in, a report a step out. It yields; the caller saves, evaluates and stops.

A loss arrives divided by the counts of the whole step, so the gradients of micro-batches and ranks simply add up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from bertwright.training.optimizer import AdamW

M = TypeVar("M")
LRSchedule = Callable[[int], float]  # the learning rate of a step, counted from 0


class DivergedError(RuntimeError):
    """A loss, a gradient, an output or a weight is not finite. What has been written before it is good."""


def check_finite_outputs(finite: bool) -> None:
    """Raise DivergedError unless all outputs of a model are `finite`."""
    if not finite:
        raise DivergedError(
            "the model's outputs are not finite numbers: its weights are damaged, or its training diverged"
        )


class LossOutput(NamedTuple):
    """One micro-batch, forward."""

    loss: Tensor
    """Scalar; its share of the step's loss."""
    sums: Mapping[str, Tensor]
    """Scalars that add up over the step, for the report: sums of losses, of right answers, of tokens."""


class StepReport(NamedTuple):
    """One step, done."""

    step: int
    """Steps done so far, this one included."""
    sums: dict[str, float]
    """Over the whole step, all micro-batches and ranks."""
    gradient_norm: float
    """Before clipping."""
    learning_rate: float
    seconds: float
    """Wall-clock time of this step, waiting for data included; what the caller does between two steps is not."""


class LossModule(torch.nn.Module, Generic[M]):
    """A loss as a module, which is what DistributedDataParallel wraps: it must see the forward pass."""

    def __init__(self, model: torch.nn.Module, compute: Callable[[M], LossOutput]) -> None:
        super().__init__()
        self.model = model
        self.compute = compute

    def forward(self, batch: M) -> LossOutput:
        return self.compute(batch)


def train_steps(
    objective: Callable[[M], LossOutput],
    batches: Iterable[Sequence[M]],
    optimizer: AdamW,
    rate: LRSchedule,
) -> Iterator[StepReport]:
    """Run one optimizer step for each list of micro-batches; goes on from `optimizer.steps`.

    Raises DivergedError before the optimizer moves when the loss or the gradient is not finite.
    """
    started = time.perf_counter()
    for micro_batches in batches:
        sums = _backward(objective, micro_batches)
        norm = optimizer.gradient_norm()
        _check_finite(optimizer.steps + 1, sums, norm)
        learning_rate = rate(optimizer.steps)
        optimizer.step(learning_rate, norm)
        yield StepReport(optimizer.steps, sums, norm, learning_rate, time.perf_counter() - started)
        started = time.perf_counter()


def check_finite_weights(model: torch.nn.Module, step: int) -> None:
    """Look for weights that are not finite, before a run starts from them (step 0) and before they are written.

    Raises ValueError at the start. Raises DivergedError later: only another step would notice what this one has done.
    """
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            if step == 0:
                raise ValueError(f"the weights to start from are damaged: {name} has numbers that are not finite")
            raise DivergedError(
                f"step {step}: the weights are not finite any more ({name}), and were not written; the rate is far too "
                "high for this model (try a hundredth of --learning-rate), or the warm-up too short (--warmup-ratio)"
            )


def _backward(objective: Callable[[M], LossOutput], micro_batches: Sequence[M]) -> dict[str, float]:
    """Gradients of the whole step into the parameters; returns its sums, over all ranks."""
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    parts = []
    for number, batch in enumerate(micro_batches):
        last = number + 1 == len(micro_batches)
        with nullcontext() if last else _without_exchange(objective):
            computed = objective(batch)
            # Averaging over ranks is what DistributedDataParallel does; shares must be summed.
            (computed.loss * world_size if world_size > 1 else computed.loss).backward()  # type: ignore[no-untyped-call]
        parts.append(torch.stack([value.detach().double() for value in computed.sums.values()]))
    total = torch.stack(parts).sum(0)
    if world_size > 1:
        dist.all_reduce(total)
    return dict(zip(computed.sums, total.tolist(), strict=True))


def _without_exchange(objective: Callable[[M], LossOutput]) -> AbstractContextManager[None]:
    """Gradients travel between ranks once a step, with the last micro-batch."""
    return objective.no_sync() if isinstance(objective, DistributedDataParallel) else nullcontext()


def _check_finite(step: int, sums: Mapping[str, float], norm: float) -> None:
    bad = [f"{name} = {value}" for name, value in {**sums, "gradient norm": norm}.items() if not math.isfinite(value)]
    if bad:
        raise DivergedError(
            f"step {step}: not finite: {', '.join(bad)}. The step was not taken. Usual causes: a rate too high for "
            "this model or batch (try a third of --learning-rate), too short a warm-up (raise --warmup-ratio), or "
            "damaged weights to start from"
        )
