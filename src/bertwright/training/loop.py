"""The training loop: it reads micro-batches and yields one result per step; the caller saves, evaluates and stops.

The loss of a micro-batch is already divided by the counts of the whole step, so the gradients of micro-batches and
ranks are summed, not averaged.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from bertwright.training.distributed import no_sync, sum_over_ranks, world_size
from bertwright.training.optimizer import Optimizer
from bertwright.training.schedules import LRSchedule

M = TypeVar("M")


class DivergedError(RuntimeError):
    """A loss, gradient, output or weight that is not finite. All files that were written before are intact."""


def check_finite_outputs(finite: bool) -> None:
    """Raise DivergedError unless all outputs of a model are `finite`."""
    if not finite:
        raise DivergedError(
            "the model's outputs are not finite numbers: its weights are damaged, or its training diverged"
        )


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """Turn off dropout in a model that is being trained until the block ends. Not for models that threads share."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


class LossOutput(NamedTuple):
    """Loss of one micro-batch and the sums that are reported."""

    loss: Tensor
    """Scalar: this micro-batch's share of the step's loss."""
    sums: Mapping[str, Tensor]
    """Scalars that add up over the step: sums of losses, of correct answers, of tokens."""

    @classmethod
    def of(cls, loss: Tensor, sums: Mapping[str, Tensor], counts: Mapping[str, float]) -> LossOutput:
        """Return the output with counts, which are known on the CPU, among its sums."""
        return cls(loss, {**sums, **{name: loss.new_full((), float(value)) for name, value in counts.items()}})


class StepResult(NamedTuple):
    """Report of a finished step."""

    step: int
    """Steps finished, this one included."""
    sums: dict[str, float]
    """Sums over all micro-batches and ranks of the step."""
    gradient_norm: float
    """Norm before clipping."""
    learning_rate: float
    seconds: float
    """Wall-clock time of this step, including the wait for its data, without the caller's work between two steps."""


class LossModule(torch.nn.Module, Generic[M]):
    """A loss as a module, because DistributedDataParallel wraps the forward pass of a module to exchange gradients."""

    def __init__(self, model: torch.nn.Module, loss: Callable[[M], LossOutput]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: M) -> LossOutput:
        return self.loss(batch)


def train_steps(
    loss: Callable[[M], LossOutput],
    batches: Iterable[Sequence[M]],
    optimizer: Optimizer,
    schedule: LRSchedule,
) -> Iterator[StepResult]:
    """Run one optimizer step for each list of micro-batches and yield its result; steps count from `optimizer.steps`.

    Raises DivergedError, before the weights are updated, if the loss or the gradient is not finite.
    """
    started = time.perf_counter()
    for micro_batches in batches:
        step, learning_rate = optimizer.steps + 1, schedule(optimizer.steps)
        names, totals = _backward(loss, micro_batches)
        norm = optimizer.gradient_norm().to(totals.device)
        numbers = torch.cat([totals, norm[None]])
        if optimizer.checks_on_gpu:  # all work of the step is queued before its numbers are read
            optimizer.step(learning_rate, torch.where(numbers.isfinite().all(), norm, math.nan))
        *values, norm_value = numbers.tolist()
        sums = dict(zip(names, values, strict=True))
        _check_finite(step, sums, norm_value)
        if not optimizer.checks_on_gpu:
            optimizer.step(learning_rate, norm_value)
        yield StepResult(step, sums, norm_value, learning_rate, time.perf_counter() - started)
        started = time.perf_counter()


def check_finite_weights(model: torch.nn.Module, step: int) -> None:
    """Raise an error if weights are not finite: ValueError before the first step (step 0), DivergedError later.

    Called before weights are written, because the loss does not show the effect of an update until the next step.
    """
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            if step == 0:
                raise ValueError(f"the initial weights are damaged: {name} has numbers that are not finite")
            raise DivergedError(
                f"step {step}: the weights are not finite any more ({name}), and were not written. The learning rate "
                "is far too high for this model (try a hundredth of --learning-rate), or the warm-up is too short "
                "(--warmup-ratio)"
            )


def _backward(loss: Callable[[M], LossOutput], micro_batches: Sequence[M]) -> tuple[list[str], Tensor]:
    """Accumulate the gradients of the whole step in the parameters; return the reported sums over all ranks.

    These are names, and float64 numbers on the device.
    """
    ranks = world_size()
    values = []
    for number, batch in enumerate(micro_batches):
        last = number + 1 == len(micro_batches)
        with nullcontext() if last else no_sync(loss):
            output = loss(batch)
            # A wrapped module averages gradients over the ranks, but these must be summed.
            (output.loss * ranks if ranks > 1 else output.loss).backward()  # type: ignore[no-untyped-call]
        values.append(torch.stack([value.detach().double() for value in output.sums.values()]))
    return list(output.sums), sum_over_ranks(torch.stack(values).sum(0))


def _check_finite(step: int, sums: Mapping[str, float], norm: float) -> None:
    bad = [f"{name} = {value}" for name, value in {**sums, "gradient norm": norm}.items() if not math.isfinite(value)]
    if bad:
        raise DivergedError(
            f"step {step}: not finite: {', '.join(bad)}. The weights were not updated. Usual causes: a "
            "learning rate that is too high for this model or batch size (try a third of --learning-rate), a warm-up "
            "that is too short (raise --warmup-ratio), or damaged initial weights"
        )
