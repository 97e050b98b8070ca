"""Executor with the workers of a Ray cluster: many machines, or this one."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.messages import first_line
from bertwright.base.optional import needs
from bertwright.executors.executor import SINGLE_THREADED, R, S, T
from bertwright.executors.worker import make_portable
from bertwright.kernels.cpu import available_cpus

MAX_RETRIES = 5  # of a call whose worker dies; a lost machine may take several calls with it
ANSWER_S = 5.0  # seconds until a cluster's machine has to answer
SHARED_HINT = "all machines need the inputs at the same path on a shared disk, or on object storage"
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # no reports, no advice on stderr


class CallResources(NamedTuple):
    """What one call takes of a machine."""

    cpus: int = 1
    gpus: int = 0


ONE_CPU = CallResources()


@contextmanager
def open_ray(address: str | None, workers: int | None, call: CallResources) -> Iterator[RayExecutor]:
    """Connect to a Ray cluster, or start one on this machine, and yield an executor; disconnect at the end.

    A connection that the program already has is used, and remains. Raises ValueError if Ray is not installed or no
    cluster answers at the address.
    """
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    with needs("scale", "--executor ray"):
        import ray
    is_ours = not ray.is_initialized()
    if is_ours:
        _connect(ray, address or os.environ.get("RAY_ADDRESS"), workers)
    try:
        yield RayExecutor(ray, workers, call)
    finally:
        if is_ours:
            ray.shutdown()


def _connect(ray: Any, address: str | None, workers: int | None) -> None:
    logging.getLogger("ray").setLevel(logging.ERROR)  # no notices of a start that went well
    options = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    if address is None:
        try:
            ray.init(address="local", num_cpus=workers or available_cpus(), include_dashboard=False, **options)
        except Exception as error:  # of no class of its own, if a busy machine takes longer than Ray waits
            raise ChildProcessError(
                f"--executor ray: expected Ray to start on this machine, got: {first_line(error)}; try again when the "
                "machine is less busy, or use local workers (--workers)"
            ) from None
        return
    problem = _probe(address)
    if problem is None:
        try:
            ray.init(address=address, **options)
            return
        except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
            problem = first_line(error)
    raise ValueError(
        f"--ray-address {address}: expected a Ray cluster there, got none ({problem}); start one with "
        "`ray start --head --port 6379`, or omit the address to start one on this machine"
    )


def _probe(address: str) -> str | None:
    """Return why no machine answers at HOST:PORT, where Ray would try for minutes; None for other addresses."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return None
    try:
        socket.create_connection((host, int(port)), ANSWER_S).close()
    except (OSError, OverflowError) as error:
        return str(error)
    return None


class RayExecutor:
    """Executor with the workers of a Ray cluster.

    Ray repeats the calls of a worker or a machine that dies, and starts calls on machines that join the cluster.
    """

    def __init__(self, ray: Any, workers: int | None, call: CallResources) -> None:
        self._ray = ray
        self._max_workers = workers
        self._resources = call

    @property
    def workers(self) -> int:
        """Number of workers: the given one, or the calls that the cluster has resources for now."""
        if self._max_workers is not None:
            return self._max_workers
        cluster, (cpus, gpus) = self._ray.cluster_resources(), self._resources
        limits = [cluster.get("CPU", 0) // cpus, *([cluster.get("GPU", 0) // gpus] if gpus else [])]
        return max(1, int(min(limits)))

    def run(self, function: Callable[[T, S], R], shared: S, tasks: Iterable[T | None]) -> Generator[tuple[int, R]]:
        """Call the function in the cluster; see `Executor.run`."""
        source, number = iter(tasks), 0
        constants = self._ray.put((function, shared, Path.cwd()))
        work = self._ray.remote(_call)
        cpus, gpus = self._resources
        options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": MAX_RETRIES, "scheduling_strategy": "SPREAD"}
        running: dict[Any, tuple[int, T]] = {}
        try:
            while True:
                while len(running) < self.workers and (task := next(source, None)) is not None:
                    # In a list, the reference is passed on instead of the data: a worker fetches them once.
                    reference = work.options(name=task.name, **options).remote([constants], task)
                    running[reference] = number, task
                    number += 1
                if not running:
                    return
                [reference], _ = self._ray.wait(list(running), num_returns=1)
                finished, task = running.pop(reference)
                yield finished, self._receive(reference, task)
        finally:
            for reference in running:
                self._ray.cancel(reference, force=True)

    def _receive(self, reference: Any, task: T) -> Any:
        """Return the result of a finished call, or raise the error of the call."""
        errors = self._ray.exceptions
        try:
            error, result = self._ray.get(reference)
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as death:
            raise ChildProcessError(
                f"{task.name}: its Ray worker died {MAX_RETRIES + 1} times ({type(death).__name__}: killed, usually "
                "for lack of memory: use fewer workers)"
            ) from None
        except errors.RaySystemError as problem:  # such as a module that a worker cannot import
            reason = str(problem).strip().splitlines()[-1]
            raise ValueError(
                f"--executor ray: a worker cannot run {task.name} ({reason}); install bertwright "
                f"{version('bertwright')} and the same Python packages on all machines of the cluster"
            ) from None
        if isinstance(error, FileNotFoundError) and error.filename:
            reason = f"{error.strerror} on a machine of the Ray cluster; {SHARED_HINT}"
            raise FileNotFoundError(error.errno, reason, error.filename)
        if error is not None:
            raise error
        return result


def _call(constants: list[Any], task: Any) -> tuple[Exception | None, Any]:
    """Call the function on a task, in a worker; return its error and its result."""
    os.environ.update(SINGLE_THREADED)
    function, shared, folder = _fetch(constants[0])
    with suppress(OSError):  # a machine may lack the folder that the command was started in
        os.chdir(folder)  # relative paths are meant from there
    try:
        return None, function(task, shared)
    except (ValueError, OSError) as error:
        return make_portable(error), None


@lru_cache(maxsize=1)
def _fetch(reference: Any) -> Any:
    """Return the function, its shared data and the command's folder; they are copied once per worker."""
    import ray

    return ray.get(reference)
