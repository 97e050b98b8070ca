"""What several seeds of the same run give: the paper reports means of five restarts (tables 6 and 7)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class SeedSummary(NamedTuple):
    """A score over several seeds, as a share from 0 to 1; printed in percent."""

    mean: float
    std: float | None  # of the sample (divided by seeds - 1); None for one seed, which has none
    min: float
    max: float
    seeds: int

    def __str__(self) -> str:
        if self.std is None:
            return f"{100 * self.mean:.1f} (1 seed)"
        return f"{100 * self.mean:.1f} ± {100 * self.std:.1f} ({self.seeds} seeds)"


def summarize_seeds(scores: Sequence[float]) -> SeedSummary:
    """Mean, standard deviation, lowest and best of one score a seed.

    >>> print(spread([0.878, 0.884, 0.890]))
    88.4 ± 0.6 (3 seeds)

    Raises ValueError where there is no score at all.
    """
    if not scores:
        raise ValueError("no score to take the mean of; at least one seed is needed")
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return SeedSummary(statistics.fmean(scores), deviation, min(scores), max(scores), len(scores))
