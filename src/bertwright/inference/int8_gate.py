"""The gate that an int8 model passes before it is written: its answers on dev files beside those in float32.

`bertwright quantize` and `bertwright export --int8` share it. N examples or texts, H numbers per vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bertwright.inference.text_vectors import embed_by_role
from bertwright.models.pooling import Vectors
from bertwright.tables.neighbours import join_as_glob
from bertwright.tasks.embedding import Embedding
from bertwright.tasks.labeled_texts import LabeledTexts, read_labeled_texts, score_vectors
from bertwright.tasks.prediction import predict_chunks
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_data import within_positions
from bertwright.tasks.task_types import TaskOptions
from bertwright.tasks.unknown_rates import InputCounts

if TYPE_CHECKING:
    from bertwright.inference.bert import Bert

MAX_DROP = 0.5  # points of a task's metric
MAX_VECTOR_DROP = 0.3  # points of Spearman's correlation or nDCG
MIN_AGREEMENT = 0.99  # share of equal labels
MIN_COSINE = 0.99  # first percentile of the cosines of float32 and int8 vectors
ANSWER_FIELDS = ("label", "labels", "choice", "tags", "text")  # of the predictions of tasks with discrete answers


class Verdict(NamedTuple):
    """What int8 costs on a dev file, and whether that is within the limits."""

    metric: str
    float32: float
    """Score in float32: a share or a correlation."""
    int8: float
    max_drop: float
    """Limit of the drop, in points (hundredths)."""
    agreement: float | None = None
    """Share of equal answers; None for tasks whose answers are numbers, and for vectors."""
    cosine: float | None = None
    """First percentile of the cosines of a text's vectors; None for tasks."""

    @property
    def drop(self) -> float:
        """Points that the score loses; negative if int8 is better."""
        return 100 * (self.float32 - self.int8)

    @property
    def missed(self) -> list[str]:
        """Each limit that does not hold, in words; not a number counts as missed."""
        limits = (
            (f"{self.metric} {self.drop:.2f} points lower, at most {self.max_drop:g}", self.drop <= self.max_drop),
            _minimum("equal answers", self.agreement, MIN_AGREEMENT),
            _minimum("first percentile of cosines", self.cosine, MIN_COSINE),
        )
        return [words for words, holds in limits if not holds]

    @property
    def passed(self) -> bool:
        return not self.missed

    def __str__(self) -> str:
        equal = "" if self.agreement is None else f", {100 * self.agreement:.2f} % of the answers equal"
        cosine = "" if self.cosine is None else f", first percentile of cosines {self.cosine:.4f}"
        return f"{self.metric} {100 * self.float32:.2f} in float32, {100 * self.int8:.2f} in int8{equal}{cosine}"

    def to_record(self) -> dict[str, Any]:
        """Return what a folder records of the gate, without the figures that do not apply."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def _minimum(name: str, value: float | None, limit: float) -> tuple[str, bool]:
    return f"{name} {value}, at least {limit}", value is None or value >= limit


class DevData(NamedTuple):
    """Labeled dev files as a model reads them."""

    task: AnyTask | None
    """None: text vectors."""
    examples: Any
    """Examples of the task, or `LabeledTexts`."""


class Measured(NamedTuple):
    """What a model does on dev data."""

    metric: str
    score: float
    predictions: Sequence[Any]
    """Empty for text vectors."""
    vectors: Vectors | None = None
    texts: Sequence[str] = ()
    """The texts of the vectors."""


def read_dev(
    bert: Bert, paths: Sequence[str], overrides: TaskOptions, split: str = "test", kind: str | None = None
) -> DevData:
    """Read dev files for a model. Raises ValueError for files without labels and for a model without a metric.

    `split`, `kind`: of text vectors, as for `bertwright evaluate`.
    """
    if bert.task_model is None or bert.sentence_modules is not None:
        vectors = overrides.apply_to(Embedding())
        assert isinstance(vectors, Embedding)
        return DevData(None, read_labeled_texts(paths, vectors.table_options, split, kind))
    task = within_positions(overrides.apply_to(bert.task_model.task), overrides, bert.config.max_positions)
    examples = [example for path in join_as_glob(paths) for example in task.read(path)]
    if not examples:
        raise ValueError(f"{paths[0]}: no examples in it")
    task.check(examples)
    return DevData(task, examples)


def measure(bert: Bert, dev: DevData) -> Measured:
    """Predict dev data, and score the predictions."""
    task, examples = dev
    if task is None:
        return _measure_vectors(bert, examples)
    chunks = predict_chunks(bert.model, task, bert.tokenizer, examples)
    predictions = [prediction for chunk in chunks for prediction in chunk.predictions]
    return Measured(task.metric, task.score(examples, predictions)[task.metric], predictions)


def _measure_vectors(bert: Bert, data: LabeledTexts) -> Measured:
    compute, vectors, texts = embed_by_role(bert, InputCounts()), list[Vectors](), list[str]()

    def embed(given: Sequence[str], role: str) -> Vectors:
        vectors.append(compute(given, role))
        texts.extend(given)
        return vectors[-1]

    found = score_vectors(data, embed)
    return Measured(found.metric, found.scores[found.metric], (), np.concatenate(vectors), texts)


def judge(before: Measured, after: Measured, max_drop: float | None) -> Verdict:
    """Compare a model in float32 and in int8: scores, and answers or vectors; larger scores are better.

    `max_drop`: in points; None: the usual limit.
    """
    scores = before.metric, before.score, after.score
    if before.vectors is not None and after.vectors is not None:
        limit = MAX_VECTOR_DROP if max_drop is None else max_drop
        return Verdict(*scores, limit, cosine=first_percentile(before.vectors, after.vectors))
    answers, others = (list_answers(one.predictions) for one in (before, after))
    equal = [answer == other for answer, other in zip(answers, others, strict=True)]
    limit = MAX_DROP if max_drop is None else max_drop
    return Verdict(*scores, limit, agreement=sum(equal) / len(equal) if equal else None)


def first_percentile(float32: Vectors, int8: Vectors) -> float:
    """Return the cosine that 99 of 100 texts exceed, from N × H vectors of the same texts; NaN for no texts."""
    if not len(float32):
        return float("nan")
    lengths = np.linalg.norm(float32, axis=1) * np.linalg.norm(int8, axis=1)
    cosines = np.einsum("nh,nh->n", float32.astype(np.float64), int8) / np.where(lengths == 0, 1, lengths)
    return float(np.percentile(cosines, 1, method="lower"))


def list_answers(predictions: Iterable[Any]) -> list[Any]:
    """Return the discrete answers of predictions, one per word in tagging; none of predictions that are numbers.

    >>> list_answers([0.5, 0.25])
    []
    """
    answers: list[Any] = []
    for prediction in predictions:
        field = next((name for name in ANSWER_FIELDS if hasattr(prediction, name)), None)
        if field is not None:
            value = getattr(prediction, field)
            answers += value if field == "tags" else [value]
    return answers
