"""Rows of .csv, .tsv, .txt, .jsonl and .parquet files, in constant memory, and of .json files, read as a whole."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bertwright.tables.dialects import PLAIN, dialects_of, recognize
from bertwright.tables.file_splits import is_part, read_part
from bertwright.tables.json_rows import describe_type
from bertwright.tables.label_dialects import ANSWER, OF_PRODIGY, UnlabeledFile
from bertwright.tables.neighbours import Neighbours, list_labeled_inputs, list_neighbours
from bertwright.tables.row_formats import ROW_FORMATS, TABLE_FORMATS, file_names, read_file_rows
from bertwright.tables.schema import MissingColumnError, Row, TableSchema, first_names
from bertwright.text.decoding import ReadStats, TextCodec
from bertwright.text.sources import InputFile, list_inputs

MAX_NUMBER = float(np.finfo(np.float32).max)  # largest label of a regression, because losses are float32
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def read_rows(path: str, schema: TableSchema, stats: ReadStats | None = None) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield location ("file, line 3") and values of each row of all files of a path (file, folder, glob or hf://…).

    Raises ValueError for a null unless the schema accepts it, for invalid bytes, if there is no row at all; see also
    `read_file_rows`. Skipped rows are counted in `stats`.
    """
    stats = stats or ReadStats()
    number = 0
    neighbours = None
    if not schema.label or schema.dialect == PLAIN:
        files: Sequence[InputFile] = list_inputs([path], formats=TABLE_FORMATS, suffix=schema.suffix)
    else:
        listed = list_labeled_inputs(path, formats=TABLE_FORMATS, suffix=schema.suffix)
        neighbours = list_neighbours(listed, partial(_has_all_columns, schema=schema))
        files = neighbours.tables
    for file in files:
        unit = ROW_FORMATS[file.format].unit
        codec = TextCodec(schema.encoding)
        if is_part(file):
            rows = read_part(file, schema, codec, stats)
        elif unlabeled := _find_unlabeled(file, schema, stats, neighbours):
            rows = _rows_with_labels(unlabeled, path)
        else:
            rows = read_file_rows(file, schema, codec, stats)
        for number, values in rows:
            location = f"{file.path}, {unit} {number}"
            if None in values and not schema.allow_nulls:
                raise ValueError(f"{location}: no value (null) in {schema.names[values.index(None)]!r}; fill it in")
            yield location, values
    for name in sorted(neighbours.left_out - neighbours.labels_read) if neighbours else ():
        warnings.warn(f"{name}: left out, by its name a file with labels, which no table here lacks", stacklevel=1)
    if not number:
        raise ValueError(f"{path}: no rows; is it the right file?")


def _has_all_columns(file: InputFile, schema: TableSchema) -> bool:
    """Return whether a file is a table with the columns and the label of a schema."""
    values = schema.values if schema.label in schema.values else (*schema.values, schema.label)
    try:
        next(read_file_rows(file, replace(schema, values=values), TextCodec(schema.encoding), ReadStats()), None)
    except (ValueError, OSError):  # reported when the file is read as a whole
        return False
    return True


def column_names(path: str, schema: TableSchema) -> Sequence[str]:
    """Return the names of the columns in the first row of a path's files; none if its rows are lists."""
    return first_names(partial(read_rows, path), schema)


def _find_unlabeled(
    file: InputFile, schema: TableSchema, stats: ReadStats, neighbours: Neighbours | None
) -> UnlabeledFile | None:
    """Return a file whose labels are no column; None for one with all columns, about which nothing is guessed."""
    if neighbours is None:
        return None
    codec = TextCodec(schema.encoding)
    is_named = schema.dialect in dialects_of(["labels"])
    missing = MissingColumnError(f"{file.path}: --dialect {schema.dialect}")
    try:
        first = next(read_file_rows(file, schema, codec, ReadStats()), None)
        decisions = _find_decisions(file, schema, first)
        if not is_named and decisions is None:
            return None
        missing = decisions or missing
    except MissingColumnError as error:
        missing = error
    except ValueError as error:
        if not is_named and not (neighbours.in_folders and file.format == ".txt"):
            raise
        missing = MissingColumnError(str(error))  # the lines of a text are no rows
    return UnlabeledFile(file, schema, neighbours, missing, lambda asked: read_file_rows(file, asked, codec, stats))


def _find_decisions(file: InputFile, schema: TableSchema, first: Row | None) -> MissingColumnError | None:
    """Return an error with the columns of a file in which Prodigy's answers say whether each text has its label."""
    is_labeled = schema.label in schema.values and schema.label != ANSWER
    if not (first and is_labeled and isinstance(first[1][-1], str) and ROW_FORMATS[file.format].has_lists):
        return None
    names = file_names(file, schema)
    return MissingColumnError(f"{file.path}: labels are decisions", names) if {*names} >= OF_PRODIGY else None


def _rows_with_labels(file: UnlabeledFile, path: str) -> Iterator[Row]:
    """Return the rows of a file whose labels are no column.

    `path`: the files that are read together, which a warning about classes names. Raises the error about the missing
    column if the labels are nowhere.
    """
    schema = file.schema
    dialect = recognize("labels", file, path if file.class_name else file.file.path, schema.dialect)
    if dialect is None:
        raise file.missing
    rows: Iterator[Row] = dialect.rows(file)
    return rows if schema.label in schema.values else ((number, values[:-1]) for number, values in rows)


def count_skipped_rows(path: str, schema: TableSchema) -> ReadStats:
    """Count the rows that `read_rows` skips; reads the files if the schema allows skipping."""
    stats = ReadStats()
    if schema.max_short_rows:
        for _ in read_rows(path, schema, stats):
            pass
    return stats


def format_label(value: Any, column: str, location: str) -> str:
    """Return a label as text, independent of its type in the file: 1 is "1", 0.5 is "0.5", true is "true".

    1.0 is also "1": pandas writes a column of integers with gaps as floats. Raises ValueError for a missing value and
    for values other than strings and numbers.

    >>> format_label(1, "label", "line 1"), format_label(1.0, "label", "line 1"), format_label(True, "label", "line 2")
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


def parse_number(text: str) -> float | None:
    """Parse a finite number within the range of float32; None for any other text.

    >>> parse_number(" -2.5e1"), parse_number("1_000"), parse_number("nan"), parse_number("1e99")
    (-25.0, None, None, None)
    """
    if not NUMBER.fullmatch(text.strip()):  # float also reads underscores and the digits of other scripts
        return None
    number = float(text)
    return number if abs(number) <= MAX_NUMBER else None
