"""The rate is a function of the step."""

from __future__ import annotations

import pytest

from bertwright.training.schedules import linear_warmup_decay


def test_hand_worked() -> None:
    rates = [
        linear_warmup_decay(step, peak=1e-4, warmup=10_000, total=1_000_000)
        for step in (0, 4_999, 9_999, 10_000, 505_000, 999_999)
    ]
    assert rates == pytest.approx([1e-8, 5e-5, 1e-4, 1e-4, 5e-5, 1e-4 / 990_000])


def test_no_warm_up() -> None:
    assert [linear_warmup_decay(step, peak=1.0, warmup=0, total=4) for step in range(4)] == [1.0, 0.75, 0.5, 0.25]
