"""Scores of rankings, as trec_eval computes them: nDCG (Järvelin and Kekäläinen 2002), MAP, MRR, recall, accuracy.

Q queries, M scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
NAMES = ("ndcg@10", "map@100", "mrr@10", "recall@1", "recall@10", "recall@100", "accuracy@1")
DEPTH = 100  # documents of a ranking that the scores read


class RankingScores(NamedTuple):
    """The scores of each query."""

    queries: Sequence[str]
    """Q ids."""
    values: Floats
    """Q × M, in the order of NAMES."""

    @property
    def means(self) -> dict[str, float]:
        return dict(zip(NAMES, self.values.mean(0).tolist(), strict=True))


def score_rankings(rankings: Mapping[str, Sequence[str]], judgements: Mapping[str, Mapping[str, int]]) -> RankingScores:
    """Score the documents that were found for each judged query, best first; a query without a ranking scores 0.

    A document without a judgement is no answer. Raises ValueError if no query is judged, for the scores are means.
    """
    if not judgements:
        raise ValueError("no query is judged, so that there is no score")
    rows = []
    for query, grades in judgements.items():
        found = [grades.get(document, 0) for document in rankings.get(query, ())]
        rows.append(score_ranking(found, grades.values()))
    return RankingScores(tuple(judgements), np.array(rows))


def score_ranking(found: Sequence[int], judged: Iterable[int]) -> tuple[float, ...]:
    """Compute the scores NAMES of one ranking.

    `found`: the grade of each document in its order, 0 or less if it is no answer. `judged`: the grades of all
    documents that are judged for the query. The gain in nDCG is the grade, its discount log2(rank + 1).

    >>> dict(zip(NAMES, score_ranking([0, 1], [1, 1]), strict=True))["mrr@10"]
    0.5
    """
    gains = np.maximum(np.asarray(found[:DEPTH], dtype=float), 0)
    ideal = np.sort(np.maximum(np.fromiter(judged, float), 0))[::-1]
    answers, hits = int((ideal > 0).sum()), gains > 0
    if not answers:
        return (0.0,) * len(NAMES)
    ranks = np.flatnonzero(hits) + 1
    precisions = np.arange(1, len(ranks) + 1) / ranks
    first = ranks[0] if len(ranks) else np.inf
    recalls = [hits[:depth].sum() / answers for depth in (1, 10, 100)]
    values = (_dcg(gains[:10]) / _dcg(ideal[:10]), precisions.sum() / answers, 1 / first if first <= 10 else 0.0)
    return tuple(map(float, (*values, *recalls, first == 1)))


def _dcg(gains: Floats) -> float:
    return float((gains / np.log2(np.arange(2, len(gains) + 2))).sum())
