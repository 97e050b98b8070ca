"""From examples to predictions: encode, compute in packed batches, decode. The same for every kind of task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from bertwright.models.heads import BertForTask
from bertwright.tasks.task import Encoded, Outputs, Task, gather, take
from bertwright.training.loop import DivergedError
from bertwright.vocabulary.tokenizer import Tokenizer

E = TypeVar("E")
P = TypeVar("P")

BATCH_TOKENS = {"cpu": 4_096, "cuda": 65_536}  # computed at once: bounds memory, changes no result


def predict(model: BertForTask, task: Task[E, P], tokenizer: Tokenizer, examples: Sequence[E]) -> list[P]:
    """One prediction an example, in order, whatever their lengths and however they are batched."""
    if not examples:
        return []
    encoded = task.encode(examples, tokenizer, labelled=False)
    return task.decode(examples, encoded, outputs(model, encoded))


class Scored(NamedTuple):
    """A model's predictions of labelled examples, and what they are worth."""

    scores: dict[str, float]
    predictions: list[Any]
    task: Task[Any, Any]
    """The task they were made with: with the threshold chosen on these examples, if that was asked for."""


def scored(
    model: BertForTask,
    task: Task[E, P],
    examples: Sequence[E],
    encoded: Encoded,
    tune: bool = False,
    advance: Callable[[int], None] | None = None,
) -> Scored:
    """Predict examples and score them; `tune` first chooses what the task chooses on dev (section 4.3: τ)."""
    found = outputs(model, encoded, advance)
    predictions = task.decode(examples, encoded, found)
    if tune and (tuned := task.tuned(examples, predictions)) != task:
        task, predictions = tuned, tuned.decode(examples, encoded, found)
    return Scored(task.score(examples, predictions), predictions, task)


@torch.inference_mode()
def outputs(model: BertForTask, encoded: Encoded, advance: Callable[[int], None] | None = None) -> Outputs:
    """The head's outputs for all rows, R × C float32, dropout off; `advance` is told of items done.

    Longest sequences first: memory runs out at once or never, and a backend that pads has little to pad. Raises
    DivergedError for outputs that are not finite: no answer follows from those.
    """
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    found = np.empty((len(encoded.rows), model.head.outputs), dtype=np.float32)
    lengths = encoded.item_lengths
    order = np.argsort(-lengths, kind="stable")
    begin, budget = 0, BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"])
    try:
        while begin < len(order):
            total = np.cumsum(lengths[order[begin : begin + budget]])
            end = begin + max(int(np.searchsorted(total, budget, side="right")), 1)
            items = order[begin:end]
            batch = take(encoded, items).to(device)
            sequences = encoded.sequences(items)
            rows = gather(encoded.row_starts[sequences], encoded.row_counts[sequences])
            found[rows] = model(batch.batch, batch.rows).cpu().numpy()
            if advance is not None:
                advance(len(items))
            begin = end
    finally:
        model.train(training)
    if not np.isfinite(found).all():
        raise DivergedError(
            "the model's outputs are not finite numbers: its weights are damaged, or its training diverged"
        )
    return found
