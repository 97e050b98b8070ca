"""Exact nearest vectors: matrix products over blocks of vectors, whose best candidates are scored again in float64.

A float32 product differs in its last bits with the number of threads and rows. It only selects candidates, with a
margin above its rounding; sums in float64, one per pair, give the order. So results are the same bytes on every run.
A few queries select among int8 vectors by sums of whole numbers, which read the vectors as they are.

Q queries, B vectors of a block, N vectors in all, D numbers per vector, C candidates, k nearest vectors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.search.int8_scores import RoundedQuery, round_query, score_int8

Vectors = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

BLOCK = 8_192  # vectors per matrix product
INT8_BLOCK = 65_536  # vectors per call of the kernel in int8, which copies none
QUERIES = 256  # queries that share the read of a block
FEW = 8  # queries; more are faster by a matrix product
PAIRS = 65_536  # candidates that are scored again at a time: bounds memory


class Neighbours(NamedTuple):
    """The nearest vectors of each query, nearest first; of equal scores, the lower position first."""

    positions: Ints
    """Q × k; -1 if there are fewer vectors."""
    scores: Floats
    """Q × k dot products; -inf if there are fewer vectors."""


def unit_vectors(vectors: Vectors) -> Vectors:
    """Return N × D vectors of length 1; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors.astype(float), axis=1, keepdims=True)
    unit: Vectors = (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32)
    return unit


def find_nearest(
    queries: Vectors, vectors: npt.NDArray[np.generic], k: int, scales: Vectors | None = None
) -> Neighbours:
    """Find the `k` vectors with the largest dot products, exactly.

    `vectors`: N × D of length at most 1, float32, or int8 with N `scales`; they may be mapped into memory.
    """
    parts = [
        _search(queries[first : first + QUERIES], vectors, k, scales) for first in range(0, len(queries), QUERIES)
    ] or [empty_neighbours(0, k)]
    return Neighbours(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def empty_neighbours(queries: int, k: int) -> Neighbours:
    """Return the neighbours of queries that have found no vector yet."""
    return Neighbours(np.full((queries, k), -1, np.int64), np.full((queries, k), -np.inf, np.float32))


def _search(queries: Vectors, vectors: npt.NDArray[np.generic], k: int, scales: Vectors | None) -> Neighbours:
    best = empty_neighbours(len(queries), k)
    # Twice the error of a float32 sum of D products, on both sides of the comparison.
    margins = 4 * queries.shape[1] * np.finfo(np.float32).eps * np.linalg.norm(queries, axis=1)
    rounded: list[RoundedQuery] = []
    if vectors.dtype == np.int8 and len(queries) <= FEW and np.isfinite(queries).all():
        rounded = [round_query(query) for query in queries]
        margins = margins + 2 * np.array([query.error for query in rounded], np.float32)
    size = INT8_BLOCK if rounded else BLOCK
    for first in range(0, len(vectors), size):
        block = np.asarray(vectors[first : first + size])
        if rounded:
            products = np.stack([score_int8(query, block) for query in rounded])  # Q B
        else:
            products = queries @ block.astype(np.float32, copy=False).T
        if scales is not None:
            products *= scales[first : first + size]
        floors = best.scores[:, -1]
        if len(block) > k and not np.isfinite(floors).all():
            floors = np.maximum(floors, np.partition(products, len(block) - k, axis=1)[:, len(block) - k])
        rows, places = np.nonzero(products >= (floors - margins)[:, None])
        scores = score_pairs(queries, block, rows, places)
        if scales is not None:
            scores *= scales[places + first]
        best = _merge(best, rows, places + first, scores)
    return best


def score_pairs(queries: Vectors, vectors: npt.NDArray[np.generic], rows: Ints, places: Ints) -> Floats:
    """Compute the dot products of C pairs of a query and a vector, each summed in float64."""
    scores = np.empty(len(rows), np.float32)
    for first in range(0, len(rows), PAIRS):
        part = slice(first, first + PAIRS)
        pairs = queries[rows[part]].astype(np.float64), vectors[places[part]].astype(np.float64)
        scores[part] = np.einsum("cd,cd->c", *pairs)
    return scores


def _merge(best: Neighbours, rows: Ints, positions: Ints, scores: Floats) -> Neighbours:
    """Return the best of those found before and of C candidates."""
    queries, k = best.scores.shape
    rows = np.concatenate([np.repeat(np.arange(queries), k), rows])
    positions, scores = (
        np.concatenate([best.positions.ravel(), positions]),
        np.concatenate([best.scores.ravel(), scores]),
    )
    order = np.lexsort((positions, -scores, rows))
    counts = np.bincount(rows, minlength=queries)
    chosen = order[(np.cumsum(counts) - counts)[:, None] + np.arange(k)]  # each query has at least k: those before
    return Neighbours(positions[chosen], scores[chosen])
