"""Rows of .csv, .tsv, .txt, .jsonl and .parquet files, in constant memory, and of .json files, read as a whole."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from bertwright.tables.json_rows import describe_type
from bertwright.tables.label_places import (
    LabelPlaces,
    find_labels,
    join_labels,
    list_labeled_inputs,
    read_lines,
)
from bertwright.tables.line_labels import read_labels_of_lines
from bertwright.tables.row_formats import ROW_FORMATS, TABLE_FORMATS, read_file_rows
from bertwright.tables.schema import MissingColumnError, Row, TableSchema
from bertwright.tables.split_columns import is_part, read_part
from bertwright.text.decoding import ReadStats, TextCodec
from bertwright.text.sources import InputFile, list_inputs


def read_rows(path: str, schema: TableSchema, stats: ReadStats | None = None) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield location ("file, line 3") and values of each row of all files of a path (file, folder, glob or hf://…).

    Raises ValueError for a null unless the schema accepts it, for invalid bytes, if there is no row at all; see also
    `read_file_rows`. Skipped rows are counted in `stats`.
    """
    stats = stats or ReadStats()
    number = 0
    find = list_labeled_inputs if schema.label else list_inputs
    files: Sequence[InputFile] = find([path], formats=TABLE_FORMATS, suffix=schema.suffix)
    places = find_labels(files, partial(_has_all_columns, schema=schema)) if schema.label else None
    for name in sorted(places.left_out - {*places.label_files.values()}) if places else ():
        warnings.warn(f"{name}: left out, a file with labels of no table by its name", stacklevel=1)
    for file in places.tables if places else files:
        unit = ROW_FORMATS[file.format].unit
        codec = TextCodec(schema.encoding)
        if is_part(file):
            rows = read_part(file, schema, codec, stats)
        else:
            rows = _labeled_rows(file, schema, stats, places) if places else read_file_rows(file, schema, codec, stats)
        for number, values in rows:
            location = f"{file.path}, {unit} {number}"
            if None in values and not schema.allow_nulls:
                raise ValueError(f"{location}: no value (null) in {schema.names[values.index(None)]!r}; fill it in")
            yield location, values
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


def leave_out_rows(
    rows: Iterator[tuple[str, tuple[Any, ...]]], path: str, field: str, marks: Sequence[str], described: str
) -> Iterator[tuple[str, tuple[Any, ...]]]:
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


def column_names(path: str, suffix: str | None, encoding: str) -> Sequence[str]:
    """Return the names of the columns in the first row of a path's files; none if its rows are lists."""
    try:
        next(read_rows(path, TableSchema((), ("",), encoding=encoding, suffix=suffix)), None)
    except MissingColumnError as error:
        return error.columns
    return ()


def _labeled_rows(file: InputFile, schema: TableSchema, stats: ReadStats, places: LabelPlaces) -> Iterator[Row]:
    """Return the rows of a file; a label that is no column is read from its place, and a warning names that."""
    codec = TextCodec(schema.encoding)
    try:
        next(read_file_rows(file, schema, codec, ReadStats()), None)
        if (label_file := places.label_files.get(file.path)) in places.left_out:
            warnings.warn(f"{label_file}: left out, since {file.path} has all columns", stacklevel=1)
        return read_file_rows(file, schema, codec, stats)
    except MissingColumnError as error:
        missing = error
    except ValueError as error:
        if not places.in_folders or file.format != ".txt":
            raise
        missing = MissingColumnError(str(error), ())  # the lines of a text are no rows
    given = read_lines(file, codec) if file.format in (".txt", ".tsv") and len(schema.texts) == 1 else []
    has_tabs = any("\t" in line for _, line in given) and not places.in_folders
    lines = [] if has_tabs else given  # without tabs, each line is a text
    unlabeled = replace(schema, values=tuple(name for name in schema.values if name != schema.label))
    rows: Iterable[Row] = [(number, (line,)) for number, line in lines]
    if not lines:
        rows = read_file_rows(file, unlabeled, codec, stats)
    elif places.in_folders:
        rows = [(1, ("\n".join([line for _, line in lines]),))]
    if label_file := places.label_files.get(file.path):
        warnings.warn(f"{file.path}: the labels are the lines of {label_file}", stacklevel=1)
        rows = join_labels(rows, label_file, codec, file.path) if schema.values else rows
    elif places.classes and (lines or {*missing.columns} <= {*schema.texts, "id"}):  # no column may be the label
        unit = "folder" if places.in_folders else "file"
        warnings.warn(f"a {unit} per class: {places.class_names}", stacklevel=1)
        label = (places.classes[file.path],) if schema.values else ()
        rows = ((number, (*values, *label)) for number, values in rows)
    elif labeled := read_labels_of_lines(given):
        warnings.warn(f"{file.path}: {labeled.how}, as {labeled.rows[0][1][1]!r}", stacklevel=1)
        rows = ((number, values if schema.values else values[:1]) for number, values in labeled.rows)
    else:
        raise missing
    return iter(rows)


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
