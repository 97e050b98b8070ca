"""Scores of labels and of numbers, by scikit-learn and scipy; where a score is undefined it is 0.

N examples. Shares lie from 0 to 1, correlations from -1 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# scikit-learn and scipy.stats cost more than a second, which only an evaluation need pay: imported where they are used.


def accuracy(truth: Sequence[str] | Sequence[int], found: Sequence[str] | Sequence[int]) -> float:
    """Share of labels that are right."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(truth, found))


def f1(truth: Sequence[str], found: Sequence[str], pos_label: str) -> float:
    """Harmonic mean of precision and recall for one label; 0 where the label is neither there nor found.

    >>> round(f1(["yes", "yes", "no"], ["yes", "no", "no"], pos_label="yes"), 3)
    0.667
    """
    from sklearn.metrics import f1_score

    return float(f1_score(truth, found, labels=[pos_label], average="macro", zero_division=0.0))


def macro_f1(truth: Sequence[str], found: Sequence[str]) -> float:
    """Mean of the F1 of all labels that are there or found."""
    from sklearn.metrics import f1_score

    return float(f1_score(truth, found, average="macro", zero_division=0.0))


def matthews(truth: Sequence[str], found: Sequence[str]) -> float:
    """Matthews' correlation coefficient; 0 where one side knows a single label."""
    from sklearn.metrics import matthews_corrcoef

    if len(set(truth)) < 2 or len(set(found)) < 2:
        return 0.0
    return float(matthews_corrcoef(truth, found))


def pearson(truth: Sequence[float], found: Sequence[float]) -> float:
    """Pearson's correlation coefficient; 0 where one side is constant."""
    from scipy.stats import pearsonr

    return 0.0 if _constant(truth) or _constant(found) else float(pearsonr(truth, found).statistic)


def spearman(truth: Sequence[float], found: Sequence[float]) -> float:
    """Spearman's rank correlation coefficient; 0 where one side is constant."""
    from scipy.stats import spearmanr

    return 0.0 if _constant(truth) or _constant(found) else float(spearmanr(truth, found).statistic)


def mean_squared_error(truth: Sequence[float], found: Sequence[float]) -> float:
    """Mean of the squared differences."""
    from sklearn.metrics import mean_squared_error as mse

    return float(mse(truth, found))


def _constant(numbers: Sequence[float]) -> bool:
    return bool(np.ptp(numbers) == 0)
