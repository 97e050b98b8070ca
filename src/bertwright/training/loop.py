"""The training loop: it reads micro-batches and yields one result per step; the caller saves, evaluates and stops.

A loss is one of two kinds. Most are computed micro-batch by micro-batch: each is already divided by the counts of the
whole step, so the gradients of micro-batches and ranks are summed, not averaged. A `WholeBatchLoss` is computed once
from the vectors of all micro-batches and ranks.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from bertwright.training.distributed import no_sync, sum_over_ranks, world_size
from bertwright.training.optimizer import Optimizer
from bertwright.training.optimizer_settings import LRSchedule
from bertwright.training.whole_batch_loss import WholeBatchLoss, stack_sums
from bertwright.training.whole_batch_loss import backward as backward_whole_batch

M = TypeVar("M")
T = TypeVar("T")
DEPTH = 2  # items that `prefetch` makes ahead


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


Loss = Callable[[M], LossOutput] | WholeBatchLoss[M]


def wrap_forward(loss: Loss[M], wrap: Callable[[Callable[[M], Any]], Callable[[M], Any]]) -> Loss[M]:
    """Return a loss of either kind with `wrap` applied to its function that runs the model."""
    return replace(loss, vectors=wrap(loss.vectors)) if isinstance(loss, WholeBatchLoss) else wrap(loss)


class StepResult:
    """Report of a finished step. On a GPU, the step may still be running; reading its numbers waits for it."""

    def __init__(self, step: int, names: Sequence[str], numbers: Tensor, learning_rate: float) -> None:
        """Start to copy `numbers` from the device: the sum of each name, then the norm of the gradient."""
        self.step = step
        """Steps finished, this one included."""
        self.learning_rate = learning_rate
        self.seconds = 0.0
        """Wall-clock time of this step, including waits for its data and numbers, without the caller's own work."""
        self._names, self._numbers, self._copied = names, numbers, None
        self._values: list[float] | None = None
        if numbers.is_cuda:
            self._numbers = torch.empty_like(numbers, device="cpu", pin_memory=True).copy_(numbers, non_blocking=True)
            self._copied = torch.cuda.current_stream(numbers.device).record_event()

    @property
    def sums(self) -> dict[str, float]:
        """Sums over all micro-batches and ranks of the step. Raises DivergedError if a number is not finite."""
        return dict(zip(self._names, self.read(), strict=False))

    @property
    def gradient_norm(self) -> float:
        """Norm before clipping. Raises DivergedError if a number is not finite."""
        return self.read()[-1]

    def read(self) -> list[float]:
        """Return all numbers, after a wait for the step. Raises DivergedError if one of them is not finite."""
        started = time.perf_counter()
        values = self.wait()
        self.seconds += time.perf_counter() - started
        return values

    def wait(self) -> list[float]:
        """Do as `read`, for a caller whose own time is counted anyway."""
        if self._values is None:
            if self._copied is not None:
                self._copied.synchronize()
            values: list[float] = self._numbers.tolist()
            named = {**dict(zip(self._names, values, strict=False)), "gradient norm": values[-1]}
            _check_finite(self.step, named)
            self._values = values
        return self._values


class LossModule(torch.nn.Module, Generic[M]):
    """The part of a loss that runs the model as a module: DistributedDataParallel wraps a module's forward pass."""

    def __init__(self, model: torch.nn.Module, loss: Callable[[M], Any]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: M) -> Any:
        return self.loss(batch)


@dataclass
class Stopwatch:
    """Wall-clock seconds by part: a mark ends a part, and the next one begins, so that the parts add up to the whole.

    On a GPU, "forward" and "backward" are the time to start its work, and "wait" is the time until it has done it.
    """

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    last: float = field(default_factory=time.perf_counter)

    def mark(self, part: str) -> None:
        """Count the time since the last mark as this part's."""
        now = time.perf_counter()
        self.seconds[part] += now - self.last
        self.last = now


def prefetch(items: Iterable[T]) -> Generator[T]:
    """Yield the same items, made by a background thread that is at most `DEPTH` items ahead.

    An exception in the thread is raised in place of the item. Closing the generator stops the thread.
    """
    iterator: Iterator[T] = iter(items)
    end: Any = object()
    pool = ThreadPoolExecutor(1, "prefetch")
    try:
        ahead = deque(pool.submit(next, iterator, end) for _ in range(DEPTH))
        while (item := ahead.popleft().result()) is not end:
            ahead.append(pool.submit(next, iterator, end))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)


def train_steps(
    loss: Loss[M],
    batches: Iterable[Sequence[M]],
    optimizer: Optimizer,
    schedule: LRSchedule,
    watch: Stopwatch | None = None,
) -> Iterator[StepResult]:
    """Run one optimizer step for each list of micro-batches and yield its result; steps count from `optimizer.steps`.

    Raises DivergedError if the loss or the gradient is not finite; that step does not change the weights. A GPU may
    still be computing a step that is yielded: its numbers are checked when they are read, or in the next step, which is
    started first, so that the GPU never waits for this process. `watch` gets the seconds of read, forward, backward,
    optimizer and wait.
    """
    started, before, watch = time.perf_counter(), None, watch or Stopwatch()
    for micro_batches in batches:
        watch.mark("read")
        learning_rate = schedule(optimizer.steps)
        if isinstance(loss, WholeBatchLoss):
            names, totals = backward_whole_batch(loss, micro_batches)
            watch.mark("forward and backward")
        else:
            names, totals = _backward(loss, micro_batches, watch)
        norm = optimizer.gradient_norm().to(totals.device)
        numbers = torch.cat([totals, norm[None]])
        result = StepResult(optimizer.steps + 1, names, numbers, learning_rate)
        if optimizer.checks_on_gpu:
            optimizer.step(learning_rate, torch.where(numbers.isfinite().all(), norm, math.nan))
            watch.mark("optimizer")
            if before is not None:
                before.wait()
            if world_size() > 1:
                result.wait()  # all ranks end in the same step if it has diverged
            watch.mark("wait")
        else:
            optimizer.step(learning_rate, result.wait()[-1])
            watch.mark("optimizer")
        result.seconds = time.perf_counter() - started
        yield result
        started, before = time.perf_counter(), result
    if before is not None:
        before.wait()


def check_finite_weights(model: torch.nn.Module, step: int) -> None:
    """Raise an error if weights are not finite: ValueError before the first step (step 0), DivergedError later.

    Called before weights are written, because the loss does not show the effect of an update until the next step.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if not tensor.isfinite().all():
            if step == 0:
                raise ValueError(f"the initial weights are damaged: {name} has numbers that are not finite")
            raise DivergedError(
                f"step {step}: the weights are not finite any more ({name}), and were not written. The learning rate "
                "is far too high for this model (try a hundredth of --learning-rate), or the warm-up is too short "
                "(--warmup-ratio)"
            )


def _backward(
    loss: Callable[[M], LossOutput], micro_batches: Sequence[M], watch: Stopwatch
) -> tuple[list[str], Tensor]:
    """Accumulate the gradients of the whole step in the parameters; return the reported sums over all ranks.

    These are names, and float64 numbers on the device.
    """
    ranks = world_size()
    values = []
    for number, batch in enumerate(micro_batches):
        last = number + 1 == len(micro_batches)
        with nullcontext() if last else no_sync(loss):
            output = loss(batch)
            watch.mark("forward")
            # A wrapped module averages gradients over the ranks, but these must be summed.
            (output.loss * ranks if ranks > 1 else output.loss).backward()  # type: ignore[no-untyped-call]
            watch.mark("backward")
        values.append(stack_sums(output.sums))
    return list(output.sums), sum_over_ranks(torch.stack(values).sum(0))


def _check_finite(step: int, numbers: Mapping[str, float]) -> None:
    bad = [f"{name} = {value}" for name, value in numbers.items() if not math.isfinite(value)]
    if bad:
        raise DivergedError(
            f"step {step}: not finite: {', '.join(bad)}. This step has not changed the weights. Usual causes: a "
            "learning rate that is too high for this model or batch size (try a third of --learning-rate), a warm-up "
            "that is too short (raise --warmup-ratio), or damaged initial weights"
        )
