"""Worker process of this machine: it calls a function on the tasks that its parent sends."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from multiprocessing.connection import Connection

PR_SET_PDEATHSIG = 1  # linux/prctl.h: the signal that a process gets when its parent dies


def make_portable(error: ValueError | OSError) -> ValueError | OSError:
    """Return an error that another process can read: the same, or one of its message if its class cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
        return error
    except Exception:  # whatever the class of another package raises
        return OSError(str(error)) if isinstance(error, OSError) else ValueError(str(error))


def worker_main(descriptor: int, parent: int) -> None:
    """Run a worker process: receive a function and its shared data, then tasks; answer each with error and result.

    The process ends when the parent closes the connection or dies. On Linux it is killed with its parent, so that it
    cannot write during a resumed build. `parent` is the parent's process id: if the process has another parent by now,
    the parent died before the worker was ready, and tasks that still wait in the connection are ignored.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with Connection(descriptor) as connection:
        try:
            function, shared = connection.recv()
            while True:
                task = connection.recv()
                if os.getppid() != parent:
                    return
                try:
                    connection.send((None, function(task, shared)))
                except (ValueError, OSError) as error:
                    connection.send((make_portable(error), None))
        except (EOFError, BrokenPipeError, ConnectionResetError):
            sys.exit()
