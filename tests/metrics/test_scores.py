"""Scores: hand-worked, against their definitions, and undefined ones, which are 0 without a warning."""

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.metrics import scores

TRUTH, FOUND = list("11100"), list("11001")  # of "1": two found, one missed, one too many


@pytest.fixture(autouse=True)
def warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_scores_of_labels_hand_worked() -> None:
    assert scores.accuracy(TRUTH, FOUND) == pytest.approx(3 / 5)
    assert scores.f1(TRUTH, FOUND, "1") == pytest.approx(2 / 3)
    assert scores.f1(TRUTH, FOUND, "0") == pytest.approx(1 / 2)
    assert scores.macro_f1(TRUTH, FOUND) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert scores.matthews(TRUTH, FOUND) == pytest.approx((2 * 1 - 1 * 1) / (3 * 3 * 2 * 2) ** 0.5)
    assert scores.accuracy([0, 3, 2], [0, 3, 1]) == pytest.approx(2 / 3)


def test_scores_of_numbers_hand_worked() -> None:
    truth, found = [1.0, 2.0, 3.0], [1.0, 4.0, 9.0]
    assert scores.spearman(truth, found) == pytest.approx(1.0)
    assert scores.pearson(truth, found) == pytest.approx(8 / (2 * 294 / 9) ** 0.5)
    assert scores.mean_squared_error(truth, found) == pytest.approx((0 + 4 + 36) / 3)
    assert scores.spearman([1.0, 1.0, 2.0], [3.0, 2.0, 1.0]) == pytest.approx(-(3**0.5) / 2)  # ties share a rank


@settings(max_examples=50)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_matthews_is_the_correlation_of_two_booleans(pairs: list[tuple[bool, bool]]) -> None:
    truth, found = np.array(pairs, dtype=float).T
    defined = np.ptp(truth) > 0 and np.ptp(found) > 0
    expected = np.corrcoef(truth, found)[0, 1] if defined else 0.0
    assert scores.matthews([str(one) for one in truth], [str(one) for one in found]) == pytest.approx(expected)


def test_undefined_scores_are_zero_without_a_warning() -> None:
    assert scores.matthews(["a", "b"], ["a", "a"]) == 0.0
    assert scores.matthews(["a", "a"], ["a", "a"]) == 0.0
    assert scores.f1(["a", "a"], ["a", "a"], "b") == 0.0
    assert scores.macro_f1(["a", "b"], ["c", "c"]) == 0.0
    for correlation in (scores.pearson, scores.spearman):
        assert correlation([1.0, 2.0], [0.5, 0.5]) == 0.0
        assert correlation([3.0, 3.0], [0.5, 0.7]) == 0.0
        assert correlation([3.0], [0.5]) == 0.0
