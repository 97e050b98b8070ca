"""Labeled texts on which vectors are scored: the kind of data follows from a folder's layout or a table's columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from bertwright.base.messages import count_of
from bertwright.base.settings import did_you_mean
from bertwright.tables.neighbours import is_retrieval_folder
from bertwright.tables.retrieval_folders import RetrievalSet, read_retrieval_folder
from bertwright.tables.row_formats import TABLE_FORMATS
from bertwright.tables.text_roles import TableOptions, TextRow, read_text_table
from bertwright.tasks import embedding_scores
from bertwright.tasks.embedding_data import find_kind
from bertwright.tasks.embedding_scores import Embed, VectorScores
from bertwright.tasks.ranking_examples import group_queries
from bertwright.text.decoding import read_text
from bertwright.text.lines import split_lines
from bertwright.text.sources import format_of

Kind = Literal["retrieval", "similarity", "pairs", "triplets", "classes", "translations", "reranking"]
TRANSLATED = {"english", "non_english", "source", "target", "src", "tgt"}  # columns of translations


class LabeledTexts(NamedTuple):
    """Data of one kind."""

    kind: Kind
    data: Any
    """A RetrievalSet, a list of RankingExample for re-ranking, else a list of TextRow."""
    description: str
    """Kind, numbers and roles of the columns, for people."""


def read_labeled_texts(
    paths: Sequence[str], options: TableOptions, split: str = "test", kind: str | None = None
) -> LabeledTexts:
    """Read a folder in BEIR's layout, or tables; a `kind` replaces what their columns say.

    Raises ValueError for data without labels, and for a kind that the columns do not allow.
    """
    if kind not in (None, *get_args(Kind)):
        raise ValueError(f"--kind {kind}: {did_you_mean(str(kind), get_args(Kind))}")
    if any(map(is_retrieval_folder, paths)):
        if len(paths) > 1 or kind not in (None, "retrieval"):
            raise ValueError(f"{paths[0]}: a folder with corpus.jsonl is scored by itself, as retrieval")
        return _describe_retrieval(read_retrieval_folder(Path(paths[0]), split), f"split {split}")
    if kind == "translations" and len(paths) == 2:
        rows, roles = _read_parallel(paths, options), f"{paths[0]} → {paths[1]}"
    else:
        tables = [read_text_table(path, options) for path in paths]
        rows, roles = [row for table in tables for row in table.rows], tables[0].roles.describe()
        if kind is None and {*tables[0].roles.named.values()} & TRANSLATED:
            kind = "translations"
    chosen = _choose_kind(kind, find_kind(rows), rows)
    if chosen == "retrieval":
        return _describe_retrieval(embedding_scores.rows_as_retrieval(rows), roles)
    if chosen == "reranking":
        examples = group_queries(rows, column=tables[0].roles.score)
        return LabeledTexts(chosen, examples, f"{chosen}, {count_of(len(examples), 'query', 'queries')} ({roles})")
    return LabeledTexts(chosen, rows, f"{chosen}, {count_of(len(rows), 'row', 'rows')} ({roles})")


def score_vectors(texts: LabeledTexts, embed: Embed, train: Sequence[TextRow] = ()) -> VectorScores:
    """Score vectors on data of any kind; `train`: rows from which the texts of each class are drawn."""
    if texts.kind == "classes" and train:
        return embedding_scores.score_classes(train, texts.data, embed)
    return embedding_scores.SCORERS[texts.kind](texts.data, embed)


def _choose_kind(kind: str | None, by_columns: str, rows: Sequence[TextRow]) -> Kind:
    """Return the kind to score. Raises ValueError if the columns do not allow it."""
    allowed: dict[str, tuple[Kind, ...]] = {
        "similarity": ("similarity",),
        "pairs": ("reranking", "pairs") if _has_candidates(rows) else ("pairs", "reranking"),
        "triplets": ("triplets", "reranking", "retrieval"),
        "retrieval": ("retrieval", "translations"),
        "classes": ("classes",),
    }
    if by_columns not in allowed:
        raise ValueError(
            f"{rows[0].location}: texts alone cannot be scored; expected pairs, a score, a label, negatives or classes"
        )
    found = next((one for one in allowed[by_columns] if kind in (None, one)), None)
    if found is None:
        raise ValueError(
            f"--kind {kind}: {rows[0].location} has columns for {' or '.join(allowed[by_columns])}; choose one of these"
        )
    return found


def _has_candidates(rows: Sequence[TextRow]) -> bool:
    """Return whether labeled pairs are candidates of queries: most anchors occur in several rows."""
    return len({row.anchor for row in rows}) <= len(rows) / 2


def _describe_retrieval(found: RetrievalSet, what: str) -> LabeledTexts:
    judged = sum(map(len, found.judgements.values()))
    queries = count_of(len(found.queries), "query", "queries")
    numbers = f"{queries}, {count_of(len(found.documents), 'document', 'documents')}, "
    numbers += count_of(judged, "judgement", "judgements")
    return LabeledTexts("retrieval", found, f"retrieval, {numbers} ({what})")


def _read_parallel(paths: Sequence[str], options: TableOptions) -> list[TextRow]:
    """Return row n of two tables, or line n of two texts, as a pair. Raises ValueError for files of other lengths."""
    first, second = (_read_side(path, options) for path in paths)
    if len(first) != len(second):
        raise ValueError(f"{paths[0]} and {paths[1]}: {len(first):,} and {len(second):,} texts; expected equal numbers")
    return [row._replace(positives=(other.anchor,)) for row, other in zip(first, second, strict=True)]


def _read_side(path: str, options: TableOptions) -> list[TextRow]:
    """Read the texts of one language: the lines of a file such as test.de, or a table's rows."""
    suffix = format_of(path, options.format)
    if not Path(path).is_file() or suffix in TABLE_FORMATS.keys() - {".txt"}:
        return read_text_table(path, options).rows
    lines = split_lines(path, read_text(path, options.encoding))
    rows = [TextRow(line.strip(), f"{path}, line {number}") for number, line in lines]
    if odd := next((row for row in rows if not row.anchor), None):
        raise ValueError(f"{odd.location}: an empty line has no translation; fill it in, or delete it in both files")
    return rows
