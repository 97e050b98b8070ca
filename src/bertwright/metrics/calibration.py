"""Decisions from probabilities: temperature, calibration error, thresholds for costs, labels that are probably wrong.

N examples, C labels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

BINS = 15  # of equal width, as in Guo et al. 2017
TEMPERATURES = (0.05, 20.0)  # bounds
MIN_EXAMPLES = 5  # with and without a label, below which its threshold follows from the costs alone


def fit_temperature(logits: Floats, targets: Ints | Bools) -> float:
    """Return the number that divides logits N × C so that the loss of the targets is lowest (Guo et al. 2017).

    `targets`: the label of each row, N, for a softmax; or whether each label is right, N × C, for one sigmoid each.
    """
    from scipy.optimize import minimize_scalar

    def compute_loss(log_temperature: float) -> float:
        divided = logits.astype(np.float64) / np.exp(log_temperature)
        if targets.ndim == 2:
            return float(np.logaddexp(0, np.where(targets, -divided, divided)).mean())
        return float((np.logaddexp.reduce(divided, axis=1) - divided[np.arange(len(targets)), targets]).mean())

    return float(np.exp(minimize_scalar(compute_loss, bounds=np.log(TEMPERATURES), method="bounded").x))


def temper(share: float, factor: float) -> float:
    """Return the probability whose logit is `factor` times this one's.

    >>> temper(0.5, 3.0), temper(1.0, 0.1)
    (0.5, 1.0)
    """
    powers = (share**factor, (1 - share) ** factor)
    return float(powers[0] / sum(powers))


class Reliability(NamedTuple):
    """Mean probability and share that was right, by bin; empty bins are left out."""

    confidence: Floats
    accuracy: Floats
    sizes: Ints

    @property
    def error(self) -> float:
        """Expected calibration error: the mean distance of both, weighted by the number in the bin."""
        return float(np.average(np.abs(self.confidence - self.accuracy), weights=self.sizes))


def measure_reliability(probabilities: Floats, right: Bools) -> Reliability:
    """Compare N probabilities with whether each came true.

    >>> measure_reliability(np.array([0.9, 0.9]), np.array([True, False])).error
    0.4
    """
    bins = np.minimum((probabilities * BINS).astype(int), BINS - 1)
    sizes = np.bincount(bins, minlength=BINS)
    confidence, accuracy = (
        np.bincount(bins, weights=values, minlength=BINS)[sizes > 0] / sizes[sizes > 0]
        for values in (probabilities, right)
    )
    return Reliability(confidence, accuracy, sizes[sizes > 0])


def choose_threshold(probabilities: Floats, right: Bools, false_positive: float, false_negative: float) -> float:
    """Return the probability above which N predictions of a label cost least in sum.

    Of equal costs, the one nearest to FP / (FP + FN) is returned, which is best for calibrated probabilities. With
    fewer than MIN_EXAMPLES examples on one side, it is returned whatever they cost.

    >>> choose_threshold(np.array([0.9, 0.6, 0.3] * 5), np.array([True, False, False] * 5), 1, 1)
    0.75
    """
    ideal = false_positive / (false_positive + false_negative)
    if min(right.sum(), (~right).sum()) < MIN_EXAMPLES:
        return ideal
    order = np.argsort(-probabilities, kind="stable")
    hits = np.concatenate([[0], np.cumsum(right[order])])
    bounds = np.concatenate([[1.0], probabilities[order], [0.0]])
    candidates = (bounds[:-1] + bounds[1:]) / 2  # the first n are predicted, for n from 0 to N
    costs = false_positive * (np.arange(len(hits)) - hits) + false_negative * (hits[-1] - hits)
    costs = np.where(bounds[:-1] > bounds[1:], costs, np.inf)  # equal probabilities stay together
    best = np.flatnonzero(costs == costs.min())
    return float(candidates[best[np.abs(candidates[best] - ideal).argmin()]])


def rank_suspects(probabilities: Floats, labels: Ints) -> Ints:
    """Return the examples whose label is probably wrong, the most suspicious one first (Northcutt et al. 2021).

    `probabilities`: N × C, of a model that has not seen the example. An example is suspicious if another label is at
    least as probable as it is, on average, for the examples that carry that label, and more probable than its own.
    """
    rows, classes = np.arange(len(labels)), probabilities.shape[1]
    own, counts = probabilities[rows, labels], np.bincount(labels, minlength=classes)
    usual = np.bincount(labels, weights=own, minlength=classes) / np.maximum(counts, 1)  # C
    others = np.where((probabilities >= usual) & (counts > 0), probabilities, -1.0)
    others[rows, labels] = -1.0
    margin = others.max(1) - own
    suspects = np.flatnonzero(margin > 0)
    ranked: Ints = suspects[np.argsort(-margin[suspects], kind="stable")]
    return ranked
