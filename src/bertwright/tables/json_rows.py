"""Rows of JSON files: one object or list per line (.jsonl), or an array of them, which may be a member (.json)."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

from bertwright.tables.dialects import PLAIN, recognize
from bertwright.tables.json_documents import (
    JsonDocument,
    JsonRow,
    Records,
    look_up,
    make_decoder,
    parse_array,
    parse_lines,
    skip_blanks,
)
from bertwright.tables.schema import Row, TableSchema, list_names, missing_column_error
from bertwright.text.decoding import FIX_CORPUS, SURROGATE, ReadStats, TextCodec
from bertwright.text.sources import InputFile

MAX_PATH_DEPTH = 5  # of the nested columns that a message lists


def read_json_rows(
    file: InputFile, schema: TableSchema, codec: TextCodec, stats: ReadStats, numbered_lines: Iterable[tuple[int, str]]
) -> Iterator[Row]:
    """Yield the rows of numbered lines of JSON; blank lines are skipped.

    A column may be a path such as `labels.label` into nested objects. A row may be a list if the schema names its
    columns by number. Raises ValueError for other lines, missing columns, and values in `schema.texts` that are not
    strings.
    """
    decoder = make_decoder(schema.names)
    dialect, is_first = None, True
    records = (
        _parse_document(file, schema, decoder, numbered_lines)
        if file.format == ".json"
        else parse_lines(file.path, decoder, numbered_lines)
    )
    for number, record, text in records:
        row = JsonRow(record, schema, f"{file.path}, line {number}")
        if is_first and not schema.asks_for_names:
            place = PurePath(file.path).parent if schema.in_parallel else file.path  # a file may be a single row
            dialect, is_first = recognize("rows", row, str(place), schema.dialect), False
        plain = row.in_order if schema.asks_for_names else row.by_number  # rows that are lists have no names
        for one in dialect.rows(row) if dialect else plain():
            yield number, _values(one, row, text, codec, stats)


def _values(record: Any, row: JsonRow, text: str, codec: TextCodec, stats: ReadStats) -> tuple[Any, ...]:
    """Return the values of the columns in an object; `text`: the row as it is written."""
    schema, location = row.schema, row.location
    if not isinstance(record, dict):
        hint = "; in an array of objects, or name another --dialect" if isinstance(record, list) else ""
        raise ValueError(f"{location}: expected a JSON object, got {type(record).__name__}{hint}")
    try:
        values = tuple([look_up(record, name, name in schema.optional) for name in schema.names])
    except KeyError as error:
        raise missing_column_error(location, error.args[0], _list_paths(record), schema) from None
    for position, (name, value) in enumerate(zip(schema.texts, values, strict=False)):
        if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
            values = (*values[:position], "\n".join(value), *values[position + 1 :])
            warnings.warn(f"texts in {name!r} that are lists of texts are joined by line ends", stacklevel=1)
        elif not isinstance(value, str) and value is not None:
            raise ValueError(f"{location}: expected a string in {name!r}, got {describe_type(value, name)}")
    if "\\u" in text:  # it can spell half a surrogate pair, which no encoding of Unicode can represent
        try:
            values = _replace_surrogates(values, location, codec, stats)
        except RecursionError:
            raise ValueError(f"{location}: values nested too deeply") from None
    return values


def describe_type(value: Any, column: str) -> str:
    """Describe a value's type for a message; for an object, list its columns as well."""
    paths = _list_paths(value) if isinstance(value, dict) else []
    if not paths:
        return type(value).__name__
    return f"an object (its columns are {list_names([f'{column}.{path}' for path in paths])})"


def _parse_document(
    file: InputFile, schema: TableSchema, decoder: json.JSONDecoder, numbered_lines: Iterable[tuple[int, str]]
) -> Records:
    """Yield line number, value and text of each row of a .json file, which is read as a whole.

    Its root is an array, an object with one as its only member or as the member that the path names, the only row, or
    an object in one of the layouts of the table of dialects.
    """
    text = "\n".join([line for _, line in numbered_lines])
    position = skip_blanks(text, 0)
    if text[position : position + 1] != "{":
        return parse_array(file.path, decoder, text, position)
    try:
        root, end = decoder.raw_decode(text, position)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file.path}: not valid JSON ({error})") from None
    document = JsonDocument(file.path, decoder, text, root, end)
    is_row = schema.names != ("",) and _has_all(root, schema.names)
    if is_row and not document.has_lines and (schema.dialect == PLAIN or not document.columns):
        return iter([(1, root, text)])
    dialect = recognize("json", document, file.path, schema.dialect)
    return dialect.rows(document) if dialect else document.read_plain()


def _has_all(record: dict[str, Any], names: Sequence[str]) -> bool:
    try:
        return bool([look_up(record, name) for name in names])
    except KeyError:
        return False


def _list_paths(record: dict[str, Any], depth: int = MAX_PATH_DEPTH) -> list[str]:
    """List the names that `look_up` takes for the values of an object: `labels.label` for nested ones.

    >>> _list_paths({"guid": "1", "labels": {"label": 3.7, "binary": 1}})
    ['guid', 'labels.label', 'labels.binary']
    """
    paths = []
    for name, value in record.items():
        nested = _list_paths(value, depth - 1) if isinstance(value, dict) and depth > 1 else []
        paths += [f"{name}.{path}" for path in nested] or [name]
    return paths


def _replace_surrogates(values: Any, location: str, codec: TextCodec, stats: ReadStats) -> Any:
    """Replace each half of a surrogate pair by U+FFFD, also in nested values.

    Raises ValueError if the codec is strict.
    """
    if isinstance(values, tuple | list):
        return type(values)(_replace_surrogates(value, location, codec, stats) for value in values)
    if isinstance(values, dict):
        return dict(_replace_surrogates([*values.items()], location, codec, stats))
    if not isinstance(values, str) or not (half := SURROGATE.search(values)):
        return values
    problem = f"{location}: \\u{ord(half[0]):04x} is half a surrogate pair"
    if codec.errors != "replace":
        option = ", or read it as U+FFFD with --encoding-errors replace" if codec.hint == FIX_CORPUS else ""
        raise ValueError(f"{problem}; fix the file{option}")
    whole, count = SURROGATE.subn("\ufffd", values)
    stats.invalid_sequences += count
    stats.first_invalid = stats.first_invalid or problem
    return whole
