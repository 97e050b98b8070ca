"""Learning-rate schedules against values worked out by hand."""

from __future__ import annotations

import math

import pytest

from bertwright.training.optimizer_settings import SCHEDULES, OptimizerSettings, ScheduleName, linear_warmup_decay

HALF = 0.5**0.5


@pytest.mark.parametrize(
    ("name", "warmup_ratio", "steps", "rates"),
    [
        ("linear", 0.25, 8, [0.5, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ("constant", 0.25, 8, [0.5, 1, 1, 1, 1, 1, 1, 1]),
        ("constant", 0.0, 3, [1, 1, 1]),
        ("cosine", 0.2, 5, [1, 1, (1 + HALF) / 2, 0.5, (1 - HALF) / 2]),
        ("warmup-stable-decay", 0.1, 20, [0.5, 1, *[1] * 17, 0.5]),
        ("warmup-stable-decay", 0.0, 4, [1, 1, 1, 1]),
        ("noam", 0.25, 8, [0.5, 1, (2 / 3) ** 0.5, HALF, 0.4**0.5, 3**-0.5, (2 / 7) ** 0.5, 0.5]),
        ("slanted-triangular", 0.25, 8, [p / 32 + (1 - p) for p in (1, 0.5, 0, 1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6)]),
    ],
)
def test_schedule_equals_values_worked_out_by_hand(
    name: ScheduleName, warmup_ratio: float, steps: int, rates: list[float]
) -> None:
    settings = OptimizerSettings(learning_rate=3e-4, warmup_ratio=warmup_ratio, schedule=name)
    schedule = settings.make_schedule(steps)
    assert [schedule(step) for step in range(steps)] == pytest.approx([3e-4 * rate for rate in rates])


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 2, 7, 100])
@pytest.mark.parametrize("warmup_ratio", [0.0, 0.1, 0.99])
def test_rates_are_positive_and_not_above_the_peak(name: ScheduleName, steps: int, warmup_ratio: float) -> None:
    schedule = OptimizerSettings(1.0, warmup_ratio=warmup_ratio, schedule=name).make_schedule(steps)
    rates = [schedule(step) for step in range(steps)]
    assert all(0 < rate <= 1 and math.isfinite(rate) for rate in rates)


def test_linear_schedule_is_the_default_and_needs_no_warmup() -> None:
    assert OptimizerSettings().schedule == "linear"
    assert [linear_warmup_decay(step, peak=1.0, warmup=0, total=4) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]
    with pytest.raises(ValueError, match=r"schedule: expected one of linear, .*, got 'quadratic'"):
        OptimizerSettings(schedule="quadratic")  # type: ignore[arg-type]
