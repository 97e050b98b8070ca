"""Scaling law of the held-out masked-LM loss: fitted to short runs, it predicts longer ones and larger models.

    L(N, D) = E + A / N^α + B N^γ / D^β

N parameters of the layers, D tokens seen. This is equation 2 of Hoffmann et al. 2022 (arXiv 2203.15556) with the
additional factor N^γ, because our larger models need more tokens to use their size. All six constants are fitted, with
`PRIOR` as their prior distribution. Two or three runs on a text mostly determine E and B, which depend on the text; the
interval includes the uncertainty that remains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# N and D of the law are in these units (tiny, 4 million tokens), so that A and B are nats.
UNIT_PARAMETERS, UNIT_TOKENS = 4e5, 4e6

REPETITION = 15.4  # R*: this many repeated epochs teach as much as R* (1 - 1/e) epochs of new text
PLATEAU = 0.86  # share of the unigram entropy; above it, the loss falls faster than by a power law
QUANTILE = 1.645  # 95 % quantile of the normal distribution: the end of a two-sided 90 % interval


class Constant(NamedTuple):
    """Prior distribution of a constant of the law: mean and standard deviation."""

    mean: float
    deviation: float


# From runs of tiny and mini on two texts, and table 6 of the paper: bench/scaling_law.py, and
# docs/decisions/20-expected-loss.md.
PRIOR = {
    "E": Constant(0.2, 0.35),
    "A": Constant(2.28, 0.3),
    "alpha": Constant(0.116, 0.03),
    "B": Constant(2.8, 0.6),
    "beta": Constant(0.28, 0.03),
    "gamma": Constant(0.05, 0.015),
}
NOISE = 0.04  # nats, standard deviation of a run's loss around the law: seeds, and what the law misses


class ShortRun(NamedTuple):
    """A finished run and its held-out loss."""

    parameters: int
    """Number of parameters of the layers."""
    tokens: float
    """Effective tokens."""
    loss: float
    """In nats."""


class ExpectedLoss(NamedTuple):
    """An expected held-out loss in nats, and its 90 % interval."""

    mean: float
    low: float
    high: float


def compute_loss(constants: Sequence[float] | Floats, parameters: float, tokens: float) -> float:
    """Compute the loss that the law predicts; the constants are in the order of `PRIOR`."""
    e, a, alpha, b, beta, gamma = constants
    size, data = parameters / UNIT_PARAMETERS, tokens / UNIT_TOKENS
    return float(e + a / size**alpha + b * size**gamma / data**beta)


def count_effective_tokens(tokens: float, epochs: float) -> float:
    """Return the number of new tokens that teach as much as `tokens` tokens of a text that is read `epochs` times.

    Muennighoff et al. 2023 (arXiv 2305.16264): the value of a repetition decays exponentially.

    >>> [round(count_effective_tokens(1e6 * epochs, epochs) / 1e6, 1) for epochs in (0.5, 1, 4, 40)]
    [0.5, 1.0, 3.7, 15.2]
    """
    if epochs <= 1:
        return tokens
    repetitions = epochs - 1
    return tokens / epochs * (1 + REPETITION * (1 - math.exp(-repetitions / REPETITION)))


def has_left_plateau(loss: float, entropy: float) -> bool:
    """Return whether a loss is so far below the unigram entropy that the model must use context."""
    return loss < PLATEAU * entropy


@dataclass(frozen=True)
class ScalingLaw:
    """The constants of a law in the order of `PRIOR`, and their covariance."""

    constants: Floats
    covariance: Floats

    @classmethod
    def fit(cls, runs: Sequence[ShortRun]) -> ScalingLaw:
        """Return the most probable constants given some runs and the prior; without runs, the prior."""
        from scipy.optimize import least_squares  # takes a while to import

        means, deviations = np.array(list(PRIOR.values())).T

        def residuals(constants: Floats) -> Floats:
            misfits = [(compute_loss(constants, run.parameters, run.tokens) - run.loss) / NOISE for run in runs]
            return np.array([*misfits, *((constants - means) / deviations)])

        fit = least_squares(residuals, means, bounds=(0.0, np.inf))
        return cls(fit.x, np.linalg.inv(fit.jac.T @ fit.jac))  # Laplace's approximation

    def predict(self, parameters: int, tokens: float) -> ExpectedLoss:
        """Return the expected loss of a run; `tokens` are effective tokens."""
        from scipy.optimize import approx_fprime

        def loss_of(constants: Floats) -> float:
            return compute_loss(constants, parameters, tokens)

        loss, gradient = loss_of(self.constants), approx_fprime(self.constants, loss_of)
        deviation = math.sqrt(gradient @ self.covariance @ gradient + NOISE**2)
        return ExpectedLoss(loss, loss - QUANTILE * deviation, loss + QUANTILE * deviation)
