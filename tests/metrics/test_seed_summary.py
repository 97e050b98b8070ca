"""Mean and deviation over seeds."""

import pytest

from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds


def test_mean_and_sample_deviation_hand_worked() -> None:
    found = summarize_seeds([0.9, 0.8, 0.7, 0.8])
    assert found.mean == pytest.approx(0.8)
    assert found.std == pytest.approx((0.02 / 3) ** 0.5)
    assert (found.min, found.max, found.seeds) == (0.7, 0.9, 4)


def test_format_of_a_summary() -> None:
    assert str(summarize_seeds([0.878, 0.884, 0.890, 0.878, 0.890])) == "88.4 ± 0.6 (5 seeds)"
    assert str(summarize_seeds([-0.05, 0.05])) == "0.0 ± 7.1 (2 seeds)"
    assert str(summarize_seeds([0.5])) == "50.0 (1 seed)"


def test_one_seed_has_no_deviation_and_none_has_no_mean() -> None:
    assert summarize_seeds([0.5]) == SeedSummary(0.5, None, 0.5, 0.5, 1)
    with pytest.raises(ValueError, match="at least one seed"):
        summarize_seeds([])
