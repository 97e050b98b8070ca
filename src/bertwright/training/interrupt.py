"""Ctrl-C and SIGTERM during training: the process ends after the current step has finished and has been saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StopSignals(list[int]):
    """Signals that have asked this process to stop. As a handler it appends the first; a second one interrupts."""

    def __call__(self, number: int, _frame: object) -> None:
        """Receive a signal."""
        if self:
            raise KeyboardInterrupt
        self.append(number)


@contextmanager
def graceful_shutdown() -> Iterator[StopSignals]:
    """Yield a list and append Ctrl-C and SIGTERM to it, so that the caller can finish and save the current step.

    A second signal raises KeyboardInterrupt at once. A signal that this process ignores (a shell's `&`, `nohup`) is
    still ignored. Only the main thread receives signals; in other threads the list stays empty. Within another such
    block, both blocks know the signals of either.
    """
    if threading.current_thread() is not threading.main_thread():
        yield StopSignals()
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # None: a handler that was not installed from Python, which cannot be restored.
    before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    outer = next((handler for handler in before.values() if isinstance(handler, StopSignals)), None)
    stop_signals = StopSignals() if outer is None else outer
    for number in before:
        signal.signal(number, stop_signals)
    try:
        yield stop_signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
