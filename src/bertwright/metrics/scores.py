"""Scores of labels and numbers: accuracy, F1, Matthews, Pearson, Spearman, MSE.

Shares are from 0 to 1, correlations from -1 to 1; an undefined score is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# scipy.stats takes a second to import, so the functions import it.


def accuracy(y_true: Sequence[str] | Sequence[int], y_pred: Sequence[str] | Sequence[int]) -> float:
    return float((np.asarray(y_true) == np.asarray(y_pred)).mean())


def f1(y_true: Sequence[str], y_pred: Sequence[str], pos_label: str) -> float:
    """Compute the F1 of one label; 0 if it occurs on neither side.

    >>> round(f1(["yes", "yes", "no"], ["yes", "no", "no"], pos_label="yes"), 3)
    0.667
    """
    return score_labels(y_true, y_pred, [pos_label])[pos_label].f1


def macro_f1(y_true: Sequence[str], y_pred: Sequence[str]) -> float:
    """Compute the mean F1 over all labels that occur on either side."""
    labels = sorted({*y_true, *y_pred})
    return float(np.mean([row.f1 for row in score_labels(y_true, y_pred, labels).values()]))


def matthews(y_true: Sequence[str], y_pred: Sequence[str]) -> float:
    """Compute Matthews' correlation coefficient (Gorodkin 2004); 0 if one side has a single label.

    It is the covariance of both sides' indicators of the labels, divided by the roots of their variances.
    """
    labels = sorted({*y_true, *y_pred})
    sides = [np.asarray(side)[:, None] == np.asarray(labels) for side in (y_true, y_pred)]  # N C
    true, found = (side - side.mean(0) for side in sides)
    product = float((true * true).sum() * (found * found).sum())
    return float((true * found).sum()) / product**0.5 if product else 0.0


class LabelScores(NamedTuple):
    """Scores of one label against all others."""

    precision: float
    recall: float
    f1: float
    examples: int
    """Number of examples that have the label."""

    @classmethod
    def of(cls, hits: int, found: int, actual: int) -> LabelScores:
        """Compute the scores from the numbers of right, predicted and true ones; an undefined share is 0."""
        return cls(hits / max(found, 1), hits / max(actual, 1), 2 * hits / max(found + actual, 1), actual)


def score_labels(y_true: Sequence[str], y_pred: Sequence[str], labels: Sequence[str]) -> dict[str, LabelScores]:
    """Compute the scores of each label; an undefined share is 0.

    >>> score_labels(["a", "a", "b"], ["a", "b", "b"], ["a", "b"])["a"]
    LabelScores(precision=1.0, recall=0.5, f1=0.6666666666666666, examples=2)
    """
    actual, found = Counter(y_true), Counter(y_pred)
    hits = Counter(label for label, guess in zip(y_true, y_pred, strict=True) if label == guess)
    return {label: LabelScores.of(hits[label], found[label], actual[label]) for label in labels}


def multi_label_scores(y_true: npt.NDArray[np.bool_], y_pred: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Compute micro F1, macro F1 over the labels that occur on either side, and the share of exact rows, of N × C.

    >>> multi_label_scores(np.array([[True, False], [True, True]]), np.array([[True, False], [True, False]]))
    {'micro_f1': 0.8, 'macro_f1': 0.5, 'exact_match': 0.5}
    """
    hits, total = (y_true & y_pred).sum(0), y_true.sum(0) + y_pred.sum(0)  # C
    occurs = total > 0
    return {
        "micro_f1": float(2 * hits.sum() / max(total.sum(), 1)),
        "macro_f1": float((2 * hits[occurs] / total[occurs]).mean()) if occurs.any() else 0.0,
        "exact_match": float((y_true == y_pred).all(1).mean()),
    }


def pearson(y_true: Sequence[float], y_pred: Sequence[float]) -> float:
    """Compute Pearson's correlation coefficient; 0 if one side is constant."""
    from scipy.stats import pearsonr

    return 0.0 if _constant(y_true) or _constant(y_pred) else float(pearsonr(y_true, y_pred).statistic)


def spearman(y_true: Sequence[float], y_pred: Sequence[float]) -> float:
    """Compute Spearman's rank correlation coefficient; 0 if one side is constant."""
    from scipy.stats import spearmanr

    return 0.0 if _constant(y_true) or _constant(y_pred) else float(spearmanr(y_true, y_pred).statistic)


def mean_squared_error(y_true: Sequence[float], y_pred: Sequence[float]) -> float:
    return float(((np.asarray(y_true) - np.asarray(y_pred)) ** 2).mean())


def _constant(numbers: Sequence[float]) -> bool:
    return bool(np.ptp(numbers) == 0)
