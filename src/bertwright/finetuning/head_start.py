"""Fit of a new head to the states of the pre-trained encoder, before fine-tuning trains all weights.

With random weights in the head, the first epochs find what a linear model of the states would find at once, and send
random gradients into the encoder meanwhile (Kumar et al. 2022: linear probing, then fine-tuning).

R rows (positions that the head reads), D numbers per row, C outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.base.example_order import permute, token_budget_batches
from bertwright.base.ragged import flat_ranges, offsets_from_lengths
from bertwright.base.seeding import TaskStream, derive_key
from bertwright.models.heads import LinearHead, PooledHead, TaskBatch, TaskHead
from bertwright.models.task_model import EncoderForTask
from bertwright.tasks.collation import collate, step_items
from bertwright.tasks.encoded import Encoded, Ints
from bertwright.tasks.prediction import BATCH_TOKENS
from bertwright.tasks.task import AnyTask
from bertwright.training.loop import evaluation_mode

MAX_ITEMS = 8_192
MAX_NUMBERS = 1 << 26  # R · D, 268 MB in float32, 537 MB in float64
MAX_ITERATIONS = 200
MAX_EVALUATIONS = 250
TOLERANCES = {torch.float32: 1e-9, torch.float64: 1e-12}  # changes of the loss, or of a weight, that end L-BFGS
VARIANCES = (0.03, 0.3, 3.0, 30.0)  # of logits under the prior, candidates
NUM_FOLDS = 5
MIN_HELD_OUT = 1_000  # items that decide between the candidates


class HeadFit(NamedTuple):
    """Account of a fit."""

    items: int
    """Training items that it read."""
    first_loss: float
    """Mean loss of the same head with zero weights."""
    loss: float
    """Mean loss of the fitted head."""
    variance: float
    """Variance of the prior, chosen on held-out items."""
    seconds: float

    def __str__(self) -> str:
        return (
            f"fitted to the encoder's states of {self.items:,} training items "
            f"(loss {self.first_loss:.3f} → {self.loss:.3f}, {self.seconds:.1f} s)"
        )


def fit_head(
    model: EncoderForTask,
    task: AnyTask,
    encoded: Encoded,
    seed: int,
    smoothing: float = 0.0,
    advance: Callable[[int], None] | None = None,
) -> HeadFit:
    """Set the weights of the head's linear layer to the minimum of the task's loss plus a penalty, without dropout.

    The penalty is the prior N(0, variance / D) on each weight of standardized states: the logits then have that
    variance before any label is seen, whatever the size of the states and their number. `choose_variance` chooses it on
    held-out items. The result is a function of the data and of the seed, which chooses the held-out items and, if there
    are too many items, those that are read. `advance` receives items read. Raises ValueError for a head
    that is not one linear layer.
    """
    if not is_linear(model.head):
        name = type(model.head).__name__
        raise ValueError(f"head_init = 'fit': expected a head that is one linear layer, got {name}; omit it")
    started = time.perf_counter()
    layer = model.head.get_submodule("classifier")
    items = choose_items(encoded, layer.get_parameter("weight").shape[1], seed)
    states = read_states(model, encoded, items, advance)
    mean, deviation = states.mean(0), states.std(0, correction=0)
    deviation[deviation <= 1e-6 * (1 + mean.abs())] = 1.0  # a constant
    data = FitData(task, encoded, items, states.sub_(mean).div_(deviation), smoothing)
    bias = layer.get_parameter("bias").detach().clone()
    variance = choose_variance(data, bias, seed)
    data = replace(data, states=data.states.double())
    zero = Linear(torch.zeros_like(layer.get_parameter("weight"), dtype=torch.double), bias.double())
    fitted = minimize(data, variance, zero)
    with torch.no_grad():
        weight = fitted.weight / deviation
        layer.get_parameter("weight").copy_(weight)
        layer.get_parameter("bias").copy_(fitted.bias - weight @ mean.double())
    first_loss, loss = (float(data.mean_loss(linear).detach()) for linear in (zero, fitted))
    return HeadFit(len(items), first_loss, loss, variance, time.perf_counter() - started)


def is_linear(head: TaskHead) -> bool:
    """Return whether a head is one linear layer on states that the encoder or its pooler computes."""
    return isinstance(head, LinearHead | PooledHead)


class Linear(NamedTuple):
    """Weights C × D and biases C of a linear layer on standardized states."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class FitData:
    """Items of a task with the standardized states of their rows, R × D."""

    task: AnyTask
    encoded: Encoded
    items: Ints
    states: Tensor
    smoothing: float

    @cached_property
    def batch(self) -> TaskBatch:
        return collate(self.encoded, self.items).to(self.states.device)

    def take(self, chosen: Ints) -> FitData:
        counts = row_counts(self.encoded, self.items)
        rows = torch.from_numpy(flat_ranges(offsets_from_lengths(counts)[chosen], counts[chosen]))
        return replace(self, items=self.items[chosen], states=self.states[rows.to(self.states.device)])

    def mean_loss(self, linear: Linear) -> Tensor:
        logits = F.linear(self.states, linear.weight, linear.bias)
        return self.task.loss(logits, self.batch, self.smoothing) / max(self.batch.num_labels, 1)


def choose_variance(data: FitData, bias: Tensor, seed: int) -> float:
    """Return the variance of the prior with the lowest loss on held-out items, after a fit to the other items.

    Each fifth of the items is held out in turn, until MIN_HELD_OUT items have been or all.
    """
    order = permute(np.arange(len(data.items)), len(data.items), derive_key(seed, TaskStream.HELD_OUT))
    losses, num_held_out = np.zeros(len(VARIANCES)), 0
    for fold in np.array_split(order, NUM_FOLDS) if len(order) >= NUM_FOLDS else ():
        held_out, others = data.take(np.sort(fold)), data.take(np.setdiff1d(order, fold))
        linear = Linear(bias.new_zeros(len(bias), data.states.shape[1]), bias)
        for number, variance in enumerate(VARIANCES):
            linear = minimize(others, variance, linear)  # starts from the minimum of the narrower prior
            losses[number] += float(held_out.mean_loss(linear).detach()) * len(fold)
        num_held_out += len(fold)
        if num_held_out >= MIN_HELD_OUT:
            break
    return VARIANCES[int(losses.argmin())]


def minimize(data: FitData, variance: float, start: Linear) -> Linear:
    """Minimize the mean loss plus the penalty of a prior by L-BFGS.

    With float32 states it ends where the loss's rounding hides further gains, at a slope of up to 5 % of the penalty's
    (enough to compare candidates); with float64 states at the minimum, a slope below 0.1 %.
    """
    weight, bias = (tensor.detach().clone().requires_grad_() for tensor in start)
    penalty = weight.shape[1] / (2 * variance * max(data.batch.num_labels, 1))
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=MAX_ITERATIONS,
        max_eval=MAX_EVALUATIONS,
        tolerance_change=TOLERANCES[data.states.dtype],
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def objective() -> Any:
        optimizer.zero_grad()
        value = data.mean_loss(Linear(weight, bias)) + penalty * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(objective)  # type: ignore[no-untyped-call]
    return Linear(weight.detach(), bias.detach())


def choose_items(encoded: Encoded, width: int, seed: int) -> Ints:
    """Return the items that a fit reads, ascending: all, or the first ones of the first epoch within the limits."""
    items = step_items(encoded.num_items, min(encoded.num_items, MAX_ITEMS), 0, seed)
    numbers = np.cumsum(row_counts(encoded, items)) * width
    return np.sort(items[: max(1, int(np.searchsorted(numbers, MAX_NUMBERS, side="right")))])


def row_counts(encoded: Encoded, items: Ints) -> Ints:
    first, count = encoded.item_starts[items], encoded.item_counts[items]
    counts: Ints = encoded.position_starts[first + count] - encoded.position_starts[first]
    return counts


@torch.no_grad()
def read_states(
    model: EncoderForTask, encoded: Encoded, items: Ints, advance: Callable[[int], None] | None = None
) -> Tensor:
    """Compute the input of the head's linear layer for all rows of some items, R × D float32, without dropout."""
    layer = model.head.get_submodule("classifier")
    weight = layer.get_parameter("weight")
    counts = row_counts(encoded, items)
    starts = offsets_from_lengths(counts)
    states = torch.empty(int(starts[-1]), weight.shape[1], device=weight.device)
    inputs: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    try:
        with evaluation_mode(model):
            for chosen in token_budget_batches(encoded.item_lengths[items], BATCH_TOKENS[weight.device.type]):
                model(collate(encoded, items[chosen]).to(weight.device))
                rows = torch.from_numpy(flat_ranges(starts[chosen], counts[chosen])).to(weight.device)
                states[rows] = inputs.pop().float()
                if advance is not None:
                    advance(len(chosen))
    finally:
        handle.remove()
    return states
