"""Tasks whose examples are rows of tables, and tasks on tables whose columns have roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bertwright.base.settings import check_not_str
from bertwright.tables.row_formats import TABLE_FORMATS
from bertwright.tables.schema import TableSchema
from bertwright.tables.text_roles import TableOptions
from bertwright.tasks.task import Task
from bertwright.text.decoding import check_encoding, check_format

E = TypeVar("E")
P = TypeVar("P")
WITHOUT_HEADER = "; if line 1 is no header, use --header False and columns by number"


@dataclass(frozen=True, kw_only=True)
class TableTask(Task[E, P], Generic[E, P]):
    """A task whose examples are rows of tables; help lists the options of the tables last."""

    header: bool = True
    """Whether the first line of .tsv, .csv and .txt names the columns."""
    quotes: bool | None = None
    """Whether quotes enclose fields; unset: in .csv they do, in .tsv and .txt they are plain characters, as in GLUE."""
    encoding: str = "utf-8"
    """Encoding of text files by its name in Python, such as latin-1 or cp949."""
    format: str | None = None
    """Format of all files, whatever their suffixes: txt, tsv, csv, jsonl, json or parquet; unset: by suffix."""

    def __post_init__(self) -> None:
        check_encoding(self.encoding)
        check_format(self.format, TABLE_FORMATS)

    def make_schema(self, texts: tuple[str, ...], values: tuple[str, ...], **others: Any) -> TableSchema:
        """Return the schema that reads some columns of the task's tables; `others`: further fields of it."""
        form: dict[str, Any] = {"encoding": self.encoding, "suffix": self.format}
        return TableSchema(texts, values, self.header, self.quotes, **form, **others)


@dataclass(frozen=True)
class RoleTask(TableTask[E, P], Generic[E, P]):
    """A task on tables whose columns have roles: query, text that belongs to it, texts that do not, score, label."""

    columns: tuple[str, ...] = ()
    """Roles and columns: anchor=title positive=body negative=other; also score and label. Unset: by the names of the
    columns (query, answer, sentence1, negative_1, pos, neg, score, label …), by their order if these say nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_str(self, "columns")

    @property
    def table_options(self) -> TableOptions:
        return TableOptions(self.columns, self.header, self.quotes, self.encoding, self.format)
