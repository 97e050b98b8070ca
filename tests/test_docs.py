"""What the docs name exists: files of the project in backquotes, and targets of links."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path.relative_to(ROOT) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")) if path.name != "CHANGELOG.md"
)
PLACES = ("", "src/bertwright", "src/bertwright/kernels", "src/bertwright/kernels/csrc", "tests")
MODULE = re.compile(r"`((?:[\w-]+/)+[\w-]+\.(?:py|h|cpp|toml|sh))`(?!\s+of\s+commit)")
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#\s]+)")
TEST = re.compile(r"`(test_\w+)`")


@cache
def all_tests() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {name for name in MODULE.findall(text) if "NAME" not in name}
    assert [name for name in sorted(named) if not any((ROOT / place / name).exists() for place in PLACES)] == []
    tests = {name for name in TEST.findall(text) if f"def {name}(" not in all_tests()}
    assert sorted(tests) == []
    targets = set(LINK.findall(text))
    assert [target for target in sorted(targets) if not (ROOT / page.parent / target).exists()] == []
