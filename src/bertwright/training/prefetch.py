"""Items made ahead by a background thread, so that a training step does not wait for its data."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
DEPTH = 2  # items that are made ahead


def prefetch(items: Iterable[T]) -> Generator[T]:
    """Yield the same items, made by a background thread that is at most `DEPTH` items ahead.

    An exception in the thread is raised in place of the item. Closing the generator stops the thread.
    """
    made: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    slots, closing = threading.Semaphore(DEPTH), threading.Event()

    def make() -> None:
        iterator = iter(items)
        try:
            while slots.acquire() and not closing.is_set():
                made.put(("item", next(iterator)))
        except StopIteration:
            made.put(("end", None))
        except BaseException as error:  # KeyboardInterrupt as well: the thread that waits for the items handles it
            made.put(("error", error))

    thread = threading.Thread(target=make, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = made.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            slots.release()
            yield value
    finally:
        closing.set()
        slots.release()
        thread.join()
