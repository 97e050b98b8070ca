"""Dispatch to the commands, and turn every expected failure into one line and an exit code."""

from __future__ import annotations

import contextvars
import errno
import io
import os
import re
import signal
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from bertwright.base.messages import print_escaped, print_message
from bertwright.base.settings import did_you_mean
from bertwright.cli.options import read_settings
from bertwright.cli.verbs import VERBS, importing_torch

USAGE = """usage: bertwright COMMAND [--config FILE.toml] [options]

From raw text to a BERT, pre-trained and fine-tuned. The commands:

{commands}

`bertwright COMMAND --help` explains the usual settings of a command, with their
defaults, and `--help all` every one. --config reads settings from a TOML file
(for pretrain, also from a recipe); options override them. Vocabularies, stores
and runs save all settings as settings.toml, which --config can read again.
`bertwright --version` prints the version.
"""

PACKAGE = Path(__file__).parents[1]
show_python_warning = warnings.showwarning
print_message_once = cache(print_message)  # files are read twice, to check them first

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
RANK_LOST = "another rank has ended; restart all (torchrun --max-restarts does), with --resume if the run has begun"
# Messages of gloo and NCCL if another rank has ended.
PEER_LOST = re.compile("Connection (closed|reset) by peer|Broken pipe|remote process exited")
MISUSE = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
DISK_ERRNO = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
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
        code = contextvars.copy_context().run(dispatch, arguments)  # origins of settings end with their command
        if sys.stdout is not None:  # None if the caller has closed it
            sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        return print_failure(f"interrupted{f': {interrupt}' if interrupt.args else ''}", 130)
    except (BrokenPipeError, SystemExit) as error:  # rich raises SystemExit if the reader of our output has ended
        if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
            raise
        if sys.stdout is not None:
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
        print_message_once(f"warning: {message}")
    else:
        show_python_warning(message, category, filename, *location, **named)


def format_os_error(error: OSError) -> str:
    """Format an OSError with its file name; the name of a temporary file is replaced by the final name.

    >>> format_os_error(PermissionError(13, "Permission denied", "models/.bert.part-4711-21"))
    'models/bert: Permission denied'
    """
    filename = error.filename or ("standard output or a temporary file" if error.errno in DISK_ERRNO else "")
    text = f"{os.fsdecode(filename)}: {error.strerror}" if filename else error.strerror or str(error)
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
    verbs = {verb.name: verb for verb in VERBS}
    words = 2 if " ".join(arguments[:2]) in verbs else 1  # "search build" is one command
    name, rest = " ".join(arguments[:words]), arguments[words:]
    if name not in verbs:
        raise ValueError(f'no command "{name}"; {did_you_mean(name, list(verbs))}')
    verb = verbs[name]
    with importing_torch():  # other C extensions are imported here
        settings_class = verb.load_settings()
    settings = read_settings(settings_class, name, rest, verb.example, verb.usual.split())
    if settings is not None:
        verb.run(settings)
    return 0


def usage() -> str:
    width = max(len(verb.name) for verb in VERBS)
    return USAGE.format(commands="\n".join(f"  {verb.name:<{width}} {verb.summary}" for verb in VERBS))
