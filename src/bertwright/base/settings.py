"""Conversion of settings: frozen dataclasses ⇄ TOML ⇄ command line.

Each nested dataclass is a TOML table and each field a key; on the command line every field is a flag without the name
of its table.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import math
import textwrap
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import tomli_w

from bertwright.base.files import read_utf8, write_text
from bertwright.base.object_storage import as_url

S = TypeVar("S")
T = TypeVar("T")

MAX_BATCH_SIZE = 1 << 20  # sequences of a step; the largest batches of BERT that have been published have 65,536

MAX_INT = (1 << 63) - 1  # what C++ and files of weights can count
MAX_SEED = (1 << 32) - 1  # NumPy takes a larger seed for another one
# Limits of numbers, by their words in messages; NaN is outside all of them.
LIMITS: dict[str, Callable[[float], bool]] = {
    "from 0": lambda value: 0 <= value < math.inf,
    "above 0": lambda value: 0 < value < math.inf,
    "from 0 to 1": lambda value: 0 <= value <= 1,
    "from 0 to below 1": lambda value: 0 <= value < 1,
    "above 0 and up to 1": lambda value: 0 < value <= 1,
    "above 0 and up to 10,000": lambda value: 0 < value <= 10_000,
}

Positional = Annotated[T, "positional"]  # a field that the command line gives without a flag

# Where a command has settings from: dotted name → "flag", or the --config; empty outside the command line.
ORIGINS: ContextVar[Mapping[str, str]] = ContextVar("ORIGINS", default=types.MappingProxyType({}))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint from a wrong name to the nearest known one, or to all of them.

    >>> did_you_mean("lerning_rate", ["learning_rate", "steps"])
    'did you mean "learning_rate"?'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f'did you mean "{close[0]}"?' if close else f"known: {', '.join(names)}"


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file. Raises ValueError with the file and the parser's line and column if it is not TOML."""
    text = read_utf8(path).removeprefix("\ufeff")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not valid TOML: {error}") from None
    except (ValueError, RecursionError) as error:  # a number of too many digits; brackets nested too deeply
        raise ValueError(f"{path}: not readable as TOML ({error})") from None


def from_table(cls: type[S], table: dict[str, Any], where: str) -> S:
    """Build a settings dataclass from a parsed TOML table.

    A class with a method `defaults` derives values that are missing in the table from the others. Raises ValueError
    with `where`, the key and a hint for unknown keys, missing required ones, wrong types and values. An empty `where`
    leaves out the place: it is the command line, whose flags are named like the keys.
    """
    table = merge(derived_defaults(cls, table), table)
    field_types = _field_types(cls, table, where)
    values, missing = dict[str, Any](), list[str]()
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        field_type, location = field_types[field.name], _locate(where, field.name)
        is_required = field.default is field.default_factory is dataclasses.MISSING
        if dataclasses.is_dataclass(field_type) and (field.name in table or is_required):
            nested = _check_table(table.get(field.name, {}), location)
            values[field.name] = convert(merge(enclosing_defaults(field), nested), field_type, location)
        elif field.name in table:
            values[field.name] = convert(table[field.name], field_type, location)
        elif is_required:
            missing.append(field.name)
    try:
        if missing:
            raise ValueError(f"missing: {', '.join(missing)}")
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}" if where else str(error)) from None


def check_table(cls: type[Any], table: dict[str, Any], where: str) -> None:
    """Raise ValueError with `where` for unknown keys and wrong types; required keys may be missing."""
    field_types = _field_types(cls, table, where)
    for name, value in table.items():
        location = _locate(where, name)
        if dataclasses.is_dataclass(field_types[name]):
            check_table(field_types[name], _check_table(value, location), location)
        else:
            convert(value, field_types[name], location)


def merge(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the first table with the values of the second one, table by table.

    >>> merge({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4}})
    {'a': 1, 'b': {'c': 4, 'd': 3}}
    """
    merged = old | new
    for name in old.keys() & new.keys():
        if isinstance(old[name], dict) and isinstance(new[name], dict):
            merged[name] = merge(old[name], new[name])
    return merged


def derived_defaults(cls: type[Any], table: dict[str, Any]) -> dict[str, Any]:
    """Return the values that a class derives from others in the table, such as the preset of a task; often none."""
    derived: dict[str, Any] = cls.defaults(table) if hasattr(cls, "defaults") else {}
    return derived


def enclosing_defaults(field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Return the defaults that a dataclass sets for a nested one; they may differ from the defaults of its class."""
    return {} if field.default_factory is dataclasses.MISSING else to_table(field.default_factory())


def _locate(where: str, name: str) -> str:
    return f"{where}: {name}" if where else ""


def _field_types(cls: type[Any], table: dict[str, Any], where: str) -> dict[str, Any]:
    """Return every field's type by name. Raises ValueError for a key of the table that is no field."""
    field_types = get_type_hints(cls)
    names = {field.name for field in dataclasses.fields(cls)}
    for name in table:
        if name not in names:
            hint = did_you_mean(name, names)
            for tables, field, _ in iter_fields(cls):
                if field == name:
                    enclosing = where.split(": ")[1:]  # the tables, which follow the file's name
                    hint = f"move it to the [{'.'.join([*enclosing, *tables])}] table"
                    break
            raise ValueError(f'{where}: unknown setting "{name}"; {hint}')
    return field_types


def iter_fields(cls: type[Any], *tables: str) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Yield the enclosing tables, the name and the type of every field, including the fields of nested dataclasses."""
    for name, field_type in get_type_hints(cls).items():
        yield tables, name, field_type
        if dataclasses.is_dataclass(field_type):
            yield from iter_fields(typing.cast(type[Any], field_type), *tables, name)


def field_docs(cls: type[Any]) -> dict[str, str]:
    """Return the text under each field of a dataclass and its bases, on one line.

    A class with a method `field_docs` of its own composes them itself.
    """
    if "field_docs" in vars(cls):
        composed: dict[str, str] = cls.field_docs()
        return composed
    return written_docs(cls)


def written_docs(cls: type[Any], **lists: str) -> dict[str, str]:
    """Return the texts in the source of a dataclass; `{name}` stands for one of `lists`, generated from a table."""
    docs: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        for field, below in pairwise(_class_body(base)):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = " ".join(text.split())
    for listed, text in lists.items():
        docs = {name: doc.replace(f"{{{listed}}}", text) for name, doc in docs.items()}
    return docs


@functools.cache
def _class_body(cls: type[Any]) -> list[ast.stmt]:
    """Return the statements of a class; none if its source is missing, as in a package of compiled files."""
    try:
        [parsed] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError):
        return []
    assert isinstance(parsed, ast.ClassDef)
    return parsed.body


def check_not_str(record: Any, *names: str) -> None:
    """Raise ValueError if a field for several strings holds one string; it would be iterated by character."""
    for name in names:
        if isinstance(value := getattr(record, name), str):
            raise ValueError(f"{name}: expected a tuple of strings, got one string; write ({value!r},)")


def check_minimum(record: Any, minimum: int, *names: str) -> None:
    """Raise ValueError if one of the named fields is below the minimum."""
    _check_values(record, f"at least {minimum}", lambda value: value >= minimum, names)


def check_range(record: Any, minimum: int, maximum: int, *names: str) -> None:
    """Raise ValueError if one of the named fields is not from minimum to maximum, both included."""
    _check_values(record, f"{minimum:,} to {maximum:,}", lambda value: minimum <= value <= maximum, names)


def check_limit(record: Any, limit: str, *names: str) -> None:
    """Raise ValueError if one of the named fields is outside a limit of `LIMITS`."""
    _check_values(record, f"a number {limit}", LIMITS[limit], names)


def check_choice(record: Any, *names: str) -> None:
    """Raise ValueError if one of the named fields, whose types are `Literal` or also None, has another value."""
    field_types = get_type_hints(type(record))
    for name in names:
        choices = get_args(field_types[name])
        if type(None) in choices:
            choices = get_args(choices[0])
        _check_values(record, f"one of {', '.join(choices)}", choices.__contains__, [name])


def check_distinct(record: Any, *names: str) -> None:
    """Raise ValueError if one of the named tuples is empty or has a value twice, written with ten digits."""
    for name in names:
        values = [f"{value:.10g}" if isinstance(value, float) else str(value) for value in getattr(record, name)]
        if not values or len({*values}) < len(values):
            raise ValueError(f"{name}: expected one or more values, each only once, got {' '.join(values) or 'none'}")


def _check_values(record: Any, expected: str, is_valid: Callable[[Any], bool], names: Iterable[str]) -> None:
    """Raise ValueError for a field, or an item of its tuple, that is set (not None) and not valid."""
    for name in names:
        values = getattr(record, name)
        for value in values if isinstance(values, tuple) else (values,):
            if value is not None and not is_valid(value):
                raise ValueError(f"{name}: expected {expected}, got {value!r}")


def _check_table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: expected a table, got {value!r}")
    return value


def convert(value: Any, field_type: Any, where: str) -> Any:
    """Convert a value of TOML or JSON to a field's type. Raises ValueError with `where` if its type is another."""
    if dataclasses.is_dataclass(field_type):
        return from_table(typing.cast(type[Any], field_type), _check_table(value, where), where)
    origin, arguments = get_origin(field_type), get_args(field_type)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:  # JSON has null, TOML has not
            return None
        return convert_first([member for member in arguments if member is not type(None)], convert, value, where)
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(f"{where}: expected one of {', '.join(map(repr, arguments))}, got {value!r}")
        return value
    if origin is tuple:
        return _convert_tuple(value, arguments, where)
    return _convert_scalar(value, field_type, where)


def convert_first(members: list[Any], conversion: Callable[..., Any], value: Any, where: str) -> Any:
    """Convert a value to the first type of a union that it fits; raise the first type's ValueError if it fits none."""
    errors = []
    for member in members:
        try:
            return conversion(value, member, where)
        except ValueError as error:
            errors.append(error)
    raise errors[0]


def _convert_tuple(value: Any, item_types: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: expected a list, got {value!r}")
    if item_types[-1] is Ellipsis:
        item_types = item_types[:1] * len(value)
    if len(item_types) != len(value):
        raise ValueError(f"{where}: expected {len(item_types)} values, got {len(value)}")
    items = enumerate(zip(value, item_types, strict=True))
    return tuple(convert(item, item_type, f"{where}[{i}]" if where else "") for i, (item, item_type) in items)


def _convert_scalar(value: Any, field_type: Any, where: str) -> Any:
    if field_type is float and type(value) is int:
        return float(value)
    if type(value) is not (str if field_type is Path else field_type):
        raise ValueError(f"{where}: expected {field_type.__name__}, got {value!r}")
    if type(value) is int and abs(value) > MAX_INT:
        raise ValueError(f"{where}: expected at most {MAX_INT:,}, got {value}")
    # Path would take the empty text for the current folder. The command line may have empty texts to be read.
    if isinstance(value, str) and ((where and not value) or "\0" in value):
        raise ValueError(f"{where}: expected a text of one or more characters, without NUL, got {value!r}")
    return Path(value) if field_type is Path else value


def to_table(settings: Any) -> dict[str, Any]:
    """Return the settings as a TOML table, without fields that are None and with paths as text."""
    table: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if value is not None:
            table[field.name] = to_table(value) if dataclasses.is_dataclass(value) else _to_value(value)
    return table


def default_table(settings: Any) -> dict[str, Any]:
    """Return the defaults of the settings' classes as a table, without fields that have no default or None."""
    table: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        if dataclasses.is_dataclass(value := getattr(settings, field.name)):
            table[field.name] = default_table(value)
        elif field.default not in (None, dataclasses.MISSING):
            table[field.name] = _to_value(field.default)
    return table


def _to_value(value: Any) -> Any:
    """Return a value for a TOML table: a path as text, a tuple as a list."""
    if isinstance(value, tuple):
        return [str(item) if isinstance(item, Path) else item for item in value]
    return (as_url(value) or str(value)) if isinstance(value, Path) else value


def write_settings(path: Path, settings: Any, title: str) -> None:
    """Write all settings, defaults included, so that the file alone repeats the run."""
    write_text(path, f"# {title}\n" + tomli_w.dumps(to_table(settings)))


def to_arguments(settings: Any) -> list[str]:
    """Return command-line arguments that give the settings, without values that are the default of their class."""
    positional, flags = list[str](), list[str]()
    _add_arguments(settings, positional, flags)
    return positional + flags


def _add_arguments(settings: Any, positional: list[str], flags: list[str]) -> None:
    hints = get_type_hints(type(settings), include_extras=True)
    for field in dataclasses.fields(settings):
        value, flag = getattr(settings, field.name), f"--{field.name.replace('_', '-')}"
        values = [str(item) for item in (value if isinstance(value, tuple) else (value,))]
        if dataclasses.is_dataclass(value):
            _add_arguments(value, positional, flags)
        elif get_origin(hints[field.name]) is Annotated:
            positional += values
        elif hints[field.name] is bool and value != field.default:
            flags.append(flag if value else flag.replace("--", "--no-", 1))
        elif value != field.default:
            flags += [flag, *values]


def flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a table and of the tables in it, with dotted names.

    >>> [*flatten({"a": 1, "b": {"c": 2}})]
    [('a', 1), ('b.c', 2)]
    """
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
