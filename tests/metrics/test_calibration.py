"""Temperature, calibration error, thresholds for costs, suspicious labels: on numbers with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertwright.metrics.calibration import choose_threshold, fit_temperature, measure_reliability, rank_suspects


def test_the_temperature_of_drawn_labels_is_found() -> None:
    rng = np.random.default_rng(0)
    true = rng.normal(size=(5_000, 3)) * 2
    labels = np.array([rng.choice(3, p=row / row.sum()) for row in np.exp(true)])
    assert fit_temperature(3 * true, labels) == pytest.approx(3, rel=0.1)
    marks = rng.random(true.shape) < 1 / (1 + np.exp(-true))
    assert fit_temperature(0.5 * true, marks) == pytest.approx(0.5, rel=0.1)


def test_calibration_error_weights_bins_by_their_size() -> None:
    shares = np.array([0.95] * 3 + [0.55])
    assert measure_reliability(shares, np.array([True, True, True, False])).error == pytest.approx(
        (3 * 0.05 + 0.55) / 4
    )


@given(
    st.lists(st.tuples(st.integers(1, 19), st.booleans()), min_size=1, max_size=60),
    st.sampled_from([(1, 1), (1, 10), (5, 1)]),
)
def test_no_other_threshold_costs_less(rows: list[tuple[int, bool]], costs: tuple[int, int]) -> None:
    shares, right = np.array([share / 20 for share, _ in rows]), np.array([mark for _, mark in rows])

    def cost(threshold: float) -> int:
        chosen = shares > threshold
        return int(costs[0] * (chosen & ~right).sum() + costs[1] * (right & ~chosen).sum())

    threshold = choose_threshold(shares, right, *costs)
    if min(right.sum(), (~right).sum()) < 5:
        assert threshold == costs[0] / sum(costs)
    else:
        assert cost(threshold) == min(map(cost, np.arange(41) / 40))


def test_a_label_that_its_class_rarely_has_less_of_is_no_suspect() -> None:
    shares = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.95, 0.05]])
    labels = np.array([0, 0, 1, 1])
    assert rank_suspects(shares, labels).tolist() == [3]
