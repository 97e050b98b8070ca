"""Scores of text vectors on labeled data of any kind, with the names that sentence-transformers gives them.

N rows, D numbers per vector, C classes. The texts are embedded by a function, so that the same scores serve a model, a
training run and any other source of vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.base.seeding import make_rng
from bertwright.metrics import scores as metrics
from bertwright.metrics.example_scores import ExampleScores, compute_scores
from bertwright.metrics.ranking_scores import DEPTH, NAMES, score_rankings
from bertwright.search.exact_search import Neighbours, find_nearest, unit_vectors
from bertwright.tables.retrieval_folders import RetrievalSet
from bertwright.tables.text_roles import TextRow
from bertwright.tasks.linear_fit import Block, add_outputs, cross_entropy, fit_linear
from bertwright.tasks.ranking_examples import METRICS, RankingExample, score_candidates

Vectors = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Embed = Callable[[Sequence[str], str], Vectors]
"""A function of texts and their role that returns their vectors, N × D, of any length."""

QUERY, DOCUMENT, PLAIN = "query", "document", ""  # roles; PLAIN: of texts without query and answer
DRAWS, TEXTS_PER_CLASS = 10, 8  # as MTEB scores classes (2210.07316)
SEED = 42


class VectorScores(NamedTuple):
    """Scores of vectors; the first is the one by which models are compared."""

    scores: dict[str, float]
    examples: ExampleScores
    """Numbers per query, pair or text, from which the first score of any sample of them follows."""

    @property
    def metric(self) -> str:
        """Name of the first score."""
        return next(iter(self.scores))


def score_retrieval(data: RetrievalSet, embed: Embed) -> VectorScores:
    """Score the nearest 100 documents of each query by cosine; a document with the query's id is left out."""
    return score_ranked(rank_by_vectors(data, embed, DEPTH), data.judgements)


def rank_by_vectors(data: RetrievalSet, embed: Embed, depth: int) -> dict[str, list[str]]:
    """Return the ids of the nearest documents of each query; of equal cosines, the later id first, as trec_eval."""
    ids = sorted(data.documents, reverse=True)
    documents = unit_vectors(embed([data.documents[name] for name in ids], DOCUMENT))
    queries = unit_vectors(embed([*data.queries.values()], QUERY))
    return name_documents(data, ids, find_nearest(queries, documents, min(depth + 1, len(ids))), depth)


def name_documents(data: RetrievalSet, ids: Sequence[str], found: Neighbours, depth: int) -> dict[str, list[str]]:
    """Return the ids of the documents that were found for each query, without the query's own."""
    return {
        query: [ids[place] for place in places if place >= 0 and ids[place] != query][:depth]
        for query, places in zip(data.queries, found.positions.tolist(), strict=True)
    }


def score_ranked(rankings: Mapping[str, Sequence[str]], judgements: Mapping[str, Mapping[str, int]]) -> VectorScores:
    """Score the documents that were found for each query; nDCG@10 per query is what is resampled."""
    found = score_rankings(rankings, judgements)
    scores = {f"cosine_{name}": score for name, score in found.means.items()}
    return VectorScores(scores, ExampleScores("mean", found.values[:, [NAMES.index("ndcg@10")]]))


def rows_as_retrieval(rows: Sequence[TextRow]) -> RetrievalSet:
    """Return pairs as a retrieval set: all distinct texts beside the anchors are documents."""
    texts = dict.fromkeys(text for row in rows for text in (*row.positives, *row.negatives))
    ids = {text: f"d{number:09}" for number, text in enumerate(texts)}
    queries = {text: f"q{number:09}" for number, text in enumerate(dict.fromkeys(row.anchor for row in rows))}
    judgements: dict[str, dict[str, int]] = {name: {} for name in queries.values()}
    for row in rows:
        judgements[queries[row.anchor]] |= {ids[text]: 1 for text in row.positives}
    return RetrievalSet(
        {name: text for text, name in queries.items()}, {n: text for text, n in ids.items()}, judgements
    )


def score_similarity(rows: Sequence[TextRow], embed: Embed) -> VectorScores:
    """Correlate the cosines of rated pairs with their scores."""
    cosines, gold = _pair_cosines(rows, embed), [float(row.score or 0) for row in rows]
    scores = {
        "spearman_cosine": metrics.spearman(gold, cosines.tolist()),
        "pearson_cosine": metrics.pearson(gold, cosines.tolist()),
    }
    return VectorScores(scores, ExampleScores("spearman", np.stack([gold, cosines], 1)))


def score_pairs(rows: Sequence[TextRow], embed: Embed) -> VectorScores:
    """Score pairs that belong together (score 1) or not: average precision, best F1 and accuracy, their thresholds."""
    cosines, labels = _pair_cosines(rows, embed), np.array([float(row.score or 0) for row in rows])
    examples = ExampleScores("precision", np.stack([labels, cosines], 1))
    precision = float(compute_scores(examples, np.ones((1, len(rows))))[0])
    order = np.argsort(-cosines, kind="stable")
    sorted_cosines, hits = cosines[order], np.cumsum(labels[order])
    ends = np.flatnonzero(np.append(np.diff(sorted_cosines) != 0, True))  # a threshold separates unequal cosines
    found, positives = ends + 1, labels.sum()
    f1s = 2 * hits[ends] / (found + positives)
    accuracies = (hits[ends] + (len(rows) - found) - (positives - hits[ends])) / len(rows)
    below = np.append(sorted_cosines, -1.0)[found]
    thresholds = (sorted_cosines[ends] + below) / 2
    best, most = int(f1s.argmax()), int(accuracies.argmax())
    scores = {"cosine_ap": precision, "cosine_f1": float(f1s[best]), "cosine_f1_threshold": float(thresholds[best])}
    scores |= {"cosine_accuracy": float(accuracies[most]), "cosine_accuracy_threshold": float(thresholds[most])}
    return VectorScores(scores, examples)


def score_triplets(rows: Sequence[TextRow], embed: Embed) -> VectorScores:
    """Compute the share of triplets whose positive is nearer to the anchor than the negative."""
    shares = []
    for positives, negatives in _candidate_cosines(rows, embed):
        shares.append((positives[:, None] > negatives[None, :]).mean() if len(positives) and len(negatives) else np.nan)
    shares_found = np.array([share for share in shares if not np.isnan(share)])
    if not len(shares_found):
        raise ValueError(f"{rows[0].location}: from there on no row has a positive and a negative")
    return VectorScores({"cosine_accuracy": float(shares_found.mean())}, ExampleScores("mean", shares_found[:, None]))


def score_query_candidates(examples: Sequence[RankingExample], embed: Embed) -> VectorScores:
    """Score the order of each query's own candidates; of equal cosines, the lowest grade comes first."""
    scored = [example for example in examples if example.is_scored]
    if not scored:
        raise ValueError(f"{examples[0].location}: from there on no query has a text that is marked as relevant")
    rows = [TextRow(example.query, example.location, example.texts) for example in scored]
    pairs = zip(scored, _candidate_cosines(rows, embed), strict=True)
    values = np.array([score_candidates(one.known_grades, cosines.tolist()) for one, (cosines, _) in pairs])  # Q 3
    return VectorScores(dict(zip(METRICS, values.mean(0).tolist(), strict=True)), ExampleScores("mean", values[:, :1]))


def score_translations(rows: Sequence[TextRow], embed: Embed) -> VectorScores:
    """Compute the share of texts whose translation is the nearest of all, in both directions."""
    first, second = [row.anchor for row in rows], [row.positives[0] for row in rows]
    one, two = unit_vectors(embed(first, PLAIN)), unit_vectors(embed(second, PLAIN))
    right = []
    for queries, vectors, texts in ((one, two, second), (two, one, first)):
        nearest = find_nearest(queries, vectors, 1).positions[:, 0]
        right.append([texts[place] == texts[number] for number, place in enumerate(nearest.tolist())])
    values = np.array(right, dtype=float)  # 2 N
    scores = {
        "mean_accuracy": values.mean(),
        "src2trg_accuracy": values[0].mean(),
        "trg2src_accuracy": values[1].mean(),
    }
    return VectorScores(
        {name: float(score) for name, score in scores.items()}, ExampleScores("mean", values.mean(0)[:, None])
    )


def score_classes(train: Sequence[TextRow], test: Sequence[TextRow], embed: Embed) -> VectorScores:
    """Score a logistic regression on the vectors of 8 texts per class, the mean of ten draws, as MTEB.

    `train` and `test` may be the same rows: what was not drawn is scored then. Raises ValueError if `train` lacks a
    class of `test`.
    """
    classes = {label: number for number, label in enumerate(sorted({row.label or "" for row in train}))}
    if odd := next((row for row in test if row.label not in classes), None):
        raise ValueError(f"{odd.location}: the class {odd.label!r} is not in the training file")
    labels = np.array([classes[row.label or ""] for row in train])
    known = np.array([classes[row.label or ""] for row in test])
    features = embed([row.anchor for row in train], PLAIN).astype(float)
    scored = features if test is train else embed([row.anchor for row in test], PLAIN).astype(float)
    right, f1s = np.full((DRAWS, len(test)), np.nan), []
    for draw in range(DRAWS):
        order = make_rng(SEED, draw).permutation(len(train))
        chosen = np.concatenate([order[labels[order] == number][:TEXTS_PER_CLASS] for number in range(len(classes))])
        predicted = _fit_classes(features[chosen], np.eye(len(classes))[labels[chosen]], scored)
        rest = np.setdiff1d(np.arange(len(test)), chosen) if test is train else np.arange(len(test))
        if not len(rest):
            raise ValueError(f"{test[0].location}: all texts are drawn for training; name other files to train on")
        right[draw, rest] = predicted[rest] == known[rest]
        f1s.append(metrics.macro_f1([str(one) for one in known[rest]], [str(one) for one in predicted[rest]]))
    scored_at_all = ~np.isnan(right).all(0)
    shares = np.nanmean(right[:, scored_at_all], axis=0)
    return VectorScores(
        {"accuracy": float(np.nanmean(right)), "macro_f1": float(np.mean(f1s))}, ExampleScores("mean", shares[:, None])
    )


SCORERS: Mapping[str, Callable[[Any, Embed], VectorScores]] = {
    "retrieval": score_retrieval,
    "similarity": score_similarity,
    "pairs": score_pairs,
    "triplets": score_triplets,
    "classes": lambda rows, embed: score_classes(rows, rows, embed),
    "translations": score_translations,
    "reranking": score_query_candidates,
}
"""Functions that score data of a kind: a RetrievalSet, for re-ranking RankingExamples, else TextRows."""


def _fit_classes(features: Floats, targets: Floats, scored: Floats) -> npt.NDArray[np.int64]:
    """Return the number of the class of each scored vector; the penalty is scikit-learn's, half the squared weights."""
    from scipy import sparse

    blocks = [Block(sparse.identity(len(features), format="csr"), features)]
    weights, bias = fit_linear(blocks, targets, cross_entropy, l2=1.0)
    outputs = add_outputs([Block(sparse.identity(len(scored), format="csr"), scored)], weights) + bias
    classes: npt.NDArray[np.int64] = outputs.argmax(1)
    return classes


def _pair_cosines(rows: Sequence[TextRow], embed: Embed) -> Floats:
    first = unit_vectors(embed([row.anchor for row in rows], PLAIN))
    second = unit_vectors(embed([row.positives[0] for row in rows], PLAIN))
    cosines: Floats = np.einsum("nd,nd->n", first.astype(float), second.astype(float))
    return cosines


def _candidate_cosines(rows: Sequence[TextRow], embed: Embed) -> list[tuple[Floats, Floats]]:
    """Return the cosines of each row's anchor with its positives, and with its negatives."""
    texts = list(dict.fromkeys(text for row in rows for text in (*row.positives, *row.negatives)))
    places = {text: place for place, text in enumerate(texts)}
    anchors = unit_vectors(embed([row.anchor for row in rows], QUERY)).astype(float)
    vectors = unit_vectors(embed(texts, DOCUMENT)).astype(float)
    return [
        (
            vectors[[places[text] for text in row.positives]].reshape(-1, anchors.shape[1]) @ anchor,
            vectors[[places[text] for text in row.negatives]].reshape(-1, anchors.shape[1]) @ anchor,
        )
        for row, anchor in zip(rows, anchors, strict=True)
    ]
