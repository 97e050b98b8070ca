"""Fit of a new head to the states of the pre-trained encoder, before fine-tuning trains all weights.

With random weights in the head, the first epochs find what a linear model of the states would find at once, and send
random gradients into the encoder meanwhile (Kumar et al. 2022: linear probing, then fine-tuning).

R rows (positions that the head reads), D numbers per row, C outputs.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.models.heads import EncoderForTask, LinearHead, PooledHead
from bertwright.permutation import token_budget_batches
from bertwright.ragged import flat_ranges, offsets_from_lengths
from bertwright.tasks.collation import collate, step_items
from bertwright.tasks.prediction import BATCH_TOKENS
from bertwright.tasks.task import AnyTask, Encoded, Ints
from bertwright.training.loop import evaluation_mode

MAX_ITEMS = 8_192
MAX_NUMBERS = 1 << 26  # R · D, 268 MB
MAX_ITERATIONS = 100
LOGIT_VARIANCE = (
    3.0  # chosen on SST-5, RTE and CoNLL-2000 among 0.3, 1, 3, 10 and 30, without training (bench/head_init.py)
)


class HeadFit(NamedTuple):
    """Account of a fit."""

    items: int
    """Training items that it read."""
    first_loss: float
    """Mean loss of the same head with zero weights."""
    loss: float
    """Mean loss of the fitted head."""
    seconds: float

    def __str__(self) -> str:
        return (
            f"fitted to the encoder's states of {self.items:,} training items "
            f"(loss {self.first_loss:.3f} → {self.loss:.3f}, {self.seconds:.1f} s)"
        )


def fit_head(model: EncoderForTask, task: AnyTask, encoded: Encoded, seed: int, smoothing: float = 0.0) -> HeadFit:
    """Set the weights of the head's linear layer to the minimum of the task's loss plus a penalty, without dropout.

    The penalty is the prior N(0, LOGIT_VARIANCE / D) on each weight of standardized states: the logits then have the
    variance LOGIT_VARIANCE before any label is seen, whatever the size of the states and their number. L-BFGS starts
    from zero, so that the result is a function of the data; the seed matters only if there are more items than the
    fit reads. Raises ValueError for a head that is not one linear layer.
    """
    if not isinstance(model.head, LinearHead | PooledHead):
        name = type(model.head).__name__
        raise ValueError(f"head_init = 'fit': expected a head that is one linear layer, got {name}; omit it")
    started = time.perf_counter()
    layer = model.head.get_submodule("classifier")
    device = layer.get_parameter("weight").device
    items = choose_items(encoded, layer.get_parameter("weight").shape[1], seed)
    batch = collate(encoded, items).to(device)
    states = read_states(model, encoded, items)
    mean, deviation = states.mean(0), states.std(0, correction=0)
    deviation[deviation <= 1e-6 * (1 + mean.abs())] = 1.0  # a constant
    states.sub_(mean).div_(deviation)

    weight = torch.zeros_like(layer.get_parameter("weight"), requires_grad=True)
    bias = layer.get_parameter("bias").detach().clone().requires_grad_()
    penalty = weight.shape[1] / (2 * LOGIT_VARIANCE * batch.num_labels)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=MAX_ITERATIONS, line_search_fn="strong_wolfe")

    def mean_loss() -> Tensor:
        return task.loss(F.linear(states, weight, bias), batch, smoothing) / batch.num_labels

    def closure() -> Any:
        optimizer.zero_grad()
        objective = mean_loss() + penalty * weight.square().sum()
        objective.backward()  # type: ignore[no-untyped-call]
        return objective

    with torch.no_grad():
        first_loss = float(mean_loss())
    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        loss = float(mean_loss())
        weight /= deviation
        layer.get_parameter("weight").copy_(weight)
        layer.get_parameter("bias").copy_(bias - weight @ mean)
    return HeadFit(len(items), first_loss, loss, time.perf_counter() - started)


def choose_items(encoded: Encoded, width: int, seed: int) -> Ints:
    """Return the items that a fit reads, ascending: all, or the first ones of the first epoch within the limits."""
    items = step_items(encoded.num_items, min(encoded.num_items, MAX_ITEMS), 0, seed)
    numbers = np.cumsum(row_counts(encoded, items)) * width
    return np.sort(items[: max(1, int(np.searchsorted(numbers, MAX_NUMBERS, side="right")))])


def row_counts(encoded: Encoded, items: Ints) -> Ints:
    """Return the number of rows of each item."""
    counts: Ints = encoded.position_counts[encoded.sequences(items)].reshape(len(items), -1).sum(1)
    return counts


@torch.no_grad()
def read_states(model: EncoderForTask, encoded: Encoded, items: Ints) -> Tensor:
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
    finally:
        handle.remove()
    return states
