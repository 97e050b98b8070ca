"""The limits of int8 on hand-made answers and vectors."""

from __future__ import annotations

import numpy as np
import pytest

from bertwright.inference.int8_gate import (
    Measured,
    Verdict,
    first_percentile,
    judge,
    list_answers,
)
from bertwright.tasks.classification import LabelPrediction


def predictions(labels: str) -> list[LabelPrediction]:
    return [LabelPrediction(label, {label: 1.0}) for label in labels]


def compare(labels: str, others: str, score: float = 0.9) -> Verdict:
    """Judge labels of a score of 0.9 beside others."""
    measured = (Measured("f1", 0.9, predictions(labels)), Measured("f1", score, predictions(others)))
    return judge(*measured, None)


def test_gate_within_limits_passes() -> None:
    verdict = compare("ab" * 50, "ab" * 50, 0.896)
    assert verdict.passed
    assert verdict.to_record() == {
        "metric": "f1", "float32": 0.9, "int8": 0.896, "max_drop": 0.5, "agreement": 1.0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("verdict", "named"),
    [
        (Verdict("f1", 0.9, 0.89, 0.5), "f1 1.00 points"),
        (Verdict("f1", 0.9, float("nan"), 0.5), "f1 nan"),
        (compare("ab", "aa"), "equal answers 0.5"),
    ],
)
def test_gate_beyond_a_limit_names_it(verdict: Verdict, named: str) -> None:
    (words,) = verdict.missed
    assert named in words


def test_agreement_of_numbers_is_not_asked() -> None:
    before, after = (Measured("pearson", 0.9, given) for given in ([0.1, 0.2], [0.1, 0.25]))
    assert judge(before, after, None).agreement is None


def test_answers_of_tagging_are_words() -> None:
    from bertwright.tasks.tagging import TagPrediction

    assert list_answers([TagPrediction(("a", "b"), ("O", "B-X"), (1.0, 1.0), ())]) == ["O", "B-X"]


def test_first_percentile_ignores_one_in_a_hundred() -> None:
    good = np.tile(np.float32([1, 0]), (200, 1))
    other = good.copy()
    other[0] = [0, 1]
    assert first_percentile(good, other) == 1
    other[:3] = [0, 1]
    assert first_percentile(good, other) == 0


def test_the_gate_of_vectors_asks_for_the_first_percentile_of_the_cosines() -> None:
    vectors = np.tile(np.array([[1.0, 0.0]], np.float32), (100, 1))
    turned = vectors.copy()
    turned[:3] = [0.9, 0.436]
    reference, candidate = (Measured("spearman", 0.8, (), given) for given in (vectors, turned))
    assert judge(reference, reference, None).passed
    assert "cosines 0.8" in " ".join(judge(reference, candidate, None).missed)
    assert not judge(reference, reference._replace(score=0.796), None).passed  # 0.4 points, of 0.3
    assert judge(reference, reference._replace(score=0.796), 0.5).passed
