"""The gate that an int8 model passes before it is written: its answers on a dev file beside those in float32.

N examples or texts, H numbers per vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]

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

    def to_record(self) -> dict[str, Any]:
        """Return what a folder records of the gate, without the figures that do not apply."""
        return {name: value for name, value in self._asdict().items() if value is not None}


def _minimum(name: str, value: float | None, limit: float) -> tuple[str, bool]:
    return f"{name} {value}, at least {limit}", value is None or value >= limit


def judge_predictions(
    metric: str, scores: tuple[float, float], predictions: tuple[Sequence[Any], Sequence[Any]], max_drop: float
) -> Verdict:
    """Compare a task's score and predictions, each in float32 and in int8; `scores`: larger is better."""
    answers, others = (list_answers(one) for one in predictions)
    equal = [answer == other for answer, other in zip(answers, others, strict=True)]
    agreement = sum(equal) / len(equal) if equal else None
    return Verdict(metric, *scores, max_drop, agreement=agreement)


def judge_vectors(
    metric: str, scores: tuple[float, float], float32: Vectors, int8: Vectors, max_drop: float
) -> Verdict:
    """Compare the score of vectors and the vectors themselves, N × H, in float32 and in int8."""
    return Verdict(metric, *scores, max_drop, cosine=first_percentile(float32, int8))


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
