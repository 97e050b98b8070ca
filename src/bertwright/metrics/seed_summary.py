"""Mean and standard deviation of a score over several seeds (the paper: five restarts, tables 6 and 7)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class SeedSummary(NamedTuple):
    """A score over several seeds, as a share from 0 to 1; printed in percent."""

    mean: float
    std: float | None  # sample standard deviation (divided by seeds - 1); None for one seed
    min: float
    max: float
    seeds: int

    def format(self, digits: int = 1, scale: float = 100) -> str:
        """Format as `mean ± standard deviation`, in percent by default (`scale`); one seed has no deviation."""
        deviation = "" if self.std is None else f" ± {scale * self.std:.{digits}f}"
        return f"{scale * self.mean:.{digits}f}{deviation}"

    def __str__(self) -> str:
        return f"{self.format()} ({self.seeds} seed{'s' * (self.seeds > 1)})"


def summarize_seeds(scores: Sequence[float]) -> SeedSummary:
    """Compute mean, standard deviation, minimum and maximum of one score per seed.

    >>> print(summarize_seeds([0.878, 0.884, 0.890]))
    88.4 ± 0.6 (3 seeds)

    Raises ValueError for no scores.
    """
    if not scores:
        raise ValueError("no score to take the mean of; at least one seed is needed")
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return SeedSummary(statistics.fmean(scores), deviation, min(scores), max(scores), len(scores))
