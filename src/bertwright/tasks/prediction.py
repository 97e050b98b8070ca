"""From examples to predictions: encode, compute in packed batches, decode. The same for every kind of task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from bertwright.batching.permutation import token_budget_batches
from bertwright.models.heads import EncoderForTask
from bertwright.tasks.task import Encoded, Outputs, Task, check_segments, collate, flat_ranges
from bertwright.training.loop import check_finite_outputs
from bertwright.vocabulary.tokenizer import Tokenizer

E = TypeVar("E")
P = TypeVar("P")

BATCH_TOKENS = {"cpu": 4_096, "cuda": 65_536}  # computed at once: bounds memory, changes no result
EXAMPLES_AT_ONCE = 2_048  # encoded together: enough to group them by length, little enough to hold
CHARACTERS_AT_ONCE = 4_000_000  # the same where texts are long: of questions, all in all some 100 MB


class Predicted(NamedTuple, Generic[E, P]):
    """Some examples that follow one another, each with its prediction."""

    examples: list[E]
    predictions: list[P]
    truncated: int
    """How many of them lost tokens, as in `Encoded`."""


def predict_chunks(
    model: EncoderForTask, task: Task[E, P], tokenizer: Tokenizer, examples: Iterable[E]
) -> Iterator[Predicted[E, P]]:
    """One prediction an example, in order, chunk by chunk: of any number of them, in constant memory."""
    for chunk in chunks(examples):
        encoded = task.encode(chunk, tokenizer, labelled=False)
        yield Predicted(chunk, task.decode(chunk, encoded, predict_logits(model, encoded)), encoded.truncated)


def chunks(examples: Iterable[E]) -> Iterator[list[E]]:
    """Examples in lists of at most EXAMPLES_AT_ONCE, and of at most CHARACTERS_AT_ONCE or a single one that has more.

    Counted alone, they would take memory with the length of their texts: a book's chapter has thousands of windows.
    """
    chunk: list[E] = []
    size = 0
    for example in examples:
        more = characters(example)
        if chunk and (len(chunk) == EXAMPLES_AT_ONCE or size + more > CHARACTERS_AT_ONCE):
            yield chunk
            chunk, size = [], 0
        chunk.append(example)
        size += more
    if chunk:
        yield chunk


def characters(example: Any) -> int:
    """About how many characters a text, or an example of any kind, has: those of its texts and lists of texts.

    >>> characters(("the bear", ("sees", "hears"), None)), characters("the bear")
    (17, 8)
    """
    if isinstance(example, str):
        return len(example)
    values = example if isinstance(example, tuple) else [getattr(example, one.name) for one in fields(example)]
    texts = [value for value in values if isinstance(value, str)]
    listed = [one for value in values if isinstance(value, tuple) for one in value if isinstance(one, str | tuple)]
    return sum(map(len, texts)) + sum(map(len, listed))


def truncation_warnings(task: Task[Any, Any], examples: int, truncated: int, positions: int) -> list[str]:
    """A sentence on the examples that lost tokens, `truncate_pairs` of them all; none where none did.

    `positions`: those of the model, beyond which no setting helps.
    """
    if not truncated:
        return []
    limit, length = task.limit, getattr(task, task.limit)
    hint = f"raise {limit} to keep them whole"
    if length == positions:
        hint = "the model has no more positions"
    share = f"{truncated:,} of {examples:,} examples ({truncated / examples:.1%})"
    return [f"{share} lose tokens: {limit} is {length}; {hint}"]


class Scored(NamedTuple):
    """A model's predictions of labelled examples, and what they are worth."""

    scores: dict[str, float]
    predictions: list[Any]
    task: Task[Any, Any]
    """The task they were made with: with the threshold chosen on these examples, if that was asked for."""


def evaluate_examples(
    model: EncoderForTask,
    task: Task[E, P],
    examples: Sequence[E],
    encoded: Encoded,
    tune: bool = False,
    advance: Callable[[int], None] | None = None,
) -> Scored:
    """Predict examples and score them; `tune` first chooses what the task chooses on dev (section 4.3: τ)."""
    found = predict_logits(model, encoded, advance)
    predictions = task.decode(examples, encoded, found)
    if tune and (tuned := task.with_threshold_from(examples, predictions)) != task:
        task, predictions = tuned, tuned.decode(examples, encoded, found)
    return Scored(task.score(examples, predictions), predictions, task)


@torch.inference_mode()
def predict_logits(model: EncoderForTask, encoded: Encoded, advance: Callable[[int], None] | None = None) -> Outputs:
    """The head's outputs for all rows, R × C float32, dropout off; `advance` is told of items done.

    Raises DivergedError for outputs that are not finite: no answer follows from those.
    """
    check_segments(encoded, model.encoder.config)
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    found = np.empty((len(encoded.positions), model.head.outputs), dtype=np.float32)
    try:
        for items in token_budget_batches(encoded.item_lengths, BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"])):
            batch = collate(encoded, items).to(device)
            sequences = encoded.sequences(items)
            rows = flat_ranges(encoded.position_starts[sequences], encoded.position_counts[sequences])
            found[rows] = model(batch.batch, batch.positions).cpu().numpy()
            if advance is not None:
                advance(len(items))
    finally:
        model.train(training)
    check_finite_outputs(bool(np.isfinite(found).all()))
    return found
