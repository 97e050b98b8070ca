"""What the stages say: texts and paths stay as they are on a terminal of any width."""

from __future__ import annotations

import warnings
from io import StringIO

import pytest
from rich.console import Console

from bertwright.console import byte_progress, heading, key_value_table, make_table, notice, say


def console(width: int = 40, terminal: bool = False) -> Console:
    return Console(file=StringIO(), width=width, force_terminal=terminal)


def shown(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_a_path_or_command_is_not_broken_in_two() -> None:
    on = console()
    path = "a long/path with blanks/" * 5 + "[bold]:fire:[/bold]"
    say(on, path)
    heading(on, path)
    assert shown(on) == f"{path}\n{path}\n"


def test_remarks_hang_from_a_mark() -> None:
    on = console()
    notice(on, "42 tokens are [UNK]: characters that the vocabulary lacks")
    first, second = (line.rstrip() for line in shown(on).splitlines())
    assert first.startswith("! 42 tokens are [UNK]: ")
    assert second.startswith("  ")


def test_tables_show_what_they_are_given() -> None:
    on = console(60)
    table = make_table("[side]", "[b]tokens")
    table.add_row("train", "1,000")
    on.print(key_value_table({"words that are [UNK]": ":fire: [/red]"}), table)
    assert all(text in shown(on) for text in ("words that are [UNK]", ":fire: [/red]", "[side]", "[b]tokens"))


def test_live_lines_are_for_terminals_alone() -> None:
    file, terminal = console(80), console(80, terminal=True)
    for on in (file, terminal):
        with byte_progress(on, "surveying", 10) as advance:
            advance(10)
    assert shown(file) == ""
    assert "surveying" in shown(terminal)


def test_what_a_quiet_console_would_swallow_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="a remark"):
        notice(Console(quiet=True), "a remark")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notice(Console(file=StringIO()), "a remark")
        say(Console(quiet=True), "a line")
