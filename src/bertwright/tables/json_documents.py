"""JSON documents: their rows as values, the layouts in which programs write tables, and values of a type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from bertwright.tables.schema import TableSchema, list_names
from bertwright.text.sources import split_member

BLANKS = re.compile(r"[ \t\r\n]*")
Records = Iterator[tuple[int, Any, str]]  # line number, value and text of each row


@dataclass(frozen=True)
class JsonDocument:
    """A .json file whose text begins with an object."""

    path: str
    decoder: json.JSONDecoder
    text: str
    root: dict[str, Any]
    """The object."""
    end: int
    """Index of the character after it."""

    @property
    def has_lines(self) -> bool:
        """Whether other text follows the object."""
        return bool(self.text[self.end :].strip())

    @cached_property
    def columns(self) -> list[dict[str, Any]]:
        """The rows of an object of columns; none if it is another object."""
        return [] if self.has_lines else records_of_columns(self.path, self.root)

    @property
    def has_array(self) -> bool:
        """Whether one member is an array of rows, and the path names none."""
        is_rest = self.has_lines or self.columns or split_member(self.path)[1]
        return not is_rest and len(self.root) > 1 and len(array_members(self.root)) == 1

    def read_lines(self) -> Records:
        return parse_lines(self.path, self.decoder, enumerate(self.text.split("\n"), 1))

    def read_columns(self) -> Records:
        spelled = "\\u" if "\\u" in self.text else ""  # searched once: the text of a single row is not known
        if not self.columns:
            raise ValueError(f"{self.path}: expected an object of columns with a value per row; name another --dialect")
        return ((number, row, spelled) for number, row in enumerate(self.columns, 1))

    def read_array(self) -> Records:
        """Yield the rows of the array that is a member."""
        start, root = skip_blanks(self.text, 0), self.root
        while len(root) == 1 and isinstance(inside := next(iter(root.values())), dict):  # {"root": {"rows": [{…}, …]}}
            start, root = _find_value(self.decoder, self.text, start, next(iter(root))), inside
        start = _find_value(self.decoder, self.text, start, self.name_array(root))
        return parse_array(self.path, self.decoder, self.text, start)

    def read_plain(self) -> Records:
        """Yield the rows of the member that the path names, or of the only member."""
        if self.has_lines:
            raise ValueError(f"{self.path}: expected one object, got text after it; name --format jsonl")
        if len(self.root) > 1 and not split_member(self.path)[1]:
            raise _member_error(self.path, self.root)
        return self.read_array()

    def name_array(self, root: dict[str, Any]) -> str:
        """Return the member of an object that the path names, or else the only one that is an array of rows."""
        names, named = array_members(root), split_member(self.path)[1]
        if named not in names and (named or len(names) != 1):
            raise _member_error(self.path, root)
        return named or names[0]


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


def parse_lines(path: str, decoder: json.JSONDecoder, numbered_lines: Iterable[tuple[int, str]]) -> Records:
    """Yield number, value and text of each line that is not blank."""
    for number, line in numbered_lines:
        if line and not line.isspace():
            try:
                yield number, decoder.decode(line), line
            except (ValueError, RecursionError) as error:  # ValueError: also a number with too many digits for Python
                raise ValueError(f"{path}, line {number}: not valid JSON ({error})") from None


def parse_array(path: str, decoder: json.JSONDecoder, text: str, position: int) -> Records:
    """Yield line number, value and text of each element of the array that begins at `position`."""
    number, counted = 1, 0

    def skip(position: int) -> int:
        nonlocal number, counted
        position = skip_blanks(text, position)
        number, counted = number + text.count("\n", counted, position), position
        return position

    in_member = text[:position].strip() != ""
    position = skip(position)
    if text[position : position + 1] != "[":
        raise ValueError(f"{path}, line {number}: expected an array of objects ([{{…}}, …])")
    position = skip(position + 1)
    closed = text[position : position + 1] == "]"
    while not closed:
        try:
            element, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not valid JSON ({error})") from None
        yield number, element, text[position:end]
        position = skip(end)
        mark = text[position : position + 1]
        if mark not in ("]", ","):
            raise ValueError(f"{path}, line {number}: expected ',' or ']' after an object, got {mark or 'the end'!r}")
        closed = mark == "]"
        position = position if closed else skip(position + 1)
    if not in_member and text[skip(position + 1) :]:
        raise ValueError(f"{path}, line {number}: text after the array; a file holds one array")


def _find_value(decoder: json.JSONDecoder, text: str, position: int, name: str) -> int:
    """Return where the value of a member begins in the text of a valid object that begins at `position`."""
    while True:
        key, end = decoder.raw_decode(text, skip_blanks(text, position + 1))
        position = skip_blanks(text, skip_blanks(text, end) + 1)
        if key == name:
            return position
        position = skip_blanks(text, decoder.raw_decode(text, position)[1])


def skip_blanks(text: str, position: int) -> int:
    blanks = BLANKS.match(text, position)
    return blanks.end() if blanks else position


def _member_error(path: str, root: dict[str, Any]) -> ValueError:
    """Return the error for an object with no member, or more than one, that may be the rows."""
    names = array_members(root)
    hint = f"; name one, as in {split_member(path)[0]}#{names[0]}" if names else ""
    found = list_names([*root]) or "nothing"
    return ValueError(f"{path}: expected an array of objects ([{{…}}, …]), got an object with {found}{hint}")


def array_members(root: dict[str, Any]) -> list[str]:
    """Return the names of the members that are arrays of rows."""
    arrays = ((name, value) for name, value in root.items() if isinstance(value, list) and value)
    return [name for name, value in arrays if isinstance(value[0], dict | list)]


def records_of_columns(path: str, root: dict[str, Any]) -> list[dict[str, Any]]:
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
    places = dict[str, int]()
    for number, name in enumerate(columns):
        if not isinstance(name, str) or places.setdefault(name, number) != number:
            raise ValueError(f"{path}: expected different strings in 'columns', got {name!r}; rename the columns")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, list) or len(row) != len(columns):
            got = f"{len(row)} values" if isinstance(row, list) else type(row).__name__
            raise ValueError(
                f"{path}, row {number} of 'data': expected a list of {len(columns)} values, got {got}; fix the row"
            )
    return [dict(zip(columns, row, strict=True)) for row in rows]


class JsonRow(NamedTuple):
    """A row of JSON, and the columns that are read from it."""

    record: Any
    schema: TableSchema
    location: str

    def by_number(self) -> list[Any]:
        """Return the row as it stands; the values of a list are columns named by number."""
        if isinstance(self.record, list) and any(name.isdigit() for name in self.schema.names):
            return [dict(zip(map(str, range(1, len(self.record) + 1)), self.record, strict=False))]
        return [self.record]

    @property
    def is_list(self) -> bool:
        """Whether its values have no names."""
        return isinstance(self.record, list) and not any(name.isdigit() for name in self.schema.names)

    def in_order(self) -> list[Any]:
        """Return a list as an object: its values are the columns in the order of the schema."""
        names = self.schema.names
        if not self.is_list:
            return [self.record]
        if len(self.record) < len(names):
            raise ValueError(f"{self.location}: expected {len(names)} values, got {len(self.record)}; fix the row")
        return [dict(zip(names, self.record, strict=False))]

    @property
    def is_parallel(self) -> bool:
        return bool(self.schema.in_parallel and isinstance(self.record, dict) and self._unzip())

    def in_parallel(self) -> list[Any]:
        """Return an object for each item of the lists, or the row itself if its texts are no lists."""
        return (self._unzip() if isinstance(self.record, dict) else []) or [self.record]

    def _unzip(self) -> list[Any]:
        names, record = self.schema.names, self.record
        try:
            rows = unzip(tuple([look_up(record, name) for name in names]), len(self.schema.texts))
        except KeyError:  # reported when the columns are read
            return []
        return [dict(zip(names, row, strict=True)) for row in rows]


def unzip(values: tuple[Any, ...], num_texts: int) -> list[tuple[Any, ...]]:
    """Return a row per question of an object that has several, as in RACE: lists in parallel, and texts of all.

    No rows if none of the texts is a list, or the lists differ in length.

    >>> unzip(("A story.", ["Who?", "When?"], [["a", "b"], ["c", "d"]], ["A", "B"]), 2)
    [('A story.', 'Who?', ['a', 'b'], 'A'), ('A story.', 'When?', ['c', 'd'], 'B')]
    """
    lengths = {len(value) for value in values if isinstance(value, list)}
    if len(lengths) != 1 or not any(isinstance(value, list) for value in values[:num_texts]):
        return []
    count = lengths.pop()
    return [tuple([value[n] if isinstance(value, list) else value for value in values]) for n in range(count)]


def look_up(record: dict[str, Any], name: str, is_optional: bool = False) -> Any:
    """Look up a name, or a path of names such as `labels.label`, in nested objects.

    Raises KeyError(name) if it is missing, unless it `is_optional`: then returns None.
    """
    if name in record:
        return record[name]
    value: Any = record
    for key in name.split("."):
        if not isinstance(value, dict) or key not in value:
            if is_optional:
                return None
            raise KeyError(name)
        value = value[key]
    return value


# Values with their types, or an error that names the place


def as_object(value: Any, location: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{location}: expected a JSON object, got {quote(value)}")
    return value


def member(value: Any, key: str, kind: type | tuple[type, ...], location: str) -> Any:
    """Return a member of an object. Raises ValueError if it is missing or of another type; a bool is no number."""
    members = as_object(value, location)
    if key not in members:
        raise ValueError(f'{location}: "{key}" is missing; found are {", ".join(members) or "none"}')
    found = members[key]
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise ValueError(f'{location}: "{key}": expected {_EXPECTED[kind]}, got {quote(found)}')
    return found


_EXPECTED = {
    str: "a text",
    bool: "true or false",
    list: "a list",
    (list, dict): "a list",
    (list, dict, str): "a list",
    (str, int): "a text or a whole number",
    (int, type(None)): "a whole number",
}


def text_member(value: Any, key: str, location: str) -> str:
    text: str = member(value, key, str, location)
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair, which UTF-8 cannot encode
        half = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(f'{location}: {half} in "{key}" is half a surrogate pair; fix the file') from None
    return text


def quote(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else f"{text[:40]}…"
