"""Metrics of resampled examples: the few statistics per example from which the score of any sample of them follows.

N examples, K statistics per example, D samples.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.base.files import atomic_file

Floats = npt.NDArray[np.float64]
Formula = Literal["mean", "f1", "matthews", "spearman", "loss", "precision"]


class ExampleScores(NamedTuple):
    """Numbers per example from which a metric of any sample of examples follows."""

    formula: Formula
    """Numbers per example. mean: one number; f1: true positives, predicted, actual; matthews: the confusion matrix of
    two classes, row by row; spearman: true and predicted value; loss: (sum, count), and the score is minus the mean;
    precision: label 0 or 1 and score, and the score is the average precision."""
    values: Floats
    """N × K."""

    def save(self, path: Path) -> None:
        with atomic_file(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, formula=self.formula, values=self.values.astype(np.float32))

    @classmethod
    def load(cls, path: Path) -> ExampleScores | None:
        """Read the numbers in a file; None if it does not exist."""
        if not path.is_file():
            return None
        with np.load(path) as arrays:
            return cls(arrays["formula"].item(), arrays["values"].astype(float))


def compute_scores(scores: ExampleScores, weights: Floats) -> Floats:
    """Compute the metric of samples of the examples: `weights` (D × N) counts each example in each sample; returns D.

    An undefined score is 0, as in `metrics.scores`.
    """
    if scores.formula == "spearman":
        return _spearman(scores.values, weights)
    if scores.formula == "precision":
        return _average_precision(scores.values, weights)
    sums = weights @ scores.values  # D K
    if scores.formula == "mean":
        return _divide(sums[:, 0], weights.sum(1))
    if scores.formula == "loss":
        return -_divide(sums[:, 0], sums[:, 1])
    if scores.formula == "f1":
        return _divide(2 * sums[:, 0], sums[:, 1] + sums[:, 2])
    tn, fp, fn, tp = sums.T
    return _divide(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


def _spearman(pairs: Floats, weights: Floats) -> Floats:
    """Compute the rank correlations of the two columns of N × 2 in samples of the rows; returns D."""
    middle = (weights.sum(1, keepdims=True) + 1) / 2  # the mean of all ranks, whatever the ties
    first, second = (_ranks(column, weights) - middle for column in pairs.T)
    norms = np.sqrt((weights * first**2).sum(1) * (weights * second**2).sum(1))
    return _divide((weights * first * second).sum(1), norms)


def _average_precision(pairs: Floats, weights: Floats) -> Floats:
    """Compute the mean precision at the positives of N × 2 (label, score) in samples of the rows; returns D.

    Rows with equal scores have the precision after the last of them.
    """
    labels, values = pairs.T
    _, groups = np.unique(-values, return_inverse=True)
    counts, hits = _sum_groups(np.stack([weights, weights * labels]), groups)  # D, distinct scores
    precisions = _divide(np.cumsum(hits, axis=1), np.cumsum(counts, axis=1))
    return _divide((precisions * hits).sum(1), hits.sum(1))


def _ranks(values: Floats, weights: Floats) -> Floats:
    """Return the rank of each of N values in each of D samples, D × N; equal values have their mean rank."""
    _, groups = np.unique(values, return_inverse=True)  # N
    counts = _sum_groups(weights, groups)
    ranks: Floats = (np.cumsum(counts, axis=1) - (counts - 1) / 2)[:, groups]
    return ranks


def _sum_groups(weights: Floats, groups: npt.NDArray[np.intp]) -> Floats:
    """Sum the weights … × N of the examples of each group; `groups`: the number of each example's, from 0."""
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(groups.max() + 1))
    sums: Floats = np.add.reduceat(weights[..., order], starts, axis=-1)
    return sums


def _divide(numerator: Floats, denominator: Floats) -> Floats:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)
