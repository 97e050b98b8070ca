"""Rows of .csv, .tsv, .jsonl, .json (arrays) and .parquet files, column by column, in constant memory."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from bertwright.io.decoding import FIX_CORPUS, ReadStats, TextCodec, decode_blocks
from bertwright.io.sources import FORMATS, InputFile, open_inputs
from bertwright.settings import did_you_mean

LIMIT = 1 << 28  # characters in one line or field; beyond it the file is hardly what it is taken for
TABLE_FORMATS = (*FORMATS, ".json")  # .json: an array of objects
TABLE_ROWS = 1024  # rows of a Parquet file held at a time
SHOWN = 40  # characters of a column's name in a message; a file without a header has whole texts for names

QUOTES_HINT = "; are fields in quotes? Set quotes to true"  # where nothing has been said of them

HUB_METADATA = "huggingface"  # where `datasets` keeps what a Parquet file's columns hold, beside their types
NO_LABEL = -1  # in a column of labels with names: how `datasets` writes that there is none, as in GLUE's test files

SURROGATE = re.compile("[\ud800-\udfff]")

Row = tuple[int, tuple[Any, ...]]  # the line (of a Parquet file the row, from 1) where it starts; values as asked for


@dataclass(frozen=True)
class TableSchema:
    """Which columns of a table are read, and how it is written."""

    texts: tuple[str, ...]
    """Columns that hold strings, or nothing."""
    values: tuple[str, ...] = ()
    """Columns that may also hold numbers, truth values and lists, in files that have them (.jsonl, .parquet)."""
    header: bool = True
    """Does a first line name the columns (.csv, .tsv, .txt)? If not, they are called "1", "2" and so on. Fields stand
    between commas in .csv (between semicolons or tabs where only so the first line has the columns asked for), between
    tabs in .tsv and .txt."""
    quotes: bool | None = None
    """May fields stand in quotes, with tabs, commas and line ends inside? None: in .csv yes; in .tsv and .txt no, there
    a quote is a plain character, as IANA has it and as GLUE and NSMC are written."""
    hint: str = ""
    """What a message about a column that is not there advises, beside the name nearest to it."""
    codes: bool = False
    """Do whole numbers stay what they are where a Parquet file has names for them, as the hub's files have for labels?
    If not, the names take their place."""
    nulls: bool = False
    """May there be no value (null)? If not, that is refused, for in data every row counts."""
    encoding: str = "utf-8"
    """Encoding of the file, unless it is .parquet."""
    max_short_rows: int = 0
    """How many rows with too few columns may be left out, since a published file is known to have them."""

    @property
    def names(self) -> tuple[str, ...]:
        """All columns asked for, in the order in which their values come."""
        return self.texts + self.values


class ByteRange(NamedTuple):
    """The part of a file to read: bytes start … end (None: to its end), of which the first stands on line `line`."""

    start: int = 0
    end: int | None = None
    line: int = 1


def read_rows(path: str, columns: TableSchema, stats: ReadStats | None = None) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """All rows that a path names (a file, a folder, a glob, hf://…), each with its place: "file, line 3".

    For data in which every row counts: a null, bytes that are not UTF-8, and no row at all raise ValueError. Rows that
    `make_table` allow to be left out are counted in `stats`.
    """
    stats = stats or ReadStats()
    number = 0
    for file in open_inputs([path], formats=TABLE_FORMATS):
        unit = "row" if file.format == ".parquet" else "line"
        for number, values in iter_rows(file, columns, TextCodec(columns.encoding), stats):
            place = f"{file.path}, {unit} {number}"
            if None in values and not columns.nulls:
                raise ValueError(f"{place}: no value (null) in {columns.names[values.index(None)]!r}; fill it in")
            yield place, values
    if not number:
        raise ValueError(f"{path}: no rows; is it the right file?")


def skipped_rows_note(path: str, columns: TableSchema) -> list[str]:
    """A sentence on the rows that `read_rows` leaves out, for which it reads all of them; none where it does not."""
    stats = ReadStats()
    if columns.max_short_rows:
        for _ in read_rows(path, columns, stats):
            pass
    if not stats.short_rows:
        return []
    lack = "row lacks" if stats.short_rows == 1 else "rows lack"
    known = "as is known of the published file: left out; the first is"
    return [f"{stats.short_rows:,} {lack} columns, {known} {stats.first_short}"]


def label_text(value: Any, column: str, place: str) -> str:
    """A label as text, however the file holds it: 1 is "1", 0.5 is "0.5", true is "true".

    Whole numbers are whole, for a gap in a column makes 1.0 of them in pandas.

    >>> label_text(1, "label", "line 1"), label_text(1.0, "label", "line 1"), label_text(True, "label", "line 2")
    ('1', '1', 'true')
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = value if isinstance(value, str) else json.dumps(value) if isinstance(value, bool | int | float) else None
    if text is None:
        raise ValueError(f"{place}: a string or a number expected in {column!r}, {_type_name(value, column)} found")
    if not text or text.isspace() or value != value:  # NaN, which no value equals: how pandas writes a missing one
        raise ValueError(f"{place}: no value in {column!r}; fill it in, or take the row out")
    return text


def iter_rows(
    file: InputFile,
    columns: TableSchema,
    codec: TextCodec,
    stats: ReadStats,
    span: ByteRange | None = None,
) -> Iterator[Row]:
    """The rows of one file, or of a span of it that starts and ends between rows; a null is None.

    Blank lines are no rows, but in a table of one column, where they are empty values.
    Raises ValueError for a column that is not there or is there twice, for a row with a column too many or too few,
    and for a value that is no string in `columns.texts`.
    """
    if file.format == ".parquet":
        return _parquet(file, columns, stats)
    start, end, line = span or ByteRange()
    numbered = lines(file.path, decode_blocks(file, codec, stats, start, end), line)
    if file.format in (".json", ".jsonl"):
        return _json_rows(file, columns, codec, stats, numbered)
    return _delimited(file, columns, stats, numbered)


# --- text in blocks → lines


def split_at(blocks: Iterable[str], last_end: Callable[[str], int], limit: int, too_long: str) -> Iterator[str]:
    """Cut a stream of blocks where `last_end` says; a unit longer than a block is collected piece by piece.

    Raises ValueError, saying `too_long`, for a unit of more than `limit` characters.
    """
    held: list[str] = []
    size = 0
    for block in blocks:
        end = last_end(block)
        if end:
            yield "".join([*held, block[:end]])
            held, size = [], 0
        held.append(block[end:])
        size += len(block) - end
        if size > limit:
            raise ValueError(too_long)
    if size:
        yield "".join(held)


def lines(path: str, blocks: Iterable[str], number: int = 1) -> Iterator[tuple[int, str]]:
    """Lines without their \\n, numbered from `number`."""
    too_long = f"{path}: a line of more than {LIMIT:,} characters; is this the right format? Break it into lines"
    for run in split_at(blocks, lambda block: block.rfind("\n") + 1, LIMIT, f"{too_long} first"):
        found = run.split("\n")  # not splitlines, which also breaks at \x0b, \x1c, U+2028 and more
        if not found[-1]:
            found.pop()
        yield from enumerate(found, number)
        number += len(found)


# --- lines → rows


def _json_rows(
    file: InputFile,
    columns: TableSchema,
    codec: TextCodec,
    stats: ReadStats,
    numbered: Iterable[tuple[int, str]],
) -> Iterator[Row]:
    """Yield the rows of JSON lines, or of one JSON array of objects (.json)."""
    names = columns.names
    keys = {key for name in names for key in (name, *name.split("."))}

    def record(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            given = [name for name, _ in pairs]
            for name in given:
                if name in keys and given.count(name) > 1:
                    raise ValueError(f"{name!r} comes twice")
        return found

    decoder = json.JSONDecoder(object_pairs_hook=record)
    values_of = _array_values if file.format == ".json" else _line_values
    for number, found, text in values_of(file.path, decoder, numbered):
        place = f"{file.path}, line {number}"
        if not isinstance(found, dict):
            raise ValueError(f"{place}: expected a JSON object, got {type(found).__name__}")
        try:
            values = tuple([_member(found, name) for name in names])
        except KeyError as error:
            raise _no_column(place, error.args[0], _member_names(found), columns) from None
        for name, value in zip(columns.texts, values, strict=False):
            if not isinstance(value, str) and value is not None:
                raise ValueError(f"{place}: a string expected in {name!r}, {_type_name(value, name)} found")
        # A JSON string can spell half a surrogate pair, which no encoding of Unicode can hold.
        yield number, _whole_pairs(values, place, codec, stats) if "\\u" in text else values


def _line_values(
    path: str, decoder: json.JSONDecoder, numbered: Iterable[tuple[int, str]]
) -> Iterator[tuple[int, Any, str]]:
    """Yield number, value and text of each line that is not blank."""
    for number, line in numbered:
        if line and not line.isspace():
            try:
                yield number, decoder.decode(line), line
            except (ValueError, RecursionError) as error:  # ValueError: also a number of more digits than Python reads
                raise ValueError(f"{path}, line {number}: not valid JSON ({error})") from None


def _array_values(
    path: str, decoder: json.JSONDecoder, numbered: Iterable[tuple[int, str]]
) -> Iterator[tuple[int, Any, str]]:
    """Yield line number, value and text of each element of one JSON array, which is read as a whole."""
    text = "\n".join([line for _, line in numbered])
    skip = re.compile(r"[ \t\r\n]*").match
    number, counted = 1, 0

    def after_blanks(position: int) -> int:
        nonlocal number, counted
        blanks = skip(text, position)
        position = blanks.end() if blanks else position
        number, counted = number + text.count("\n", counted, position), position
        return position

    position = after_blanks(0)
    if text[position : position + 1] != "[":
        raise ValueError(
            f"{path}, line {number}: an array of objects expected ([{{…}}, …]); or one object per line, .jsonl"
        )
    position = after_blanks(position + 1)
    closed = text[position : position + 1] == "]"
    while not closed:
        try:
            found, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: not valid JSON ({error})") from None
        yield number, found, text[position:end]
        position = after_blanks(end)
        mark = text[position : position + 1]
        if mark not in ("]", ","):
            raise ValueError(f"{path}, line {number}: expected ',' or ']' after an object, got {mark or 'the end'!r}")
        closed = mark == "]"
        position = position if closed else after_blanks(position + 1)
    if text[after_blanks(position + 1) :]:
        raise ValueError(f"{path}, line {number}: text after the array; a file holds one array")


def _member(record: dict[str, Any], name: str) -> Any:
    """Look up a name, or a path of names such as `labels.label`, in nested objects. Raises KeyError(name)."""
    if name in record:
        return record[name]
    inside: Any = record
    for key in name.split("."):
        if not isinstance(inside, dict) or key not in inside:
            raise KeyError(name)
        inside = inside[key]
    return inside


def _member_names(record: dict[str, Any]) -> list[str]:
    """List the names that `_member` takes for the values of an object: `labels.label` for nested ones.

    >>> _member_names({"guid": "1", "labels": {"label": 3.7, "binary": 1}})
    ['guid', 'labels.label', 'labels.binary']
    """
    found = []
    for name, value in record.items():
        inside = _member_names(value) if isinstance(value, dict) else []
        found += [f"{name}.{other}" for other in inside] or [name]
    return found


def _type_name(value: Any, column: str) -> str:
    """Name a value's type for a message; of an object also its columns."""
    names = _member_names(value) if isinstance(value, dict) else []
    return (
        f"an object (its columns are {', '.join(f'{column}.{name}' for name in names)})"
        if names
        else type(value).__name__
    )


def _whole_pairs(values: Any, place: str, codec: TextCodec, stats: ReadStats) -> Any:
    """The same values with every half of a surrogate pair replaced, if that was asked for."""
    if isinstance(values, tuple | list):
        return type(values)(_whole_pairs(value, place, codec, stats) for value in values)
    if isinstance(values, dict):
        pairs = _whole_pairs([*values.items()], place, codec, stats)
        return dict(pairs)
    if not isinstance(values, str) or not (half := SURROGATE.search(values)):
        return values
    where = f"{place}: \\u{ord(half[0]):04x} is half a surrogate pair"
    if codec.errors != "replace":
        other = ", or read it as U+FFFD with --encoding-errors replace" if codec.hint == FIX_CORPUS else ""
        raise ValueError(f"{where}; fix the file{other}")
    whole, count = SURROGATE.subn("\ufffd", values)
    stats.invalid_sequences += count
    stats.first_bad = stats.first_bad or where
    return whole


def _delimited(
    file: InputFile, columns: TableSchema, stats: ReadStats, numbered: Iterable[tuple[int, str]]
) -> Iterator[Row]:
    quotes = file.format == ".csv" if columns.quotes is None else columns.quotes
    csv.field_size_limit(LIMIT)  # the module's own limit of 131,072 characters is less than a long article
    texts: Iterator[str] = (f"{line}\n" for _, line in numbered)
    separator = "," if file.format == ".csv" else "\t"
    if file.format == ".csv" and columns.header:
        head = next(texts, "")
        separator, texts = _separator(head, columns, quotes), chain([head], texts)
    table = csv.reader(texts, **_dialect(separator, quotes))

    def records() -> Iterator[tuple[int, list[str]]]:
        line = 1
        for fields in table:
            yield line, fields
            line = table.line_num + 1  # fields in quotes may hold line ends

    found = records()
    try:
        first = next(found, (1, []))
        if columns.header:
            header = first[1]
        else:
            header = [str(number) for number in range(1, len(first[1]) + 1)]
            found = chain([first], found)
        chosen = _places(header, first[1], columns, quotes, f"{file.path}, line 1")
        for line, fields in found:
            if len(fields) == len(header):
                yield line, tuple([fields[place] for place in chosen])
            elif len(header) == 1 and not fields:
                yield line, ("",) * len(chosen)
            elif fields:
                place = f"{file.path}, line {line}"
                if len(fields) > len(header) or stats.short_rows == columns.max_short_rows:
                    raise _wrong_width(place, header, fields, columns, quotes)
                stats.short_rows += 1
                stats.first_short = stats.first_short or place
    except csv.Error as error:
        hint = "a carriage return alone? End lines with \\n" if "new-line" in str(error) else "is a quote left open?"
        raise ValueError(f"{file.path}, line {table.line_num}: {error}; {hint}") from None


def _dialect(separator: str, quotes: bool) -> dict[str, Any]:
    return {"delimiter": separator, "quoting": csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE, "strict": True}


def _separator(head: str, columns: TableSchema, quotes: bool) -> str:
    """What stands between the fields of a .csv file: a comma, unless its first line can only be meant otherwise.

    Where a comma is the decimal mark, as in most of Europe, Excel writes semicolons; some programs write tabs. One of
    these it is if it alone makes all columns that are asked for, or if no separator does and it alone makes several:
    then a column is missing all the same, and the message shows the others by their names.
    """
    headers = {separator: _fields(head, separator, quotes) for separator in ",;\t"}
    whole = [separator for separator, header in headers.items() if set(columns.names) <= set(header)]
    if not whole and len(headers[","]) < 2:
        whole = [separator for separator, header in headers.items() if len(header) > 1]
    return whole[0] if len(whole) == 1 else ","


def _fields(head: str, separator: str, quotes: bool) -> list[str]:
    try:
        return next(csv.reader([head], **_dialect(separator, quotes)), [])
    except csv.Error:  # a quote is left open, or closed before what would be no separator
        return []


def _wrong_width(place: str, header: list[str], fields: list[str], columns: TableSchema, quotes: bool) -> ValueError:
    expected = f"{len(header)} columns expected ({', '.join(header) if columns.header else 'as in line 1'})"
    advice = QUOTES_HINT if columns.quotes is None and not quotes and '"' in "".join(fields) else ""
    if columns.max_short_rows and len(fields) < len(header):
        advice = f"; {columns.max_short_rows} such rows were left out, and no more are known of the published file"
    return ValueError(f"{place}: {expected}, {len(fields)} found{advice}")


def _places(header: list[str], first: list[str], columns: TableSchema, quotes: bool, place: str) -> list[int]:
    """Where in a row each column stands that is asked for; `first`: the first row, be it the header or not."""
    for name in columns.names:
        if name not in header:
            hint = ""
            unparted = len(first) == 1 and len(re.split("[,;\t]", first[0])) > 1
            if columns.header and name.isdigit():
                hint = "; columns by number need header = false"
            elif unparted and (columns.header or name.isdigit()):
                hint = "; fields stand between commas in .csv, between tabs in .tsv and .txt"
            elif not columns.header:
                hint = "; without a header columns are numbers"
            elif columns.quotes is None and not quotes and f'"{name}"' in header:
                hint = QUOTES_HINT
            raise _no_column(place, name, header, columns, hint)
        if header.count(name) > 1:
            raise ValueError(f"{place}: {name!r} names several columns; rename all but one")
    return [header.index(name) for name in columns.names]


def _no_column(place: str, name: str, found: list[str], columns: TableSchema, advice: str = "") -> ValueError:
    shown = [other if len(other) <= SHOWN else f"{other[:SHOWN]}…" for other in found]
    nearest = did_you_mean(name, shown)
    if not nearest.startswith("did you mean"):  # none is near: all of them, as they stand in the file
        nearest = f"found are {', '.join(shown) or 'none'}"
    hint = f" ({columns.hint})" if columns.hint else ""
    return ValueError(f"{place}: no column {name!r}; {nearest}{advice}{hint}")


# --- Parquet


def _parquet(file: InputFile, columns: TableSchema, stats: ReadStats) -> Iterator[Row]:
    import polars  # costs 0.2 s and threads, which workers on text files need not pay

    names = list(columns.names)
    try:
        table = polars.scan_parquet(file.local(), glob=False)
        found = table.collect_schema()
        table = table.with_columns(
            [
                _struct_field(name).alias(name)
                for name in dict.fromkeys(names)
                if name not in found and _in_struct(found, name)
            ]
        )
        found = table.collect_schema()
        for name in names:
            if name not in found:
                raise _no_column(file.path, name, found.names(), columns)
            strings = (polars.String, polars.Categorical, polars.Enum, polars.Null)
            if name in columns.texts and found[name] not in strings:
                raise ValueError(f"{file.path}: strings expected in {name!r}, {found[name]} found")
        kept = polars.read_parquet_metadata(file.local()).get(HUB_METADATA, "{}")
        classes = {} if columns.codes else _class_names(kept, [name for name in names if _whole_numbers(found[name])])
        first = 1
        for batch in table.select(list(dict.fromkeys(names))).collect_batches(chunk_size=TABLE_ROWS):
            of = {name: batch[name].to_list() for name in names}
            of |= {name: _named(of[name], known, name, file.path, first) for name, known in classes.items()}
            for number, values in enumerate(zip(*(of[name] for name in names), strict=True), first):
                stats.bytes_read += sum(len(value.encode()) for value in values if isinstance(value, str))
                yield number, values
            first += len(batch)
    except polars.exceptions.PolarsError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{file.path}: not a readable Parquet file ({reason})") from None


def _in_struct(schema: Mapping[str, Any], name: str) -> bool:
    """Report whether a name such as `labels.label` names a field of a struct column."""
    column, *keys = name.split(".")
    kind = schema.get(column)
    for key in keys:
        kind = {field.name: field.dtype for field in getattr(kind, "fields", ())}.get(key)
    return kind is not None


def _struct_field(name: str) -> Any:
    import polars

    column, *keys = name.split(".")
    expression = polars.col(column)
    for key in keys:
        expression = expression.struct.field(key)
    return expression


def _whole_numbers(kind: Any) -> bool:
    """Does a column of this polars type hold whole numbers, or lists of them?"""
    inner = getattr(kind, "inner", None)
    return _whole_numbers(inner) if inner is not None else bool(kind.is_integer())


Names = dict[int | None, str | None]  # what a number stands for; None for None


def _class_names(kept: str, columns: list[str]) -> dict[str, Names]:
    """Names of the numbers in these columns, where `datasets` left a ClassLabel in a Parquet file's own metadata.

    >>> _class_names('{"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}', ["label"])
    {'label': {None: None, 0: 'no', 1: 'yes'}}
    """
    try:
        features = json.loads(kept)["info"]["features"]
        found = {column: _names_of(features[column]) for column in columns if column in features}
    except (ValueError, TypeError, KeyError):  # there are none, or of another program's making
        return {}
    return {
        column: {None: None} | {number: str(name) for number, name in enumerate(names)}
        for column, names in found.items()
        if names
    }


def _names_of(feature: Any) -> list[Any] | None:
    """The names of a ClassLabel or, in a Sequence (a List since datasets 4, or JSON's own list), of what it holds."""
    if isinstance(feature, list):
        return _names_of(feature[0]) if len(feature) == 1 else None
    if not isinstance(feature, dict):
        return None
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else _names_of(feature.get("feature"))
    return names if isinstance(names, list) else None


def _named(values: list[Any], names: Names, column: str, path: str, first: int) -> list[Any]:
    """A column with names in place of numbers; its first value is that of row `first`."""
    try:
        return _looked_up(values, names)
    except KeyError as error:
        number = error.args[0]
    place = f"{path}, row {next(row for row, value in enumerate(values, first) if _holds(value, number))}"
    if number == NO_LABEL:
        raise ValueError(f"{place}: no label (-1) in {column!r}; take files that have labels, or take the row out")
    last = max(known for known in names if known is not None)
    raise ValueError(f"{place}: {number} in {column!r}, but the file has names for 0 to {last} only; mend the file")


def _looked_up(values: list[Any], names: Names) -> list[Any]:
    return [_looked_up(value, names) if isinstance(value, list) else names[value] for value in values]


def _holds(value: Any, number: int) -> bool:
    return any(_holds(one, number) for one in value) if isinstance(value, list) else bool(value == number)
