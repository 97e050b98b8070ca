"""Settings of the optimizer and of the learning rate. The module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from bertwright.base.settings import check_choice, check_limit, check_minimum
from bertwright.training.schedules import SCHEDULES, LRSchedule, ScheduleName


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
