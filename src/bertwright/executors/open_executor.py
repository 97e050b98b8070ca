"""Choice of the executor by the settings of a command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bertwright.executors.executor import Executor, ExecutorSettings, SerialExecutor
from bertwright.executors.processes import ProcessExecutor
from bertwright.executors.ray_executor import ONE_CPU, CallResources, open_ray
from bertwright.kernels.cpu import available_cpus


@contextmanager
def open_executor(
    settings: ExecutorSettings, default: Executor | None = None, call: CallResources = ONE_CPU
) -> Iterator[Executor]:
    """Yield the executor that settings choose.

    `default`: the local executor if no number of workers is set; None: a process per CPU. `call`: what
    each call takes on a Ray cluster. Raises ValueError if Ray is not installed or there is no cluster at the address.
    """
    if settings.executor == "ray":
        with open_ray(settings.ray_address, settings.workers, call) as executor:
            yield executor
    elif settings.is_alone and default is not None:
        yield default
    else:
        yield make_local_executor(settings.workers)


def make_local_executor(workers: int | None) -> Executor:
    """Return an executor with a number of worker processes (None: one per core)."""
    if sys.platform == "win32":  # a connection cannot be passed to a child process
        return SerialExecutor()
    return ProcessExecutor(workers or available_cpus())
