"""Rows of .csv, .tsv and .txt tables."""

from __future__ import annotations

import csv
import re
import threading
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from bertwright.base.messages import count_of
from bertwright.tables.schema import Row, TableSchema, missing_column_error
from bertwright.text.decoding import ReadStats, TextCodec
from bertwright.text.lines import MAX_CHARACTERS
from bertwright.text.sources import InputFile

QUOTES_HINT = "; are fields in quotes? Use --quotes True (corpus commands: convert the table to .csv)"  # if not set
EXCEL_SEPARATOR = re.compile(r"sep=(.)\s*")  # a first line that names the separator
_LIMIT_LOCK = threading.RLock()  # held while `csv.field_size_limit` is raised


def read_delimited_rows(
    file: InputFile, schema: TableSchema, codec: TextCodec, stats: ReadStats, numbered_lines: Iterable[tuple[int, str]]
) -> Iterator[Row]:
    """Yield the rows of a delimited table.

    A first line such as `sep=;`, which Excel reads, names the separator. Blank lines are skipped, and so are blank
    cells after the last column; in a table of one column they are empty values. Rows with too few columns are skipped
    and counted if the schema allows it. Raises ValueError for missing and ambiguous columns, for other rows with too
    few or too many columns, and for quotes that are not closed.
    """
    quotes = file.format == ".csv" if schema.quotes is None else schema.quotes
    texts: Iterator[str] = (f"{line}\n" for _, line in numbered_lines)
    separator, head = "\t", next(texts, "")
    if named := EXCEL_SEPARATOR.fullmatch(head):
        separator = named[1]
    elif file.format == ".csv":
        separator = _guess_separator(head, schema, quotes)
    before = 1 if named else 0  # lines before the table
    reader = csv.reader(texts if named else chain([head], texts), **_dialect(separator, quotes))
    numbered_fields: Iterator[tuple[int, list[str]]] = _numbered_records(file, reader, before)
    first = next(numbered_fields, (1 + before, []))
    if schema.header:
        header = without_blank_end(first[1])
    else:
        header = [str(number) for number in range(1, len(first[1]) + 1)]
        numbered_fields = chain([first], numbered_fields)
    chosen = _column_indices(header, first[1], schema, quotes, f"{file.path}, line {1 + before}")
    num_trailing, ragged = 0, list[int]()
    may_differ = not schema.header and separator == "\t"  # STS-B names sources at the end of some rows
    for line, fields in numbered_fields:
        if len(fields) > len(header) > 0 and not any(map(str.strip, fields[len(header) :])):
            fields = fields[: len(header)]
            num_trailing += 1
        if len(fields) == len(header):
            yield line, tuple([fields[index] for index in chosen])
        elif may_differ and len(fields) > len(header):
            ragged.append(line)
            yield line, tuple([fields[index] for index in chosen])
        elif len(header) == 1 and not fields:
            yield line, ("",) * len(chosen)
        elif fields:
            location = f"{file.path}, line {line}"
            if len(fields) > len(header) or stats.short_rows == schema.max_short_rows:
                raise _wrong_column_count(location, header, fields, schema, quotes)
            stats.short_rows += 1
            stats.first_short_row = stats.first_short_row or location
    _warn_of_columns(file.path, ragged, num_trailing)


def _warn_of_columns(path: str, ragged: list[int], num_trailing: int) -> None:
    """Warn of cells that were not read: `ragged` are the lines with more columns than the first one."""
    if ragged:
        text = (
            f"{count_of(len(ragged), 'row has', 'rows have')} more columns than line 1, the first in line {ragged[0]}"
        )
        warnings.warn(f"{path}: {text}; read up to the columns of line 1", stacklevel=1)
    if num_trailing:
        rows = count_of(num_trailing, "row ends", "rows end")
        warnings.warn(f"{path}: {rows} in blank cells, which are ignored", stacklevel=1)


def _numbered_records(file: InputFile, reader: Any, before: int) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of each record with the number of its first line; `before`: lines before the table.

    Raises ValueError for an invalid record.
    """
    start = 1 + before
    try:
        while (fields := _read_fields(reader)) is not None:
            yield start, fields
            start = before + reader.line_num + 1  # fields in quotes may contain line ends
    except csv.Error as error:
        hint = "a carriage return alone? End lines with \\n" if "new-line" in str(error) else "is a quote left open?"
        raise ValueError(f"{file.path}, line {start}: {error}; {hint}") from None


def without_blank_end(cells: list[str]) -> list[str]:
    """Return the cells without the blank ones at the end."""
    end = len(cells)
    while end and not cells[end - 1].strip():
        end -= 1
    return cells[:end]


def _read_fields(reader: Iterator[list[str]]) -> list[str] | None:
    """Return the fields of the next record, or None at the end.

    The limit of a field's size belongs to the whole process, so it is raised only while a record is read: its default
    of 131,072 characters is less than a long article.
    """
    with _LIMIT_LOCK:
        limit = csv.field_size_limit(MAX_CHARACTERS)
        try:
            return next(reader, None)
        finally:
            csv.field_size_limit(limit)


def _dialect(separator: str, quotes: bool) -> dict[str, Any]:
    return {"delimiter": separator, "quoting": csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE, "strict": True}


def _guess_separator(head: str, schema: TableSchema, quotes: bool) -> str:
    """Return the separator of a .csv file: a comma, unless its first line can only be read with another one.

    Excel writes semicolons in countries that use a decimal comma; some programs write tabs. The only separator that
    gives all columns of the schema is chosen. If there is none, the only one that gives several columns is chosen, so
    that the message about the missing column lists the others.
    """
    headers = {separator: _split_fields(head, separator, quotes) for separator in ",;\t"}
    if not schema.header:  # columns are named by number
        headers = {name: [str(n) for n, _ in enumerate(cells, 1)] for name, cells in headers.items()}
        if set(schema.names) <= set(headers[","]):
            return ","
    possible = [separator for separator, header in headers.items() if set(schema.names) <= set(header)]
    if not possible and len(headers[","]) < 2:
        possible = [separator for separator, header in headers.items() if len(header) > 1]
    return possible[0] if len(possible) == 1 else ","


def _split_fields(head: str, separator: str, quotes: bool) -> list[str]:
    try:
        return next(csv.reader([head], **_dialect(separator, quotes)), [])
    except csv.Error:  # a quote that is left open, or closed in the middle of a field
        return []


def _wrong_column_count(
    location: str, header: list[str], fields: list[str], schema: TableSchema, quotes: bool
) -> ValueError:
    expected = f"expected {len(header)} columns ({', '.join(header) if schema.header else 'as in line 1'})"
    hint = QUOTES_HINT if schema.quotes is None and not quotes and '"' in "".join(fields) else ""
    if schema.max_short_rows and len(fields) < len(header):
        hint = f"; {schema.max_short_rows} such rows were skipped, and the published file has no more"
    return ValueError(f"{location}: {expected}, got {len(fields)}{hint}")


def _column_indices(header: list[str], first: list[str], schema: TableSchema, quotes: bool, location: str) -> list[int]:
    """Return the index of each column of the schema; `first` is the first row, which may be the header."""
    for name in schema.names:
        if name not in header:
            hint = ""
            is_unsplit = len(first) == 1 and len(re.split("[,;\t]", first[0])) > 1
            if schema.header and name.isdigit():
                hint = "; to give columns by number, use --header False"
            elif is_unsplit and (schema.header or name.isdigit()):
                hint = (
                    "; fields are separated by commas in .csv, by tabs in .tsv and .txt, unless --format names another"
                )
            elif not schema.header:
                hint = "; without a header, columns are named by number"
            elif schema.quotes is None and not quotes and f'"{name}"' in header:
                hint = QUOTES_HINT
            raise missing_column_error(location, name, header, schema, hint)
        if header.count(name) > 1:
            raise ValueError(f"{location}: {name!r} names several columns; rename all but one")
    return [header.index(name) for name in schema.names]
