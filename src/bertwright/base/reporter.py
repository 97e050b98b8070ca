"""What a long call tells its caller: notes, progress and records. The library prints nothing itself.

A `Reporter` is an argument of every function that works for long. `SILENT`, the default, turns notes into Python
warnings and drops the rest; the command line passes one that prints (`cli/render`), a server or a notebook its own.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import IO, Any, Literal, NamedTuple, Protocol

from bertwright.base.messages import escape_control, format_duration

Unit = Literal["items", "bytes", "steps"]
PRINT_EVERY_S = 30.0  # between lines about the steps of a training run, where no line is live
RECENT_S = 60.0  # seconds of work whose speed tells the time left: other programs may start and end during a run
RECENT_SHARE = 0.1  # of the time so far; the longer of both counts, so that a long run's evaluations average out


ProgressCallback = Callable[[int], None]  # gets the amount done since the previous call


class Advance(Protocol):
    """A `ProgressCallback` that also takes the latest figures of the work."""

    def __call__(self, amount: int, text: str = "", /) -> None:
        """Add `amount` to what is done; `text`: the latest figures, which replace the earlier ones unless empty."""


class Reporter(Protocol):
    """Receiver of what a long call has to say."""

    def note(self, text: str) -> None:
        """Receive what the user should know, such as a problem of the data, with the way out."""

    def progress(
        self, what: str, size: int | None, unit: Unit = "items", done: int = 0
    ) -> AbstractContextManager[Advance]:
        """Open the progress of one part of the work; `size`: its total, None if unknown; `done`: done before."""

    def record(self, record: Any) -> None:
        """Receive a result: one of the records of this module, or a type of its own such as `Survey`."""


class Heading(NamedTuple):
    """Title of the records that follow."""

    text: str


class Line(NamedTuple):
    """A sentence, a path or a command, which is never broken."""

    text: str
    kind: Literal["plain", "minor", "good"] = "plain"


class Fields(NamedTuple):
    """Names and values."""

    values: Mapping[str, str]


class Minor(str):
    """A cell of a table that is shown in a paler color."""


class Rows(NamedTuple):
    """A table: names in the first column, numbers in the others."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    texts: Sequence[int] = ()
    """Columns that hold free text instead, which may be broken over lines."""
    fixed: int = 0
    """If not 0, columns after this many are left out where the display is too narrow for them."""
    if_cut: str = ""
    """What to do if columns are left out."""


class Outputs(NamedTuple):
    """Files that were written, and what to do with them, by name."""

    values: Mapping[str, object]


def no_progress() -> AbstractContextManager[Advance]:
    """Open a progress that nobody sees."""
    return nullcontext(lambda amount, text="", /: None)


def report_steps(write: Callable[[str], None], steps: int, done: int) -> Advance:
    """Return a function that writes, at most every `PRINT_EVERY_S`, the step, its figures and the time left.

    The time left assumes the recent speed. `done`: steps before this process.
    """
    step, started = done, time.perf_counter()
    printed, recent = started, deque([(started, done)])

    def advance(amount: int, text: str = "", /) -> None:
        nonlocal step, printed
        step += amount
        if not text:
            return
        now = time.perf_counter()
        recent.append((now, step))
        while len(recent) > 2 and now - recent[1][0] >= max(RECENT_S, RECENT_SHARE * (now - started)):
            recent.popleft()
        if now - printed > PRINT_EVERY_S:
            before, first = recent[0]
            left = format_duration((steps - step) * (now - before) / (step - first))
            write(f"step {step:,} of {steps:,}: {text}, {left} left")
            printed = now

    return advance


class SilentReporter:
    """Reporter that shows neither progress nor records; its notes are Python warnings, or nothing."""

    def __init__(self, warns: bool = True) -> None:
        self.warns = warns

    def __repr__(self) -> str:
        """Return the constant's name: it is the default in signatures that people read."""
        return "SILENT" if self.warns else "MUTE"

    def note(self, text: str) -> None:
        if self.warns:
            warnings.warn(escape_control(text), stacklevel=3)

    def progress(
        self, what: str, size: int | None, unit: Unit = "items", done: int = 0
    ) -> AbstractContextManager[Advance]:
        return no_progress()

    def record(self, record: Any) -> None:
        pass


SILENT = SilentReporter()
MUTE = SilentReporter(warns=False)
"""For runs inside another one, whose notes have been given or do not matter."""


class LogReporter:
    """Reporter that writes notes, records, and the steps of a training run into a text file."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def note(self, text: str) -> None:
        self._write(f"! {text}")

    def progress(
        self, what: str, size: int | None, unit: Unit = "items", done: int = 0
    ) -> AbstractContextManager[Advance]:
        return nullcontext(report_steps(self._write, size or 0, done)) if unit == "steps" else no_progress()

    def record(self, record: Any) -> None:
        """Write a record; two blanks stand between the columns of tables."""
        match record:
            case Heading(text) | Line(text):
                self._write(text)
            case Fields(values) | Outputs(values):
                self._write(*(f"{name}  {value}" for name, value in values.items()))
            case Rows(columns, rows):
                self._write(*("  ".join(map(str, row)) for row in (columns, *rows)))
            case _:
                self._write(str(record))

    def _write(self, *lines: str) -> None:
        self.file.writelines(f"{escape_control(line)}\n" for line in lines)
