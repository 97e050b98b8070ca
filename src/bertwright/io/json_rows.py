"""Rows of JSON files: one object per line (.jsonl), or one array of objects (.json)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from bertwright.io.decoding import FIX_CORPUS, SURROGATE, ReadStats, TextCodec
from bertwright.io.schema import Row, TableSchema, missing_column_error
from bertwright.io.sources import InputFile


def read_json_rows(
    file: InputFile, schema: TableSchema, codec: TextCodec, stats: ReadStats, numbered_lines: Iterable[tuple[int, str]]
) -> Iterator[Row]:
    """Yield the rows of numbered lines of JSON; blank lines are skipped.

    A column may be a path such as `labels.label` into nested objects. Raises ValueError for lines that are not JSON
    objects, missing columns, and values in `schema.texts` that are not strings.
    """
    decoder = make_decoder(schema.names)
    parse = _parse_array if file.format == ".json" else _parse_lines
    for number, record, text in parse(file.path, decoder, numbered_lines):
        location = f"{file.path}, line {number}"
        if not isinstance(record, dict):
            hint = "; an array of objects is a .json file" if file.format == ".jsonl" else ""
            raise ValueError(f"{location}: expected a JSON object, got {type(record).__name__}{hint}")
        try:
            values = tuple([_look_up(record, name) for name in schema.names])
        except KeyError as error:
            raise missing_column_error(location, error.args[0], _list_paths(record), schema) from None
        for name, value in zip(schema.texts, values, strict=False):
            if not isinstance(value, str) and value is not None:
                raise ValueError(f"{location}: expected a string in {name!r}, got {describe_type(value, name)}")
        # A JSON string can spell half a surrogate pair, which no encoding of Unicode can represent.
        yield number, _replace_surrogates(values, location, codec, stats) if "\\u" in text else values


def describe_type(value: Any, column: str) -> str:
    """Describe a value's type for a message; for an object, list its columns as well."""
    paths = _list_paths(value) if isinstance(value, dict) else []
    if not paths:
        return type(value).__name__
    return f"an object (its columns are {', '.join(f'{column}.{path}' for path in paths)})"


def make_decoder(names: Iterable[str]) -> json.JSONDecoder:
    """Return a decoder that raises ValueError for an object that has one of the columns twice."""
    keys = {key for name in names for key in (name, *name.split("."))}

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) < len(pairs):
            given = [name for name, _ in pairs]
            for name in given:
                if name in keys and given.count(name) > 1:
                    raise ValueError(f"{name!r} occurs twice")
        return record

    return json.JSONDecoder(object_pairs_hook=build)


def _parse_lines(
    path: str, decoder: json.JSONDecoder, numbered_lines: Iterable[tuple[int, str]]
) -> Iterator[tuple[int, Any, str]]:
    """Yield number, value and text of each line that is not blank."""
    for number, line in numbered_lines:
        if line and not line.isspace():
            try:
                yield number, decoder.decode(line), line
            except (ValueError, RecursionError) as error:  # ValueError: also a number with too many digits for Python
                raise ValueError(f"{path}, line {number}: not valid JSON ({error})") from None


def _parse_array(
    path: str, decoder: json.JSONDecoder, numbered_lines: Iterable[tuple[int, str]]
) -> Iterator[tuple[int, Any, str]]:
    """Yield line number, value and text of each element of a JSON array; the file is read as a whole."""
    text = "\n".join([line for _, line in numbered_lines])
    skip = re.compile(r"[ \t\r\n]*").match
    number, counted = 1, 0

    def skip_blanks(position: int) -> int:
        nonlocal number, counted
        blanks = skip(text, position)
        position = blanks.end() if blanks else position
        number, counted = number + text.count("\n", counted, position), position
        return position

    position = skip_blanks(0)
    if text[position : position + 1] != "[":
        raise ValueError(
            f"{path}, line {number}: expected an array of objects ([{{…}}, …]); if the file has one object per "
            "line, rename it to .jsonl"
        )
    position = skip_blanks(position + 1)
    closed = text[position : position + 1] == "]"
    while not closed:
        try:
            element, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not valid JSON ({error})") from None
        yield number, element, text[position:end]
        position = skip_blanks(end)
        mark = text[position : position + 1]
        if mark not in ("]", ","):
            raise ValueError(f"{path}, line {number}: expected ',' or ']' after an object, got {mark or 'the end'!r}")
        closed = mark == "]"
        position = position if closed else skip_blanks(position + 1)
    if text[skip_blanks(position + 1) :]:
        raise ValueError(f"{path}, line {number}: text after the array; a file holds one array")


def _look_up(record: dict[str, Any], name: str) -> Any:
    """Look up a name, or a path of names such as `labels.label`, in nested objects. Raises KeyError(name)."""
    if name in record:
        return record[name]
    value: Any = record
    for key in name.split("."):
        if not isinstance(value, dict) or key not in value:
            raise KeyError(name)
        value = value[key]
    return value


def _list_paths(record: dict[str, Any]) -> list[str]:
    """List the names that `_look_up` takes for the values of an object: `labels.label` for nested ones.

    >>> _list_paths({"guid": "1", "labels": {"label": 3.7, "binary": 1}})
    ['guid', 'labels.label', 'labels.binary']
    """
    paths = []
    for name, value in record.items():
        nested = _list_paths(value) if isinstance(value, dict) else []
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
