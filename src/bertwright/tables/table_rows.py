"""Rows of one table of any format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bertwright.tables.delimited import read_delimited_rows
from bertwright.tables.json_rows import read_json_rows
from bertwright.tables.parquet import read_parquet_rows
from bertwright.tables.schema import Row, TableSchema
from bertwright.text.decoding import ReadStats, TextCodec, decode_blocks
from bertwright.text.lines import split_lines
from bertwright.text.sources import InputFile


class ByteRange(NamedTuple):
    """Bytes `start` to `end` of a file (None: to its end); `line` is the number of the line with byte `start`."""

    start: int = 0
    end: int | None = None
    line: int = 1


def read_file_rows(
    file: InputFile, schema: TableSchema, codec: TextCodec, stats: ReadStats, span: ByteRange | None = None
) -> Iterator[Row]:
    """Yield the rows of one file, or of a byte range of it that starts and ends between rows; a null is None.

    Raises ValueError for missing and ambiguous columns, for rows with too few or too many columns, and for values in
    `schema.texts` that are not strings.
    """
    if file.format == ".parquet":
        return read_parquet_rows(file, schema, stats)
    start, end, line = span or ByteRange()
    numbered_lines = split_lines(file.path, decode_blocks(file, codec, stats, start, end), line)
    if file.format in (".json", ".jsonl"):
        return read_json_rows(file, schema, codec, stats, numbered_lines)
    return read_delimited_rows(file, schema, stats, numbered_lines)
