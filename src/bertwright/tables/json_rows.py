"""Rows of JSON files: one object or list per line (.jsonl), or an array of them, which may be a member (.json)."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bertwright.tables.schema import Row, TableSchema, list_names, missing_column_error
from bertwright.text.decoding import FIX_CORPUS, SURROGATE, ReadStats, TextCodec
from bertwright.text.sources import InputFile, split_member

BLANKS = re.compile(r"[ \t\r\n]*")
MAX_PATH_DEPTH = 5  # of the nested columns that a message lists


def read_json_rows(
    file: InputFile, schema: TableSchema, codec: TextCodec, stats: ReadStats, numbered_lines: Iterable[tuple[int, str]]
) -> Iterator[Row]:
    """Yield the rows of numbered lines of JSON; blank lines are skipped.

    A column may be a path such as `labels.label` into nested objects. A row may be a list of as many values as the
    schema has columns, or of any number if the schema names the columns by number. Raises ValueError for other lines,
    missing columns, and values in `schema.texts` that are not strings.
    """
    decoder = make_decoder(schema.names)
    rows = (
        _parse_document(file.path, decoder, numbered_lines, schema.names)
        if file.format == ".json"
        else _parse_lines(file.path, decoder, numbered_lines)
    )
    in_order, kind = False, None
    for number, record, text in rows:
        location = f"{file.path}, line {number}"
        kind = kind or type(record)
        if isinstance(record, list) and kind is list:
            by_number = any(name.isdigit() for name in schema.names)
            in_order = not by_number
            if in_order and len(record) < len(schema.names):
                raise ValueError(f"{location}: expected {len(schema.names)} values, got {len(record)}; fix the row")
            record = dict(zip(map(str, range(1, len(record) + 1)) if by_number else schema.names, record, strict=False))
        if not isinstance(record, dict):
            hint = "; an array of objects is a .json file" if file.format == ".jsonl" else ""
            raise ValueError(f"{location}: expected a JSON object, got {type(record).__name__}{hint}")
        try:
            values = tuple([_look_up(record, name) for name in schema.names])
        except KeyError as error:
            raise missing_column_error(location, error.args[0], _list_paths(record), schema) from None
        if schema.in_parallel and (several := _unzip(values, len(schema.texts))):
            yield from ((number, row) for row in several)
            continue
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
        yield number, values
    if in_order:
        warnings.warn(f"{file.path}: its rows are lists, read as {', '.join(schema.names)}", stacklevel=1)


def _unzip(values: tuple[Any, ...], num_texts: int) -> list[tuple[Any, ...]]:
    """Return a row per question of an object that has several, as in RACE: lists in parallel, and texts of all.

    No rows if none of the texts is a list, or the lists differ in length.

    >>> _unzip(("A story.", ["Who?", "When?"], [["a", "b"], ["c", "d"]], ["A", "B"]), 2)
    [('A story.', 'Who?', ['a', 'b'], 'A'), ('A story.', 'When?', ['c', 'd'], 'B')]
    """
    lengths = {len(value) for value in values if isinstance(value, list)}
    if len(lengths) != 1 or not any(isinstance(value, list) for value in values[:num_texts]):
        return []
    count = lengths.pop()
    return [tuple([value[n] if isinstance(value, list) else value for value in values]) for n in range(count)]


def describe_type(value: Any, column: str) -> str:
    """Describe a value's type for a message; for an object, list its columns as well."""
    paths = _list_paths(value) if isinstance(value, dict) else []
    if not paths:
        return type(value).__name__
    return f"an object (its columns are {list_names([f'{column}.{path}' for path in paths])})"


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


def _parse_document(
    path: str, decoder: json.JSONDecoder, numbered_lines: Iterable[tuple[int, str]], columns: Sequence[str]
) -> Iterator[tuple[int, Any, str]]:
    """Yield line number, value and text of each row of a .json file, which is read as a whole.

    Its root is an array; or an object of columns, or with an array as member, which the path names if there are
    several; or the only row, an object with all `columns`; or the file has one object per line.
    """
    text = "\n".join([line for _, line in numbered_lines])
    position = BLANKS.match(text).end()  # type: ignore[union-attr]
    if text[position : position + 1] != "{":
        yield from _parse_array(path, decoder, text, position)
        return
    try:
        root, end = decoder.raw_decode(text, position)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
    if text[end:].strip():
        warnings.warn(f"{path}: read as .jsonl, one object per line", stacklevel=1)
        yield from _parse_lines(path, decoder, enumerate(text.split("\n"), 1))
    elif rows := _records_of_columns(path, root):
        warnings.warn(f"{path}: read as an object of columns, each with a value per row", stacklevel=1)
        spelled = "\\u" if "\\u" in text else ""  # searched once: the text of a single row is not known
        yield from ((number, row, spelled) for number, row in enumerate(rows, 1))
    elif isinstance(root, dict) and columns != ("",) and _has_all(root, columns):
        yield 1, root, text
    else:
        name = choose_member(path, root)
        yield from _parse_array(path, decoder, text, _find_value(decoder, text, position, name))


def _has_all(record: dict[str, Any], names: Sequence[str]) -> bool:
    try:
        return bool([_look_up(record, name) for name in names])
    except KeyError:
        return False


def choose_member(path: str, root: dict[str, Any]) -> str:
    """Return the member of a root object that the path names, or else the only one that is an array of rows."""
    base, member = split_member(path)
    names = array_members(root)
    if member in names:
        return member
    if member or len(names) != 1:
        hint = f"; name one, as in {base}#{names[0]}" if names else ""
        raise ValueError(
            f"{path}: expected an array of objects ([{{…}}, …]), got an object with "
            f"{list_names([*root]) or 'nothing'}{hint}"
        )
    if len(root) > 1:
        warnings.warn(f"{path}: its member {names[0]!r} is read", stacklevel=1)
    return names[0]


def array_members(root: dict[str, Any]) -> list[str]:
    """Return the names of the members that are arrays of rows."""
    arrays = ((name, value) for name, value in root.items() if isinstance(value, list) and value)
    return [name for name, value in arrays if isinstance(value[0], dict | list)]


def _records_of_columns(path: str, root: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of an object of columns, as pandas writes them; none if it is another object."""
    columns, rows = root.get("columns"), root.get("data")
    if isinstance(columns, list) and isinstance(rows, list) and rows:
        return [] if isinstance(rows[0], dict) else _name_values(path, columns, rows)  # objects: rows as they are
    values = list(root.values())
    if values and all(isinstance(value, dict) and value.keys() == values[0].keys() for value in values):
        is_row_per_key = not all(key.isdigit() for key in values[0])  # pandas numbers the rows of each column
        return values if is_row_per_key else [{name: root[name][key] for name in root} for key in values[0]]
    is_table = len(values) > 1 and all(isinstance(value, list) for value in values) and not array_members(root)
    if not is_table or len({len(column) for column in values}) != 1:
        return []
    return [dict(zip(root, row, strict=True)) for row in zip(*values, strict=True)]


def _name_values(path: str, columns: list[Any], rows: list[Any]) -> list[dict[str, Any]]:
    """Return the rows of pandas' orient "split", lists of values in the order of the columns, as objects.

    Raises ValueError for columns that are not different strings, and for rows of another length or type.
    """
    for name in columns:
        if not isinstance(name, str) or columns.count(name) > 1:
            raise ValueError(f"{path}: expected different strings in 'columns', got {name!r}; rename the columns")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, list) or len(row) != len(columns):
            got = f"{len(row)} values" if isinstance(row, list) else type(row).__name__
            raise ValueError(
                f"{path}, row {number} of 'data': expected a list of {len(columns)} values, got {got}; fix the row"
            )
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _find_value(decoder: json.JSONDecoder, text: str, position: int, name: str) -> int:
    """Return where the value of a member begins in the text of a valid object that begins at `position`."""
    while True:
        key, end = decoder.raw_decode(text, _skip(text, position + 1))
        position = _skip(text, _skip(text, end) + 1)
        if key == name:
            return position
        position = _skip(text, decoder.raw_decode(text, position)[1])


def _skip(text: str, position: int) -> int:
    blanks = BLANKS.match(text, position)
    return blanks.end() if blanks else position


def _parse_array(path: str, decoder: json.JSONDecoder, text: str, position: int) -> Iterator[tuple[int, Any, str]]:
    """Yield line number, value and text of each element of the array that begins at `position`."""
    number, counted = 1, 0

    def skip_blanks(position: int) -> int:
        nonlocal number, counted
        position = _skip(text, position)
        number, counted = number + text.count("\n", counted, position), position
        return position

    in_member = text[:position].strip() != ""
    position = skip_blanks(position)
    if text[position : position + 1] != "[":
        raise ValueError(f"{path}, line {number}: expected an array of objects ([{{…}}, …])")
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
    if not in_member and text[skip_blanks(position + 1) :]:
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


def _list_paths(record: dict[str, Any], depth: int = MAX_PATH_DEPTH) -> list[str]:
    """List the names that `_look_up` takes for the values of an object: `labels.label` for nested ones.

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
