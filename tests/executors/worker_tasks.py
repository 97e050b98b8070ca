"""Functions that workers call in tests; they import this module, so it imports nothing that takes seconds."""

import os
import signal
from pathlib import Path
from typing import NamedTuple


class Count(NamedTuple):
    """A task of the tests."""

    number: int
    marker: str = ""

    @property
    def name(self) -> str:
        return f"count {self.number}"


def square(task: Count, shift: int) -> tuple[int, int]:
    if task.number == 13:
        raise ValueError("13: expected a lucky number")
    return task.number**2 + shift, os.getpid()


def die_once(task: Count, shift: int) -> int:
    """Kill this worker with SIGKILL, unless the marker shows that a worker has died."""
    if task.number == 3 and not Path(task.marker).exists():
        Path(task.marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task.number + shift


def die(task: Count, shift: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0
