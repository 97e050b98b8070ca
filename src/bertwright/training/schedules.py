"""The learning rate as a function of the step, and of nothing else."""

from __future__ import annotations


def linear_warmup_decay(step: int, *, peak: float, warmup: int, total: int) -> float:
    """Rate for step `step` (0 … total-1): up from peak/warmup to peak, then straight down to peak/(total-warmup).

    Section A.2 ("learning rate warmup over the first 10,000 steps, and linear decay"). The first step already moves
    and so does the last; the released code starts at rate 0, which wastes a step, and its decay counts from step 0, so
    that the rate drops by the warm-up's share where the warm-up ends.

    >>> [round(linear_warmup_decay(n, peak=1.0, warmup=2, total=6), 2) for n in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (total - step) / (total - warmup)
