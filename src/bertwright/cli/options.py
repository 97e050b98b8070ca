"""Command-line options from settings classes, parsed by tyro; a TOML file supplies defaults.

tyro gets copies of the settings classes that carry help texts and placeholders but no checks. The settings themselves
are built from what it parsed, so that their errors look like all others.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from bertwright.console import escape_control
from bertwright.settings import field_docs, iter_fields, partial_from_table, read_toml

RECIPES = Path(__file__).parents[1] / "recipes"
RECIPE_NAMES = sorted(str(path.relative_to(RECIPES).with_suffix("")) for path in RECIPES.rglob("*.toml"))
RECIPE_COMMAND = "pretrain"  # the command whose settings the recipes contain
MAX_INT = 2**63 - 1
# What tyro says, and how this package says it.
TYRO_ERRORS = (
    (r"^Unrecognized options:", "unknown:"),
    (r"^Missing from .*?:", "missing:"),
    (r"^Missing value for argument '(\S+)'\. Expected (\d+) values\.$", r"\1: expected \2 value(s), got fewer"),
    (r"^[Ii]nvalid choice (.*) for argument '(\S+)'\. Expected one of \((.*)\)\.$", r"\2: expected one of \3, got \1"),
    (r"^Error parsing (\S+): invalid literal for int\(\) with base 10: ", r"\1: expected a whole number, got "),
    (r"^Error parsing (\S+): could not convert string to float: ", r"\1: expected a number, got "),
)


def read_settings(cls: type[Any], name: str, arguments: list[str], example: str) -> Any:
    """Build a command's settings from its arguments; a TOML file or, with --resume, the run supplies the rest.

    Raises ValueError for wrong values, and SystemExit after tyro has printed the help.
    """
    import tyro

    check_arguments(cls, arguments)
    config, rest = pop_option(arguments, "--config")
    if "--resume" in rest and (run_folder := pop_option(rest, "--run")[0]):
        if config:
            raise ValueError("--resume uses the settings of the run; omit --config")
        from bertwright.training.run_folder import read_run_settings

        default = read_run_settings(cls, Path(run_folder))
    else:
        table = read_toml(find_config(config, name)) if config else {}
        task = pop_option(rest, "--task")[0]
        if task and hasattr(cls, "defaults") and isinstance(table.setdefault("task", {}), dict):
            table["task"]["task"] = task  # defaults depend on it
        default = partial_from_table(cls, table, config or "command line", tyro.MISSING)
    with _raise_tyro_errors(name):
        parsed = tyro.cli(
            _option_class(cls, default),
            args=rest,
            prog=f"bertwright {name}",
            description=_wrap_paragraphs(_join_lines(cls.__doc__), f"Example: {example}", _config_help(name)),
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
        )
    return _build(cls, parsed)


def check_arguments(cls: type[Any], arguments: list[str]) -> None:
    """Raise ValueError for arguments that tyro accepts but should not.

    tyro accepts empty values, text that is not UTF-8, and lists that are given twice.
    """
    for before, argument in pairwise(["", *arguments]):
        flag = before if not argument else argument.removesuffix("=") if argument.endswith("=") else ""
        if flag.startswith("--"):  # Path would take the empty text for the current folder
            raise ValueError(f"{flag} has an empty value; is a variable of your script unset?")
        if any("\ud800" <= character <= "\udfff" for character in argument):  # settings.toml could not contain it
            raise ValueError(f"{argument!r}: not UTF-8; rename the file, or give its folder or a glob")
    fields = {field: kind for _, field, kind in iter_fields(cls)}
    names = [
        argument[2:].partition("=")[0].replace("-", "_").removeprefix("no_")
        for argument in arguments
        if argument.startswith("--")
    ]
    for name in names:
        if names.count(name) > 1 and name in fields and _accepts_list(fields[name]):  # the last one would win
            raise ValueError(f"{_flag(name)}: given twice; give all values after one {_flag(name)}")


def _config_help(command: str) -> str:
    recipe = f" or a recipe (--config NAME: {', '.join(RECIPE_NAMES)})" if command == RECIPE_COMMAND else ""
    return f"Settings can also come from a TOML file (--config FILE.toml){recipe}; options override them."


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


def pop_option(arguments: list[str], flag: str) -> tuple[str | None, list[str]]:
    """Split arguments into the value of a flag, the last one as for all flags, and the other arguments.

    >>> pop_option(["--config", "b.toml", "--steps", "3", "--config", "a.toml"], "--config")
    ('a.toml', ['--config', 'b.toml', '--steps', '3'])
    """
    for index, argument in reversed([*enumerate(arguments)]):
        if argument.startswith(flag + "="):
            return argument.removeprefix(flag + "="), arguments[:index] + arguments[index + 1 :]
        if argument == flag:
            if index + 1 == len(arguments):
                raise ValueError(f"{flag} needs a value")
            return arguments[index + 1], arguments[:index] + arguments[index + 2 :]
    return None, arguments


@contextmanager
def _raise_tyro_errors(name: str) -> Iterator[None]:
    """Raise ValueError with one line for an error that tyro prints as a box; SystemExit after the help."""
    printed = StringIO()
    try:
        with redirect_stdout(StringIO()) if sys.stdout is None else nullcontext(), redirect_stderr(printed):
            yield
    except SystemExit as exit_:
        if not exit_.code:
            raise
        raise ValueError(f"{summarize_tyro_error(printed.getvalue())} (see bertwright {name} --help)") from None


def summarize_tyro_error(box: str) -> str:
    """Return what a box of tyro says in one line.

    It contains a title (in the upper border, or above it if the terminal has ASCII only), the error, perhaps similar
    options, and a reference to the help, with rules between them. Another text is returned without its line breaks.
    """
    lines = box.strip("\n").splitlines()
    sections: list[list[str]] = [[]]
    for line in lines[1:] if box.startswith("╭") else lines[2:]:
        content = line.strip("│").rstrip()
        if content.strip(" ─-╰╯"):
            sections[-1].append(content)
        else:
            sections.append([])
    error, *others = [section for section in sections if section] or [[]]
    if not error:
        return " ".join(box.split())
    if error[0].endswith(":"):  # "Missing from COMMAND:", then each option, and deeper its help
        error = [error[0], ", ".join(map(str.strip, _find_options(error[1:])))]
    message = " ".join(" ".join(error).split())
    for pattern, replacement in TYRO_ERRORS:
        message = re.sub(pattern, replacement, message)
    similar = [line.split()[0] for one in others if "meant" in one[0] for line in _find_options(one[1:])]
    return message + (f"; did you mean {' or '.join(similar)}?" if similar else "")


def _find_options(lines: list[str]) -> list[str]:
    """Return the lines with the least indent: options, whose help is indented more."""
    indents = [len(line) - len(line.lstrip()) for line in lines]
    return [line for line, indent in zip(lines, indents, strict=True) if indent == min(indents)]


def _option_class(cls: type[Any], default: Any) -> type[Any]:
    """Return a dataclass with the fields of a settings class, their values in `default`, and texts for the help."""
    docs, types, fields = field_docs(cls), get_type_hints(cls, include_extras=True), list[Any]()
    for name in (field.name for field in dataclasses.fields(cls)):
        kind, value = types[name], getattr(default, name)
        if dataclasses.is_dataclass(kind):
            fields.append((name, _option_class(cast(type[Any], kind), value)))
        else:
            fields.append((name, _describe_option(name, kind, value, docs.get(name)), dataclasses.field(default=value)))
    return dataclasses.make_dataclass(
        cls.__name__, fields, kw_only=True, namespace={"__doc__": _join_lines(cls.__doc__)}
    )


def _describe_option(name: str, kind: Any, default: Any, doc: str | None) -> Any:
    """Return a field's type with its help, its placeholder and its default in words.

    If a doc has brackets or "unset:", it already says what an unset value means.
    """
    from tyro import MISSING
    from tyro.conf import Positional, arg

    plain, *marks = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    placeholder = _placeholder(plain)
    if marks:  # a positional argument: its name says more than its type
        placeholder = f"{name.upper().removesuffix('S')} ..." if _is_list(plain) else name.upper()
        marks = list(get_args(Positional[Any])[1:])  # type: ignore[misc]  # of settings.Positional and of tyro's own
    if plain == str | None:
        marks.append(_optional_text())
    is_explained = default is None and doc is not None and ("[" in doc or "unset:" in doc.lower())
    hint = "(required)" if default is MISSING else "" if is_explained else _format_default
    return Annotated[(plain, *marks, arg(help=doc, metavar=placeholder, help_behavior_hint=hint))]


def _optional_text() -> Any:
    """Return tyro's rule for `str | None`: "None" is a text, because a label or a column may be called so."""
    from tyro.constructors import PrimitiveConstructorSpec

    return PrimitiveConstructorSpec[str | None](
        nargs=1,
        metavar="STR",
        instance_from_str=lambda values: values[0],
        is_instance=lambda value: value is None or isinstance(value, str),
        str_from_instance=lambda value: [str(value)],
    )


def _build(cls: type[Any], parsed: Any) -> Any:
    """Build settings from an instance of their option class."""
    values = {}
    for name, kind in get_type_hints(cls).items():
        value = getattr(parsed, name)
        if isinstance(value, int) and abs(value) > MAX_INT:
            raise ValueError(f"{_flag(name)}: expected at most {MAX_INT:,}, got {value}")
        values[name] = _build(cast(type[Any], kind), value) if dataclasses.is_dataclass(kind) else value
    return cls(**values)


def _placeholder(kind: Any) -> str | None:
    """Return the placeholder that the help prints for a value; None keeps tyro's (choices, a fixed number of values).

    >>> _placeholder(int | None), _placeholder(tuple[str, ...]), _placeholder(Literal["a", "b"] | None)
    ('INT', 'STR ...', '{a,b}')
    >>> _placeholder(Literal["a", "b"]), _placeholder(tuple[float, float])
    (None, None)
    """
    if kind == bool | None:  # three values: a switch has only two
        return "{True,False}"
    if _is_list(kind):
        item = _placeholder(get_args(kind)[0])
        return None if item is None else f"{item} ..."
    if get_origin(kind) in (Union, UnionType):
        one = get_args(kind)[0]
        return f"{{{','.join(get_args(one))}}}" if get_origin(one) is Literal else _placeholder(one)
    return kind.__name__.upper() if kind in (int, float, str, Path) else None


def _accepts_list(kind: Any) -> bool:
    return _is_list(kind) or any(map(_is_list, get_args(kind)))


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _format_default(default: str) -> str:
    return escape_control(f"(default: {'unset' if default == 'None' else default or 'none'})")


def _join_lines(text: str | None) -> str:
    """Return a text without the line breaks of its source; the terminal decides where lines end."""
    return " ".join((text or "").split())


def _wrap_paragraphs(*paragraphs: str) -> str:
    """Format paragraphs to the terminal's columns, aligned with tyro's boxes; tyro joins lines without an indent."""
    lines = textwrap.TextWrapper(shutil.get_terminal_size().columns, "  ", "  ", break_on_hyphens=False)
    return "\n".join(map(lines.fill, paragraphs))
