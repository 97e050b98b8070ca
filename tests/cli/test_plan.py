"""The command `plan`: the printed commands execute the plan, and misuse is one line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from bertwright.cli.main import run
from bertwright.tokenstore.store import TokenStore

BRIEF = 0.01  # minutes of short runs


@pytest.mark.slow
def test_printed_commands_lead_from_the_text_to_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my text.txt").write_text((store.parent / "text.txt").read_text(encoding="utf-8"), encoding="utf-8")
    options = "--size 180 --no-lowercase --held-out 0.1 --workers 1 --threads 1 --device cpu --dtype float32"
    command = f"plan --text 'my text.txt' --hours 0.001 --model-sizes tiny --measure-minutes {BRIEF} {options}"
    assert run(shlex.split(command)) == 0
    printed = capsys.readouterr().out
    lines = printed[printed.index("\nCommands\n") :].split("\n")
    commands = [shlex.split(line) for line in lines if line.startswith("bertwright ")]
    assert [command[1] for command in commands] == ["vocabulary", "prepare", "pretrain"]
    for arguments in commands[:2]:
        assert run(arguments[1:]) == 0
    made = TokenStore.open(Path("store") / "train")
    assert f"{made.num_documents:,} documents, {made.num_tokens:,} tokens" in " ".join(printed.split())
    assert run([*commands[2][1:], "--steps", "1", "--log-every", "1"]) == 0
    assert Path("run/model").is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my text.txt", "run", "store", "vocabulary"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", "--text"),
        ("--text missing.txt", "missing.txt"),
        ("--store missing", "missing"),
        ("--text text.txt --gpu abacus", "abacus"),
        ("--text text.txt --output text.txt", "text.txt: already exists"),
    ],
)
def test_misuse_is_one_line_with_exit_code_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("The bear sleeps. It is winter.\n", encoding="utf-8")
    assert run(shlex.split(f"plan --hours 1 {options}")) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == error.count("error:") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]
