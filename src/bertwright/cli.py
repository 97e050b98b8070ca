"""The command line: one verb a stage, every setting a flag, a TOML file underneath."""

from __future__ import annotations

import ast
import dataclasses
import errno
import importlib
import inspect
import io
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from bertwright.settings import did_you_mean, iter_fields, partial_from_table, read_toml


class Command(NamedTuple):
    """A verb of the command line. Its module is imported when it is called, so that --help is quick."""

    module: str
    """In `bertwright.commands`."""
    settings: str
    """The name of its settings class."""
    function: str
    """The name of the function that takes an instance of it."""
    summary: str
    settings_module: str | None = None
    """Where its settings class is, if not in `module`: without torch, which the help need not wait for."""


COMMANDS = {
    "survey": Command("survey", "SurveySettings", "survey", "describe a corpus, and warn of what will hurt training"),
    "vocabulary": Command("vocabulary", "LearnSettings", "learn_vocabulary", "learn a WordPiece vocabulary from text"),
    "prepare": Command("prepare", "StoreSettings", "prepare", "turn text into a token store, with that vocabulary"),
    "pretrain": Command(
        "pretrain.run",
        "PretrainSettings",
        "pretrain",
        "train a BERT on a token store, or resume it",
        "pretrain.settings",
    ),
    "finetune": Command("finetune.run", "FinetuneSettings", "finetune", "train a BERT on a task, or resume it"),
    "grid": Command("grid.run", "GridSettings", "grid", "fine-tune with many settings and seeds, keep the best model"),
    "evaluate": Command("evaluate", "EvaluateSettings", "evaluate", "score a fine-tuned model on labelled files"),
    "predict": Command("predict", "PredictSettings", "predict", "label texts or files with a fine-tuned model"),
    "probe": Command("probe.run", "ProbeSettings", "probe", "train a small head on a frozen BERT's features"),
    "glue-submission": Command("glue_submission", "SubmissionSettings", "submission", "write a file for GLUE's server"),
    "fill-mask": Command("fill_mask", "FillMaskSettings", "fill_mask", "predict the tokens for [MASK] in a text"),
    "embed": Command("embed", "EmbedSettings", "embed", "turn texts into vectors"),
    "info": Command("info", "InfoSettings", "info", "describe a model, vocabulary, store or run folder"),
    "convert": Command("convert", "ConvertSettings", "convert", "write any checkpoint as a Hugging Face folder"),
}

USAGE = """usage: bertwright VERB [--config FILE.toml|RECIPE] [options]

From raw text to a BERT, pre-trained and fine-tuned. The verbs, in the order in
which a project meets them:

{verbs}

`bertwright VERB --help` explains every setting of a verb, with its default and
where it comes from. --config reads settings from a TOML file or a recipe;
options given beside it win. Vocabularies, stores and runs keep the settings in
force as settings.toml, which --config reads again.
"""
RECIPES = Path(__file__).parent / "recipes"
RECIPE_NAMES = sorted(str(path.relative_to(RECIPES).with_suffix("")) for path in RECIPES.rglob("*.toml"))
FROM_FILE = (
    f"Settings may also stand in a TOML file: --config FILE.toml, or --config with a recipe: {', '.join(RECIPE_NAMES)}. "
    "Options given beside it win."
)

EXIT_SIGPIPE = 141  # what a shell reports for a program that SIGPIPE ended: 128 + 13
OUT_OF_MEMORY = (
    "out of memory; take less at a time (--micro-batch-size in pre-training, --batch-size and --max-length elsewhere), or a "
    "smaller model"
)
# What gloo and NCCL say where another rank is gone.
PEER_LOST = re.compile("Connection (closed|reset) by peer|Broken pipe|remote process exited")
MISUSE = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)


def main() -> None:
    """Run one command; ends the process with 0, 1 (the work failed), 2 (misuse) or 130 (Ctrl-C, SIGTERM)."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is half-written goes
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a character shows "?" in its place
            stream.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; every expected failure is one line on stderr."""
    try:
        code = dispatch(arguments)
        if sys.stdout is not None:  # None where the caller has closed it
            sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        return fail(f"interrupted{f': {interrupt}' if interrupt.args else ''}", 130)
    except (BrokenPipeError, SystemExit):  # the reader of our output has seen enough; rich then ends the program
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_SIGPIPE
    except OSError as error:
        return fail(
            f"error: {format_os_error(error)}",
            2 if isinstance(error, MISUSE) or error.errno == errno.ENAMETOOLONG else 1,
        )
    except ValueError as error:
        return fail(f"error: {error}", 2)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return fail(f"error: {OUT_OF_MEMORY}", 1)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and PEER_LOST.search(str(error)):
            return fail("error: another rank has ended; start all again, with --resume if the run has begun", 1)
        if not type(error).__module__.startswith("bertwright."):  # not ours: a defect, which shows its trace
            raise
        return fail(f"error: {error}", 1)


def fail(message: str, code: int) -> int:
    rank = os.environ.get("RANK", "0")  # of torchrun's processes all but the first say who they are
    speaker = "bertwright" if rank == "0" else f"bertwright, rank {rank}"
    # Text and line end at once: torchrun's processes write unbuffered, and another may come in between.
    print(f"{speaker}: {' '.join(map(str.strip, message.splitlines()))}\n", end="", file=sys.stderr)
    return code


def format_os_error(error: OSError) -> str:
    """What the system says, and about which file; one that is being written goes by the name that it would get.

    >>> format_os_error(PermissionError(13, "Permission denied", "models/.bert.part-4711-21"))
    'models/bert: Permission denied'
    """
    text = f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else error.strerror or str(error)
    return re.sub(r"(^|/)\.([^/]+)\.part-[\d-]+", r"\1\2", text)


def dispatch(arguments: list[str]) -> int:
    """Carry out one command; 0, or 2 where the arguments are not what its settings ask for."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"bertwright {version('bertwright')}")
        return 0
    name, *rest = arguments
    for before, argument in pairwise([name, *rest]):
        flag = before if not argument else argument.removesuffix("=") if argument.endswith("=") else ""
        if flag.startswith("--"):  # Path would take the empty text for the current folder
            raise ValueError(f"{flag} has an empty value; is a variable of your script unset?")
        # settings.toml, which repeats the work, could not hold it
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise ValueError(f"{argument!r}: not UTF-8; rename the file, or name its folder or a glob")
    if name not in COMMANDS:
        raise ValueError(f'no verb "{name}"; {did_you_mean(name, COMMANDS)}')
    command = COMMANDS[name]
    try:
        settings = read_settings(_load(command.settings_module or command.module, command.settings), name, rest)
    except SystemExit as ended:  # tyro has shown its help (0), or what is wrong with the arguments (2)
        return int(ended.code or 0)
    _load(command.module, command.function)(settings)
    return 0


def _load(module: str, name: str) -> Any:
    """Import a class or function of `bertwright.commands`."""
    with _leaving_at_once():
        return getattr(importlib.import_module(f"bertwright.commands.{module}"), name)


@contextmanager
def _leaving_at_once() -> Iterator[None]:
    """Ctrl-C ends the process on the spot: libraries that are being loaded do not survive an exception."""

    def leave(*_: object) -> None:
        os.write(2, b"bertwright: interrupted\n")
        os._exit(130)

    if threading.current_thread() is not threading.main_thread():  # signals do not come here
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def usage() -> str:
    return USAGE.format(verbs="\n".join(f"  {name:<15} {verb.summary}" for name, verb in COMMANDS.items()))


def read_settings(cls: type[Any], name: str, arguments: list[str]) -> Any:
    """The settings record that a TOML file, if --config names one, and the arguments make together.

    Raises ValueError for a file or a record that refuses its values; SystemExit where tyro, which reads the arguments,
    has told what is wrong with them, or shown the help.
    """
    import tyro

    lists = {
        f"--{name.replace('_', '-')}"
        for _, name, kind in iter_fields(cls)
        if _is_list(kind) or any(map(_is_list, get_args(kind)))
    }
    flags = [argument.partition("=")[0].replace("_", "-") for argument in arguments]
    if twice := [flag for flag in flags if flag in lists and flags.count(flag) > 1]:  # the last would win, as elsewhere
        raise ValueError(f"{twice[0]} is given twice; name all of its values after one")
    config, rest = pop_option(arguments, "--config")
    if "--resume" in rest and (run_folder := pop_option(rest, "--run")[0]):
        if config:
            raise ValueError("--resume goes on with the run's own settings; leave --config out")
        from bertwright.training.run_directory import saved_settings

        default = saved_settings(cls, Path(run_folder))
    else:
        default = partial_from_table(
            cls, read_toml(find_config(config)) if config else {}, config or "command line", tyro.MISSING
        )
    registry = tyro.constructors.ConstructorRegistry()
    registry.struct_rule(_flags)
    registry.primitive_rule(_texts)
    try:
        return tyro.cli(
            cls,
            args=rest,
            default=default,
            prog=f"bertwright {name}",
            description=_filled(_flowing(cls.__doc__), FROM_FILE),
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
            registry=registry,
        )
    except _RefusedError as refused:
        raise ValueError(str(refused)) from refused.__cause__


def find_config(name: str) -> Path:
    """Return the TOML file that --config names: a path, or a recipe of the package, such as demo or tasks/glue.

    A file takes precedence over a recipe, a directory does not. Raises FileNotFoundError, which lists the recipes.
    """
    path, recipe = Path(name), name.removesuffix(".toml")
    if recipe in RECIPE_NAMES and (path.is_dir() or not path.exists()):
        return RECIPES / f"{recipe}.toml"
    if path.exists():
        return path
    raise FileNotFoundError(errno.ENOENT, f"{os.strerror(errno.ENOENT)}; recipes are {', '.join(RECIPE_NAMES)}", name)


def pop_option(arguments: list[str], flag: str) -> tuple[str | None, list[str]]:
    """The value of a flag, and the arguments without it.

    >>> pop_option(["--steps", "3", "--config", "a.toml"], "--config")
    ('a.toml', ['--steps', '3'])
    """
    for place, argument in enumerate(arguments):
        if argument.startswith(flag + "="):
            return argument.removeprefix(flag + "="), arguments[:place] + arguments[place + 1 :]
        if argument == flag:
            if place + 1 == len(arguments):
                raise ValueError(f"{flag} needs a value")
            return arguments[place + 1], arguments[:place] + arguments[place + 2 :]
    return None, arguments


# --- settings records as flags: what tyro does not do by itself


class _RefusedError(Exception):
    """A record's own ValueError on its way past tyro, which would draw a box around it and wrap it."""


def _flags(info: Any) -> Any:
    """tyro's rule for our records: help texts flow, placeholders name the thing, refusals come out as they are."""
    from tyro.constructors import StructConstructorSpec, StructFieldSpec

    cls = info.type
    if cls is not type(info.default) or not dataclasses.is_dataclass(info.default):
        return None

    def make(**values: Any) -> Any:
        try:
            return cls(**values)
        except ValueError as error:
            raise _RefusedError(str(error)) from error

    kinds, texts = get_type_hints(cls, include_extras=True), field_docs(cls)
    fields = []
    for name in (field.name for field in dataclasses.fields(cls)):
        kind, text, default = kinds[name], texts.get(name), getattr(info.default, name)
        if dataclasses.is_dataclass(kind):
            text = text or _flowing(kind.__doc__)
        else:
            kind = _shown(name, kind, default, text)
        fields.append(StructFieldSpec(name, kind, default, text))
    return StructConstructorSpec(make, tuple(fields))


def _texts(info: Any) -> Any:
    """tyro's rule for a text that may be left out: "None" is a text, which a label or a column may be called."""
    from tyro.constructors import PrimitiveConstructorSpec

    if info.type != str | None:
        return None
    return PrimitiveConstructorSpec[str | None](
        nargs=1,
        metavar="STR",
        instance_from_str=lambda given: given[0],
        is_instance=lambda value: value is None or isinstance(value, str),
        str_from_instance=lambda value: [str(value)],
    )


def field_docs(cls: type[Any]) -> dict[str, str]:
    """What the string under each field of a record says, as flowing text."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: _flowing(below.value.value)
        for field, below in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def _shown(name: str, kind: Any, default: Any, text: str | None) -> Any:
    """A field's type together with its placeholder in the help, and with how its default is told.

    What it means that nothing is given, some fields' texts tell themselves: in brackets, or after "unset:".
    """
    from tyro import MISSING
    from tyro.conf import Positional, arg

    plain, *marks = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    placeholder = _placeholder(plain)
    if marks:  # Positional: the value's own name says more than its type
        placeholder = f"{name.upper().removesuffix('S')} ..." if _is_list(plain) else name.upper()
        marks = list(get_args(Positional[Any])[1:])  # type: ignore[misc]  # of settings.Positional and of tyro's own
    told = default is None and text is not None and ("[" in text or "unset:" in text.lower())
    hint = "(required)" if default is MISSING else "" if told else _default_told
    return Annotated[(plain, *marks, arg(metavar=placeholder, help_behavior_hint=hint))]


def _placeholder(kind: Any) -> str | None:
    """What stands for a value in the help; None where tyro's own is good: choices, a fixed number of values.

    >>> _placeholder(int | None), _placeholder(tuple[str, ...]), _placeholder(Literal["a", "b"] | None)
    ('INT', 'STR ...', '{a,b}')
    >>> _placeholder(Literal["a", "b"]), _placeholder(tuple[float, float])
    (None, None)
    """
    if kind == bool | None:  # a switch could not say "as it is"
        return "{True,False}"
    if _is_list(kind):
        return (one := _placeholder(get_args(kind)[0])) and f"{one} ..."
    if get_origin(kind) in (Union, UnionType):
        one = get_args(kind)[0]
        return f"{{{','.join(get_args(one))}}}" if get_origin(one) is Literal else _placeholder(one)
    return kind.__name__.upper() if kind in (int, float, str, Path) else None


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis


def _default_told(default: str) -> str:
    return f"(default: {'unset' if default == 'None' else default or 'none'})"


def _flowing(text: str | None) -> str:
    """Text without the line breaks that its source has: the terminal's width decides where lines end."""
    return " ".join((text or "").split())


def _filled(*paragraphs: str) -> str:
    """Paragraphs broken to the terminal's width, in line with tyro's boxes; it would join lines without an indent."""
    lines = textwrap.TextWrapper(shutil.get_terminal_size().columns, "  ", "  ", break_on_hyphens=False)
    return "\n".join(map(lines.fill, paragraphs))
