"""Rows of texts for training and scoring text vectors: which loss and which scores their columns allow.

D numbers per vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.base.settings import did_you_mean
from bertwright.metrics import ranking_scores
from bertwright.tables.retrieval_folders import RetrievalSet
from bertwright.tables.text_roles import TextRow
from bertwright.tasks.embedding_scores import (
    DOCUMENT,
    PLAIN,
    QUERY,
    SCORERS,
    VectorScores,
    rows_as_retrieval,
    score_retrieval,
)

if TYPE_CHECKING:
    from bertwright.tasks.embedding import Embedding


class RetrievalExample(NamedTuple):
    """A whole retrieval set: a model is scored on all of its queries and documents together."""

    data: RetrievalSet
    location: str

    @property
    def texts(self) -> tuple[str, ...]:
        """All queries, then all documents."""
        return (*self.data.queries.values(), *self.data.documents.values())

    def to_rows(self) -> list[TextRow]:
        """Return a row for each query, with the documents that answer it."""
        rows = []
        for query, grades in self.data.judgements.items():
            documents = tuple([self.data.documents[name] for name, grade in grades.items() if grade > 0])
            if documents:
                rows.append(TextRow(self.data.queries[query], f"{self.location}, query {query}", documents))
        return rows


Example = TextRow | RetrievalExample
TextVectors = npt.NDArray[np.float32]
"""Vectors of a row's texts, anchor first."""
LossName = Literal["ranking", "cosent", "cosine", "angle", "contrastive", "labels", "simcse", "tsdae", "triplet"]
RowKind = Literal["similarity", "pairs", "triplets", "retrieval", "classes", "texts"]
LOSSES: dict[RowKind, tuple[LossName, ...]] = {
    "similarity": ("cosent", "angle", "cosine"),
    "pairs": ("cosent", "contrastive", "angle", "cosine"),
    "triplets": ("ranking", "triplet"),
    "retrieval": ("ranking",),
    "classes": ("labels",),
    "texts": ("simcse", "tsdae"),
}
"""Losses by what the columns of a row have; the first is the default."""
METRICS: dict[RowKind, tuple[str, ...]] = {
    "similarity": ("spearman_cosine", "pearson_cosine"),
    "pairs": ("cosine_ap", "cosine_f1", "cosine_accuracy"),
    "triplets": ("cosine_accuracy",),
    "retrieval": tuple([f"cosine_{name}" for name in ranking_scores.NAMES]),
    "classes": ("accuracy", "macro_f1"),
    "texts": (),
}
"""Scores by what the columns of a row have; the first is the default."""
DIRECTED = ("triplets", "retrieval")  # kinds whose texts are queries and documents, with a prompt each
WITHOUT_SCALE = ("cosine", "contrastive", "triplet", "tsdae")
OF_RANKING = ("symmetric", "all_pairs", "hardness", "guide")  # options of the loss `ranking`
OF_SCORES = ("cosent", "angle", "cosine", "contrastive")
MANY_ROWS = 50_000
LEARNING_RATE = 2e-5  # peak for BASE
COLUMNS = {
    "similarity": "two texts and a score",
    "pairs": "two texts and a label of 0 or 1",
    "triplets": "anchor, positive and negatives",
    "retrieval": "anchor and positive",
    "classes": "a text and its class",
    "texts": "texts alone",
}


def as_rows(examples: Sequence[Example]) -> list[TextRow]:
    """Return the rows of all examples, of a retrieval set its answered queries. Raises ValueError if none is."""
    rows = [row for one in examples for row in (one.to_rows() if isinstance(one, RetrievalExample) else [one])]
    if examples and not rows:
        raise ValueError(f"{examples[0].location}: no judgement is above 0, so that no query has an answer; add one")
    return rows


def find_kind(examples: Sequence[Example]) -> RowKind:
    """Return what the rows have. Raises ValueError with the location of a row that has other columns than the first."""
    rows = as_rows(examples)
    if odd := next((row for row in rows if _columns_of(row) != _columns_of(rows[0])), None):
        raise ValueError(
            f"{odd.location}: expected {_columns_of(rows[0])}, as in {rows[0].location}, got {_columns_of(odd)}; give "
            "files of one kind"
        )
    if rows[0].score is not None:
        return "pairs" if {row.score for row in rows} <= {0, 1} else "similarity"
    if rows[0].label is not None:
        return "classes"
    if not rows[0].positives:
        return "texts"
    return "triplets" if any(row.negatives for row in rows) else "retrieval"


def _columns_of(row: TextRow) -> str:
    named = {"positive": row.positives, "score": row.score is not None, "label": row.label is not None}
    return ", ".join(["anchor", *[name for name, given in named.items() if given]])


def check_single_set(examples: Sequence[Example]) -> None:
    """Raise ValueError for a retrieval set with other examples, which no score of it includes."""
    if len(examples) > 1 and (found := next((one for one in examples if isinstance(one, RetrievalExample)), None)):
        what = "a retrieval set is scored by itself; leave out the other files, which bertwright evaluate scores"
        raise ValueError(f"{found.location}: {what}")


def choose_loss(name: str | None, rows: Sequence[TextRow]) -> LossName:
    """Return the loss with this name, or the rows' default. Raises ValueError if it cannot learn from them."""
    kind = find_kind(rows)
    loss = next((loss for loss in (*LOSSES[kind], *LOSSES["texts"]) if name in (loss, None)), None)
    if loss is None:
        raise ValueError(
            f"vector_loss = {name!r}: {rows[0].location} has {COLUMNS[kind]}; expected {' or '.join(LOSSES[kind])}, or "
            "other --columns"
        )
    if len(rows) < 2:
        raise ValueError(f"{rows[0].location}: a single row has nothing to compare with; give more rows")
    if kind in ("similarity", "pairs") and len({row.score for row in rows}) == 1:
        raise ValueError(
            f"{rows[0].location}: from there on all {len(rows):,} rows have the score {rows[0].score:g}, which is no "
            "order to learn; name another score, or leave it out, as in --columns anchor=a positive=b"
        )
    if kind == "classes" and len({row.label for row in rows}) == 1:
        raise ValueError(
            f"{rows[0].location}: from there on all {len(rows):,} rows have the class {rows[0].label!r}; give rows of "
            "at least two classes"
        )
    if loss == "triplet" and (odd := next((row for row in rows if not row.negatives), None)):
        raise ValueError(f"{odd.location}: no negative; the loss triplet needs one in each row, ranking does not")
    if loss == "cosine" and (odd := next((row for row in rows if not 0 <= (row.score or 0) <= 1), None)):
        raise ValueError(
            f"{odd.location}: expected a score from 0 to 1, got {odd.score:g}; scale the scores, or use cosent, "
            "which needs no range"
        )
    return loss


class Schedule(NamedTuple):
    """How long and how fast vectors are trained."""

    batch_size: int
    epochs: float
    learning_rate: float
    """Peak for BASE."""


def default_schedule(name: str | None, examples: Sequence[Example]) -> Schedule:
    """Return the schedule for training rows.

    One epoch suits 50,000 rows and more; fewer rows get as many as give 300 steps, at most 10. Rated pairs: 4 epochs.
    Classes: at most 3 and half the rate, because more of it makes the vectors of other texts worse where a class has
    few (bench/plans/few_per_class.md).
    """
    rows = as_rows(examples)
    loss = choose_loss(name, rows)
    if loss in OF_SCORES:
        return Schedule(32, 4.0, LEARNING_RATE)
    size = sum(max(len(row.positives), 1) for row in rows)
    most, rate = (3, LEARNING_RATE / 2) if loss == "labels" else (10, LEARNING_RATE)
    epochs = 1.0 if size >= MANY_ROWS else float(min(max(round(300 * 64 / size), 1), most))
    return Schedule(64, epochs, rate)


def check_options(task: Embedding, loss: LossName) -> None:
    """Raise ValueError, with the reason, for a number that is out of range and for an option that does nothing."""
    for name in ("similarity_scale", "hardness", "guide_margin"):
        value, is_scale = getattr(task, name), name == "similarity_scale"
        if not math.isfinite(value) or (is_scale and value <= 0):
            raise ValueError(f"{name}: expected a finite number{' above 0' if is_scale else ''}, got {value:g}")
    if task.weights and not (all(0 <= one < math.inf for one in task.weights) and sum(task.weights) > 0):
        raise ValueError(f"weights: expected finite numbers from 0, one of them above 0, got {task.weights}")
    changed = [name for name in OF_RANKING if getattr(task, name)]
    if changed and loss not in ("ranking", "simcse"):
        raise ValueError(f"{changed[0]}: {loss} has no wrong answers that it could change; omit it")
    if task.all_pairs and (odd := [name for name in changed if name != "all_pairs"]):
        raise ValueError(f"{odd[0]}: all_pairs has its own wrong answers in all directions; omit one of the two")
    if loss == "simcse" and task.guide and task.guide_margin <= 0:
        raise ValueError(
            "guide: simcse has each text as its own answer, and nothing is nearer; give --guide-margin 0.1"
        )
    if task.guide_margin and not task.guide:
        raise ValueError("guide_margin: no guide, which it is for; name one with --guide, or omit it")
    if loss in WITHOUT_SCALE and task.similarity_scale != type(task).similarity_scale:
        raise ValueError(f"similarity_scale: {loss} has no scale; omit it")
    if loss == "labels" and task.weights:
        raise ValueError("weights: labels reads classes, not files; omit it")
    if loss == "tsdae" and task.dims:
        raise ValueError("dims: tsdae decodes whole vectors; omit it, or choose --vector-loss simcse")


def choose_metric(name: str, rows: Sequence[Example]) -> str:
    """Return the metric with this name, or the default one for dev rows; without rows, for rated pairs.

    Raises ValueError for rows that have no score, and for a metric of other rows.
    """
    if not rows:
        return name or METRICS["similarity"][0]
    check_single_set(rows)
    kind = find_kind(rows)
    if not METRICS[kind]:
        raise ValueError(
            f"{rows[0].location}: texts alone have no score; give pairs, rated pairs or texts with classes as --dev"
        )
    if name and name not in METRICS[kind]:
        raise ValueError(
            f"metric = {name!r}: {rows[0].location} has {COLUMNS[kind]}; {did_you_mean(name, METRICS[kind])}"
        )
    return name or METRICS[kind][0]


class TrainingRows(NamedTuple):
    """Rows to train on, and the negatives that were left out of them."""

    rows: list[TextRow]
    dropped: int
    first: str
    """Location of the first negative that was left out."""


def to_training_rows(rows: Sequence[TextRow], loss: LossName) -> TrainingRows:
    """Make a row for each positive, without negatives that are known positives of the anchor, or the anchor itself."""
    if loss == "simcse":
        return TrainingRows([TextRow(row.anchor, row.location, (row.anchor,)) for row in rows], 0, "")
    if loss == "tsdae":
        return TrainingRows([TextRow(row.anchor, row.location) for row in rows], 0, "")
    if loss not in ("ranking", "triplet"):
        return TrainingRows([*rows], 0, "")
    known: dict[str, set[str]] = {}
    for row in rows:
        known.setdefault(row.anchor.strip(), {row.anchor.strip()}).update(text.strip() for text in row.positives)
    made, dropped, first = [], 0, ""
    for row in rows:
        right = known[row.anchor.strip()]
        negatives = tuple([text for text in row.negatives if text.strip() not in right])
        if len(negatives) < len(row.negatives):
            dropped, first = dropped + len(row.negatives) - len(negatives), first or row.location
        if loss == "triplet":
            made += [
                row._replace(positives=(text,), negatives=(negative,))
                for text in row.positives
                for negative in negatives
            ]
        else:
            made += [row._replace(positives=(text,), negatives=negatives) for text in row.positives]
    if not made:
        raise ValueError(f"{first}: each negative, here and in all rows, is an answer of its anchor; give other ones")
    return TrainingRows(made, dropped, first)


def score_examples(examples: Sequence[Example], vectors: Sequence[TextVectors]) -> VectorScores:
    """Compute the scores of vectors by what the examples have; `vectors`: of each example's texts."""
    check_single_set(examples)
    kind = find_kind(examples)
    known: dict[tuple[str, str], npt.NDArray[np.float32]] = {}
    for example, of_texts in zip(examples, vectors, strict=True):
        num_queries = len(example.data.queries) if isinstance(example, RetrievalExample) else 1
        roles = [QUERY] * num_queries + [DOCUMENT] * (len(of_texts) - num_queries)
        if kind not in DIRECTED:
            roles = [PLAIN] * len(of_texts)
        known |= {(role, text): vector for role, text, vector in zip(roles, example.texts, of_texts, strict=True)}

    def embed(texts: Sequence[str], role: str) -> TextVectors:
        return np.stack([known[role, text] for text in texts])

    if isinstance(examples[0], RetrievalExample):
        return score_retrieval(examples[0].data, embed)
    rows = as_rows(examples)
    return SCORERS[kind](rows_as_retrieval(rows) if kind == "retrieval" else rows, embed)
