"""Dispatch to the commands, and turn every expected failure into one line and an exit code."""

from __future__ import annotations

import errno
import importlib
import io
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.cli.options import read_settings
from bertwright.console import print_escaped, print_message
from bertwright.settings import did_you_mean


class Command(NamedTuple):
    """A command. Its modules are imported when they are needed, so that --help is quick."""

    settings: str
    """Module in `bertwright` and name of its settings class."""
    function: str
    """Module and name of the function that takes them."""
    summary: str
    example: str
    check_inputs: str | None = None
    """Module and name of a function that checks the inputs that the settings name, without torch: `function` is in a
    module that imports torch, which takes seconds."""


COMMANDS = {
    "survey": Command(
        "corpus.survey_report:SurveySettings",
        "corpus.survey_report:survey",
        "describe a corpus and warn about problems for pre-training",
        "bertwright survey books/ wiki.txt",
    ),
    "vocabulary": Command(
        "vocabulary.learn:LearnSettings",
        "vocabulary.learn:learn_vocabulary",
        "learn a WordPiece vocabulary from text",
        "bertwright vocabulary books/ wiki.txt --size 30000 --output vocabulary",
    ),
    "prepare": Command(
        "pretraining.prepare:PrepareSettings",
        "pretraining.prepare:prepare",
        "tokenize text into a token store, for pre-training",
        "bertwright prepare books/ wiki.txt --vocabulary vocabulary --store store --held-out 0.01",
    ),
    "plan": Command(
        "planning.plan_settings:PlanSettings",
        "planning.plan:plan",
        "choose size, batch and steps for your text and hours",
        "bertwright plan --text books/ wiki.txt --hours 12 --output plan.toml",
    ),
    "pretrain": Command(
        "pretraining.settings:PretrainSettings",
        "pretraining.run:pretrain",
        "pre-train a BERT on a token store, or resume a run",
        "bertwright pretrain --config mini --store store --run runs/mini",
        "pretraining.settings:check_inputs",
    ),
    "finetune": Command(
        "finetuning.settings:FinetuneSettings",
        "finetuning.run:finetune",
        "fine-tune a BERT on a task, or resume a run",
        "bertwright finetune --task classification --train train.tsv --dev dev.tsv --model runs/mini --run runs/task",
        "finetuning.settings:check_inputs",
    ),
    "grid": Command(
        "finetuning.grid_settings:GridSettings",
        "finetuning.grid:grid",
        "fine-tune with several settings and seeds",
        "bertwright grid --task mrpc --model runs/mini --run runs/mrpc-grid --seeds 5 --dry-run",
        "finetuning.grid_settings:check_inputs",
    ),
    "evaluate": Command(
        "inference.evaluate:EvaluateSettings",
        "inference.evaluate:evaluate",
        "score a fine-tuned model on labeled files",
        "bertwright evaluate runs/task test.tsv --output scores.json",
    ),
    "predict": Command(
        "inference.predict_settings:PredictSettings",
        "inference.predict:predict",
        "label texts with a fine-tuned model",
        "bertwright predict runs/task --inputs new.csv --keep-columns id --output predictions.csv",
        "inference.predict_settings:check_inputs",
    ),
    "probe": Command(
        "finetuning.probe_settings:ProbeSettings",
        "finetuning.probe:probe",
        "train small heads on the features of a frozen BERT",
        "bertwright probe --task conll2003 --model runs/mini --run runs/ner-probe",
        "finetuning.probe_settings:check_inputs",
    ),
    "experiment": Command(
        "experiments.experiment_settings:ExperimentSettings",
        "experiments.experiment:experiment",
        "repeat an experiment of the paper within a budget",
        "bertwright experiment table5 --store store --data glue --work experiments --level demo --dry-run",
        "experiments.experiment_settings:check_inputs",
    ),
    "glue-submission": Command(
        "inference.glue_submission:SubmissionSettings",
        "inference.glue_submission:submission",
        "write predictions for GLUE's server",
        "bertwright glue-submission cola=runs/cola sst2=runs/sst2 --data glue --output glue.zip --fill-missing",
    ),
    "fill-mask": Command(
        "cli.verbs.fill_mask:FillMaskSettings",
        "cli.verbs.fill_mask:fill_mask",
        "predict the tokens for [MASK] in a text",
        "bertwright fill-mask runs/mini 'Paris is the [MASK] of France.'",
    ),
    "next-sentence": Command(
        "cli.verbs.next_sentence:NextSentenceSettings",
        "cli.verbs.next_sentence:next_sentence",
        "score whether each text follows the one before",
        "bertwright next-sentence runs/mini 'Where are you?' 'I am at home.'",
    ),
    "attention": Command(
        "inference.attention_plot:AttentionSettings",
        "inference.attention_plot:attention",
        "draw the attention weights of a text",
        "bertwright attention runs/mini 'The bear sleeps.' --output attention.png",
    ),
    "embed": Command(
        "inference.embed:EmbedSettings",
        "inference.embed:embed",
        "turn texts into vectors",
        "bertwright embed runs/mini --inputs texts.txt --output vectors.npy",
    ),
    "info": Command(
        "inference.info_settings:InfoSettings",
        "inference.info:info",
        "describe a model, vocabulary, store or run folder",
        "bertwright info runs/mini",
    ),
    "convert": Command(
        "inference.convert:ConvertSettings",
        "inference.convert:convert",
        "write a model as a Hugging Face folder, or in Google's format",
        "bertwright convert uncased_L-12_H-768_A-12 bert-base --lowercase True",
    ),
}

USAGE = """usage: bertwright COMMAND [--config FILE.toml] [options]

From raw text to a BERT, pre-trained and fine-tuned. The commands:

{commands}

`bertwright COMMAND --help` explains every setting of a command, with its
default and the default's source. --config reads settings from a TOML file (for
pretrain, also from a recipe); options override them. Vocabularies, stores and
runs save the settings in force as settings.toml, which --config can read again.
"""

PACKAGE = Path(__file__).parents[1]
show_python_warning = warnings.showwarning

EXIT_SIGPIPE = 141  # what a shell reports for a program that SIGPIPE ended: 128 + 13
OUT_OF_MEMORY = (
    "out of memory; process less at a time (--micro-batch-size in pre-training, --batch-size and --max-length "
    "elsewhere; for a vocabulary, fewer files), or use a smaller model"
)
NO_MORE_THREADS = (
    "the system allows no more threads or processes (ulimit -u, or the limit of the container); lower --threads or "
    "--workers, or end other processes"
)
NO_THREAD = re.compile("can't start new thread|pthread_create|Thread creation failed")
RANK_LOST = "another rank has ended; restart all ranks, with --resume if the run has begun"
# Messages of gloo and NCCL if another rank has ended.
PEER_LOST = re.compile("Connection (closed|reset) by peer|Broken pipe|remote process exited")
MISUSE = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
MISUSE_ERRNO = (errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS)


def main() -> None:
    """Run one command and exit with its code.

    0: success; 1: the work failed; 2: misuse; 130: Ctrl-C or SIGTERM; 141: the reader of the output closed it. A defect
    of this package ends with a traceback.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: temporaries are deleted
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # print "?" for characters that a terminal lacks
            stream.reconfigure(errors="replace")
    warnings.showwarning = print_warning
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; every expected failure is one line on stderr."""
    try:
        code = dispatch(arguments)
        if sys.stdout is not None:  # None if the caller has closed it
            sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        return print_failure(f"interrupted{f': {interrupt}' if interrupt.args else ''}", 130)
    except (BrokenPipeError, SystemExit):  # the reader of our output has ended; rich then raises SystemExit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_SIGPIPE
    except OSError as error:
        if error.errno == errno.EAGAIN and error.filename is None:  # raised by fork
            return print_failure(f"error: {NO_MORE_THREADS}", 1)
        is_misuse = isinstance(error, MISUSE) or error.errno in MISUSE_ERRNO
        return print_failure(f"error: {format_os_error(error)}", 2 if is_misuse else 1)
    except ValueError as error:
        return print_failure(f"error: {error}", 2)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return print_failure(f"error: {OUT_OF_MEMORY}", 1)
        if NO_THREAD.search(str(error)):
            return print_failure(f"error: {NO_MORE_THREADS}", 1)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1 and PEER_LOST.search(str(error)):
            return print_failure(f"error: {RANK_LOST}", 1)
        if not type(error).__module__.startswith("bertwright."):  # a defect: show its traceback
            raise
        return print_failure(f"error: {error}", 1)


def print_failure(message: str, code: int) -> int:
    """Print the message of a failure as one line on stderr; return its exit code."""
    print_message(message)
    return code


def print_warning(message: Warning | str, category: type[Warning], filename: str, *location: Any, **named: Any) -> None:
    """Print a warning of this package as one line on stderr; show others with file and line, as Python does."""
    if category is UserWarning and Path(filename).is_relative_to(PACKAGE):
        print_message(f"warning: {message}")
    else:
        show_python_warning(message, category, filename, *location, **named)


def format_os_error(error: OSError) -> str:
    """Format an OSError with its file name; the name of a temporary file is replaced by the final name.

    >>> format_os_error(PermissionError(13, "Permission denied", "models/.bert.part-4711-21"))
    'models/bert: Permission denied'
    """
    text = f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else error.strerror or str(error)
    return re.sub(r"(^|[\\/])\.([^\\/]+)\.part-[\d-]+", r"\1\2", text)


def dispatch(arguments: list[str]) -> int:
    """Run one command, or print a help; return the exit code."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print_escaped(usage(), sys.stdout)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from importlib.metadata import version

        print_escaped(f"bertwright {version('bertwright')}", sys.stdout)
        return 0
    name, *rest = arguments
    if name not in COMMANDS:
        raise ValueError(f'no command "{name}"; {did_you_mean(name, COMMANDS)}')
    command = COMMANDS[name]
    try:
        settings = read_settings(_load(command.settings), name, rest, command.example)
    except SystemExit:  # tyro has printed the help
        return 0
    if command.check_inputs is not None:
        _load(command.check_inputs)(settings)
    _load(command.function)(settings)
    return 0


def _load(name: str) -> Any:
    """Import a class or function of the package, named as module:name."""
    module, _, attribute = name.partition(":")
    with _exit_on_interrupt():
        return getattr(importlib.import_module(f"bertwright.{module}"), attribute)


@contextmanager
def _exit_on_interrupt() -> Iterator[None]:
    """Exit at once on Ctrl-C: an exception during the import of a C extension can crash the interpreter."""

    def leave(*_: object) -> None:
        os.write(2, b"bertwright: interrupted\n")
        os._exit(130)

    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def usage() -> str:
    """Return the help of the program."""
    return USAGE.format(commands="\n".join(f"  {name:<15} {command.summary}" for name, command in COMMANDS.items()))
