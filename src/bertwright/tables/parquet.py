"""Rows of Parquet files, with the label names that the Hugging Face hub stores in their metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertwright.base.files import open_binary
from bertwright.tables.schema import Row, TableSchema, missing_column_error
from bertwright.text.decoding import ReadStats, TextCodec
from bertwright.text.signatures import HEAD_BYTES, recognize
from bertwright.text.sources import InputFile

CHUNK_ROWS = 1024  # rows in memory at a time
HUB_METADATA = "huggingface"  # key under which `datasets` stores the features of a Parquet file's columns
NO_LABEL = -1  # written by `datasets` for a missing label, as in GLUE's test files

LabelNames = dict[int | None, str | None]  # number to name; None stays None


def read_parquet_rows(
    file: InputFile, schema: TableSchema, codec: TextCodec, stats: ReadStats, lines: Iterator[tuple[int, str]]
) -> Iterator[Row]:
    """Yield the rows of a Parquet file, numbered from 1.

    A column may be a path such as `labels.label` into a struct column. Raises ValueError for missing columns, for
    columns in `schema.texts` that are not strings, and for labels without a name in a column that has names. The file
    has no `lines`, and its texts no `codec`.
    """
    with file.local_path() as path:
        yield from _read_rows(file, path, schema, stats)


def _read_rows(file: InputFile, path: Path, schema: TableSchema, stats: ReadStats) -> Iterator[Row]:
    """Yield the rows of a Parquet file, which is at a path on this machine."""
    import polars  # takes 0.2 s and starts threads; workers that read text files avoid both

    names = list(schema.names)
    try:
        table = polars.scan_parquet(path, glob=False)
        types = table.collect_schema()
        table = table.with_columns(
            [
                field.alias(name)
                for name in dict.fromkeys(names)
                if name not in types and (field := _struct_field(types, name)) is not None
            ]
        )
        types = table.collect_schema()
        for name in names:
            if name not in types:
                raise missing_column_error(file.path, name, types.names(), schema)
            strings = (polars.String, polars.Categorical, polars.Enum, polars.Null)
            if name in schema.texts and types[name] not in strings:
                raise ValueError(f"{file.path}: expected strings in {name!r}, got {types[name]}")
        metadata = polars.read_parquet_metadata(path).get(HUB_METADATA, "{}")
        integers = [name for name in names if _holds_integers(types[name])]
        label_names = {} if schema.keep_label_ids else _label_names(metadata, integers)
        first = 1
        for chunk in table.select(list(dict.fromkeys(names))).collect_batches(chunk_size=CHUNK_ROWS):
            columns = {name: chunk[name].to_list() for name in names}
            for name, known in label_names.items():
                columns[name] = _replace_labels(columns[name], known, name, file.path, first)
            for number, values in enumerate(zip(*(columns[name] for name in names), strict=True), first):
                stats.bytes_read += sum(len(value.encode()) for value in values if isinstance(value, str))
                yield number, values
            first += len(chunk)
        # polars reads in threads, and a chunk that one of them cannot decode may be left out without an error.
        if (count := polars.scan_parquet(path, glob=False).select(polars.len()).collect().item()) >= first:
            raise ValueError(f"{file.path}: damaged, {first - 1:,} of its {count:,} rows are readable; copy it again")
        file.check_unchanged()
    except (polars.exceptions.PolarsError, polars.exceptions.PanicException) as error:
        with open_binary(path) as plain:
            head = plain.read(HEAD_BYTES)
        reason = str(error).splitlines()[0] if head.startswith(b"PAR1") else recognize(head) or "no Parquet data"
        raise ValueError(f"{file.path}: not a readable Parquet file ({reason})") from None


def _struct_field(types: Mapping[str, Any], name: str) -> Any:
    """Return the polars expression of a field of a struct column, such as `labels.label`; None if there is none."""
    import polars

    column, *keys = name.split(".")
    kind, expression = types.get(column), polars.col(column)
    for key in keys:
        kind = {field.name: field.dtype for field in getattr(kind, "fields", ())}.get(key)
        expression = expression.struct.field(key)
    return None if kind is None else expression


def _holds_integers(kind: Any) -> bool:
    """Return whether a column of this polars type holds integers, or lists of them."""
    element = getattr(kind, "inner", None)
    return _holds_integers(element) if element is not None else bool(kind.is_integer())


def _label_names(metadata: str, columns: list[str]) -> dict[str, LabelNames]:
    """Read the names of a column's numbers from what `datasets` stores about a ClassLabel.

    >>> _label_names('{"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}', ["label"])
    {'label': {None: None, 0: 'no', 1: 'yes'}}
    """
    try:
        features = json.loads(metadata)["info"]["features"]
        label_names = {column: _names_of(features[column]) for column in columns if column in features}
    except (ValueError, TypeError, KeyError):  # no metadata, or metadata of another program
        return {}
    return {
        column: {None: None} | {number: str(name) for number, name in enumerate(names)}
        for column, names in label_names.items()
        if names
    }


def _names_of(feature: Any) -> list[Any] | None:
    """Return the names of a ClassLabel, or of the elements of a Sequence (a List since datasets 4, or a JSON list)."""
    if isinstance(feature, list):
        return _names_of(feature[0]) if len(feature) == 1 else None
    if not isinstance(feature, dict):
        return None
    names = feature.get("names") if feature.get("_type") == "ClassLabel" else _names_of(feature.get("feature"))
    return names if isinstance(names, list) else None


def _replace_labels(values: list[Any], names: LabelNames, column: str, path: str, first: int) -> list[Any]:
    """Replace numbers by their names in a column; its first value is in row `first`."""
    try:
        return _map_nested(values, names)
    except KeyError as error:
        number = error.args[0]
    location = f"{path}, row {next(row for row, value in enumerate(values, first) if _contains(value, number))}"
    if number == NO_LABEL:
        raise ValueError(f"{location}: no label (-1) in {column!r}; use files that have labels, or delete the row")
    last = max(known for known in names if known is not None)
    raise ValueError(f"{location}: {number} in {column!r}, but the file has names for 0 to {last} only; fix the file")


def _map_nested(values: list[Any], names: LabelNames) -> list[Any]:
    return [_map_nested(value, names) if isinstance(value, list) else names[value] for value in values]


def _contains(value: Any, number: int) -> bool:
    return any(_contains(element, number) for element in value) if isinstance(value, list) else bool(value == number)
