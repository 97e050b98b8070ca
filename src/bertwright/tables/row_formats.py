"""The formats of rows by their suffix: add yours here, with its reader, for every task, survey, prepare and embed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bertwright.tables.delimited import read_delimited_rows
from bertwright.tables.json_rows import read_json_rows
from bertwright.tables.parquet import read_parquet_rows
from bertwright.tables.schema import Row, TableSchema, first_names
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

    read: Callable[[InputFile, TableSchema, TextCodec, ReadStats, NumberedLines], Iterator[Row]]
    """A function that reads a file, or some of its lines, which are decoded when it asks for them. All formats have the
    same arguments, whether they need them or not."""
    unit: str = "line"
    """What the number of a row counts."""
    may_be_compressed: bool = True
    has_lists: bool = False
    """Whether a value may be a list or an object."""
    has_same_columns: bool = True
    """Whether every row has all columns of the file."""


ROW_FORMATS = {
    ".txt": RowFormat(read_delimited_rows),
    ".jsonl": RowFormat(read_json_rows, has_lists=True, has_same_columns=False),
    ".csv": RowFormat(read_delimited_rows),
    ".tsv": RowFormat(read_delimited_rows),
    ".parquet": RowFormat(read_parquet_rows, "row", may_be_compressed=False, has_lists=True),
    ".json": RowFormat(read_json_rows, has_lists=True, has_same_columns=False),  # read as a whole
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
    lines = split_lines(file.path, decode_blocks(file, codec, stats, span.start, span.end), span.line)
    return ROW_FORMATS[file.format].read(file, schema, codec, stats, lines)


def file_names(file: InputFile, schema: TableSchema) -> Sequence[str]:
    """Return the names of the columns in the first row of one file; none if its rows are lists."""
    codec = TextCodec(schema.encoding)
    return first_names(lambda asked: read_file_rows(file, asked, codec, ReadStats()), schema)
