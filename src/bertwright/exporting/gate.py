"""The gate of int8: what a graph with 8-bit numbers loses on the user's dev file, beside the float32 model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bertwright.inference.bert import Bert
from bertwright.inference.text_vectors import embed_by_role
from bertwright.models.pooling import Vectors
from bertwright.tasks.embedding import Embedding
from bertwright.tasks.embedding_scores import Embed, rank_by_vectors
from bertwright.tasks.labeled_texts import LabeledTexts, read_labeled_texts, score_vectors
from bertwright.tasks.prediction import predict_chunks
from bertwright.tasks.task import AnyTask
from bertwright.tasks.unknown_rates import InputCounts

MIN_AGREEMENT = 0.99
MIN_COSINE = 0.99  # of 99 % of the vectors
TASK_DROP, VECTOR_DROP = 0.5, 0.3  # points
ANSWERS = ("label", "labels", "choice", "tags", "text")  # fields of predictions that are right or wrong


class DevData(NamedTuple):
    """Labeled data of a dev file."""

    task: AnyTask | None
    """None: text vectors."""
    examples: Any
    """Examples of the task, or `LabeledTexts`."""


class Measured(NamedTuple):
    """What a model does on dev data."""

    metric: str
    score: float
    answers: list[Any]
    """Predicted labels, one per example or per word; empty where predictions are numbers."""
    vectors: Vectors | None
    """Vectors of all texts."""
    texts: list[str]
    """The texts of the vectors."""


class GateResult(NamedTuple):
    """The figures of a gate."""

    figures: dict[str, float | str]
    passed: bool

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in self.figures.items() if isinstance(value, float))


def read_dev(bert: Bert, path: str) -> DevData:
    """Read a dev file for a model. Raises ValueError for a file without labels, and for a model without a metric."""
    if bert.task is not None and not isinstance(bert.task, Embedding):
        examples = list(bert.task.read(path))
        bert.task.check(examples)
        if not examples:
            raise ValueError(f"{path}: no examples in it")
        return DevData(bert.task, examples)
    return DevData(None, read_labeled_texts((path,), Embedding().table_options, "dev"))


def measure(bert: Bert, dev: DevData) -> Measured:
    """Predict dev data, and score the predictions."""
    if dev.task is None:
        return _measure_vectors(bert, dev.examples)
    chunks = predict_chunks(bert.model, dev.task, bert.tokenizer, dev.examples)
    predictions = [prediction for chunk in chunks for prediction in chunk.predictions]
    score = dev.task.score(dev.examples, predictions)[dev.task.metric]
    return Measured(dev.task.metric, score, answers_of(predictions), None, [])


def answers_of(predictions: Sequence[Any]) -> list[Any]:
    """Return what is right or wrong in predictions: labels, choices, texts, or the tags of all words."""
    name = next((name for name in ANSWERS if predictions and hasattr(predictions[0], name)), None)
    values = [] if name is None else [getattr(prediction, name) for prediction in predictions]
    return [tag for tags in values for tag in tags] if name == "tags" else values


def _measure_vectors(bert: Bert, data: LabeledTexts) -> Measured:
    vectors: list[Vectors] = []
    texts: list[str] = []
    compute = embed_by_role(bert, InputCounts())

    def embed(given: Sequence[str], role: str) -> Vectors:
        vectors.append(compute(given, role))
        texts.extend(given)
        return vectors[-1]

    recorded: Embed = embed
    if data.kind == "retrieval":
        from bertwright.metrics.ranking_scores import DEPTH, score_rankings
        from bertwright.tasks.embedding_scores import name_ranking_scores

        ranked = score_rankings(rank_by_vectors(data.data, recorded, DEPTH), data.data.judgements)
        found = name_ranking_scores(ranked, "cosine_")
    else:
        found = score_vectors(data, recorded)
    return Measured(found.metric, found.scores[found.metric], [], np.concatenate(vectors), texts)


def compare(reference: Measured, candidate: Measured, max_drop: float | None) -> GateResult:
    """Compare an int8 graph with the model; `max_drop`: points of the metric, None for the default."""
    allowed = max_drop if max_drop is not None else TASK_DROP if reference.vectors is None else VECTOR_DROP
    drop = 100 * (reference.score - candidate.score)
    figures: dict[str, float | str] = {
        "metric": reference.metric,
        "float32": float(reference.score),
        "int8": float(candidate.score),
        "points lost": float(drop),
        "points allowed": float(allowed),
    }
    passed = bool(drop <= allowed)
    if reference.answers:
        pairs = zip(reference.answers, candidate.answers, strict=True)
        figures["equal answers"] = agreement = float(np.mean([one == other for one, other in pairs]))
        passed &= agreement >= MIN_AGREEMENT
    if reference.vectors is not None and candidate.vectors is not None:
        products = (reference.vectors * candidate.vectors).sum(1)
        lengths = np.linalg.norm(reference.vectors, axis=1) * np.linalg.norm(candidate.vectors, axis=1)
        figures["1st percentile of cosines"] = cosine = float(np.percentile(products / np.maximum(lengths, 1e-30), 1))
        passed &= cosine >= MIN_COSINE
    return GateResult(figures, passed)
