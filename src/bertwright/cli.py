"""The command line: one verb a stage, every setting a flag, a TOML file underneath."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.settings import nearest, read_toml, unfinished


class Verb(NamedTuple):
    """A stage of the way from text to model. Its module is loaded when it is asked for, so that --help is quick."""

    module: str
    settings: str  # the name of its settings record
    function: str  # what takes the record
    summary: str


VERBS = {
    "survey": Verb(
        "bertwright.runs.corpus", "SurveySettings", "survey", "what a corpus is like, and what in it will hurt"
    ),
    "vocabulary": Verb(
        "bertwright.runs.corpus", "LearnSettings", "vocabulary", "learn a WordPiece vocabulary from text"
    ),
    "prepare": Verb("bertwright.runs.corpus", "StoreSettings", "prepare", "text and vocabulary to a token store"),
    "pretrain": Verb(
        "bertwright.runs.pretrain", "PretrainSettings", "pretrain", "masked-LM and next-sentence pre-training"
    ),
    "fill-mask": Verb("bertwright.runs.use", "FillMaskSettings", "fill_mask", "let a model fill [MASK] in a text"),
    "embed": Verb("bertwright.runs.use", "EmbedSettings", "embed", "texts to vectors"),
    "info": Verb("bertwright.runs.use", "InfoSettings", "info", "what a model, vocabulary, store or run folder holds"),
    "convert": Verb(
        "bertwright.runs.use", "ConvertSettings", "convert", "foreign checkpoints to a Hugging Face folder"
    ),
}

USAGE = """usage: bertwright VERB [--config FILE.toml] [options]

From raw text to a pre-trained BERT. The verbs in the order in which a project meets them:

{verbs}

`bertwright VERB --help` explains every setting of a verb, with its default and where it comes from.
--config reads settings from a TOML file (see recipes/); options given beside it win.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; ends the process with 0, 1 (the work failed), 2 (misuse) or 130 (Ctrl-C)."""
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; every expected failure is one line on stderr."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"bertwright {version('bertwright')}")
        return 0
    name, *rest = arguments
    if name not in VERBS:
        print(f'bertwright: error: no verb "{name}"; {nearest(name, VERBS)}', file=sys.stderr)
        return 2
    try:
        carry_out(name, rest)
    except KeyboardInterrupt:
        print("\nbertwright: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output, `head` for one, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"bertwright: error: {place}{error.strerror or error}", file=sys.stderr)
        return (
            2 if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | PermissionError) else 1
        )
    except ValueError as error:
        print(f"bertwright: error: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        if type(error) is RuntimeError:  # ours have names of their own; anything else is a defect and shows its trace
            raise
        print(f"bertwright: error: {error}", file=sys.stderr)
        return 1
    return 0


def usage() -> str:
    return USAGE.format(verbs="\n".join(f"  {name:<12} {verb.summary}" for name, verb in VERBS.items()))


def carry_out(name: str, arguments: list[str]) -> None:
    """Read a verb's settings from its arguments and do it."""
    verb = VERBS[name]
    module = importlib.import_module(verb.module)
    function: Any = getattr(module, verb.function)
    function(read_settings(getattr(module, verb.settings), name, arguments))


def read_settings(cls: type[Any], name: str, arguments: list[str]) -> Any:
    """The settings record that a TOML file, if --config names one, and the arguments make together."""
    import tyro

    config, rest = _taken(arguments, "--config")
    table = read_toml(Path(config)) if config else {}
    where = config or "command line"
    if "--resume" in rest and (run_folder := _taken(rest, "--run")[0]):
        if config:
            raise ValueError("--resume goes on with the run's own settings; leave --config out")
        from bertwright.runs.pretrain import saved_settings

        default = saved_settings(Path(run_folder))
    else:
        default = unfinished(cls, table, where, tyro.MISSING)
    return tyro.cli(
        cls,
        args=rest,
        default=default,
        prog=f"bertwright {name}",
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )


def _taken(arguments: list[str], flag: str) -> tuple[str | None, list[str]]:
    """The value of a flag, and the arguments without it.

    >>> _taken(["--steps", "3", "--config", "a.toml"], "--config")
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
