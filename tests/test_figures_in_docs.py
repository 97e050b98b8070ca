"""Tables of figures in the docs: the section of each names its result file in bench/results, which exists."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("README*.md"), *sorted((ROOT / "docs").glob("*.md"))]
NUMBER = re.compile(r"[*\[]*[<±+−-]?\d[\d,.]*[^a-z]*(\(.*)?")
FILE = re.compile(r"bench/results/\w+\.(?:jsonl?|md)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each section outside of code, and its lines."""
    for section in re.split(r"^(?=#)", CODE.sub("", text), flags=re.MULTILINE):
        yield section, section.splitlines()


def has_figures(rows: list[str]) -> bool:
    """Return whether at least half of a table's filled cells, names apart, are numbers."""
    cells = [cell.strip() for row in rows[2:] for cell in row.strip("|").split("|")[1:]]
    filled = [cell for cell in cells if cell]
    return len(filled) >= 4 and sum(NUMBER.fullmatch(cell) is not None for cell in filled) >= len(filled) / 2


@pytest.mark.skipif(not (ROOT / "bench").is_dir(), reason="no folder bench in this distribution")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_table_of_figures_names_its_result_file(page: Path) -> None:
    for section, lines in sections(page.read_text(encoding="utf-8")):
        named = FILE.findall(section)
        assert [name for name in named if not (ROOT / name).is_file()] == []
        assert named or not has_figures([line for line in lines if line.startswith("|")]), lines[0]


def test_a_table_of_figures_is_recognized() -> None:
    assert has_figures(["| | F1 |", "|---|---:|", "| a | 81.5 ± 0.7 |", "| b | **82.4** |", "| c | 3 |", "| d | 4 |"])
    assert not has_figures(["| | F1 |", "|---|---|", "| a | mean of 3 |", "| b | none |", "| c | 3 |", "| d | word |"])


@pytest.mark.skipif(not (ROOT / "bench").is_dir(), reason="no folder bench in this distribution")
def test_the_table_of_equal_trainings_is_that_of_its_files() -> None:
    script = [sys.executable, str(ROOT / "bench" / "parity_table.py")]
    printed = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    assert printed in (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
