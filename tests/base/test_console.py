"""Text and paths are printed as they are, on terminals of any width, without control characters."""

from __future__ import annotations

import ast
import re
import warnings
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

import bertwright
from bertwright.base.console import (
    WIDTH_OF_FILES,
    byte_progress,
    escape_control,
    filled_table,
    heading,
    key_value_table,
    make_console,
    make_table,
    notice,
    plain_text,
    say,
)
from helpers import read_output, text_console


def test_a_path_or_command_is_not_broken_in_two() -> None:
    on = text_console(40)
    path = "a long/path with blanks/" * 5 + "[bold]:fire:[/bold]"
    say(on, path)
    heading(on, path)
    assert read_output(on) == f"{path}\n{path}\n"


def test_a_notice_is_indented_under_a_mark() -> None:
    on = text_console(40)
    notice(on, "42 tokens are [UNK]: characters that the vocabulary lacks")
    first, second = (line.rstrip() for line in read_output(on).splitlines())
    assert first.startswith("! 42 tokens are [UNK]: ")
    assert second.startswith("  ")


def test_tables_and_notices_have_no_spaces_at_the_ends_of_lines() -> None:
    on = text_console(60)
    rows = [("a text that is longer than the others", "x", ""), ("short", "a long label", "")]
    table = filled_table(("text", "label", "empty"), rows)
    on.print(key_value_table({"name": "short", "other": "a much longer value"}), table)
    notice(on, "a notice that takes two lines because the console is only sixty columns wide")
    lines = read_output(on).splitlines()
    assert len(lines) > 8
    assert [line for line in lines if line != line.rstrip()] == []
    assert "short" in lines[0]


def test_tables_do_not_interpret_markup() -> None:
    on = text_console(60)
    table = make_table("[side]", "[b]tokens")
    table.add_row("train", "1,000")
    on.print(key_value_table({"words that are [UNK]": ":fire: [/red]"}), table)
    assert all(text in read_output(on) for text in ("words that are [UNK]", ":fire: [/red]", "[side]", "[b]tokens"))


def test_progress_is_for_terminals_only() -> None:
    file, terminal = text_console(80), text_console(80, terminal=True)
    for on in (file, terminal):
        with byte_progress(on, "surveying", 10) as advance:
            advance(10)
    assert read_output(file) == ""
    assert "surveying" in read_output(terminal)


def test_a_notice_on_a_quiet_console_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="a notice"):
        notice(Console(quiet=True), "a notice")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        notice(Console(file=StringIO()), "a notice")
        say(Console(quiet=True), "a line")


HOSTILE = "\x1b]0;title\x07\x1b[2J \x9b31m \u202eevil \r\x08"


@pytest.mark.parametrize("text", [HOSTILE, *map(chr, [*range(32), *range(0x7F, 0xA0), 0x2028, 0x2029, 0x202E, 0x2066])])
def test_control_characters_are_printed_as_escapes(text: str) -> None:
    for terminal in (False, True):
        on = text_console(100, terminal)
        table = make_table(f"name {text}", text)
        table.add_row(text, Text(text))
        say(on, text)
        heading(on, text)
        notice(on, text)
        on.print(key_value_table({text: text}), table, filled_table([text], [[text]]), plain_text(text))
        with byte_progress(on, text, 1):
            pass
        printed = read_output(on)
        assert escape_control(text).split("\\n")[0] in printed
        for character in {*text} - {"\x1b", "\r", "\n", " "}:  # rich prints some of these itself on a terminal
            assert character not in printed or character.isalnum() or character in "[];"
        if not terminal:
            assert "\x1b" not in printed
            assert "\r" not in printed
        assert "\x1b]" not in printed
    with pytest.warns(UserWarning, match=re.escape(escape_control(text))):
        notice(Console(quiet=True), text)


def test_other_characters_are_printed_as_they_are() -> None:
    for text in ("naïve café", "한국어", "👍🏽 👨‍👩‍👧", "عربي"):
        assert escape_control(text) == text


def test_only_the_console_module_makes_tables_and_texts() -> None:
    root = Path(bertwright.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and path.name != "console.py":
                assert node.func.id not in ("Table", "Text", "Panel"), f"{path}, line {node.lineno}"


def test_only_the_console_module_prints() -> None:
    """A raw `print` of a text from a user or a file could move the cursor or retitle the terminal."""
    printing = []
    for path in Path(bertwright.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            function, location = ast.unparse(node.func), f"{path}, line {node.lineno}"
            if function == "print":
                printing.append(path.name)
            assert not re.match(r"sys\.(__)?(stdout|stderr)(__)?\.(buffer\.)?write", function), location
            assert function != "os.write" or isinstance(node.args[1], ast.Constant), location
            if function.endswith(".print"):  # of a rich console, which reads a str as markup
                assert not any(isinstance(argument, ast.Constant | ast.JoinedStr) for argument in node.args), location
    assert printing == ["console.py"]


def test_output_away_from_a_terminal_has_a_fixed_number_of_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert make_console().width == WIDTH_OF_FILES
    monkeypatch.setenv("COLUMNS", "60")
    assert make_console().width == 60


def test_the_first_column_is_not_broken() -> None:
    on = text_console(40)
    table = make_table("", "number", "another number", "a third number")
    table.add_row("documents of one sentence", "1", "2", "3")
    on.print(table)
    assert "documents of one sentence" in read_output(on)
