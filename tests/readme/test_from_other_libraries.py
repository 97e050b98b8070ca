"""The page for users of other libraries: its commands and its Python run, and the names in its tables exist."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from test_readme import BLOCK, execute, read_page, shown_commands

from bertwright.cli.options import list_options
from bertwright.cli.verbs import VERBS
from helpers import make_hub_cache

PAGE = read_page("docs/from_other_libraries.md")
QUESTIONS = {"pay": "How do I pay {}?", "card": "Where is my {} card?", "close": "Can I close the {} account?"}


def rows_between(start: str, end: str) -> list[list[str]]:
    """Return the cells of the table after one heading and before another, without its head."""
    section = PAGE[PAGE.index(start) : PAGE.index(end)]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_the_training_arguments_that_the_table_names_exist() -> None:
    transformers: Any = pytest.importorskip("transformers")
    known = {field.name for field in fields(transformers.TrainingArguments)}
    named = [name for row in rows_between("## transformers", "## sentence") for name in re.findall(r"`(\w+)`", row[0])]
    assert len(named) > 15
    assert [name for name in named if name not in known] == []


def test_the_names_of_sentence_transformers_in_the_table_exist() -> None:
    library: Any = pytest.importorskip("sentence_transformers")
    from sentence_transformers import evaluation, losses, training_args, util

    places = (library, losses, evaluation, training_args, util)
    named = [row[0] for row in rows_between("## sentence", "## spaCy")]
    names = {name.removeprefix("util.").split(".")[0] for cell in named for name in re.findall(r"`([\w.]+)`", cell)}
    assert len(names) > 10
    assert [name for name in sorted(names) if not any(hasattr(place, name) for place in places)] == []


def test_the_options_that_the_page_names_exist() -> None:
    known = {option.name for verb in VERBS for option in list_options(verb.load_settings(), {})}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) - known == set()


@pytest.mark.slow
def test_the_page_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in make_hub_cache(tmp_path / "hub").items():
        monkeypatch.setenv(name, value)
    texts = [(pattern.format(word), label) for label, pattern in QUESTIONS.items() for word in "a the my his".split()]
    table = "text,label\n" + "".join(f"{text},{label}\n" for text, label in texts)
    for name in ("train.csv", "dev.csv"):
        (tmp_path / name).write_text(table)
    answers = "".join(f"{text},It is about {label} {n}.\n" for n, (text, label) in enumerate(texts))
    (tmp_path / "faq.csv").write_text("question,answer\n" + answers)
    [spans] = re.findall(r"^\{.*\}\n", PAGE, re.M)
    (tmp_path / "spans.jsonl").write_text(spans * 8)
    program = ""
    for kind, block in BLOCK.findall(PAGE):
        if kind == "python":
            program += block
        else:
            for command, _ in shown_commands(block):
                execute(command, tmp_path)
    assert program.count("load(") == 3
    execute([sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", program], tmp_path)
