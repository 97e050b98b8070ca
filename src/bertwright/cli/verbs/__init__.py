"""The commands, one file each; `glue_submission.py` is `bertwright glue-submission`.

A file has four constants and a function: SETTINGS, the class of its settings; ORDER, its place in the usage, where raw
text comes first; SUMMARY and EXAMPLE for the help; and `run(settings)`. The last three constants are literals.

Torch takes seconds to import, so neither --help nor a check of the inputs waits for it: `run` checks first, then
imports the library's function in a block `with importing_torch()`. A function that checks first and has its own imports
is `run` itself.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing_torch() -> Iterator[None]:
    """Exit at once on Ctrl-C: an exception during the import of a C extension can crash the interpreter."""

    def leave(*_: object) -> None:
        os.write(2, b"bertwright: interrupted\n")
        os._exit(130)

    if threading.current_thread() is not threading.main_thread():  # signals reach only the main thread
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
