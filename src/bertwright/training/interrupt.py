"""Ctrl-C and SIGTERM during training: the current step finishes and is saved before the process ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def graceful_shutdown() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM in the list that this yields, so that the current step can be finished and saved.

    A second signal ends the program at once. Outside the main thread, which alone receives signals, nothing is
    collected.
    """
    stop_signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stop_signals
        return

    def note(number: int, _frame: object) -> None:
        if stop_signals:
            raise KeyboardInterrupt
        stop_signals.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop_signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
