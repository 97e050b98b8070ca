"""Rendering for the terminal: headings, notices, tables and progress lines.

Text from users, files and models cannot move the cursor, retitle the terminal, forge a line or be read as markup:
everything that is printed passes `escape_control`. Other modules print through this one; a test forbids `print` there.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import StringIO
from typing import Any, TextIO

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

ProgressCallback = Callable[[int], None]  # gets the amount done since the previous call

WIDTH_OF_FILES = 120  # columns in a pipe or a file, unless COLUMNS is set
# C0, DEL and C1 controls, line and paragraph separators, bidirectional controls, surrogates.
CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_control(text: str) -> str:
    r"""Return the text with control characters as Python would write them.

    >>> print(escape_control("\x1b[2J\x9b31m\u202e\n"))
    \x1b[2J\x9b31m\u202e\n
    """
    return CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def print_escaped(text: str, stream: TextIO | None) -> None:
    """Print lines without control characters, in one write, so that torchrun's processes do not mix theirs.

    Nothing is printed if the caller of the program has closed the stream (None).
    """
    if stream is not None:
        print("\n".join(map(escape_control, text.split("\n"))) + "\n", end="", file=stream)


def print_message(message: str) -> None:
    """Print a message as one line on stderr, after the name of the program."""
    rank = os.environ.get("RANK", "0")  # torchrun's processes except the first print their number
    speaker = "bertwright" if rank == "0" else f"bertwright, rank {rank}"
    print_escaped(f"{speaker}: {' '.join(map(str.strip, message.splitlines()))}", sys.stderr)


def make_console(stderr: bool = False) -> Console:
    """Return a console for standard output or error; in a pipe or a file it has a fixed number of columns."""
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_OF_FILES
    return console


def silent_console() -> Console:
    """Return a console that prints nothing, not even notices."""
    return Console(file=StringIO())


def heading(console: Console, text: str) -> None:
    """Print a bold line."""
    say(console, text, style="bold")


def say(console: Console, text: str, style: str = "") -> None:
    """Print one line without breaking it: a terminal may wrap it, but paths and commands stay whole in a file."""
    console.print(plain_text(text, style), soft_wrap=True)


def notice(console: Console, text: str) -> None:
    """Print what the user should know, indented under a mark; on a quiet console, emit a Python warning."""
    if console.quiet:
        warnings.warn(escape_control(text), stacklevel=2)
        return
    indented = TextTable.grid(padding=(0, 1))
    indented.add_row(plain_text("!", "bold yellow"), plain_text(text, "yellow"))
    console.print(indented)


class TextTable(Table):
    """A table of plain texts and numbers, without spaces at the ends of lines; the first column is never broken."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the table line by line; files and pipes then have no padded lines."""
        segments = (part for part in super().__rich_console__(console, options) if isinstance(part, Segment))
        for line in Segment.split_lines(segments):
            while line and not line[-1].text.rstrip(" "):
                line.pop()
            if line:
                last = line.pop()
                line.append(Segment(last.text.rstrip(" "), last.style))
            yield from line
            yield Segment.line()

    def add_column(self, header: Any = "", *arguments: Any, **options: Any) -> None:
        """Add a column; a line break in its header is a line break."""
        first = not self.columns
        lines = Text("\n").join(plain_text(line) for line in str(header).split("\n"))
        super().add_column(lines, *arguments, **({"no_wrap": first} | options))

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row of texts."""
        super().add_row(*map(plain_text, cells), **options)


def key_value_table(fields: Mapping[str, str]) -> Table:
    """Return a table of names and values."""
    table = TextTable(box=None, show_header=False, padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, value)
    return table


def make_table(*names: str) -> Table:
    """Return a table with names in the first column and numbers in the rest."""
    table = TextTable(box=box.SIMPLE_HEAD)
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index else "left")
    return table


def filled_table(names: Iterable[str], rows: Iterable[Iterable[str | Text]]) -> Table:
    """Return a table as of `make_table` with its rows; the first column holds texts, which may be broken."""
    table = make_table(*names)
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"
    for row in rows:
        table.add_row(*row)
    return table


def print_outputs(console: Console, outputs: Mapping[str, object]) -> None:
    """Print the files that a command wrote, and what to do with them, one line each."""
    for name, value in outputs.items():
        say(console, f"{name:<12} {value}")


def plain_text(value: str | Text, style: str = "") -> Text:
    """Return text that is printed unchanged, except control characters, which are printed as escapes."""
    if isinstance(value, Text):
        return Text(escape_control(value.plain), value.style)
    return Text(escape_control(value), style)


@contextmanager
def byte_progress(console: Console, what: str, size: int | None) -> Iterator[ProgressCallback]:
    """Show progress in bytes, with rate and remaining time; `size` is the total, None if it is unknown."""
    amounts = (DownloadColumn(), TransferSpeedColumn())
    with _live(console, what, size, amounts) as advance:
        yield advance


@contextmanager
def item_progress(console: Console, what: str, size: int | None) -> Iterator[ProgressCallback]:
    """Show progress in items; `size` is the total, None if it is unknown."""
    with _live(console, what, size, (MofNCompleteColumn(),)) as advance:
        yield advance


@contextmanager
def _live(
    console: Console, what: str, size: int | None, amounts: tuple[ProgressColumn, ...]
) -> Iterator[ProgressCallback]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), *amounts)
    remaining = (TimeRemainingColumn(), TextColumn("left"))
    with Progress(*columns, *remaining, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(escape_control(what), total=size)
        yield lambda done: progress.advance(task, done)


def format_duration(seconds: float) -> str:
    """Format a duration for people.

    >>> format_duration(42.3), format_duration(5_000), format_duration(200_000)
    ('42 s', '1 h 23 min', '55 h 33 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
