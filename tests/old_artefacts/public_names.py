"""Names that users write: what `import bertwright` offers, the flags of every command, and the keys of TOML files."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from typing import Any
from unittest import mock

from artefacts import check_command

import bertwright
from bertwright.cli.verbs import VERBS

SECTION = re.compile(r"\[([\w.]+)\]")
OPTION = re.compile(r"  (--[\w-]+(?:, --[\w-]+)?|[A-Z][A-Z_]+)( .*)?")
HELPS = [
    *(["pretrain", "--architecture", name] for name in ("gpt", "elmo", "ulmfit")),
    *(["pretrain", "--config", name] for name in ("adapt", "base", "demo", "fast", "large", "mini")),
    *(["finetune", "--task", name] for name in ("mrpc", "squad", "squad_v2", "swag", "conll2003")),
    *(["finetune", "--architecture", name] for name in "window bilstm bilstm-crf taglm elmo cove bcn".split()),
    ["finetune", "--model", "finished/gpt"],
    ["finetune", "--model", "finished/ulmfit"],
    ["grid", "--task", "mrpc"],
    ["train-translation", "--architecture", "mt-lstm"],
]
"""Arguments that change the defaults which --help shows."""


def describe_names() -> dict[str, Any]:
    """Return all public names; the current folder contains the unpacked artefacts."""
    with mock.patch.dict(os.environ, {"COLUMNS": "100"}):
        usage = check_command("--help")
        verbs = [verb.name for verb in VERBS if f"  {verb.name} " in usage]
        options = {verb: list_options(verb.split()) for verb in verbs}
        derived = {" ".join(given): changed_options(options[given[0]], list_options(given)) for given in HELPS}
    python = {name: describe_object(getattr(bertwright, name)) for name in sorted(bertwright.__all__)}
    return {"python": python, "commands": options, "derived defaults": derived}


def changed_options(before: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    return {name: text for name, text in now.items() if before.get(name) != text}


def list_options(arguments: list[str]) -> dict[str, str]:
    """Return type, choices and default of each option in a command's help, by its key in a TOML file."""
    options: dict[str, str] = {}
    table, key = "", None
    for line in check_command(*arguments, "--help", "all").splitlines():
        if section := SECTION.match(line):
            table, key = f"{section[1]}.", None
        elif option := OPTION.fullmatch(line):
            name = option[1].split(",")[0].removeprefix("--").replace("-", "_")
            key = f"{table}{name}"
            options[key] = option[0].strip()
        elif key is not None and is_open(options[key]):
            options[key] += " " + line.strip()
    return options


def is_open(header: str) -> bool:
    """Return whether an option's first line continues, because a brace or a bracket is not closed."""
    return any(header.count(opening) > header.count(closing) for opening, closing in ("{}", "()"))


def describe_object(value: Any) -> Any:
    """Return the signature of a function, or the fields and methods of a class."""
    if not callable(value):
        return type(value).__name__
    if not inspect.isclass(value):
        return signature(value)
    described: dict[str, Any] = {"bases": [base.__name__ for base in value.__mro__[1:] if is_ours(base)]}
    if dataclasses.is_dataclass(value):
        described["fields"] = {field.name: describe_field(field) for field in dataclasses.fields(value)}
    else:
        described["signature"] = signature(value)
    described["methods"] = {
        name: "property" if isinstance(method, property) else signature(method)
        for name in sorted(dir(value))
        if not name.startswith("_") and (method := inspect.getattr_static(value, name)) is not None
        if is_method(method) and is_ours(owner(value, name))
    }
    return described


def is_method(member: Any) -> bool:
    return isinstance(member, property | classmethod | staticmethod) or inspect.isfunction(member)


def owner(cls: type[Any], name: str) -> type[Any]:
    return next(base for base in cls.__mro__ if name in vars(base))


def is_ours(cls: type[Any]) -> bool:
    return cls.__module__.startswith("bertwright")


def signature(function: Any) -> str:
    return str(inspect.signature(getattr(function, "__func__", function)))


def describe_field(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return f"{field.type} = {field.default!r}"
    return str(field.type) + (" = ..." if field.default_factory is not dataclasses.MISSING else "")
