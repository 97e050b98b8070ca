"""Scores of rankings: equal to trec_eval's, whose values were computed once with pytrec-eval-terrier 0.5.11."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bertwright.metrics.example_scores import ExampleScores, compute_scores
from bertwright.metrics.ranking_scores import NAMES, score_ranking, score_rankings
from bertwright.metrics.statistics import compare
from bertwright.tables.retrieval_folders import RetrievalSet
from bertwright.tasks.embedding_scores import rank_by_vectors

RUNS = json.loads((Path(__file__).parent / "trec_eval_runs.json").read_text(encoding="utf-8"))


def order_documents(scores: dict[str, float]) -> list[str]:
    """Return the ids of documents as trec_eval orders them: by score in float32, equal ones backwards by id."""
    return sorted(scores, key=lambda document: (np.float32(scores[document]), document), reverse=True)


def test_scores_equal_trec_eval_with_ties_grades_missing_and_extra_documents() -> None:
    rankings = {query: order_documents(scores) for query, scores in RUNS["runs"].items()}
    scores = score_rankings(rankings, RUNS["judgements"])
    expected = [[RUNS["expected"][query][name] for name in NAMES] for query in scores.queries]
    np.testing.assert_allclose(scores.values, expected, atol=1e-9)
    assert np.ptp(scores.values, axis=0).min() > 0  # every score tells rankings apart


def test_documents_with_equal_cosines_are_ordered_as_by_trec_eval() -> None:
    data = RetrievalSet({"q": "a"}, {"1": "x", "2": "y", "q": "a", "3": "z"}, {"q": {"1": 1}})
    axes = {"a": [1.0, 0.0], "x": [0.5, 0.5], "y": [1.0, 1.0], "z": [1.0, 0.5]}
    found = rank_by_vectors(data, lambda texts, role: np.array([axes[text] for text in texts], np.float32), 3)
    assert found == {"q": ["3", "2", "1"]}  # without the query's own document


def test_a_query_without_a_ranking_counts_as_0() -> None:
    scores = score_rankings({"a": ["x"]}, {"a": {"x": 1}, "b": {"x": 1}})
    assert scores.means == dict.fromkeys(NAMES, 0.5)


def test_scores_by_hand() -> None:
    ranking = dict(zip(NAMES, score_ranking([0, 2, 0, 1], [2, 1, 3, 0]), strict=True))
    log = np.log2([2, 3, 4, 5])
    assert ranking["ndcg@10"] == pytest.approx((2 / log[1] + 1 / log[3]) / (3 / log[0] + 2 / log[1] + 1 / log[2]))
    assert ranking["map@100"] == pytest.approx((1 / 2 + 2 / 4) / 3)
    assert (ranking["mrr@10"], ranking["recall@1"], ranking["recall@10"]) == (0.5, 0.0, pytest.approx(2 / 3))


def test_no_judged_query_is_an_error() -> None:
    with pytest.raises(ValueError, match="no query is judged"):
        score_rankings({"a": ["x"]}, {})


def test_average_precision_equals_scikit_learn_also_in_samples() -> None:
    from sklearn.metrics import average_precision_score

    rng = np.random.default_rng(0)
    labels, values = rng.integers(0, 2, 50), rng.integers(0, 9, 50) / 4
    weights = np.stack([np.ones(50), rng.multinomial(50, [0.02] * 50)]).astype(float)
    found = compute_scores(ExampleScores("precision", np.stack([labels, values], 1).astype(float)), weights)
    expected = [average_precision_score(labels, values, sample_weight=row) for row in weights]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_difference_on_the_same_queries_is_paired() -> None:
    noise = np.random.default_rng(0).normal(0, 1, (200, 1))
    difference = compare("ndcg", ExampleScores("mean", noise + 0.1), ExampleScores("mean", noise), draws=500)
    assert difference.mean == pytest.approx(0.1)
    assert difference.interval is not None  # all differences are equal, whatever the queries
    assert (difference.interval.low, difference.interval.high) == (pytest.approx(0.1), pytest.approx(0.1))
