"""Ctrl-C and SIGTERM during training: the process ends after the current step has finished and has been saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def graceful_shutdown() -> Iterator[list[int]]:
    """Yield a list and append Ctrl-C and SIGTERM to it, so that the caller can finish and save the current step.

    A second signal raises KeyboardInterrupt at once. A signal that this process ignores (a shell's `&`, `nohup`) is
    still ignored. Only the main thread receives signals; in other threads the list stays empty.
    """
    stop_signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stop_signals
        return

    def handle(number: int, _frame: object) -> None:
        if stop_signals:
            raise KeyboardInterrupt
        stop_signals.append(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # None: a handler that was not installed from Python, which cannot be restored.
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield stop_signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
