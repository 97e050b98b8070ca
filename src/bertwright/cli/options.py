"""Command-line options from the fields of settings classes: argparse finds the values, settings check them.

Arguments become a table as a TOML file would contain it. It is merged into the table of the settings file or of the
resumed run, and the settings are built from the result once.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, get_args, get_origin, get_type_hints

from bertwright.base import settings
from bertwright.base.messages import escape_control, print_escaped

RECIPES = Path(__file__).parents[1] / "recipes"
RECIPE_NAMES = sorted(str(path.relative_to(RECIPES).with_suffix("")) for path in RECIPES.rglob("*.toml"))
RECIPE_COMMAND = "pretrain"  # the command whose settings the recipes contain
UNIONS = (typing.Union, types.UnionType)
READERS: dict[Any, tuple[Callable[[str], Any], str]] = {  # by type, with the words for what they read
    bool: ({"True": True, "False": False}.__getitem__, "True or False"),
    int: (int, "a whole number"),
    float: (float, "a number"),
}
MAX_COLUMNS = 100  # longer lines of the help are hard to read
FLAG = re.compile(r"-[^\s\d.][^\s=]*(=.*)?", re.DOTALL)  # "-" and negative numbers are values


class Option(NamedTuple):
    """A field of a settings class on the command line."""

    owner: type[Any]
    """The settings class."""
    path: tuple[str, ...]
    """Enclosing tables and name of the field."""
    name: str
    """Flag, or for a positional option its name in capitals."""
    kind: Any
    items: tuple[Any, ...]
    """Types of a tuple's items, where Ellipsis stands for more; empty for other types."""
    default: Any
    """Value without an argument, or MISSING."""

    @property
    def is_positional(self) -> bool:
        return not self.name.startswith("--")


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message.removeprefix("argument "))


def read_settings(cls: type[Any], name: str, arguments: list[str], example: str, usual: Sequence[str] = ()) -> Any:
    """Build a command's settings from its arguments and from the settings file or run that they name.

    Returns None after printing the help, if the arguments ask for it. `usual`: fields of the options that --help shows,
    where `--help all` shows all; empty: there are few. Raises ValueError for wrong values.
    """
    options = list_options(cls, {})
    try:
        given, config, wants_help = parse_arguments(options, arguments)
    except ValueError as error:
        raise ValueError(f"{error} (see bertwright {name} --help)") from None
    base = _read_base(cls, name, given, config)
    table = settings.merge(base, given)
    origins = {name: f"--config {config}" for name, _ in settings.flatten(base) if config is not None}
    settings.ORIGINS.set(origins | {name: "flag" for name, _ in settings.flatten(given)})
    if wants_help:
        shown = settings.merge(settings.derived_defaults(cls, table), base)
        options = list_options(cls, shown)
        groups = group_options(options) if wants_help == "all" or not usual else choose_usual(options, usual, name)
        print_escaped(format_help(cls, name, example, groups), sys.stdout)
        return None
    required = [option for option in options if option.default is MISSING]
    missing = [option for option in required if option.path[-1] not in _enclosing(table, option.path)]
    if absent := [option for option in missing if not (option.is_positional and option.items)]:
        raise ValueError(f"missing: {', '.join(map(describe_option, absent))} (see bertwright {name} --help)")
    for option in missing:  # lists: the settings say what an empty one lacks
        _enclosing(table, option.path)[option.path[-1]] = []
    return settings.from_table(cls, table, "")


def list_options(cls: type[Any], table: dict[str, Any], *path: str) -> list[Option]:
    """Return the options of a settings class, then of nested ones; values in the table become their defaults."""
    kinds, options, nested = get_type_hints(cls, include_extras=True), list[Option](), list[Option]()
    for field in fields(cls):
        kind, inner_path = kinds[field.name], (*path, field.name)
        if is_dataclass(kind):
            inner = settings.merge(settings.enclosing_defaults(field), table.get(field.name, {}))
            nested += list_options(typing.cast(type[Any], kind), inner, *inner_path)
            continue
        name = f"--{field.name.replace('_', '-')}"
        if get_origin(kind) is Annotated:  # settings.Positional
            name, kind = singular(field.name).upper(), get_args(kind)[0]
        items = next((get_args(member) for member in (kind, *get_args(kind)) if get_origin(member) is tuple), ())
        options.append(Option(cls, inner_path, name, kind, items, table.get(field.name, field.default)))
    return options + nested


def singular(name: str) -> str:
    """Return the name of one element of a list.

    >>> [*map(singular, ("inputs", "queries", "model"))]
    ['input', 'query', 'model']
    """
    return re.sub("ies$", "y", name).removesuffix("s")


def parse_arguments(options: list[Option], arguments: list[str]) -> tuple[dict[str, Any], str | None, str]:
    """Return the arguments as a table, the value of --config, and the help that is asked for: usual, all or empty.

    Arguments after -- are values, even if they begin with -. Raises ValueError for what is no option or no value.
    """
    if odd := [text for text in arguments if re.search("[\ud800-\udfff]", text)]:  # settings.toml could not contain it
        raise ValueError(f"{odd[0]!r}: not UTF-8; rename the file, or give its folder or a glob")
    parser = Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser._negative_number_matcher = re.compile(r"-\.?\d")  # argparse before Python 3.14 takes -1e-05 for a flag
    parser.add_argument("--config")
    parser.add_argument("-h", "--help", nargs="?", const="usual")
    for option in options:
        if option.kind is bool:
            parser.add_argument(option.name, dest=option.name, action=argparse.BooleanOptionalAction)
        elif not option.is_positional:
            count: Any = "*" if Ellipsis in option.items else len(option.items) or 1
            parser.add_argument(option.name, dest=option.name, nargs=count, action="append")
    end = arguments.index("--") if "--" in arguments else len(arguments)
    if empty := [text for text in arguments[:end] if text.startswith("-") and text.partition("=")[2] == "--"]:
        raise ValueError(f"{empty[0].removesuffix('=--')} has no value: -- only separates options from texts")
    namespace, rest = parser.parse_known_args(arguments[:end])
    values = vars(namespace)
    wants_help = "" if "help" not in namespace else "all" if namespace.help == "all" else "usual"
    if not wants_help and (unknown := [argument for argument in rest if FLAG.fullmatch(argument)]):
        close = difflib.get_close_matches(unknown[0].partition("=")[0], [option.name for option in options], n=1)
        hint = f"did you mean {close[0]}?" if close else "for a text that begins with -, write -- before it"
        raise ValueError(f"unknown: {' '.join(unknown)}; {hint}")
    positional = [*rest, *arguments[end + 1 :]]
    table: dict[str, Any] = {}
    for option in options:
        if option.is_positional and positional:
            count = len(positional) if option.items else 1
            values[option.name], positional = [positional[:count]], positional[count:]
        if option.name in values:
            value = values[option.name]
            _enclosing(table, option.path)[option.path[-1]] = value if option.kind is bool else _read(option, value)
    if positional and not wants_help:
        raise ValueError(f"unknown: {' '.join(positional)}")
    return table, values.get("config"), wants_help


def _enclosing(table: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return the table that encloses the last name of a path; tables that are missing are added."""
    for name in path[:-1]:
        table = table.setdefault(name, {})
    return table


def _read(option: Option, given: list[list[str]]) -> Any:
    """Convert the arguments after each occurrence of an option to the value that a TOML file would contain."""
    *before, texts = given
    if not option.items:
        return read_value(texts[0], option.kind, option.name)
    if before:  # the last one would win
        raise ValueError(f"{option.name}: given twice; give all values after one {option.name}")
    kinds = option.items[:1] * len(texts) if Ellipsis in option.items else option.items
    return [read_value(text, kind, option.name) for text, kind in zip(texts, kinds, strict=True)]


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
    if kind is int:
        settings.convert(value, int, name)  # checks its size
    return value


def _read_base(cls: type[Any], name: str, given: dict[str, Any], config: str | None) -> dict[str, Any]:
    """Return the table that the arguments override: of the run for --resume, else of --config."""
    if given.get("resume") and "run" in given:
        if config is not None:
            raise ValueError("--resume uses the settings of the run; omit --config")
        from bertwright.training.run_folder import read_run_settings

        return settings.to_table(read_run_settings(cls, Path(given["run"])))
    if config is None:
        return {}
    table = settings.read_toml(find_config(config, name))
    settings.check_table(cls, table, config)
    return table


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
    if close := difflib.get_close_matches(recipe, RECIPE_NAMES, n=1) if known else []:
        known = f"; did you mean the recipe {close[0]}?"
    if path.is_dir():
        raise ValueError(f"--config {name}: expected a TOML file, got a folder{known}")
    if path.exists():
        return path
    raise FileNotFoundError(errno.ENOENT, f"{os.strerror(errno.ENOENT)}{known}", name)


Group = tuple[str, Sequence[Option]]
"""A heading, and the options below it."""


def group_options(options: Sequence[Option]) -> list[Group]:
    """Return all options by the table that has them."""
    found = itertools.groupby(options, lambda option: (option.path[:-1], option.owner))
    return [
        (f"[{'.'.join(path)}] {owner.__doc__}" if path else "Options", list(group)) for (path, owner), group in found
    ]


def choose_usual(options: Sequence[Option], usual: Sequence[str], name: str) -> list[Group]:
    """Return the options that most users need, in the order of `usual`, the names of their fields."""
    by_field = {option.path[-1]: option for option in reversed(options)}
    heading = f"The usual ones of {len(options)} options; bertwright {name} --help all shows all of them"
    return [(heading, [by_field[field] for field in usual])]


def format_help(cls: type[Any], name: str, example: str, groups: Sequence[Group]) -> str:
    """Return a command's help: what it does, an example, and options with their texts and their defaults."""
    options = [option for _, group in groups for option in group]
    recipe = f" or a recipe (--config NAME: {', '.join(RECIPE_NAMES)})" if name == RECIPE_COMMAND else ""
    positional = [describe_option(option) for option in options if option.is_positional]
    blocks = [
        _fill(f"usage: {' '.join(['bertwright', name, *positional])} [options]"),
        *map(_fill, (cls.__doc__ or "").split("\n\n")),
        _fill(f"Example: {example}"),
        _fill(f"Settings can also come from a TOML file (--config FILE.toml){recipe}; options override them."),
    ]
    for heading, group in groups:
        lines = [_fill(heading)]
        for option in group:
            doc = settings.field_docs(option.owner).get(option.path[-1], "")
            lines.append(_fill(f"{describe_option(option)} {_describe_default(option.default, doc)}", "  ", "      "))
            lines += [_fill(doc, "      ", "      ")] if doc else []
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def describe_option(option: Option) -> str:
    """Return the name of an option and the placeholders of its values."""
    if option.kind is bool:
        return f"{option.name}, --no-{option.name[2:]}"
    if option.is_positional:  # its name says more than its type
        return f"{option.name} ..." if option.items else option.name
    return " ".join([option.name, *map(_placeholder, option.items or (option.kind,))])


def _placeholder(kind: Any) -> str:
    """Return the placeholder of one value.

    >>> _placeholder(int | None), _placeholder(Literal["a", "b"] | None), _placeholder(bool | None)
    ('INT', '{a, b}', '{True, False}')
    """
    if get_origin(kind) in UNIONS:
        return _placeholder(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return f"{{{', '.join(get_args(kind))}}}"
    return {Ellipsis: "...", bool: "{True, False}"}.get(kind) or kind.__name__.upper()


def _describe_default(value: Any, doc: str) -> str:
    """Return the default in words; nothing if it is unset and the text says what that means ("[" or "unset:")."""
    if value is MISSING:
        return "(required)"
    if value is None:
        return "" if "[" in doc or "unset:" in doc.lower() else "(default: unset)"
    shown = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return escape_control(f"(default: {shown or 'none'})")


def _fill(text: str, first: str = "", others: str = "") -> str:
    """Break a text into lines that fit the terminal, with indents before the first line and the others."""
    columns = min(shutil.get_terminal_size().columns, MAX_COLUMNS)
    return textwrap.fill(
        " ".join(text.split()), columns, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )
