"""Rows of .csv, .tsv, .txt, .jsonl, .json and .parquet files, in constant memory (.json: that of the file)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from bertwright.io.decoding import ReadStats, TextCodec, decode_blocks
from bertwright.io.delimited import read_delimited_rows
from bertwright.io.json_rows import describe_type, read_json_rows
from bertwright.io.lines import lines
from bertwright.io.parquet import read_parquet_rows
from bertwright.io.schema import Row, TableSchema
from bertwright.io.sources import FORMATS, InputFile, open_inputs

TABLE_FORMATS = (*FORMATS, ".json")  # .json: an array of objects


class ByteRange(NamedTuple):
    """Bytes `start` to `end` of a file (None: to its end); the first of them is in line `line`."""

    start: int = 0
    end: int | None = None
    line: int = 1


def read_rows(path: str, schema: TableSchema, stats: ReadStats | None = None) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield location ("file, line 3") and values of each row of a path (a file, a folder, a glob, hf://…).

    Raises ValueError for a null unless the schema accepts it, for invalid bytes, if there is no row at all, and as
    `iter_rows` does. Skipped rows are counted in `stats`.
    """
    stats = stats or ReadStats()
    number = 0
    for file in open_inputs([path], formats=TABLE_FORMATS):
        unit = "row" if file.format == ".parquet" else "line"
        for number, values in iter_rows(file, schema, TextCodec(schema.encoding), stats):
            location = f"{file.path}, {unit} {number}"
            if None in values and not schema.nulls:
                raise ValueError(f"{location}: no value (null) in {schema.names[values.index(None)]!r}; fill it in")
            yield location, values
    if not number:
        raise ValueError(f"{path}: no rows; is it the right file?")


def skipped_rows_note(path: str, schema: TableSchema) -> list[str]:
    """Return a note on the rows that `read_rows` skips, or nothing; reads the file if the schema allows skipping."""
    stats = ReadStats()
    if schema.max_short_rows:
        for _ in read_rows(path, schema, stats):
            pass
    if not stats.short_rows:
        return []
    subject = "row lacks" if stats.short_rows == 1 else "rows lack"
    known = "as known of the published file, and skipped; the first is"
    return [f"{stats.short_rows:,} {subject} columns, {known} {stats.first_short}"]


def label_text(value: Any, column: str, location: str) -> str:
    """Return a label as text, independent of its type in the file: 1 is "1", 0.5 is "0.5", true is "true".

    1.0 is "1", too: pandas writes a column of integers with gaps as floats. Raises ValueError for a missing value and
    for one that is neither a string nor a number.

    >>> label_text(1, "label", "line 1"), label_text(1.0, "label", "line 1"), label_text(True, "label", "line 2")
    ('1', '1', 'true')
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = value if isinstance(value, str) else json.dumps(value) if isinstance(value, bool | int | float) else None
    if text is None:
        raise ValueError(f"{location}: expected a string or a number in {column!r}, got {describe_type(value, column)}")
    if not text or text.isspace() or value != value:  # NaN, which pandas writes for a missing value
        raise ValueError(f"{location}: no value in {column!r}; fill it in, or delete the row")
    return text


def iter_rows(
    file: InputFile, schema: TableSchema, codec: TextCodec, stats: ReadStats, span: ByteRange | None = None
) -> Iterator[Row]:
    """Yield the rows of one file, or of a byte range of it that starts and ends between rows; a null is None.

    Raises ValueError for missing and ambiguous columns, for rows with too few or too many columns, and for values in
    `schema.texts` that are not strings.
    """
    if file.format == ".parquet":
        return read_parquet_rows(file, schema, stats)
    start, end, line = span or ByteRange()
    numbered = lines(file.path, decode_blocks(file, codec, stats, start, end), line)
    if file.format in (".json", ".jsonl"):
        return read_json_rows(file, schema, codec, stats, numbered)
    return read_delimited_rows(file, schema, stats, numbered)
