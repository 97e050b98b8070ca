"""Command-line options from the fields of settings classes: argparse finds the values, settings check them.

Arguments become a table as a TOML file would contain it. It is merged into the table of the settings file or of the
resumed run, and the settings are built from the result once.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import errno
import itertools
import os
import re
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, get_args, get_origin, get_type_hints

from bertwright import settings
from bertwright.console import escape_control, print_escaped

RECIPES = Path(__file__).parents[1] / "recipes"
RECIPE_NAMES = sorted(str(path.relative_to(RECIPES).with_suffix("")) for path in RECIPES.rglob("*.toml"))
RECIPE_COMMAND = "pretrain"  # the command whose settings the recipes contain
MAX_INT = 2**63 - 1
READERS: dict[Any, tuple[Callable[[str], Any], str]] = {  # with what they expect
    bool: ({"True": True, "False": False}.__getitem__, "True or False"),
    int: (int, "a whole number"),
    float: (float, "a number"),
}
UNIONS = (typing.Union, types.UnionType)
MAX_COLUMNS = 100  # of the help: longer lines are hard to read
FLAG = re.compile(r"-[^\s\d.][^\s=]*(=.*)?", re.DOTALL)  # "-" and negative numbers are values


class Option(NamedTuple):
    """A field of a settings class on the command line."""

    owner: type[Any]
    """The settings class."""
    path: tuple[str, ...]
    """Enclosing tables and name."""
    kind: Any
    is_positional: bool
    default: Any
    """Value without an argument, or dataclasses.MISSING."""

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def flag(self) -> str:
        return f"--{self.path[-1].replace('_', '-')}"

    @property
    def name(self) -> str:
        """Name in messages."""
        return self.path[-1].upper().removesuffix("S") if self.is_positional else self.flag

    @property
    def items(self) -> tuple[Any, ...]:
        """Types of a tuple's items; empty for other types."""
        return next((get_args(kind) for kind in (self.kind, *get_args(self.kind)) if get_origin(kind) is tuple), ())

    @property
    def is_list(self) -> bool:
        return self.items[-1:] == (Ellipsis,)

    @property
    def signature(self) -> str:
        """Name and placeholder, for the help."""
        if self.kind is bool:
            return f"{self.flag}, --no-{self.flag[2:]}"
        values = [_placeholder(kind) for kind in self.items or (self.kind,)]
        if self.is_positional:  # its name says more than its type
            values = values[-1:] if self.is_list else []
        return " ".join([self.name, *values])

    def read(self, given: list[list[str]]) -> Any:
        """Convert the arguments after each occurrence of the option to the value that a TOML file would contain."""
        if self.is_list and len(given) > 1:  # the last one would win
            raise ValueError(f"{self.flag}: given twice; give all values after one {self.flag}")
        if not self.items:
            return read_value(given[-1][0], self.kind, self.name)
        kinds = self.items[:1] * len(given[-1]) if self.is_list else self.items
        return [read_value(text, kind, self.name) for text, kind in zip(given[-1], kinds, strict=True)]


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message.removeprefix("argument "))


def read_settings(cls: type[Any], name: str, arguments: list[str], example: str) -> Any:
    """Build a command's settings from its arguments and from the settings file or run that they name.

    Returns None after printing the help, if the arguments ask for it. Raises ValueError for wrong values.
    """
    try:
        given, config, wants_help = parse_arguments(list_options(cls, {}), arguments)
    except ValueError as error:
        raise ValueError(f"{error} (see bertwright {name} --help)") from None
    base = _read_base(cls, name, given, config)
    table = settings.merge(base, given)
    if wants_help:
        shown = settings.merge(settings.derived_defaults(cls, table), base)
        print_escaped(format_help(cls, name, example, list_options(cls, shown)), sys.stdout)
        return None
    missing = []
    for option in list_options(cls, table):
        if option.is_required and option.is_positional and option.is_list:
            _set(table, option.path, [])  # the settings say what an empty list lacks
        elif option.is_required:
            missing.append(option.signature)
    if missing:
        raise ValueError(f"missing: {', '.join(missing)} (see bertwright {name} --help)")
    return settings.from_table(cls, table, "")


def list_options(cls: type[Any], table: dict[str, Any], *path: str) -> list[Option]:
    """Return the options of a settings class, then of nested ones; values in the table become their defaults."""
    kinds, options, nested = get_type_hints(cls, include_extras=True), list[Option](), list[Option]()
    for field in dataclasses.fields(cls):
        kind, where = kinds[field.name], (*path, field.name)
        if dataclasses.is_dataclass(kind):
            inner = settings.merge(settings.enclosing_defaults(field), table.get(field.name, {}))
            nested += list_options(typing.cast(type[Any], kind), inner, *where)
        else:
            is_positional = get_origin(kind) is Annotated
            kind = get_args(kind)[0] if is_positional else kind
            options.append(Option(cls, where, kind, is_positional, table.get(field.name, field.default)))
    return options + nested


def parse_arguments(options: list[Option], arguments: list[str]) -> tuple[dict[str, Any], str | None, bool]:
    """Return the arguments as a table, the value of --config, and whether the help is asked for.

    Arguments after -- are values, even if they begin with -. Raises ValueError for what is no option or no value.
    """
    if odd := [one for one in arguments if re.search("[\ud800-\udfff]", one)]:  # settings.toml could not contain it
        raise ValueError(f"{odd[0]!r}: not UTF-8; rename the file, or give its folder or a glob")
    parser = Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser._negative_number_matcher = re.compile(r"-\.?\d")  # argparse before Python 3.14 takes -1e-05 for a flag
    parser.add_argument("--config")
    parser.add_argument("-h", "--help", action="store_true")
    for option in options:
        if option.is_positional:
            continue
        if option.kind is bool:
            parser.add_argument(option.flag, dest=option.flag, action=argparse.BooleanOptionalAction)
        else:
            count: Any = "*" if option.is_list else len(option.items) or 1
            parser.add_argument(option.flag, dest=option.flag, nargs=count, action="append")
    end = arguments.index("--") if "--" in arguments else len(arguments)
    namespace, rest = parser.parse_known_args(arguments[:end])
    found, wants_help = vars(namespace), "help" in namespace
    if not wants_help and (unknown := [argument for argument in rest if FLAG.fullmatch(argument)]):
        close = difflib.get_close_matches(unknown[0].partition("=")[0], [option.flag for option in options], n=1)
        hint = f"did you mean {close[0]}?" if close else "for a text that begins with -, write -- before it"
        raise ValueError(f"unknown: {' '.join(unknown)}; {hint}")
    positional = [*rest, *arguments[end + 1 :]]
    table: dict[str, Any] = {}
    for option in options:
        if option.is_positional and positional:
            count = len(positional) if option.is_list else 1
            _set(table, option.path, option.read([positional[:count]]))
            positional = positional[count:]
        elif option.flag in found:
            given = found[option.flag]
            _set(table, option.path, given if option.kind is bool else option.read(given))
    if positional and not wants_help:
        raise ValueError(f"unknown: {' '.join(positional)}")
    return table, found.get("config"), wants_help


def find_config(name: str, command: str) -> Path:
    """Return the TOML file that --config names: a path or, for `pretrain`, a recipe of the package, such as demo.

    A file takes precedence over a recipe, a folder does not. Raises FileNotFoundError for neither, and ValueError for a
    folder, or a recipe of another command.
    """
    path, recipe = Path(name), name.removesuffix(".toml")
    if recipe in RECIPE_NAMES and (path.is_dir() or not path.exists()):
        if command != RECIPE_COMMAND:
            raise ValueError(f"--config {name}: a recipe of {RECIPE_COMMAND}; for {command}, name a TOML file")
        return RECIPES / f"{recipe}.toml"
    known = f"; recipes are {', '.join(RECIPE_NAMES)}" if command == RECIPE_COMMAND else ""
    if path.is_dir():
        raise ValueError(f"--config {name}: expected a TOML file, got a folder{known}")
    if path.exists():
        return path
    raise FileNotFoundError(errno.ENOENT, f"{os.strerror(errno.ENOENT)}{known}", name)


def format_help(cls: type[Any], name: str, example: str, options: list[Option]) -> str:
    """Return a command's help: what it does, an example, and every option with its text and its default."""
    columns = min(shutil.get_terminal_size().columns, MAX_COLUMNS)
    recipe = f" or a recipe (--config NAME: {', '.join(RECIPE_NAMES)})" if name == RECIPE_COMMAND else ""
    positional = [option.signature for option in options if option.is_positional]
    paragraphs = [
        f"usage: {' '.join(['bertwright', name, *positional])} [options]",
        *(cls.__doc__ or "").split("\n\n"),
        f"Example: {example}",
        f"Settings can also come from a TOML file (--config FILE.toml){recipe}; options override them.",
    ]
    blocks = [_fill(paragraph, columns) for paragraph in paragraphs]
    for path, group in itertools.groupby(options, lambda option: option.path[:-1]):
        members = [*group]
        owner = members[0].owner
        docs = settings.field_docs(owner)
        lines = [_fill(f"[{'.'.join(path)}] {owner.__doc__}" if path else "Options", columns)]
        for option in members:
            doc = docs.get(option.path[-1], "")
            lines.append(_fill(f"{option.signature} {_describe_default(option.default, doc)}", columns, "  ", "      "))
            lines += [_fill(doc, columns, "      ", "      ")] if doc else []
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _fill(text: str, columns: int, first: str = "", others: str = "") -> str:
    text = " ".join(text.split())
    return textwrap.fill(text, columns, initial_indent=first, subsequent_indent=others, break_on_hyphens=False)


def _describe_default(value: Any, doc: str) -> str:
    """Return the default in words; nothing if it is unset and the text says what that means ("[" or "unset:")."""
    if value is dataclasses.MISSING:
        return "(required)"
    if value is None:
        return "" if "[" in doc or "unset:" in doc.lower() else "(default: unset)"
    shown = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return escape_control(f"(default: {shown or 'none'})")


def _read_base(cls: type[Any], name: str, given: dict[str, Any], config: str | None) -> dict[str, Any]:
    """Return the table that the arguments override: that of the run for --resume, or of --config, or an empty one."""
    if given.get("resume") and "run" in given:
        if config is not None:
            raise ValueError("--resume uses the settings of the run; omit --config")
        from bertwright.training.run_folder import read_run_settings

        return settings.to_table(read_run_settings(cls, Path(given["run"])))
    table = {} if config is None else settings.read_toml(find_config(config, name))
    settings.check_table(cls, table, f"{config}")
    return table


def read_value(text: str, kind: Any, name: str) -> Any:
    """Convert an argument to the value that a TOML file would contain. Raises ValueError with the option's name."""
    if get_origin(kind) in UNIONS:
        members = [member for member in get_args(kind) if member is not types.NoneType]
        if text == "None" and not {str, Path} & {*members}:  # a label or a file may be called None
            return None
        return settings.convert_first(members, read_value, text, name)
    if not text and (name.startswith("--") or kind is Path):  # only a positional text may be empty
        raise ValueError(f"{name} has an empty value; is a variable of your script unset?")
    if get_origin(kind) is Literal:
        settings.convert(text, kind, name)
    if kind not in READERS:
        return text
    read, expected = READERS[kind]
    try:
        value = read(text)
    except (ValueError, KeyError):
        raise ValueError(f"{name}: expected {expected}, got {text!r}") from None
    if kind is int and abs(value) > MAX_INT:
        raise ValueError(f"{name}: expected at most {MAX_INT:,}, got {value}")
    return value


def _placeholder(kind: Any) -> str:
    """Return the placeholder of one value.

    >>> _placeholder(int | None), _placeholder(Literal["a", "b"] | None), _placeholder(bool | None)
    ('INT', '{a, b}', '{True, False}')
    """
    if kind is Ellipsis:
        return "..."
    if get_origin(kind) in UNIONS:
        return _placeholder(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return f"{{{', '.join(get_args(kind))}}}"
    return "{True, False}" if kind is bool else kind.__name__.upper()


def _set(table: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        table = table.setdefault(name, {})
    table[path[-1]] = value
