"""Executors: one function on many tasks, in this process, in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from bertwright.base.settings import check_choice, check_range

MAX_WORKERS = 1_024
LEAD = 4  # tasks per worker that may run or wait for their turn in `run_in_order`
# Environment of a worker: one thread, because there is one worker per core.
SINGLE_THREADED = dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "1") | {
    "TOKENIZERS_PARALLELISM": "false"
}


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings:
    """Workers that share the work on a text. The result does not depend on them."""

    executor: Literal["local", "ray"] = "local"
    """Workers: processes on this machine, or of a Ray cluster (pip install 'bertwright[scale]'). All machines of a
    cluster need this version of bertwright, and see inputs and results at the same path: on a shared disk, or on object
    storage such as s3://BUCKET/books."""
    ray_address: str | None = None
    """Ray cluster, such as 10.0.0.1:6379, or auto on a machine that belongs to one. Unset: the environment variable
    RAY_ADDRESS, or a cluster of this machine alone that ends with the command."""
    workers: int | None = None
    """Number of workers. Unset: with Ray, one per CPU of the cluster; else `prepare` has one per CPU that this process
    may use (`OMP_NUM_THREADS` if set), and the other commands work in one process. Ignored on Windows."""

    @property
    def is_alone(self) -> bool:
        """True if nothing chooses workers: this process works, unless the command has workers by default."""
        return self.executor == "local" and self.workers is None

    def __post_init__(self) -> None:
        check_choice(self, "executor")
        check_range(self, 1, MAX_WORKERS, "workers")
        if self.ray_address is not None and self.executor != "ray":
            raise ValueError(f"ray_address = {self.ray_address!r}: expected --executor ray with it; add or omit it")


class Task(Protocol):
    """Data of one call, which can be pickled."""

    @property
    def name(self) -> str:
        """Name in messages, such as a file."""
        ...


S = TypeVar("S")  # data that all calls share
T = TypeVar("T", bound=Task)
R = TypeVar("R")  # result of a call


class Executor(Protocol):
    """Caller of a function on many tasks."""

    @property
    def workers(self) -> int:
        """Tasks that may run at the same time."""
        ...

    def run(self, function: Callable[[T, S], R], shared: S, tasks: Iterable[T | None]) -> Generator[tuple[int, R]]:
        """Call `function(task, shared)` for each task; yield number and result of a call when it is finished.

        Calls finish in any order; tasks are numbered from 0. `tasks` is read when a worker is idle. A None among them
        means that no further call may start before another one has finished. The function is found by its name in its
        module; shared data, tasks and results are pickled for workers in other processes.

        Raises the ValueError or OSError of a call, and ChildProcessError if a worker dies and no other worker can
        repeat the call. Closing the generator stops unfinished calls.
        """
        ...


class SerialExecutor:
    """Executor that calls in order in this process."""

    workers = 1

    def run(self, function: Callable[[T, S], R], shared: S, tasks: Iterable[T | None]) -> Generator[tuple[int, R]]:
        """Call in order; see `Executor.run`."""
        for number, task in enumerate(filter(None, tasks)):
            yield number, function(task, shared)


def run_in_order(
    executor: Executor, function: Callable[[T, S], R], shared: S, tasks: Iterable[T]
) -> Generator[tuple[T, R]]:
    """Yield each task with its result in the order of the tasks; see `Executor.run`.

    No call starts before the task that is four times the number of workers before it has been yielded, so that the
    memory of results that wait for their turn is bounded.
    """
    started: dict[int, T] = {}
    results: dict[int, R] = {}
    position = 0

    def admit() -> Iterator[T | None]:
        for number, task in enumerate(tasks):
            while number >= position + LEAD * executor.workers:
                yield None
            started[number] = task
            yield task

    with closing(executor.run(function, shared, admit())) as finished:
        for number, result in finished:
            results[number] = result
            while position in results:
                position += 1
                yield started.pop(position - 1), results.pop(position - 1)
