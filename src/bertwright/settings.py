"""Settings: frozen dataclasses ⇄ TOML ⇄ command line. One record describes a stage, wherever its values come from.

A TOML table per nested record, a key per field; on the command line every field is a flag without its table's name.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import tomli_w

from bertwright.files import write_text

S = TypeVar("S")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that leads from a wrong name to a right one.

    >>> did_you_mean("lerning_rate", ["learning_rate", "steps"])
    'did you mean "learning_rate"?'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f'did you mean "{close[0]}"?' if close else f"known: {', '.join(names)}"


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file; raises ValueError with the file's name and the parser's line and column."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 at byte {error.start}") from None


def from_table(cls: type[S], table: dict[str, Any], where: str) -> S:
    """Build a settings record from a parsed TOML table.

    Unknown keys, missing required ones and values of a wrong type raise ValueError that names `where`, the key and
    the way out.
    """
    kinds = _kinds(cls, table, where)
    missing = [
        field.name
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.name not in table
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{where}: missing: {', '.join(missing)}")
    given = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name in table:
            value, kind, place = table[field.name], kinds[field.name], f"{where}: {field.name}"
            if dataclasses.is_dataclass(kind):
                value = _completed(_checked_table(value, place), field)
            given[field.name] = convert(value, kind, place)
    return cls(**given)


def partial_from_table(cls: type[S], table: dict[str, Any], where: str, missing: Any) -> S:
    """The same with `missing` for each required value that the table lacks, and without the record's own checks.

    The command line starts from this: what the user types completes it, and is checked together with it.
    """
    kinds = _kinds(cls, table, where)
    record = object.__new__(cls)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        kind, place = kinds[field.name], f"{where}: {field.name}"
        if dataclasses.is_dataclass(kind):
            inner = _completed(_checked_table(table.get(field.name, {}), place), field)
            value = partial_from_table(typing.cast(type[Any], kind), inner, place, missing)
        elif field.name in table:
            value = convert(table[field.name], kind, place)
        else:
            value = missing if field.default is dataclasses.MISSING else field.default
        object.__setattr__(record, field.name, value)
    return record


def _completed(table: dict[str, Any], field: dataclasses.Field[Any]) -> dict[str, Any]:
    """A nested record's table over the defaults that its holder has for it, which may be other than its own."""
    if field.default_factory is dataclasses.MISSING:
        return table
    return to_table(field.default_factory()) | table


def _kinds(cls: type[Any], table: dict[str, Any], where: str) -> dict[str, Any]:
    """Every field's type by name; raises ValueError for a name in the table that is none of them."""
    kinds = get_type_hints(cls)
    names = {field.name for field in dataclasses.fields(cls)}
    for name in table:
        if name not in names:
            hint = did_you_mean(name, names)
            for tables, field, _ in iter_fields(cls):
                if field == name:
                    around = where.split(": ")[1:]  # after the file's name, the tables
                    hint = f"it belongs into the table [{'.'.join([*around, *tables])}]"
                    break
            raise ValueError(f'{where}: unknown setting "{name}"; {hint}')
    return kinds


def iter_fields(cls: type[Any], *tables: str) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Every field of a record and of the records in it: the tables that it stands in, its name, its type."""
    for name, kind in get_type_hints(cls).items():
        yield tables, name, kind
        if dataclasses.is_dataclass(kind):
            yield from iter_fields(typing.cast(type[Any], kind), *tables, name)


def check_not_str(record: Any, *names: str) -> None:
    """Raise ValueError where a text stands in a field for several of them: its letters would pass for these."""
    for name in names:
        if isinstance(value := getattr(record, name), str):
            raise ValueError(f"{name} is one text; a tuple of texts is needed: ({value!r},)")


def _checked_table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: a table is expected, {value!r} found")
    return value


def convert(value: Any, kind: Any, where: str) -> Any:
    """One value of TOML or JSON as a field's type. Raises ValueError for one of another."""
    if dataclasses.is_dataclass(kind):
        return from_table(typing.cast(type[Any], kind), _checked_table(value, where), where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:  # which JSON has
            return None
        inner = next(argument for argument in arguments if argument is not type(None))
        return convert(value, inner, where)
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(f"{where}: one of {', '.join(map(repr, arguments))} is expected, {value!r} found")
        return value
    if origin is tuple:
        return _convert_tuple(value, arguments, where)
    return _convert_plain(value, kind, where)


def _convert_tuple(value: Any, kinds: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: a list is expected, {value!r} found")
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        raise ValueError(f"{where}: {len(kinds)} values are expected, {len(value)} found")
    return tuple(convert(item, kind, f"{where}[{i}]") for i, (item, kind) in enumerate(zip(value, kinds, strict=True)))


def _convert_plain(value: Any, kind: Any, where: str) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if type(value) is not kind:
        raise ValueError(f"{where}: {kind.__name__} is expected, {value!r} found")
    return value


def to_table(settings: Any) -> dict[str, Any]:
    """The settings as a TOML table: unset (None) fields are left out, paths become text."""
    table: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            table[field.name] = to_table(value)
        elif isinstance(value, Path):
            table[field.name] = str(value)
        elif isinstance(value, tuple):
            table[field.name] = [str(item) if isinstance(item, Path) else item for item in value]
        elif value is not None:
            table[field.name] = value
    return table


def write_settings(path: Path, settings: Any, title: str) -> None:
    """Write the settings in force, every default spelled out, so that the file alone repeats the run."""
    write_text(path, f"# {title}\n" + tomli_w.dumps(to_table(settings)))


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Where two tables differ: dotted name → (old value, new value).

    >>> differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}})
    {'b.c': (2, 3)}
    """
    found: dict[str, tuple[Any, Any]] = {}
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            found.update(differences(before, after, f"{prefix}{name}."))
        elif before != after:
            found[prefix + name] = (before, after)
    return found
