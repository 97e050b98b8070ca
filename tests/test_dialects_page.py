"""docs/dialects.md lists the table of dialects; `python tests/test_dialects_page.py` writes it again."""

from __future__ import annotations

from pathlib import Path

from bertwright.tables.dialects import DIALECTS, PARTS

PAGE = Path(__file__).parents[1] / "docs" / "dialects.md"
HEAD = """# Dialects

A file that has all columns of its task is plain: nothing is guessed about it. Other files may be in one of the layouts
below, in which data sets are published. They are recognized by their first lines and by the names beside them, and one
warning says which was read. `--dialect NAME` (in TOML `dialect`, beside `format`) says it instead, for all files of the
task; `--dialect plain` reads files as they stand. A file that fits two layouts is an error that names both.
`python tests/test_dialects_page.py` writes this page from `src/bertwright/tables/dialects.py`.
"""


def make_page() -> str:
    """Return the page."""
    lines = [HEAD]
    for part, heading in PARTS.items():
        lines += [f"## {heading}", "", "| `--dialect` | what is read | as in |", "|---|---|---|"]
        lines += [f"| `{one.name}` | {one.says} | {one.example} |" for one in DIALECTS[part]]
        lines.append("")
    return "\n".join(lines)


def test_the_page_of_dialects_is_that_of_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == make_page()


if __name__ == "__main__":
    PAGE.write_text(make_page(), encoding="utf-8")
