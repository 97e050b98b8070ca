"""The fit of a linear model with a penalty, by L-BFGS on sparse features.

N rows; D distinct words, or texts, of the rows; F features; C outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertwright.tasks.encoded import Floats

L2 = 0.5  # factor of half the squared weights, beside the sum of the losses; the same for all tasks
MAX_STEPS, MEMORY, TOLERANCE = 100, 5, 1e-5  # of L-BFGS

Loss = Callable[[Floats, Floats], tuple[float, Floats]]
"""A function of outputs and targets, N × C each, that returns the sum of the losses and its gradient."""


class Block(NamedTuple):
    """Features N × F as a product, because the same words occur in many rows."""

    rows: Any
    """Sparse N × D: the word that each row refers to."""
    features: Any
    """Sparse D × F."""

    def outputs(self, weights: Floats) -> Floats:
        """Multiply with F × C."""
        product: Floats = self.rows @ (self.features @ weights)
        return product

    def gradient(self, outputs: Floats) -> Floats:
        """Multiply the transpose with N × C."""
        product: Floats = self.features.T @ (self.rows.T @ outputs)
        return product


def fit_linear(blocks: Sequence[Block], targets: Floats, loss: Loss, l2: float = L2) -> tuple[Floats, Floats]:
    """Return the weights F × C, of all blocks one below the other, and the bias C that minimize the penalized loss."""
    from scipy.optimize import minimize  # takes a while to import

    sizes, width = [block.features.shape[1] for block in blocks], targets.shape[1]
    num_weights = sum(sizes) * width

    def objective(values: Floats) -> tuple[float, Floats]:
        weights, bias = values[:num_weights].reshape(-1, width), values[num_weights:]
        value, slope = loss(add_outputs(blocks, weights) + bias, targets)
        gradients = [block.gradient(slope) for block in blocks]
        gradient = np.concatenate([*gradients, slope.sum(0, keepdims=True)]).ravel()
        gradient[:num_weights] += l2 * values[:num_weights]
        return value + l2 / 2 * float(values[:num_weights] @ values[:num_weights]), gradient

    options = {"maxiter": MAX_STEPS, "maxcor": MEMORY, "ftol": TOLERANCE}
    best = minimize(objective, np.zeros(num_weights + width), jac=True, method="L-BFGS-B", options=options).x
    return best[:num_weights].reshape(-1, width), best[num_weights:]


def add_outputs(blocks: Sequence[Block], weights: Floats) -> Floats:
    """Return the sum of the blocks' outputs, N × C."""
    ends = np.cumsum([block.features.shape[1] for block in blocks])[:-1]
    parts = zip(blocks, np.split(weights, ends), strict=True)
    outputs: Floats = np.sum([block.outputs(part) for block, part in parts], axis=0)
    return outputs


def cross_entropy(outputs: Floats, targets: Floats) -> tuple[float, Floats]:
    """Compute the loss of classes that exclude each other."""
    from scipy.special import log_softmax

    logarithms = log_softmax(outputs, axis=1)
    return -float((targets * logarithms).sum()), np.exp(logarithms) - targets


def logistic_loss(outputs: Floats, targets: Floats) -> tuple[float, Floats]:
    """Compute the loss of labels that do not exclude each other."""
    absent = -np.logaddexp(0, outputs)
    return -float((absent + targets * outputs).sum()), np.exp(outputs + absent) - targets


def squared_loss(outputs: Floats, targets: Floats) -> tuple[float, Floats]:
    """Compute the loss of numbers."""
    slope = outputs - targets
    return float((slope * slope).sum()) / 2, slope
