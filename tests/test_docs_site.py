"""The documentation site: it is built without warnings, from every page, and needs nothing from the network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import bertwright

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
from make_site import SECTIONS, check_site, make_navigation  # noqa: E402


def test_links_to_nothing_and_files_from_elsewhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#none">b</a><a href="c.html">c</a><a href="https://example.org">e</a>'
        '<script src="https://cdn.example.org/x.js"></script><link rel="canonical" href="https://example.org/a">'
    )
    (tmp_path / "b.html").write_text('<a href="a.html#top">a</a>')
    assert check_site(tmp_path) == [
        "a.html: loads https://cdn.example.org/x.js",
        "a.html: b.html#none: no such anchor",
        "a.html: c.html does not exist",
    ]


def test_the_navigation_has_the_pages_that_exist_each_once(tmp_path: Path) -> None:
    for name in ("README", "docs/guide", "docs/new_page", "docs/decisions/01-a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.md").write_text(f"# Title of `{name}`\n")
    navigation = {section: pages for entry in make_navigation(tmp_path) for section, pages in entry.items()}
    assert navigation.keys() <= SECTIONS.keys()
    pages = [page for pages in navigation.values() for page in pages]
    assert pages == [
        {"Title of README": "README.md"},
        {"Title of docs/guide": "docs/guide.md"},
        {"Title of docs/new_page": "docs/new_page.md"},
        {"Title of docs/decisions/01-a": "docs/decisions/01-a.md"},
    ]


@pytest.mark.slow
def test_the_site_is_built_from_every_page_and_every_public_name(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason="the extra docs is not installed")
    site = tmp_path / "site"
    made = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make_site.py"), str(site)], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stdout + made.stderr
    for page in (ROOT / "docs").rglob("*.md"):
        built = site / page.relative_to(ROOT).with_suffix(".html")
        assert (built if page.name != "README.md" else built.with_name("index.html")).is_file(), page
    reference = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").glob("*.html"))
    missing = [name for name in bertwright.__all__ if f'.{name}"' not in reference]
    assert missing == []
