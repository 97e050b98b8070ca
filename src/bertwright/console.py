"""What the stages say on a terminal, in one style: headings, facts, tables, remarks and live lines.

A user's texts and paths are never read as markup, and a path or a command is never broken in two.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from rich import box
from rich.console import Console
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
from rich.table import Table
from rich.text import Text

ProgressCallback = Callable[[int], None]  # takes how much was done since it was last called


def heading(console: Console, text: str) -> None:
    say(console, text, style="bold")


def say(console: Console, text: str, style: str = "") -> None:
    """One line as it is; a terminal may fold it, nothing else does."""
    console.print(Text(text, style), soft_wrap=True)


def notice(console: Console, text: str) -> None:
    """What the user should know, hung from a mark so that several stay apart; a quiet console's user is warned."""
    if console.quiet:
        warnings.warn(text, stacklevel=2)
        return
    hung = Table.grid(padding=(0, 1))
    hung.add_row(Text("!", "bold yellow"), Text(text, "yellow"))
    console.print(hung)


def key_value_table(rows: Mapping[str, str]) -> Table:
    """Names and values, side by side."""
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name, value in rows.items():
        table.add_row(Text(name, "dim"), Text(value))
    return table


def make_table(*names: str) -> Table:
    """A table whose first column holds names and whose others hold numbers."""
    table = Table(box=box.SIMPLE_HEAD)
    for place, name in enumerate(names):
        table.add_column(Text(name), justify="right" if place else "left")
    return table


def filled_table(names: Iterable[str], rows: Iterable[Iterable[str]]) -> Table:
    """Such a table with its rows, all texts as they are."""
    table = make_table(*names)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


@contextmanager
def byte_progress(console: Console, what: str, size: int | None) -> Iterator[ProgressCallback]:
    """A live line in bytes, with rate and time left; `size` is their total, None where it cannot be known."""
    amounts = (DownloadColumn(), TransferSpeedColumn())
    with _live(console, what, size, amounts) as advance:
        yield advance


@contextmanager
def item_progress(console: Console, what: str, size: int | None) -> Iterator[ProgressCallback]:
    """A live line in numbers done of all; `size` is their total, None where it cannot be known."""
    with _live(console, what, size, (MofNCompleteColumn(),)) as advance:
        yield advance


@contextmanager
def _live(
    console: Console, what: str, size: int | None, amounts: tuple[ProgressColumn, ...]
) -> Iterator[ProgressCallback]:
    shown = (TextColumn("{task.description}"), BarColumn(bar_width=20), *amounts)
    left = (TimeRemainingColumn(), TextColumn("left"))
    with Progress(*shown, *left, console=console, disable=not console.is_terminal, transient=True) as progress:
        line = progress.add_task(what, total=size)
        yield lambda done: progress.advance(line, done)
