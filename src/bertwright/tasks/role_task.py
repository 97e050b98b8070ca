"""Tasks on tables whose columns have roles: query, text that belongs to it, texts that do not, score, label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from bertwright.base.settings import check_not_str
from bertwright.corpus.documents import check_encoding, check_format
from bertwright.tables.row_formats import TABLE_FORMATS
from bertwright.tables.text_roles import TableOptions
from bertwright.tasks.task import Task

E = TypeVar("E")
P = TypeVar("P")


@dataclass(frozen=True)
class RoleTask(Task[E, P], Generic[E, P]):
    """A task on tables whose columns have roles."""

    columns: tuple[str, ...] = ()
    """Roles and columns: anchor=title positive=body negative=other; also score and label. Unset: by the names of the
    columns (query, answer, sentence1, negative_1, pos, neg, score, label …), by their order if these say nothing."""
    header: bool = True
    """Whether the first line of .tsv, .csv and .txt names the columns."""
    quotes: bool | None = None
    """Whether quotes enclose fields; unset: in .csv they do, in .tsv and .txt they are plain characters, as in GLUE."""
    encoding: str = "utf-8"
    """Encoding of text files by its name in Python, such as latin-1 or cp949."""
    format: str | None = None
    """Format of all files, whatever their suffixes: txt, tsv, csv, jsonl, json or parquet; unset: by suffix."""

    def __post_init__(self) -> None:
        check_not_str(self, "columns")
        check_encoding(self.encoding)
        check_format(self.format, TABLE_FORMATS)

    @property
    def table_options(self) -> TableOptions:
        return TableOptions(self.columns, self.header, self.quotes, self.encoding, self.format)
