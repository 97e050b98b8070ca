"""Executor with worker processes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from bertwright.executors.executor import SINGLE_THREADED, R, S, T, Task


class ProcessExecutor:
    """Executor with worker processes on this machine.

    The workers are plain processes, not a `multiprocessing` pool: a pool's children import the user's script again and
    outlive a killed parent. A worker ends when its connection breaks. Each worker is in a process group of its own,
    which a terminal's Ctrl-C does not reach; the parent ends it.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, function: Callable[[T, S], R], shared: S, tasks: Iterable[T | None]) -> Generator[tuple[int, R]]:
        """Call the function in at most `workers` processes; see `Executor.run`.

        Raises ChildProcessError if a worker dies: usually it lacked memory, and would again.
        """
        source, number = iter(tasks), 0
        idle: list[_Worker] = []
        busy: dict[Connection, tuple[_Worker, T, int]] = {}
        with ExitStack() as stack:
            while True:
                ready: list[T] = []
                while len(busy) + len(ready) < self.workers and (task := next(source, None)) is not None:
                    ready.append(task)
                new = [_start_worker(stack) for _ in ready[len(idle) :]]
                for worker in new:  # all have started: large data are sent only once their receiver has imported
                    worker.send((function, shared), "worker process: died at start")
                idle += new
                for task in ready:
                    worker = idle.pop()
                    worker.send(task, _format_death(task))
                    busy[worker.connection] = worker, task, number
                    number += 1
                if not busy:
                    return
                for connection in wait(list(busy)):
                    assert isinstance(connection, Connection)
                    worker, task, finished = busy.pop(connection)
                    result = worker.receive(_format_death(task))
                    idle.append(worker)
                    yield finished, result


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: Connection

    def send(self, message: Any, death: str) -> None:
        """Send pickled data; `death`: the start of the message if the worker is dead."""
        try:
            self.connection.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise self._make_error(death) from None

    def receive(self, death: str) -> Any:
        """Wait for the result of a call, or raise the error of the call."""
        try:
            error, result = self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._make_error(death) from None
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.wait()

    def _make_error(self, death: str) -> ChildProcessError:
        code = self.process.wait()
        reason = "killed, usually for lack of memory: use fewer workers" if code == -9 else "see its message above"
        return ChildProcessError(f"{death} (exit code {code}: {reason})")


def python_command(code: str) -> list[str]:
    """Return the command of a new Python process that runs code.

    It imports from where this process imports, and not from the current folder, which -c searches first.
    """
    paths = [path for path in sys.path if isinstance(path, str)]  # Python also ignores other entries
    return [sys.executable, "-c", f"import sys; sys.path[:] = {paths!r}; {code}"]


def _start_worker(stack: ExitStack) -> _Worker:
    """Start a worker process; the stack ends it."""
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            python_command(
                f"from bertwright.executors.worker import worker_main; worker_main({theirs.fileno()}, {os.getpid()})"
            ),
            pass_fds=[theirs.fileno()],
            env=os.environ | SINGLE_THREADED,
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
    worker = _Worker(process, ours)
    stack.callback(worker.end)
    return worker


def _format_death(task: Task) -> str:
    return f"{task.name}: a worker process died"
