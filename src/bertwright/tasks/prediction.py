"""Prediction: encode examples, run the model on packed batches, decode; the same for every task type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from bertwright.models.heads import EncoderForTask
from bertwright.permutation import token_budget_batches
from bertwright.ragged import flat_ranges
from bertwright.tasks.collation import check_segments, collate
from bertwright.tasks.task import Encoded, Outputs, Task
from bertwright.training.loop import check_finite_outputs
from bertwright.vocabulary.tokenizer import Tokenizer

E = TypeVar("E")
P = TypeVar("P")

BATCH_TOKENS = {"cpu": 4_096, "cuda": 65_536}  # per forward pass: bounds memory, changes no result
MAX_CHUNK_EXAMPLES = 2_048  # enough to group examples by length
MAX_CHUNK_CHARACTERS = 4_000_000  # bounds the memory for long texts, to some 100 MB for questions


class PredictedChunk(NamedTuple, Generic[E, P]):
    """Consecutive examples and their predictions."""

    examples: list[E]
    predictions: list[P]
    truncated: int
    """Number of examples that lost tokens."""


def predict_chunks(
    model: EncoderForTask | Callable[[Encoded], Outputs],
    task: Task[E, P],
    tokenizer: Tokenizer,
    examples: Iterable[E],
) -> Iterator[PredictedChunk[E, P]]:
    """Predict any number of examples in constant memory, in order, chunk by chunk.

    `model`: a task model, or a function to its outputs R × C, such as those of an ensemble.
    """
    compute = partial(predict_logits, model) if isinstance(model, EncoderForTask) else model
    for chunk in split_into_chunks(examples):
        encoded = task.encode(chunk, tokenizer, labeled=False)
        yield PredictedChunk(chunk, task.decode(chunk, encoded, compute(encoded)), encoded.truncated)


def split_into_chunks(examples: Iterable[E]) -> Iterator[list[E]]:
    """Split examples into lists of at most MAX_CHUNK_EXAMPLES and MAX_CHUNK_CHARACTERS, or of one longer example.

    A limit on examples alone would not bound memory: a long text has thousands of windows.
    """
    chunk: list[E] = []
    size = 0
    for example in examples:
        more = count_characters(example)
        if chunk and (len(chunk) == MAX_CHUNK_EXAMPLES or size + more > MAX_CHUNK_CHARACTERS):
            yield chunk
            chunk, size = [], 0
        chunk.append(example)
        size += more
    if chunk:
        yield chunk


def count_characters(example: Any) -> int:
    """Count roughly the characters of a text, or of the texts and tuples of texts in an example.

    >>> count_characters(("the bear", ("sees", "reads"), None)), count_characters("the bear")
    (17, 8)
    """
    if isinstance(example, str):
        return len(example)
    values = example if isinstance(example, tuple) else [getattr(example, one.name) for one in fields(example)]
    texts = [value for value in values if isinstance(value, str)]
    listed = [one for value in values if isinstance(value, tuple) for one in value if isinstance(one, str | tuple)]
    return sum(map(len, texts)) + sum(map(len, listed))


class EvaluationResult(NamedTuple):
    """A model's predictions for labeled examples and their scores."""

    scores: dict[str, float]
    predictions: list[Any]
    task: Task[Any, Any]
    """The task that made them: with the threshold chosen on these examples, if that was requested."""


def evaluate_examples(
    model: EncoderForTask,
    task: Task[E, P],
    examples: Sequence[E],
    encoded: Encoded,
    tune: bool = False,
    advance: Callable[[int], None] | None = None,
) -> EvaluationResult:
    """Predict examples and score them; with `tune`, first choose the task's threshold on them (section 4.3: τ)."""
    outputs = predict_logits(model, encoded, advance)
    predictions = task.decode(examples, encoded, outputs)
    if tune and (tuned := task.with_threshold_from(examples, predictions)) != task:
        task, predictions = tuned, tuned.decode(examples, encoded, outputs)
    return EvaluationResult(task.score(examples, predictions), predictions, task)


@torch.inference_mode()
def predict_logits(model: EncoderForTask, encoded: Encoded, advance: Callable[[int], None] | None = None) -> Outputs:
    """Compute the head's outputs at all positions, R × C float32, without dropout; `advance` receives items done.

    Raises DivergedError for outputs that are not finite.
    """
    check_segments(encoded.token_type_ids, model.encoder.config)
    device = next(model.parameters()).device
    training = model.training
    model.eval()
    outputs = np.empty((len(encoded.positions), model.head.outputs), dtype=np.float32)
    try:
        for items in token_budget_batches(encoded.item_lengths, BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"])):
            batch = collate(encoded, items).to(device)
            sequences = encoded.sequences(items)
            indices = flat_ranges(encoded.position_starts[sequences], encoded.position_counts[sequences])
            outputs[indices] = model(batch.input, batch.positions).cpu().numpy()
            if advance is not None:
                advance(len(items))
    finally:
        model.train(training)
    check_finite_outputs(bool(np.isfinite(outputs).all()))
    return outputs
