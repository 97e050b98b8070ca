"""docs/experiments.md: each cell of its table is that of the result file which the page names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "experiments.md"
ROWS = {"ours": "ours", "most frequent answer": "most frequent answer", "random weights": "random weights"}
LINE = re.compile(r"^\| \*?(?P<task>\w+) \S+?(?P<test>, test)?(?:, at the floor)?\*? \|(?P<cells>.*)\|$", re.MULTILINE)
SCORE = re.compile(r"\*?(\d[\d.]*) \(\d\)\*?")


def test_every_cell_of_the_docs_is_that_of_its_file() -> None:
    if not (ROOT / "bench").is_dir():
        pytest.skip("no folder bench in this distribution")
    text = PAGE.read_text(encoding="utf-8")
    (name,) = set(re.findall(r"bench/results/(experiment_\w+\.json)", text))
    cells = json.loads((ROOT / "bench" / "results" / name).read_text(encoding="utf-8"))["cells"]
    file = {(cell["row"], cell["column"]): f"{100 * cell['mean']:.1f}" for cell in cells}
    header = re.findall(r"^\|  \|(.*)\|$", text, re.MULTILINE)[0]
    columns = [title.strip() for title in header.split("|")]
    shown = {}
    for line in LINE.finditer(text):
        column = line["task"] + (" test" if line["test"] else "")
        for title, cell in zip(columns, line["cells"].split("|"), strict=True):
            if title in ROWS:
                score = SCORE.fullmatch(cell.strip())
                assert score is not None, (column, cell)
                shown[ROWS[title], column] = score[1]
    assert len(shown) >= 21
    assert {cell: file.get(cell) for cell in shown} == shown
