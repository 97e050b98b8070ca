"""Executors, which write the shards of a build: in worker processes, or one after another in this process."""

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
from bertwright.tokenstore.shard import ShardSpec, write_shard
from bertwright.vocabulary.text_tokenizer import TextTokenizer

# Environment of a worker: one thread, because there is one worker per core.
SINGLE_THREADED = dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "1") | {
    "TOKENIZERS_PARALLELISM": "false"
}


class Executor(Protocol):
    """Writer of shards. This module has local ones; another may use machines that share the build's folder."""

    def run(self, shards: Sequence[ShardSpec], tokenizer: TextTokenizer) -> Generator[ShardSpec]:
        """Run `write_shard` for each shard, in any order; yield each shard when it is finished.

        Raises the ValueError or OSError of a shard. Closing the generator stops the work on unfinished shards.
        """
        ...


def make_executor(workers: int | None) -> Executor:
    """Return an executor with a number of worker processes (None: one per core)."""
    if sys.platform == "win32":  # a connection cannot be passed to a child process
        return SerialExecutor()
    return ProcessExecutor(workers or available_cpus())


class SerialExecutor:
    """Executor that writes shards one after another in this process."""

    def run(self, shards: Sequence[ShardSpec], tokenizer: TextTokenizer) -> Generator[ShardSpec]:
        """Write the shards in order; see `Executor.run`."""
        for shard in shards:
            write_shard(shard, tokenizer)
            yield shard


class ProcessExecutor:
    """Executor with worker processes on this machine.

    The workers are plain processes, not a `multiprocessing` pool: a pool's children import the user's script again and
    outlive a killed parent. A worker ends when its connection breaks. Each worker is in a process group of its own,
    which a terminal's Ctrl-C does not reach; the parent ends it.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, shards: Sequence[ShardSpec], tokenizer: TextTokenizer) -> Generator[ShardSpec]:
        """Write the shards in at most `workers` processes; see `Executor.run`.

        Also raises ChildProcessError if a worker dies.
        """
        waiting = iter(shards)
        with _start_workers(tokenizer, min(self.workers, len(shards))) as idle:
            busy: dict[Connection, tuple[_Worker, ShardSpec]] = {}
            while True:
                while idle and (shard := next(waiting, None)) is not None:
                    worker = idle.pop()
                    _send(worker, shard, _format_death(shard))
                    busy[worker.connection] = worker, shard
                if not busy:
                    return
                for ready in wait(list(busy)):
                    assert isinstance(ready, Connection)
                    worker, shard = busy.pop(ready)
                    _receive(worker, shard)
                    idle.append(worker)
                    yield shard


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: Connection


def python_command(code: str) -> list[str]:
    """Return the command of a new Python process that runs code.

    It imports from where this process imports, and not from the current folder, which -c searches first.
    """
    paths = [path for path in sys.path if isinstance(path, str)]  # Python also ignores other entries
    return [sys.executable, "-c", f"import sys; sys.path[:] = {paths!r}; {code}"]


@contextmanager
def _start_workers(tokenizer: TextTokenizer, count: int) -> Iterator[list[_Worker]]:
    """Start worker processes, and kill them when the block ends."""
    workers: list[_Worker] = []
    try:
        for _ in range(count):
            ours, theirs = Pipe()
            with theirs:
                process = subprocess.Popen(
                    python_command(
                        "from bertwright.tokenstore.worker import worker_main; "
                        f"worker_main({theirs.fileno()}, {os.getpid()})"
                    ),
                    pass_fds=[theirs.fileno()],
                    env=os.environ | SINGLE_THREADED,
                    stdin=subprocess.DEVNULL,
                    process_group=0,
                )
            workers.append(_Worker(process, ours))
        for worker in workers:  # all have started: a large tokenizer is sent only once its receiver has imported
            _send(worker, tokenizer, "worker process: died at start")
        yield [*workers]
    finally:
        for worker in workers:
            worker.connection.close()
            worker.process.kill()
            worker.process.wait()


def _send(worker: _Worker, message: TextTokenizer | ShardSpec, death: str) -> None:
    try:
        worker.connection.send(message)
    except (BrokenPipeError, ConnectionResetError):
        raise _worker_death(worker, death) from None


def _receive(worker: _Worker, shard: ShardSpec) -> None:
    """Wait until a worker has finished its shard; raise the shard's error."""
    try:
        error = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        raise _worker_death(worker, _format_death(shard)) from None
    if error is not None:
        raise error


def _worker_death(worker: _Worker, death: str) -> ChildProcessError:
    code = worker.process.wait()
    reason = "killed, usually for lack of memory: use fewer workers" if code == -9 else "see its message above"
    return ChildProcessError(
        f"{death} (exit code {code}: {reason}); finished shards are saved: run the same command again to resume"
    )


def _format_death(shard: ShardSpec) -> str:
    first, *more_files = (file.path for file in shard.source.files)
    return first + (f" and {len(more_files):,} more files" if more_files else "") + ": a worker process died"
