"""Columns that are read from a table, the table's format, and its rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bertwright.base.settings import did_you_mean

SHOWN_NAMES = 20
NAME_CHARACTERS = 40  # a message truncates longer column names: without a header, they are whole texts

Location = TypeVar("Location", int, str)  # of a row: its number, or file and line
LocatedRows = Iterator[tuple[Location, tuple[Any, ...]]]
Row = tuple[int, tuple[Any, ...]]  # line (in a Parquet file the row, from 1) where it starts; values of the columns


class MissingColumnError(ValueError):
    """The error for a column that a table lacks."""

    def __init__(self, message: str, columns: Sequence[str] = ()) -> None:
        """`columns` has a default because an error of a worker is made again from its message alone."""
        super().__init__(message)
        self.columns = columns


@dataclass(frozen=True)
class TableSchema:
    """Columns that are read from a table, and the format of the table."""

    texts: tuple[str, ...]
    """Columns of strings."""
    values: tuple[str, ...] = ()
    """Columns that may also hold numbers, booleans and lists, in formats that have them (.jsonl, .parquet)."""
    header: bool = True
    """The first line names the columns (.csv, .tsv, .txt); otherwise they are called "1", "2" and so on. Fields are
    separated by commas in .csv (by semicolons or tabs if only these give the columns that are read), by tabs in .tsv
    and .txt."""
    quotes: bool | None = None
    """Fields may be in quotes, with separators and line ends inside. Unset: true for .csv; false for .tsv and .txt,
    where a quote is an ordinary character (IANA; GLUE and NSMC)."""
    hint: str = ""
    """Advice in the message about a missing column."""
    keep_label_ids: bool = False
    """Keep integer labels as they are; otherwise the names in a Parquet file's metadata replace them."""
    allow_nulls: bool = False
    """Accept missing values (null); otherwise they raise an error."""
    encoding: str = "utf-8"
    """Encoding of the file, unless it is .parquet."""
    label: str = ""
    """The column with labels, which may be elsewhere: in a file beside the table, as the name of a file per class, or
    as the first word of each line."""
    suffix: str | None = None
    """Format of the files, such as tsv, if their suffixes do not name it."""
    in_parallel: bool = False
    """An object whose text is a list may have several rows, one per item of its lists (.jsonl, .json)."""
    dialect: str | None = None
    """Name of the layout; unset: recognized where the file lacks columns."""
    optional: tuple[str, ...] = ()
    """Columns that an object of a .jsonl or .json file may lack; the value is then null."""
    max_short_rows: int = 0
    """Number of rows with too few columns that may be skipped, because a published file is known to have them."""

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are read, in the order of their values."""
        return self.texts + self.values

    @property
    def asks_for_names(self) -> bool:
        """Whether no column is read, so that the error about the missing one lists the others."""
        return self.names == ("",)


def first_names(read: Callable[[TableSchema], Iterator[object]], schema: TableSchema) -> Sequence[str]:
    """Return the names of the columns in the first row of a table that `read` opens; none if its rows are lists."""
    try:
        next(read(replace(schema, texts=(), values=("",), label="")), None)
    except MissingColumnError as error:
        return error.columns
    return ()


def leave_out_rows(
    rows: LocatedRows[Location], path: str, field: str, marks: Sequence[object], described: str
) -> LocatedRows[Location]:
    """Yield the rows whose last value, the `field`, is none of the marks; then warn of how many there were of those.

    `described`: the marks for people.
    """
    left_out = 0
    for location, values in rows:
        if values[-1] in marks:
            left_out += 1
        else:
            yield location, values
    if left_out:
        warnings.warn(f"{path}: rows left out because their {field!r} is {described}: {left_out:,}", stacklevel=1)


def list_names(names: Sequence[str]) -> str:
    """Join names for a message, only the first ones if there are many.

    >>> list_names([str(number) for number in range(100)])
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, … (100 in all)'
    """
    shown = ", ".join(names[:SHOWN_NAMES])
    return shown if len(names) <= SHOWN_NAMES else f"{shown}, … ({len(names):,} in all)"


def missing_column_error(
    location: str, name: str, header: Sequence[str], schema: TableSchema, hint: str = ""
) -> MissingColumnError:
    """Return the error for a column that a table lacks; `header` lists its columns."""
    short = [column if len(column) <= NAME_CHARACTERS else f"{column[:NAME_CHARACTERS]}…" for column in header]
    nearest = did_you_mean(name, short)
    if not nearest.startswith("did you mean"):  # no name is similar: list all, in the order of the file
        nearest = (
            f"the columns are {list_names(short)}" if any(short) else "expected the names of the columns, got nothing"
        )
    if header and header[0].lstrip().startswith(("{", '[{"')):
        hint = "; the line looks like JSON: name --format json, or jsonl if each line is an object"
    advice = f" ({schema.hint})" if schema.hint else ""
    return MissingColumnError(f"{location}: no column {name!r}; {nearest}{hint}{advice}", header)
