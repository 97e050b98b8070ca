"""Retrieval sets in BEIR's layout (2104.08663): documents, queries, and judgements whether a document answers a query.

A folder has `corpus.jsonl` and `queries.jsonl` (`_id`, `text`, and a document's `title`), also compressed, and a file
`qrels/SPLIT.tsv` per split (`query-id`, `corpus-id`, `score`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.settings import did_you_mean
from bertwright.tables.neighbours import CORPUS, QRELS, find_compressed
from bertwright.tables.question_files import has_paragraphs, read_paragraphs
from bertwright.tables.row_formats import TABLE_FORMATS
from bertwright.tables.schema import TableSchema
from bertwright.tables.tables import column_names, format_label, parse_number, read_rows
from bertwright.tables.text_roles import TableOptions, read_text_table
from bertwright.text.sources import InputFile, list_inputs

QUERIES = "queries.jsonl"
ID_NAMES = ("_id", "id")  # columns with the id of a document


class RetrievalSet(NamedTuple):
    """Queries, documents and judgements; ids are texts."""

    queries: Mapping[str, str]
    """Text by id, of the queries that are judged in the split."""
    documents: Mapping[str, str]
    """Text by id: title, a blank and text."""
    judgements: Mapping[str, Mapping[str, int]]
    """By query, the grade of each judged document; 0 or less: it is no answer."""


def list_texts(folder: Path) -> list[str]:
    """Return the files with the documents and the queries of a folder."""
    return [_require(folder, name) for name in (CORPUS, QUERIES)]


def read_retrieval_folder(folder: Path, split: str = "test") -> RetrievalSet:
    """Read the documents, and the queries and judgements of a split.

    Raises ValueError with file and line for a missing file or split, for ids that occur twice, and for judgements that
    are no whole number or name an unknown query or document.
    """
    corpus, asked = list_texts(folder)
    documents, queries = dict(_read_texts(corpus, "document")), dict(_read_texts(asked, "query"))
    splits = sorted(path.name.partition(".tsv")[0] for path in (folder / QRELS).glob("*.tsv*"))
    if split not in splits:
        hint = did_you_mean(split, splits) if splits else f"{folder / QRELS} has none"
        raise ValueError(f"{folder}: no judgements of a split {split!r} ({QRELS}/{split}.tsv); {hint}")
    path = _require(folder / QRELS, f"{split}.tsv")
    judgements: dict[str, dict[str, int]] = {}
    schema = TableSchema((), ("query-id", "corpus-id", "score"), dialect="plain")
    for location, (query, document, score) in read_rows(path, schema):
        query, document = format_label(query, "query-id", location), format_label(document, "corpus-id", location)
        grade = parse_number(format_label(score, "score", location))
        if grade is None or not grade.is_integer():
            raise ValueError(f"{location}: expected a whole number in 'score', got {score!r}")
        for kind, found, known in (("query", query, queries), ("document", document, documents)):
            if found not in known:
                name = QUERIES if kind == "query" else CORPUS
                raise ValueError(f"{location}: {kind} {found!r} is not in {name}; restore it, or delete the judgement")
        of_query = judgements.setdefault(query, {})
        if of_query.setdefault(document, int(grade)) != grade:
            raise ValueError(f"{location}: query {query!r} and document {document!r} have another grade before")
    return RetrievalSet({query: queries[query] for query in judgements}, documents, judgements)


def read_documents(path: str, column: str = "text", encoding: str = "utf-8") -> Iterator[tuple[str, str]]:
    """Yield id and text of each document: of a folder in BEIR's layout, tables, SQuAD's JSON, or lines of .txt files.

    A table's ids are in `_id` or `id`; else they are name of file and number, as in docs.txt:1, because an index may
    have several files. Of a list of texts, each is a document, whose id ends with its place, as in docs.csv:1.2. A
    table's `title` comes before the text.
    """
    corpus = find_compressed(Path(path), CORPUS)
    if corpus is not None:
        yield from _read_texts(corpus, "document")
        return
    files = list_inputs([path], formats=TABLE_FORMATS)
    for file in files:
        name = Path(path).name if file.path == path else file.path
        yield from _read_file(file, name, column, encoding)


def _read_file(file: InputFile, file_name: str, column: str, encoding: str) -> Iterator[tuple[str, str]]:
    """Yield id and text of each document of one file."""
    if has_paragraphs(file, encoding):
        paragraphs = enumerate(read_paragraphs(file.path, encoding), 1)
        yield from ((f"{file_name}:{number}", text) for number, text in paragraphs)
        return
    if file.format == ".txt":
        rows = read_text_table(file.path, TableOptions(encoding=encoding)).rows
        yield from ((f"{file_name}:{number}", row.anchor) for number, row in enumerate(rows, 1))
        return
    schema = TableSchema(
        (), (column,), hint="name it with --column", dialect="plain", allow_nulls=True, encoding=encoding
    )
    names = column_names(file.path, schema)
    name = next((one for one in ID_NAMES if one in names), None)
    others = tuple(one for one in ("title", name) if one in names and one is not None)
    read = read_rows(file.path, replace(schema, values=(column, *others)))
    for number, (location, values) in enumerate(read, 1):
        given = dict(zip((column, *others), values, strict=True))
        identifier = format_label(given[name], name, location) if name is not None else f"{file_name}:{number}"
        texts = given[column] if isinstance(given[column], list) else [given[column]]
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise ValueError(f"{location}: no text in {column!r}; fill it in, or delete the row")
        for place, text in enumerate(texts, 1):
            yield identifier if len(texts) == 1 else f"{identifier}.{place}", join_title(given.get("title"), text)


def _require(folder: Path, name: str) -> str:
    path = find_compressed(folder, name)
    if path is None:
        raise ValueError(
            f"{folder / name}: missing; expected {CORPUS}, {QUERIES} and {QRELS}/SPLIT.tsv, as BEIR has them"
        )
    return path


def _read_texts(path: str, kind: str) -> Iterator[tuple[str, str]]:
    """Yield id and text of each line. Raises ValueError for an id that occurs twice, and for an empty query."""
    optional = ("title",) if kind == "document" else ()
    schema = TableSchema(
        ("text", *optional), ("_id",), hint="BEIR's layout", dialect="plain", allow_nulls=True, optional=optional
    )
    known: set[str] = set()
    for location, values in read_rows(path, schema):
        text, title, given = values[0] or "", values[1] if optional else "", values[-1]
        identifier = format_label(given, "_id", location)
        if identifier in known:
            raise ValueError(f"{location}: the _id {identifier!r} occurs twice; each {kind} needs its own")
        known.add(identifier)
        if kind == "query" and not text.strip():
            raise ValueError(f"{location}: the text of query {identifier!r} is empty; fill it in, or delete the row")
        yield identifier, join_title(title, text)


def join_title(title: Any, text: str) -> str:
    """Return what is read of a document: its title and its text."""
    return f"{title} {text}" if title else text
