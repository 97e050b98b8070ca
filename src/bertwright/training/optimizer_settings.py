"""Settings of the optimizer, and the learning rate as a function of the step alone. The module imports no torch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from bertwright.base.settings import check_choice, check_limit, check_minimum

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


@dataclass(frozen=True)
class OptimizerSettings:
    """Settings of the optimizer and of the learning rate."""

    learning_rate: float = 1e-4
    """Peak rate (paper: 1e-4 at 256 sequences per step in pre-training, A.2; 2e-5 to 5e-5 in fine-tuning, A.3). Small
    models need a higher one."""
    warmup_ratio: float = 0.01
    """Share of all steps in which the rate rises to its peak (paper: 10,000 of 1,000,000; in fine-tuning 0.1)."""
    warmup_steps: int | None = None
    """Steps in which the rate rises, instead of --warmup-ratio (Transformer: 4,000, however long the run is)."""
    schedule: ScheduleName = "linear"
    """Rate after the warm-up. linear: falls to 0, which it would reach one step after the last (paper); cosine: half a
    cosine to 0; constant; warmup-stable-decay: constant, then linear to 0 in the last tenth; noam: inverse root of the
    step (Transformer); slanted-triangular: from 1/32 of the peak and back (ULMFiT)."""
    beta1: float = 0.9
    """Decay of the mean gradient (paper)."""
    beta2: float = 0.999
    """Decay of the mean squared gradient (paper)."""
    eps: float = 1e-6
    """Added to the root of the mean square (Google's code)."""
    weight_decay: float = 0.01
    """Decoupled decay of matrices and embeddings; biases and LayerNorm have none (paper: 0.01)."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global norm (Google's code)."""
    bias_correction: bool = False
    """Adam's correction of the moments' bias in early steps. Google's code omits it; use it on small data sets."""

    def __post_init__(self) -> None:
        check_choice(self, "schedule")
        check_minimum(self, 0, "warmup_steps")
        check_limit(self, "above 0", "learning_rate", "eps", "max_grad_norm")
        check_limit(self, "from 0", "weight_decay")
        check_limit(self, "from 0 to below 1", "warmup_ratio", "beta1", "beta2")

    def count_warmup_steps(self, steps: int) -> int:
        """Return the number of steps in which the learning rate rises, in a run of `steps` steps."""
        return round(self.warmup_ratio * steps) if self.warmup_steps is None else self.warmup_steps

    def make_schedule(self, steps: int) -> LRSchedule:
        """Return the learning rate as a function of the step, in a run of `steps` steps."""
        schedule = SCHEDULES[self.schedule]
        return partial(schedule, peak=self.learning_rate, warmup=self.count_warmup_steps(steps), total=steps)


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
