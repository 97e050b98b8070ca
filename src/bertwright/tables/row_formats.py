"""The formats of rows by their suffix: add yours here, with its reader, for every task, survey, prepare and embed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


WHOLE = ByteRange()
NumberedLines = Iterator[tuple[int, str]]


class RowFormat(NamedTuple):
    """A format of rows."""

    read: Callable[[InputFile, TableSchema, TextCodec, ReadStats, ByteRange], Iterator[Row]]
    unit: str = "line"
    """What the number of a row counts."""
    may_be_compressed: bool = True
    has_lists: bool = False
    """Whether a value may be a list or an object."""
    has_same_columns: bool = True
    """Whether every row has all columns of the file."""


def _lines(file: InputFile, codec: TextCodec, stats: ReadStats, span: ByteRange) -> NumberedLines:
    return split_lines(file.path, decode_blocks(file, codec, stats, span.start, span.end), span.line)


def _delimited(
    file: InputFile, schema: TableSchema, codec: TextCodec, stats: ReadStats, span: ByteRange
) -> Iterator[Row]:
    return read_delimited_rows(file, schema, stats, _lines(file, codec, stats, span))


def _json(file: InputFile, schema: TableSchema, codec: TextCodec, stats: ReadStats, span: ByteRange) -> Iterator[Row]:
    return read_json_rows(file, schema, codec, stats, _lines(file, codec, stats, span))


def _parquet(
    file: InputFile, schema: TableSchema, codec: TextCodec, stats: ReadStats, span: ByteRange
) -> Iterator[Row]:
    return read_parquet_rows(file, schema, stats)


ROW_FORMATS = {
    ".txt": RowFormat(_delimited),
    ".jsonl": RowFormat(_json, has_lists=True, has_same_columns=False),
    ".csv": RowFormat(_delimited),
    ".tsv": RowFormat(_delimited),
    ".parquet": RowFormat(_parquet, "row", may_be_compressed=False, has_lists=True),
    ".json": RowFormat(_json, has_lists=True, has_same_columns=False),  # read as a whole
}
TABLE_FORMATS = {suffix: form.may_be_compressed for suffix, form in ROW_FORMATS.items()}
CORPUS_ROWS = {suffix: packable for suffix, packable in TABLE_FORMATS.items() if suffix != ".json"}
LIST_FORMATS = {suffix: form.may_be_compressed for suffix, form in ROW_FORMATS.items() if form.has_lists}


def read_file_rows(
    file: InputFile, schema: TableSchema, codec: TextCodec, stats: ReadStats, span: ByteRange = WHOLE
) -> Iterator[Row]:
    """Yield the rows of one file, or of a byte range of it that starts and ends between rows; a null is None.

    Raises ValueError for missing and ambiguous columns, for rows with too few or too many columns, and for values in
    `schema.texts` that are not strings.
    """
    return ROW_FORMATS[file.format].read(file, schema, codec, stats, span)
