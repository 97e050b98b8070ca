"""The reporter of the command line: headings, notices, tables and progress lines in a terminal, a pipe or a file.

Text from users, files and models cannot move the cursor, retitle the terminal, forge a line or be read as markup:
everything that is printed passes `escape_control`. Other rooms print nothing; a test forbids it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pkgutil import resolve_name
from typing import Any

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

from bertwright.base.messages import escape_control
from bertwright.base.reporter import RECENT_S, Advance, Fields, Heading, Line, Minor, Outputs, Rows, Unit, report_steps

WIDTH_OF_FILES = 120  # columns in a pipe or a file, unless COLUMNS is set
FIXED_WIDTH, NUMBER_WIDTH = 36, 8  # terminal columns of what a table that may be cut always has, and of a number
STYLES = {"plain": "", "minor": "dim", "good": "green"}  # of a `Line`
# Functions that return what is printed of a record in a width: the module and the name, by the record's class.
RENDERERS = {
    "bertwright.inference.fill_mask.MaskPrediction": "bertwright.cli.render.masks:render",
    "bertwright.surveying.corpus_statistics.Survey": "bertwright.cli.render.survey:render",
    "bertwright.surveying.survey.UnreadableFiles": "bertwright.cli.render.survey:render_unreadable",
}


class TerminalReporter:
    """Reporter that prints on a console."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def note(self, text: str) -> None:
        """Print what the user should know, indented under a mark."""
        indented = TextTable.grid(padding=(0, 1))
        indented.add_row(plain_text("!", "bold yellow"), plain_text(text, "yellow"))
        self.console.print(indented)

    @contextmanager
    def progress(self, what: str, size: int | None, unit: Unit = "items", done: int = 0) -> Iterator[Advance]:
        """Show a live line; away from a terminal, a line about the steps of a training run now and then."""
        if unit == "steps" and not self.console.is_terminal:
            yield report_steps(partial(say, self.console), size or 0, done)
            return
        with Progress(
            *columns_of(unit), console=self.console, disable=not self.console.is_terminal, transient=True,
            speed_estimate_period=RECENT_S,
        ) as bar:  # fmt: skip
            task = bar.add_task(escape_control(what), total=size, completed=done, text="")

            def advance(amount: int, text: str = "", /) -> None:
                bar.advance(task, amount)
                if text:
                    bar.update(task, text=text)

            yield advance

    def record(self, record: Any) -> None:
        match record:
            case Heading(text):
                say(self.console, text, "bold")
            case Line(text, kind):
                say(self.console, text, STYLES[kind])
            case Fields(values):
                table = TextTable(box=None, show_header=False, padding=(0, 2))
                table.add_column(style="dim")
                table.add_column(overflow="fold")
                for item in values.items():
                    table.add_row(*item)
                self.console.print(table)
            case Rows():
                self._print_rows(record)
            case Outputs(values):
                for name, value in values.items():
                    say(self.console, f"{name:<12} {value}")
            case _:
                shape = type(record)
                render = resolve_name(RENDERERS[f"{shape.__module__}.{shape.__qualname__}"])
                self.console.print(render(record, self.console.width))

    def _print_rows(self, record: Rows) -> None:
        """Print a table, without the columns that do not fit if it may be cut."""
        count = shown = len(record.columns)
        if record.fixed:
            shown = min(count, record.fixed + max(2, (self.console.width - FIXED_WIDTH) // NUMBER_WIDTH))
        self.console.print(text_table(record.columns[:shown], (row[:shown] for row in record.rows), record.texts))
        if shown < count:
            cut = f"only {shown - record.fixed} of {count - record.fixed} columns fit here"
            self.note(f"{cut}; {record.if_cut}")


def terminal_reporter(stderr: bool = False) -> TerminalReporter:
    """Return the reporter of a command; `stderr`: its standard output is for results alone."""
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_OF_FILES
    return TerminalReporter(console)


def columns_of(unit: Unit) -> tuple[ProgressColumn, ...]:
    """Return the columns of a progress line, of at most 80 columns together."""
    bar, what = BarColumn(bar_width=10 if unit == "steps" else 20), TextColumn("{task.description}", markup=False)
    left = (TimeRemainingColumn(), TextColumn("left"))
    match unit:
        case "bytes":
            return (what, bar, DownloadColumn(), TransferSpeedColumn(), *left)
        case "items":
            return (what, bar, MofNCompleteColumn(), *left)
        case "steps":
            return (bar, MofNCompleteColumn(), TextColumn("{task.fields[text]}", markup=False), *left)


def say(console: Console, text: str, style: str = "") -> None:
    """Print one line without breaking it: a terminal may wrap it, but paths and commands stay whole in a file."""
    console.print(plain_text(text, style), soft_wrap=True)


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
        super().add_row(*map(plain_text, cells), **options)


def text_table(names: Iterable[str], rows: Iterable[Iterable[str | Text]], texts: Iterable[int] = ()) -> Table:
    """Return a table with names in the first column and numbers in the others, except for columns of free text."""
    table, of_text = TextTable(box=box.SIMPLE_HEAD), set(texts)
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index and index not in of_text else "left")
        if index in of_text:
            table.columns[-1].no_wrap, table.columns[-1].overflow = False, "fold"
    for row in rows:
        table.add_row(*row)
    return table


def plain_text(value: str | Text, style: str = "") -> Text:
    """Return text that is printed unchanged, except control characters, which are printed as escapes."""
    if isinstance(value, Text):
        return Text(escape_control(value.plain), value.style)
    if isinstance(value, Minor):
        style = "dim"
    return Text(escape_control(value), style)
