"""Text and paths are printed as they are, on terminals of any width, without control characters."""

from __future__ import annotations

import ast
import re
import warnings
from io import StringIO
from pathlib import Path

import pytest

import bertwright
from bertwright.base import reporter
from bertwright.base.messages import escape_control
from bertwright.base.reporter import MUTE, SILENT, Fields, Heading, Line, LogReporter, Minor, Outputs, Rows
from bertwright.cli.render.terminal import WIDTH_OF_FILES, terminal_reporter
from helpers import read_output, text_reporter


def test_a_path_or_command_is_not_broken_in_two() -> None:
    on = text_reporter(40)
    path = "a long/path with blanks/" * 5 + "[bold]:fire:[/bold]"
    on.record(Line(path))
    on.record(Heading(path))
    assert read_output(on) == f"{path}\n{path}\n"


def test_a_notice_is_indented_under_a_mark() -> None:
    on = text_reporter(40)
    on.note("42 tokens are [UNK]: characters that the vocabulary lacks")
    first, second = (line.rstrip() for line in read_output(on).splitlines())
    assert first.startswith("! 42 tokens are [UNK]: ")
    assert second.startswith("  ")


def test_tables_and_notices_have_no_spaces_at_the_ends_of_lines() -> None:
    on = text_reporter(60)
    rows = [("a text that is longer than the others", "x", ""), ("short", "a long label", "")]
    on.record(Fields({"name": "short", "other": "a much longer value"}))
    on.record(Rows(("text", "label", "empty"), rows, texts=(0,)))
    on.note("a notice that takes two lines because the console is only sixty columns wide")
    lines = read_output(on).splitlines()
    assert len(lines) > 8
    assert [line for line in lines if line != line.rstrip()] == []
    assert "short" in lines[0]


def test_tables_do_not_interpret_markup() -> None:
    on = text_reporter(60)
    on.record(Fields({"words that are [UNK]": ":fire: [/red]"}))
    on.record(Rows(("[side]", "[b]tokens"), [("train", "1,000")]))
    assert all(text in read_output(on) for text in ("words that are [UNK]", ":fire: [/red]", "[side]", "[b]tokens"))


def test_progress_is_for_terminals_only() -> None:
    file, live = text_reporter(80), text_reporter(80, terminal=True)
    for on in (file, live):
        with on.progress("surveying", 10, "bytes") as advance:
            advance(10)
    assert read_output(file) == ""
    assert "surveying" in read_output(live)


def test_notes_of_the_silent_reporter_are_warnings() -> None:
    with pytest.warns(UserWarning, match="a note"):
        SILENT.note("a note")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MUTE.note("a note")
        SILENT.record(Line("a line"))
        with SILENT.progress("work", 2) as advance:
            advance(1, "halfway")


def test_steps_of_a_training_run_are_lines_away_from_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporter, "PRINT_EVERY_S", -1.0)
    on, file = text_reporter(80), StringIO()
    with on.progress("training", 20, "steps", done=10) as advance:
        advance(1)
        advance(4, "loss 2.5")
    with LogReporter(file).progress("training", 20, "steps", done=10) as advance:
        advance(5, "loss 2.5")
    for printed in (read_output(on), file.getvalue()):
        assert re.fullmatch(r"step 15 of 20: loss 2\.5, \d+ s left\n", printed)


def test_the_time_left_follows_the_recent_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten minutes at one step per second, other programs slow the run to one step in eight seconds."""
    now, printed = 0.0, list[str]()
    monkeypatch.setattr(reporter.time, "perf_counter", lambda: now)
    advance = reporter.report_steps(printed.append, 1_000, 0)
    for step in range(1, 621):
        now += 1 if step <= 600 else 8
        advance(1, "loss 2.5" if step % 2 == 0 else "")
    left = {int(line.split()[1]): line.rpartition(", ")[2] for line in printed}
    assert left[576] == "7 min left"  # 424 steps, a second each
    assert left[618] == "51 min left"  # 382 steps, eight seconds each


def test_the_time_left_counts_a_step_that_takes_longer_than_the_recent_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, printed = 0.0, list[str]()
    monkeypatch.setattr(reporter.time, "perf_counter", lambda: now)
    advance = reporter.report_steps(printed.append, 10, 0)
    for _ in range(4):
        now += 5 * reporter.RECENT_S
        advance(1, "loss 2.5")
    assert printed[-1] == "step 4 of 10: loss 2.5, 30 min left"


def test_a_table_that_may_be_cut_shows_the_columns_that_fit() -> None:
    columns, row = ("", "text", *map(str, range(20))), ("1", "some text", *("0.125" for _ in range(20)))
    on = text_reporter(76)
    on.record(Rows(columns, [row], texts=(1,), fixed=2, if_cut="write a file"))
    printed = read_output(on)
    assert printed.count("0.125") == 5
    assert "only 5 of 20 columns fit here; write a file" in printed


def test_a_log_has_all_records_and_no_control_characters() -> None:
    file = StringIO()
    log = LogReporter(file)
    log.note("a note")
    log.record(Heading("Scores"))
    log.record(Fields({"name": HOSTILE}))
    log.record(Rows(("a", "b"), [(Minor("1"), "2")]))
    log.record(Outputs({"model": Path("run/model")}))
    escaped = escape_control(HOSTILE)
    assert file.getvalue() == f"! a note\nScores\nname  {escaped}\na  b\n1  2\nmodel  run/model\n"


HOSTILE = "\x1b]0;title\x07\x1b[2J \x9b31m \u202eevil \r\x08"


@pytest.mark.parametrize("text", [HOSTILE, *map(chr, [*range(32), *range(0x7F, 0xA0), 0x2028, 0x2029, 0x202E, 0x2066])])
def test_control_characters_are_printed_as_escapes(text: str) -> None:
    for is_terminal in (False, True):
        on = text_reporter(100, is_terminal)
        on.record(Line(text))
        on.record(Heading(text))
        on.note(text)
        on.record(Fields({text: text}))
        on.record(Rows((f"name {text}", text), [(text, Minor(text))], texts=(0,)))
        on.record(Outputs({text: text}))
        with on.progress(text, 1, "bytes"):
            pass
        printed = read_output(on)
        assert escape_control(text).split("\\n")[0] in printed
        for character in {*text} - {"\x1b", "\r", "\n", " "}:  # rich prints some of these itself on a terminal
            assert character not in printed or character.isalnum() or character in "[];"
        if not is_terminal:
            assert "\x1b" not in printed
            assert "\r" not in printed
        assert "\x1b]" not in printed
    with pytest.warns(UserWarning, match=re.escape(escape_control(text))):
        SILENT.note(text)


def test_other_characters_are_printed_as_they_are() -> None:
    for text in ("naïve café", "한국어", "👍🏽 👨‍👩‍👧", "عربي"):
        assert escape_control(text) == text


def test_only_the_terminal_module_makes_tables_and_texts() -> None:
    root = Path(bertwright.__file__).parent / "cli"  # no other room imports rich
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and path.name != "terminal.py":
                assert node.func.id not in ("Table", "Text", "Panel"), f"{path}, line {node.lineno}"


def test_only_the_message_module_prints() -> None:
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
    assert printing == ["messages.py"]


def test_output_away_from_a_terminal_has_a_fixed_number_of_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal_reporter().console.width == WIDTH_OF_FILES
    monkeypatch.setenv("COLUMNS", "60")
    assert terminal_reporter().console.width == 60


def test_the_first_column_is_not_broken() -> None:
    on = text_reporter(40)
    on.record(Rows(("", "number", "another number", "a third number"), [("documents of one sentence", "1", "2", "3")]))
    assert "documents of one sentence" in read_output(on)


def test_only_the_command_line_imports_rich() -> None:
    root = Path(bertwright.__file__).parent
    importing = {path.relative_to(root).parts[0] for path in root.rglob("*.py") if "\nfrom rich" in path.read_text()}
    assert importing == {"cli"}
