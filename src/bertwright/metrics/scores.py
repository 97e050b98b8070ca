"""Scores of labels and numbers, by scikit-learn and scipy: accuracy, F1, Matthews, Pearson, Spearman, MSE.

Shares are from 0 to 1, correlations from -1 to 1; an undefined score is 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# scikit-learn and scipy.stats take more than a second to import, so the functions import them.


def accuracy(y_true: Sequence[str] | Sequence[int], y_pred: Sequence[str] | Sequence[int]) -> float:
    """Compute the share of equal labels."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(y_true, y_pred))


def f1(y_true: Sequence[str], y_pred: Sequence[str], pos_label: str) -> float:
    """Compute the F1 of one label; 0 if it occurs on neither side.

    >>> round(f1(["yes", "yes", "no"], ["yes", "no", "no"], pos_label="yes"), 3)
    0.667
    """
    from sklearn.metrics import f1_score

    return float(f1_score(y_true, y_pred, labels=[pos_label], average="macro", zero_division=0.0))


def macro_f1(y_true: Sequence[str], y_pred: Sequence[str]) -> float:
    """Compute the mean F1 over all labels that occur on either side."""
    from sklearn.metrics import f1_score

    return float(f1_score(y_true, y_pred, average="macro", zero_division=0.0))


def matthews(y_true: Sequence[str], y_pred: Sequence[str]) -> float:
    """Compute Matthews' correlation coefficient; 0 if one side has a single label."""
    from sklearn.metrics import matthews_corrcoef

    if len(set(y_true)) < 2 or len(set(y_pred)) < 2:
        return 0.0
    return float(matthews_corrcoef(y_true, y_pred))


class LabelScores(NamedTuple):
    """Scores of one label against all others."""

    precision: float
    recall: float
    f1: float
    examples: int
    """Number of examples that have the label."""


def score_labels(y_true: Sequence[str], y_pred: Sequence[str], labels: Sequence[str]) -> dict[str, LabelScores]:
    """Compute the scores of each label; an undefined share is 0.

    >>> score_labels(["a", "a", "b"], ["a", "b", "b"], ["a", "b"])["a"]
    LabelScores(precision=1.0, recall=0.5, f1=0.6666666666666666, examples=2)
    """
    from sklearn.metrics import precision_recall_fscore_support

    columns = precision_recall_fscore_support(y_true, y_pred, labels=labels, zero_division=0.0)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return {label: LabelScores(*row) for label, row in zip(labels, rows, strict=True)}


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
    """Compute the mean of the squared differences."""
    from sklearn.metrics import mean_squared_error as mse

    return float(mse(y_true, y_pred))


def _constant(numbers: Sequence[float]) -> bool:
    return bool(np.ptp(numbers) == 0)
