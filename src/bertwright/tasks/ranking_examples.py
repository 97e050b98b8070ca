"""Queries with their candidates, in tables of any layout: a candidate per row, or positives and negatives per row."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np

from bertwright.base.messages import count_of
from bertwright.metrics.ranking_scores import NAMES, score_ranking
from bertwright.tables.text_roles import TableOptions, TextRow, TextTable, read_text_table

T = TypeVar("T")
METRICS = ("ndcg@10", "mrr@10", "map")
PLACES = [NAMES.index(name) for name in ("ndcg@10", "mrr@10", "map@100")]  # of METRICS


class RankingExample(NamedTuple):
    """A query and its candidates."""

    query: str
    texts: tuple[str, ...]
    grades: tuple[int, ...] | None
    """Relevance of each text, 0 for one that is not relevant; None if unknown."""
    scores: tuple[float, ...] | None
    """A teacher's score of each text; None if there is no teacher."""
    location: str
    """File and line of the query's first row, for messages."""

    @property
    def is_scored(self) -> bool:
        """Whether a relevant text is among the candidates: without one, no order is better than another."""
        return self.grades is not None and any(self.grades)

    @property
    def known_grades(self) -> tuple[int, ...]:
        """The relevance of each text. Raises ValueError with the location if it is unknown."""
        if self.grades is None:
            raise ValueError(f"{self.location}: the labels of its texts are not known, but needed here")
        return self.grades

    @property
    def teacher_scores(self) -> tuple[float, ...]:
        """A teacher's score of each text. Raises ValueError with the location if there is none."""
        if self.scores is None:
            raise ValueError(
                f"{self.location}: expected a teacher's score of each text, in a column score, or in pos_scores and "
                "neg_scores, got none; use --ranking-loss binary"
            )
        return self.scores


class Candidate(NamedTuple):
    """Marks of a text in one row, or in all rows of a query."""

    grade: int | None
    score: float | None


def read_candidates(path: str, options: TableOptions) -> list[RankingExample]:
    """Read the query and the texts of each row, whatever their labels. Raises ValueError for rows of single texts."""
    rows = _read_table(path, options).rows
    return [RankingExample(row.anchor, row.texts[1:], None, None, row.location) for row in rows]


def read_queries(path: str, options: TableOptions, with_teacher: bool) -> list[RankingExample]:
    """Return one example per query, in the order of their first rows; a text that several rows have counts once.

    `with_teacher`: numbers beside pairs may be a teacher's scores. Raises ValueError if they are neither these nor
    grades. Warns of texts that one row marks as relevant and another one does not.
    """
    table = _read_table(path, options)
    return group_queries(table.rows, with_teacher, table.roles.score)


def group_queries(
    rows: Sequence[TextRow], with_teacher: bool = False, column: str | None = "label"
) -> list[RankingExample]:
    """Return one example per query of rows, as `read_queries`; `column`: name of the labels, for messages."""
    scored = ((row, row.score) for row in rows if row.score is not None)
    odd = next((row for row, score in scored if score < 0 or not score.is_integer()), None)
    if odd is not None and not with_teacher:
        raise ValueError(
            f"{odd.location}: expected a label 0, 1, … in {column!r}, got {odd.score:g}; for the scores of a teacher, "
            "use --ranking-loss mse"
        )
    queries: dict[str, tuple[str, dict[str, Candidate]]] = {}
    disputed = list[str]()
    for row in rows:
        _, candidates = queries.setdefault(row.anchor, (row.location, {}))
        for text, marks in _candidates_of(row, has_grades=odd is None):
            before = candidates.get(text, marks)
            if before.grade is not None and marks.grade is not None and before.grade != marks.grade:
                disputed.append(row.location)
                marks = marks._replace(grade=max(before.grade, marks.grade))
            candidates[text] = marks
    if disputed:
        text = f"{count_of(len(disputed), 'row gives', 'rows give')} a text of their query another label than before"
        warnings.warn(f"{text}, the first in {disputed[0]}; the higher one counts", stacklevel=1)
    return [
        RankingExample(
            query,
            tuple(candidates),
            _all_known([marks.grade for marks in candidates.values()]),
            _all_known([marks.score for marks in candidates.values()]),
            location,
        )
        for query, (location, candidates) in queries.items()
    ]


def _read_table(path: str, options: TableOptions) -> TextTable:
    table = read_text_table(path, options)
    if table.roles.positive is None:
        raise ValueError(
            f"{path}: expected a query and texts in each row, got {table.roles.describe()}; name the columns, as in "
            "--columns anchor=query positive=text label=relevant"
        )
    return table


def _candidates_of(row: TextRow, has_grades: bool) -> Iterator[tuple[str, Candidate]]:
    """Yield the texts of a row with their marks; a number beside a pair is a score and, if `has_grades`, a grade."""
    if row.score is not None:
        marks = Candidate(int(row.score) if has_grades else None, row.score)
        yield from ((text, marks) for text in row.positives)
        return
    for texts, grade, scores in ((row.positives, 1, row.positive_scores), (row.negatives, 0, row.negative_scores)):
        for text, score in zip(texts, scores or (None,) * len(texts), strict=True):
            yield text, Candidate(grade, score)


def _all_known(values: Sequence[T | None]) -> tuple[T, ...] | None:
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None


def score_candidates(grades: Sequence[int], scores: Sequence[float]) -> tuple[float, ...]:
    """Compute METRICS of a query's candidates; of equal scores, the lowest grade comes first.

    Files often have the positive first, so that their order would flatter a model that gives equal scores.
    """
    order = np.lexsort((np.array(grades), -np.array(scores)))
    values = score_ranking(np.array(grades)[order].tolist(), grades)
    return tuple(values[place] for place in PLACES)
