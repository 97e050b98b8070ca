"""The second kind of loss: over all rows of a step. In a contrastive loss, for example, every row sees every other.

The gradient is computed in two passes (Gao et al. 2021, arXiv 2101.06983), so that memory holds the graph of a single
micro-batch, however many rows the step has. The first pass computes the vectors of all micro-batches and ranks; the
loss gives a gradient per vector; the second pass computes the vectors again and hands the gradients on to the weights.
Dropout is keyed by the batch, so that both passes drop the same elements.

N rows of the step, R rows of a micro-batch, D size of a vector, K numbers that describe a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from bertwright.training.distributed import gather_rows, no_sync, sum_over_ranks, world_size

if TYPE_CHECKING:
    from bertwright.training.loop import LossOutput

M = TypeVar("M")


class RowOutput(NamedTuple):
    """Rows of one micro-batch, and the sums that are reported."""

    vectors: Tensor
    """R × D, what the model computes for each row."""
    rows: Tensor
    """R × K, what the loss must know about each row, such as its label or the ids of its texts."""
    sums: Mapping[str, Tensor]
    """Scalars that add up over the micro-batches and ranks of the step, such as the number of tokens; at least one."""


@dataclass(frozen=True)
class WholeBatchLoss(Generic[M]):
    """A loss over all rows of a step, in two functions: the model computes vectors, and the loss compares them."""

    vectors: Callable[[M], RowOutput]
    """Compute the rows of a micro-batch. It is called twice with most micro-batches, and must return the same vectors:
    dropout is keyed by the batch, and no call changes the model."""
    loss: Callable[[Tensor, Tensor], LossOutput]
    """Compute the loss of the whole step from vectors N × D and rows N × K, and its sums.

    Rows stand in the order of ranks, and of micro-batches within a rank. This is the order of the step's examples if
    each rank and micro-batch has consecutive examples. All ranks compute the same loss. What is trained, such as a
    temperature, acts in `vectors`, because the ranks exchange gradients of what is used there."""


def backward(loss: WholeBatchLoss[M], micro_batches: Sequence[M]) -> tuple[list[str], Tensor]:
    """Accumulate the gradients of the whole step in the parameters; return the reported sums over all ranks.

    These are names, and float64 numbers on the device: first the sums of the micro-batches, then the sums of the loss.
    """
    gradients, names, totals = _compute_loss(loss, micro_batches)
    for number, gradient in enumerate(gradients):  # of all micro-batches but the last
        last = number + 1 == len(gradients)
        with nullcontext() if last else no_sync(loss.vectors):
            loss.vectors(micro_batches[number]).vectors.backward(gradient)  # type: ignore[no-untyped-call]
    return names, totals


def _compute_loss(loss: WholeBatchLoss[M], micro_batches: Sequence[M]) -> tuple[Sequence[Tensor], list[str], Tensor]:
    """Compute the loss of a step and run the backward pass of the last micro-batch, whose graph is at hand.

    Returns the gradients of the other micro-batches' vectors, and names and numbers of the sums.
    """
    *others, last = micro_batches
    # Small tensors that stay would come to lie between large ones that are freed, which malloc then cannot join: memory
    # would grow with the number of parts. So vectors are copied to one place, and sums are added at once.
    vectors, rows, totals = None, [], None
    with torch.no_grad():
        for batch in others:
            output = loss.vectors(batch)
            vectors, totals = _append(vectors, output.vectors), _add(totals, output.sums)
            rows.append(output.rows)
    with no_sync(loss.vectors) if others else nullcontext():
        output = loss.vectors(last)
        vectors, totals = _append(vectors, output.vectors.detach()), _add(totals, output.sums)
        rows.append(output.rows)
        # Before any rank exchanges gradients: ranks with different numbers of micro-batches need one order of messages.
        totals = sum_over_ranks(totals)
        (vectors, all_rows), own = gather_rows(vectors, torch.cat(rows))
        step_output = loss.loss(vectors.requires_grad_(), all_rows)
        step_output.loss.backward()  # type: ignore[no-untyped-call]
        assert vectors.grad is not None
        # A wrapped module averages gradients over the ranks. Each rank has those of its own rows, which must be summed.
        own_gradient = vectors.grad[own] * world_size()
        *gradients, last_gradient = torch.split(own_gradient, [len(part) for part in rows])
        output.vectors.backward(last_gradient)  # type: ignore[no-untyped-call]
    names = [*output.sums, *step_output.sums]
    return gradients, names, torch.cat([totals, stack_sums(step_output.sums)])  # all ranks have the same loss


def _append(rows: Tensor | None, part: Tensor) -> Tensor:
    """Copy a part behind the rows, in place; where the memory is full, it doubles."""
    if rows is None:
        return part.clone(memory_format=torch.contiguous_format)
    used, size, shape = len(rows), len(rows) + len(part), part.shape[1:]
    if rows.untyped_storage().nbytes() < size * math.prod(shape) * part.itemsize:
        rows.resize_(2 * size, *shape)
    rows.resize_(size, *shape)[used:] = part
    return rows


def _add(totals: Tensor | None, sums: Mapping[str, Tensor]) -> Tensor:
    return stack_sums(sums) if totals is None else totals.add_(stack_sums(sums))


def stack_sums(sums: Mapping[str, Tensor]) -> Tensor:
    """Return the reported sums of a micro-batch as one tensor, float64."""
    return torch.stack([value.detach().double() for value in sums.values()])
