"""Program that imports the package once and runs each command in a fork of itself, so that commands start at once.

It reads one request per line (JSON) and answers each when its process has ended; `campaign.Commands` is its client. A
request may ask for a fault: a kill after some time or before the n-th file operation, a failing file operation, or a
limit of the system.
"""

from __future__ import annotations

import errno
import fcntl
import importlib
import io
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

import bertwright
from bertwright.cli.main import main
from bertwright.cli.verbs import VERBS

WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
CREATIONS = ("open", "os.mkdir", "os.fsync")  # what fails on a full disk
EXIT_TRACEBACK = 70
PIPE_SIZE = 1 << 20
# Modules that the commands import when they need them.
IMPORTED_LATE = """
bertwright.inference.info bertwright.tasks.task_folder bertwright.systems.bert.google scipy.stats sklearn.metrics
seqeval.metrics seqeval.scheme
""".split()


class FileOperations:
    """Audit hook that counts the operations that change files in a folder, and acts before some of them."""

    def __init__(self, folder: str, act: Callable[[int, str, Any], None]) -> None:
        self.folder = os.path.realpath(folder)
        self.act = act
        self.count = 0

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Receive an audit event of Python."""
        if event in CHANGES or (event == "open" and self._writes(*arguments)):
            path = arguments[0]
            if isinstance(path, str | bytes | os.PathLike) and self._is_inside(os.fsdecode(path)):
                self.count += 1
                self.act(self.count, event, path)

    def synchronize(self, descriptor: int) -> None:
        """Stand in for os.fsync, which has no audit event."""
        self.count += 1
        self.act(self.count, "os.fsync", None)
        fsync(descriptor)

    @staticmethod
    def _writes(_: Any, mode: str | None, flags: int) -> bool:
        return any(letter in "wax+" for letter in mode) if mode else bool(flags & WRITE_FLAGS)

    def _is_inside(self, path: str) -> bool:
        return not Path(path).is_absolute() or os.path.realpath(path).startswith(self.folder)


fsync = os.fsync


def watch_files(folder: str, fault: dict[str, Any]) -> FileOperations:
    """Install the hook that kills, or fails, at the file operation that a fault names."""
    number, code = fault.get("at"), fault.get("errno")

    def act(count: int, event: str, path: Any) -> None:
        if number is None or count < number:
            return
        if code is None:
            os.kill(os.getpid(), signal.SIGKILL)
        kind = getattr(errno, code)
        if count > number and code == "EIO":  # a bad sector; the others are states of the whole disk
            return
        if code in ("ENOSPC", "EDQUOT") and event not in CREATIONS:
            return
        raise OSError(kind, os.strerror(kind), *([] if path is None else [os.fsdecode(path)]))

    operations = FileOperations(folder, act)
    sys.addaudithook(operations)
    os.fsync = operations.synchronize
    return operations


def run_command(request: dict[str, Any]) -> NoReturn:
    """Run a command line in this process, which ends with it."""
    code = EXIT_TRACEBACK
    try:
        os.setsid()
        os.chdir(request["folder"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(request["out"], 1)
        os.dup2(request["err"], 2)
        sys.stdin, sys.stdout, sys.stderr = (
            io.TextIOWrapper(open(stream, mode, closefd=False), "utf-8")  # noqa: SIM115
            for stream, mode in ((0, "rb"), (1, "wb"), (2, "wb"))
        )
        fault = request["fault"]
        for name, limit in (("RLIMIT_FSIZE", fault.get("file_size")), ("RLIMIT_AS", request["memory"])):
            if limit is not None:
                resource.setrlimit(getattr(resource, name), (limit, limit))
        if (user := fault.get("user")) is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        operations = watch_files(request["folder"], fault)
        sys.argv = ["bertwright", *request["arguments"]]
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code if isinstance(exit_.code, int) else 0
        os.write(request["count"], str(operations.count).encode())
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def wait_for(process: int, seconds: float) -> bool:
    """Wait until a process has ended; return False if it has not after some seconds."""
    descriptor = os.pidfd_open(process)
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Run one request in a fork; return its exit code (-9: killed), what it printed, its seconds and operations."""
    pipes = {name: os.pipe() for name in ("out", "err", "count")}  # no files: a fault may limit their size
    for reader, writer in pipes.values():
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
        os.set_blocking(reader, False)
    started = time.perf_counter()
    process = os.fork()
    if process == 0:
        run_command(request | {name: writer for name, (_, writer) in pipes.items()})
    kill_after = request["fault"].get("after")
    is_late = not wait_for(process, request["timeout"] if kill_after is None else kill_after)
    if is_late:
        os.kill(process, signal.SIGKILL)
    _, status, usage = os.wait4(process, 0)
    seconds = time.perf_counter() - started
    printed = {name: read_pipe(*pipe) for name, pipe in pipes.items()}
    return {
        "code": os.waitstatus_to_exitcode(status),
        "timed_out": is_late and kill_after is None,
        "seconds": seconds,
        "out": printed["out"],
        "err": printed["err"],
        "operations": int(printed["count"] or 0),
        "memory": usage.ru_maxrss << 10,
    }


def read_pipe(reader: int, writer: int) -> str:
    """Close a pipe; return what is in it."""
    os.close(writer)
    try:
        return os.read(reader, PIPE_SIZE).decode("utf-8", "replace")
    except BlockingIOError:  # empty, and a worker of a killed command has not ended yet
        return ""
    finally:
        os.close(reader)


def draw_nothing() -> None:
    """Draw an empty plot, so that matplotlib has loaded its fonts."""
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots(1, 2)[0].set_xlabel("x")
    figure.savefig(io.BytesIO(), format="png")


def serve() -> None:
    """Import all commands, then answer requests until standard input ends."""
    for verb in VERBS:
        verb.load_settings()
        resolve_name(f"bertwright.{verb.function}")
    for name in bertwright.__all__:
        getattr(bertwright, name)  # imports its module
    for name in IMPORTED_LATE:
        importlib.import_module(name)
    draw_nothing()
    from bertwright.kernels import native_library

    for name in ("kernels", "wordpiece"):
        native_library.load_library(name)
    num_threads = len(list(Path("/proc/self/task").iterdir()))
    assert num_threads == 1, f"{num_threads} threads: a fork would lack all but one of them"
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    serve()
