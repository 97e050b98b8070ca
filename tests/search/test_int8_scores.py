"""Exact search by whole numbers beside search by a matrix product."""

from __future__ import annotations

import numpy as np
import pytest

from bertwright.search import exact_search, int8_scores
from bertwright.search.exact_search import find_nearest
from bertwright.search.int8_scores import MAX_INT8, MAX_SUM, RoundedQuery, round_query, score_int8


def vectors(number: int, dims: int) -> tuple[np.ndarray, np.ndarray]:
    floats = np.random.default_rng(dims).standard_normal((number, dims))
    floats /= np.linalg.norm(floats, axis=1, keepdims=True)
    scales = np.abs(floats).max(1) / MAX_INT8
    return np.rint(floats / scales[:, None]).astype(np.int8), scales.astype(np.float32)


@pytest.mark.parametrize("dims", [1, 7, 16, 384, 1000])
@pytest.mark.parametrize("native", [True, False])
def test_scores_equal_whole_numbers(dims: int, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(int8_scores, "_library", lambda: None)
    whole, _ = vectors(37, dims)
    values = np.random.default_rng(1).integers(-3000, 3000, dims).astype(np.int16)
    expected = whole.astype(np.int64) @ values.astype(np.int64)
    assert score_int8(RoundedQuery(values, 1.0), whole).tolist() == expected.astype(np.float32).tolist()


def test_largest_sums_fit_into_32_bits() -> None:
    query = round_query(np.full(4096, 1 / 64, np.float32))
    assert int(np.abs(query.values.astype(np.int64)).sum()) * MAX_INT8 <= MAX_SUM
    whole = np.full((1, 4096), -MAX_INT8, np.int8)
    np.testing.assert_allclose(score_int8(query, whole), [-64 * MAX_INT8], rtol=1e-3)


@pytest.mark.parametrize("k", [1, 10, 300])
def test_search_by_whole_numbers_finds_what_a_product_finds(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, scales = vectors(2_000, 48)
    queries = (whole[:5] * scales[:5, None]).astype(np.float32)
    monkeypatch.setattr(exact_search, "INT8_BLOCK", 300)
    few = find_nearest(queries, whole, k, scales)
    monkeypatch.setattr(exact_search, "FEW", 0)
    many = find_nearest(queries, whole, k, scales)
    assert few.positions.tolist() == many.positions.tolist()
    assert few.scores.tolist() == many.scores.tolist()


def test_other_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 3 numbers"):
        score_int8(round_query(np.ones(3, np.float32)), np.zeros((2, 4), np.int8))
