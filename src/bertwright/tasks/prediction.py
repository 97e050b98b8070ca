"""Prediction: encode examples, run the model on packed batches, decode; the same for every task type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

from bertwright.base.example_order import token_budget_batches
from bertwright.models.encoder import EncoderConfig
from bertwright.models.heads import TaskBatch
from bertwright.models.task_model import BatchPredictor, EncoderForTask
from bertwright.tasks.collation import check_segments, collate
from bertwright.tasks.encoded import Encoded, Ints, Outputs
from bertwright.tasks.task import Task
from bertwright.tasks.unknown_rates import InputCounts
from bertwright.training.loop import check_finite_outputs, evaluation_mode
from bertwright.vocabulary.tokenizer import TextTokenizer

E = TypeVar("E")
P = TypeVar("P")

BATCH_TOKENS = {"cpu": 4_096, "cuda": 65_536}  # per forward pass: bounds memory, changes no result
MAX_CHUNK_EXAMPLES = 2_048  # enough to group examples by length
MAX_CHUNK_CHARACTERS = 4_000_000  # bounds the memory for long texts, to some 100 MB for questions


class PredictedChunk(NamedTuple, Generic[E, P]):
    """Consecutive examples and their predictions."""

    examples: list[E]
    predictions: list[P]
    counts: InputCounts
    """What the model has read."""


def predict_chunks(
    model: EncoderForTask | Callable[[Encoded], Outputs],
    task: Task[E, P],
    tokenizer: TextTokenizer,
    examples: Iterable[E],
) -> Iterator[PredictedChunk[E, P]]:
    """Predict any number of examples in constant memory, in order, chunk by chunk.

    `model`: a task model, or a function from encoded examples to outputs R × C, such as an ensemble.
    """
    compute = partial(predict_logits, model) if isinstance(model, EncoderForTask) else model
    for chunk in split_into_chunks(examples):
        encoded = task.encode(chunk, tokenizer, labeled=False)
        counts = InputCounts.count(len(chunk), encoded, tokenizer)
        yield PredictedChunk(chunk, task.decode(chunk, encoded, compute(encoded)), counts)


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
    values = example if isinstance(example, tuple) else [getattr(example, field.name) for field in fields(example)]
    texts = [value for value in values if isinstance(value, str)]
    parts = [part for value in values if isinstance(value, tuple) for part in value if isinstance(part, str | tuple)]
    return sum(map(len, texts)) + sum(map(len, parts))


class EvaluationResult(NamedTuple):
    """A model's predictions for labeled examples and their scores."""

    scores: dict[str, float]
    predictions: list[Any]
    task: Task[Any, Any]
    """The task, with the threshold chosen on these examples if that was requested."""


def evaluate_examples(
    model: EncoderForTask,
    task: Task[E, P],
    examples: Sequence[E],
    encoded: Encoded,
    tune: bool = False,
    advance: Callable[[int], None] | None = None,
) -> EvaluationResult:
    """Predict examples with a model in training, and score them; its dropout is off in the meantime.

    `tune`: first choose the task's threshold on these examples (section 4.3: τ).
    """
    with evaluation_mode(model):
        outputs = predict_logits(model, encoded, advance)
    predictions = task.decode(examples, encoded, outputs)
    if tune and (tuned := task.with_threshold_from(examples, predictions)) != task:
        task, predictions = tuned, tuned.decode(examples, encoded, outputs)
    return EvaluationResult(task.score(examples, predictions), predictions, task)


@torch.inference_mode()
def predict_logits(model: BatchPredictor, encoded: Encoded, advance: Callable[[int], None] | None = None) -> Outputs:
    """Compute the scores of all positions, R × C float32; `advance` receives items done.

    Raises ValueError for a model in training mode, DivergedError for outputs that are not finite.
    """
    outputs = np.empty((len(encoded.positions), model.num_outputs), dtype=np.float32)
    for items, batch in prediction_batches(model, model.config, encoded):
        outputs[encoded.rows(items)] = model.predict_batch(batch).cpu().numpy()
        if advance is not None:
            advance(len(items))
    check_finite_outputs(bool(np.isfinite(outputs).all()))
    return outputs


def is_training(module: nn.Module) -> bool:
    """Return whether a module or one of its parts is in training mode; `modules()` takes longer than a short batch."""
    return module.training or any(is_training(part) for part in module._modules.values() if part is not None)


def prediction_batches(
    model: nn.Module, config: EncoderConfig, encoded: Encoded, max_tokens: int | None = None
) -> Iterator[tuple[Ints, TaskBatch]]:
    """Yield the items of each forward pass, and their batch on the model's device; the longest items come first.

    `max_tokens`: maximum tokens per batch, unless one item is longer; it bounds memory and changes no result. None: a
    number that suits the device. Raises ValueError for a model in training mode (to turn its dropout off here would
    change what other threads compute with it), and for pairs if the model has one segment embedding.
    """
    if is_training(model):
        raise ValueError(
            "model: expected evaluation mode, got training mode, in which dropout is on; call model.eval()"
        )
    check_segments(encoded.token_type_ids, config)
    device = next(model.parameters()).device
    for items in token_budget_batches(encoded.item_lengths, max_tokens or BATCH_TOKENS[device.type]):
        yield items, collate(encoded, items).to(device)
