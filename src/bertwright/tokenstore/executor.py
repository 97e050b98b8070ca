"""Execution of a build's tasks: by worker processes, or one after the other in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import NamedTuple, Protocol

from bertwright.kernels.cpu import available_cpus
from bertwright.tokenstore.worker import ShardTask, write_shard
from bertwright.vocabulary.tokenizer import Tokenizer

SINGLE_THREADED = dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "1") | {
    "TOKENIZERS_PARALLELISM": "false"
}  # in a worker's environment: there is one worker per core


class Executor(Protocol):
    """A way to run tasks: here, in local processes, or on other machines that share the folder of the build."""

    def run(self, tasks: Sequence[ShardTask], tokenizer: Tokenizer) -> Generator[ShardTask]:
        """Run `write_shard` for each task, in any order; yield each task when its shard is finished.

        Raises the ValueError or OSError of a task. Closing the generator stops the tasks that are still running.
        """
        ...


def make_executor(workers: int | None) -> Executor:
    """Return an executor with a number of worker processes (None: one per core)."""
    if sys.platform == "win32":  # a connection cannot be passed to a child process
        return SerialExecutor()
    return ProcessExecutor(workers or available_cpus())


class SerialExecutor:
    """Executor that runs tasks one after the other in this process."""

    def run(self, tasks: Sequence[ShardTask], tokenizer: Tokenizer) -> Generator[ShardTask]:
        """Run the tasks in order; see `Executor.run`."""
        for task in tasks:
            write_shard(task, tokenizer)
            yield task


class ProcessExecutor:
    """Executor with worker processes on this machine.

    They are plain processes rather than a `multiprocessing` pool, whose children import the user's script again and
    outlive a parent that is killed. These end when their connection breaks. They form a process group of their own,
    which the Ctrl-C of a terminal does not reach: the building process decides when they end.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, tasks: Sequence[ShardTask], tokenizer: Tokenizer) -> Generator[ShardTask]:
        """Run the tasks in at most `workers` processes; see `Executor.run`.

        Also raises ChildProcessError if a worker dies.
        """
        waiting = iter(tasks)
        with _start_workers(tokenizer, min(self.workers, len(tasks))) as idle:
            busy: dict[Connection, tuple[_Worker, ShardTask]] = {}
            while True:
                while idle and (task := next(waiting, None)) is not None:
                    worker = idle.pop()
                    _send(worker, task, _task_files(task))
                    busy[worker.connection] = worker, task
                if not busy:
                    return
                for ready in wait(list(busy)):
                    assert isinstance(ready, Connection)
                    worker, task = busy.pop(ready)
                    _receive(worker, task)
                    idle.append(worker)
                    yield task


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: Connection


@contextmanager
def _start_workers(tokenizer: Tokenizer, count: int) -> Iterator[list[_Worker]]:
    """Start worker processes, and kill them when the block ends."""
    workers: list[_Worker] = []
    try:
        for _ in range(count):
            ours, theirs = Pipe()
            with theirs:
                # Import from where this process imports, and not from the current folder, which -c searches first.
                paths = [path for path in sys.path if isinstance(path, str)]  # Python ignores other entries, too
                code = (
                    f"import sys; sys.path[:] = {paths!r}; from bertwright.tokenstore.worker import worker_main; "
                    f"worker_main({theirs.fileno()}, {os.getpid()})"
                )
                process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    pass_fds=[theirs.fileno()],
                    env=os.environ | SINGLE_THREADED,
                    stdin=subprocess.DEVNULL,
                    process_group=0,
                )
            workers.append(_Worker(process, ours))
            _send(workers[-1], tokenizer, "its start")
        yield [*workers]
    finally:
        for worker in workers:
            worker.connection.close()
            worker.process.kill()
            worker.process.wait()


def _send(worker: _Worker, message: Tokenizer | ShardTask, during: str) -> None:
    try:
        worker.connection.send(message)
    except (BrokenPipeError, ConnectionResetError):
        raise _worker_death(worker, during) from None


def _receive(worker: _Worker, task: ShardTask) -> None:
    """Wait for the end of a worker's task; raise the task's error."""
    try:
        error = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        raise _worker_death(worker, _task_files(task)) from None
    if error is not None:
        raise error


def _worker_death(worker: _Worker, during: str) -> ChildProcessError:
    code = worker.process.wait()
    reason = "killed, usually for lack of memory: use fewer workers" if code == -9 else "see its message above"
    return ChildProcessError(
        f"{during}: a worker process died (exit code {code}: {reason}); finished shards are saved: run the same "
        "command again to resume"
    )


def _task_files(task: ShardTask) -> str:
    return ", ".join(file.path for file in task.source.files)
