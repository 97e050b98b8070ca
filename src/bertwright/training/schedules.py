"""Learning-rate schedules: the rate as a function of the step alone."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Literal

LRSchedule = Callable[[int], float]  # the learning rate of a step, counted from 0
ScheduleName = Literal["linear", "constant", "cosine", "warmup-stable-decay", "noam", "slanted-triangular"]
STABLE_DECAY_RATIO = 0.1  # share of all steps in which warmup-stable-decay decays
SLANTED_RATIO = 32  # peak rate over the lowest one (ULMFiT, section 3.2)


def linear_warmup_decay(step: int, *, peak: float, warmup: int, total: int) -> float:
    """Return the rate of step `step` (0 … total-1): linear from peak/warmup to peak, then to peak/(total-warmup).

    Section A.2 ("learning rate warmup over the first 10,000 steps, and linear decay"). The first and the last step
    have a rate above 0. Google's code starts at rate 0, which wastes a step, and counts its decay from step 0, so the
    rate drops where the warm-up ends.

    >>> [round(linear_warmup_decay(step, peak=1.0, warmup=2, total=6), 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (total - step) / (total - warmup)


def constant(step: int, *, peak: float, warmup: int, total: int) -> float:
    """Return the rate of a linear warm-up followed by a constant rate."""
    return peak * min(1.0, (step + 1) / max(warmup, 1))


def cosine(step: int, *, peak: float, warmup: int, total: int) -> float:
    """Return the rate of a linear warm-up followed by half a cosine that would reach 0 one step after the last.

    >>> [round(cosine(step, peak=1.0, warmup=1, total=5), 2) for step in range(5)]
    [1.0, 1.0, 0.85, 0.5, 0.15]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2


def warmup_stable_decay(step: int, *, peak: float, warmup: int, total: int) -> float:
    """Return the rate of a linear warm-up, a constant rate, and a linear decay in the last tenth of the steps.

    >>> [round(warmup_stable_decay(step, peak=1.0, warmup=2, total=20), 2) for step in (0, 1, 17, 18, 19)]
    [0.5, 1.0, 1.0, 1.0, 0.5]
    """
    decay = max(1, round(STABLE_DECAY_RATIO * total))
    return peak * min(1.0, (step + 1) / max(warmup, 1), (total - step) / decay)


def noam(step: int, *, peak: float, warmup: int, total: int) -> float:
    """Return the rate of a linear warm-up followed by a decay with the inverse root of the step.

    "Attention is all you need", section 5.3, scaled so that the last step of the warm-up has the peak rate.

    >>> [round(noam(step, peak=1.0, warmup=2, total=8), 2) for step in (0, 1, 7)]
    [0.5, 1.0, 0.5]
    """
    warmup = max(warmup, 1)
    return peak * min((step + 1) / warmup, math.sqrt(warmup / (step + 1)))


def slanted_triangular(step: int, *, peak: float, warmup: int, total: int) -> float:
    """Return the rate of ULMFiT's slanted triangle: from peak/32 to peak within the warm-up, then linearly back.

    "Universal language model fine-tuning", section 3.2, with `step` counted from 0.

    >>> [round(32 * slanted_triangular(step, peak=1.0, warmup=2, total=10), 1) for step in (0, 1, 2, 6, 10)]
    [1.0, 16.5, 32.0, 16.5, 1.0]
    """
    rising = step < warmup
    progress = step / warmup if rising else 1 - (step - warmup) / (total - warmup)
    return peak * (1 + progress * (SLANTED_RATIO - 1)) / SLANTED_RATIO


SCHEDULES = {
    "linear": linear_warmup_decay,
    "constant": constant,
    "cosine": cosine,
    "warmup-stable-decay": warmup_stable_decay,
    "noam": noam,
    "slanted-triangular": slanted_triangular,
}


def restart_schedule(make_schedule: Callable[[int], LRSchedule], starts: Sequence[int], total: int) -> LRSchedule:
    """Return a schedule that begins anew at each of `starts` (ascending, the first is 0) below `total`.

    `make_schedule`: the schedule of a number of steps.

    >>> rate = restart_schedule(lambda steps: lambda step: step / steps, [0, 2, 9], total=6)
    >>> [rate(step) for step in range(6)]
    [0.0, 0.5, 0.0, 0.25, 0.5, 0.75]
    """
    starts = [start for start in starts if start < total]
    parts = [make_schedule(end - start) for start, end in zip(starts, [*starts[1:], total], strict=True)]

    def rate(step: int) -> float:
        part = bisect_right(starts, step) - 1
        return parts[part](step - starts[part])

    return rate
