"""Files that hold several splits: members of a .json file, or a column, as MASSIVE's partition, SICK's SemEval_set."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path, PurePath
from typing import NamedTuple

from bertwright.base.files import read_bytes
from bertwright.tables.row_formats import file_names, read_file_rows
from bertwright.tables.schema import Row, TableSchema
from bertwright.text.decoding import ReadStats, TextCodec
from bertwright.text.sources import InputFile, expand_files, find_file, is_remote, split_member

SPLIT_NAMES = {  # of members of a .json file, and of values of a column
    "train": ("train", "training"),
    "dev": ("dev", "devel", "development", "val", "valid", "validation", "trial"),
    "test": ("test", "testing"),
}
SPLIT_COLUMN = re.compile(r"(\w+_)?(split|partition|set|fold|subset)", re.IGNORECASE)
FORMATS = (".jsonl", ".csv", ".tsv", ".txt")


def split_of(name: str) -> str:
    """Return the usual name of a split, or the name itself in lower case.

    >>> split_of("TRIAL"), split_of("fold1")
    ('dev', 'fold1')
    """
    return next((split for split, names in SPLIT_NAMES.items() if name.lower() in names), name.lower())


def is_part(file: InputFile) -> bool:
    """Return whether the path of a table names one of its splits, as in data.jsonl#dev."""
    return file.format in FORMATS and file.compression != ".zip" and split_member(file.path)[1] != ""


def read_part(file: InputFile, schema: TableSchema, codec: TextCodec, stats: ReadStats) -> Iterator[Row]:
    """Yield the rows of a table that belong to the split after # in its path. Raises ValueError if there are none."""
    base, asked = split_member(file.path)
    whole = replace(file, path=base)
    if (column := _split_column(whole, schema)) is None:
        raise ValueError(
            f"{file.path}: no column tells the splits apart, such as split or partition; name the file alone"
        )
    found, seen = False, dict[str, None]()
    for number, (*values, name) in read_file_rows(
        whole, replace(schema, values=(*schema.values, column)), codec, stats
    ):
        seen[str(name)] = None
        if split_of(str(name)) == split_of(asked):
            found = True
            yield number, tuple(values)
    if not found:
        raise ValueError(f"{file.path}: no row of this split; {column!r} has {', '.join(list(seen)[:9])}")


class Splits(NamedTuple):
    """The splits that one file holds."""

    names: dict[str, str]
    """Their names in the file by their usual name."""
    are_members: bool = False
    """Whether they are members of a .json file, which must be chosen one by one; else a column tells the rows apart."""


def splits_in(path: str, form: str | None, encoding: str, has_columns: bool) -> Splits:
    """Return the splits in a file of this machine; none in a folder or a glob.

    `form`: the file's format; `has_columns`: whether a column may name the split of a row.
    """
    if not Path(path).is_file():
        return Splits({})
    return _splits_in(path, Path(path).stat().st_mtime_ns, form, encoding, has_columns)


@lru_cache(maxsize=32)  # settings are asked for the files of a split several times
def _splits_in(path: str, modified_ns: int, form: str | None, encoding: str, has_columns: bool) -> Splits:
    if path.endswith(".json"):
        return Splits(_members(read_bytes(Path(path))), are_members=True)
    return Splits(_values_of_column(path, form, encoding) if has_columns else {})


def _members(content: bytes) -> dict[str, str]:
    """Return the names of splits in a JSON object: its members or, in NewsQA, the types of its stories."""
    every = [name for names in SPLIT_NAMES.values() for name in names]
    if not any(f'"{name}"'.encode() in content for name in every):  # parsing a large file takes seconds
        return {}
    try:
        root = json.loads(content)
    except ValueError:  # reported when the file is read
        return {}
    if not isinstance(root, dict):
        return {}
    texts = root["data"] if isinstance(root.get("data"), list) else []
    types = {text.get("type") for text in texts if isinstance(text, dict) and "questions" in text}
    present = {name for name in every if isinstance(root.get(name), list | dict) or name in types}
    found = {split: [name for name in names if name in present] for split, names in SPLIT_NAMES.items()}
    return {split: names[0] for split, names in found.items() if names}


def _values_of_column(path: str, form: str | None, encoding: str) -> dict[str, str]:
    """Return the names of splits in a table by their usual name, if a column has several; else none."""
    file = find_file(path, suffix=form)
    if file.format not in FORMATS or file.compression == ".zip":
        return {}
    schema = TableSchema((), (), encoding=encoding, suffix=form)
    try:
        if (column := _split_column(file, schema)) is None:
            return {}
        rows = read_file_rows(file, replace(schema, values=(column,)), TextCodec(encoding), ReadStats())
        names = {split_of(str(name)): str(name) for _, (name,) in rows}
    except (ValueError, OSError):  # reported when the file is read as a whole
        return {}
    return names if len(names) > 1 and names.keys() <= SPLIT_NAMES.keys() else {}


def splits_of_names(path: str) -> dict[str, str]:
    """Return a folder or glob with the files of each split, if most files of a folder or glob are named after several.

    >>> splits_of_names("data.csv")
    {}
    """
    if is_remote(path) or not (Path(path).is_dir() or glob.has_magic(path)):
        return {}
    files, found, count = [*expand_files(path)], dict[str, str](), 0
    above = set(PurePath(path).parts)
    for file in map(PurePath, files):
        parts = [number for number, part in enumerate(file.parts) if part not in above and _split_in(part)]
        if parts:
            count += 1
            part = file.parts[parts[0]]
            name = part if len(file.parts) > parts[0] + 1 else f"*{_split_in(part)}*"
            found.setdefault(split_of(_split_in(part)), str(PurePath(*file.parts[: parts[0]], name)))
    return found if len(found) > 1 and count >= len(files) / 2 else {}


def _split_in(name: str) -> str:
    """Return the first word of a file name that is the name of a split, as it is written; empty if there is none."""
    return next((word for word in re.split(r"[\W\d_]+", name) if split_of(word) in SPLIT_NAMES), "")


def _split_column(file: InputFile, schema: TableSchema) -> str | None:
    return next(filter(SPLIT_COLUMN.fullmatch, file_names(file, schema)), None)
