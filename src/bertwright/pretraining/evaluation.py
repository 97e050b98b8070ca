"""Evaluation of a pre-training objective, and the detector of runs that learn nothing from context."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from bertwright.objectives.objective import B, M, Objective
from bertwright.training.loop import evaluation_mode


@torch.no_grad()
def evaluate(objective: Objective[B, M], model: M, batches: Iterable[B]) -> dict[str, float]:
    """Score a model on held-out batches without dropout; restores the model's mode."""
    total, names = torch.zeros(1, dtype=torch.float64), list[str]()
    with evaluation_mode(model):
        for batch in batches:
            sums = objective.loss(model, batch).sums
            names = list(sums)
            # The sum stays on a GPU, so that nothing waits for it.
            total = total.to(batch.packing.cu_seqlens.device) + torch.stack([value.double() for value in sums.values()])
    return objective.compute_scores(dict(zip(names, total.tolist(), strict=True)))


class PlateauDetector:
    """Detector of runs that have learned only token frequencies.

    >>> watch = PlateauDetector(entropy=6.0, window=2)
    >>> [watch.update(loss) for loss in (9.0, 7.0, 6.05, 6.02, 6.03, 6.01)]
    [False, False, False, False, False, True]
    """

    def __init__(self, entropy: float, window: int) -> None:
        self.entropy = entropy
        self.window = window  # number of recent losses, compared with as many before them
        self.losses: list[float] = []
        self.noticed = False

    def update(self, loss: float) -> bool:
        """Add a loss; returns True once, when the recent losses are near the entropy and no better than before."""
        self.losses = [*self.losses, loss][-2 * self.window :]
        if self.noticed or len(self.losses) < 2 * self.window:
            return False
        before, recent = np.mean(self.losses[: self.window]), np.mean(self.losses[self.window :])
        self.noticed = bool(abs(recent - self.entropy) < 0.15 and before - recent < 0.05)
        return self.noticed
