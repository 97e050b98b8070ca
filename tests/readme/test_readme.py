"""The README is run: every command and code block in order, in an empty folder, as a reader would type them.

A block ```console holds `$ command` lines, each followed by what it prints; ```python blocks run one after another in
one interpreter. What is printed must contain what the README shows, numbers aside: they depend on machine and Python.
What a line of Python promises behind "# →" it must print as it stands, unless it says "such as".
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TOUR = README.partition("## A tour")[2].partition("\n## ")[0]
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.M | re.S)


def words(text: str) -> set[str]:
    """What of an output does not change from machine to machine: its words, not its numbers and frames."""
    return set(re.findall(r"[^\W\d_]{3,}", text))


def shown_commands(block: str) -> list[tuple[str, str]]:
    """Each command of a console block, with what the README says that it prints."""
    found = re.split(r"^\$ ", block, flags=re.M)[1:]
    joined = [re.sub(r"\\\n\s*", "", part) for part in found]
    return [(command, output) for command, _, output in (part.partition("\n") for part in joined)]


def execute(command: str | list[str], folder: Path) -> str:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "100"}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        shell=isinstance(command, str),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_tour_works_as_printed(tmp_path: Path) -> None:
    (tmp_path / "demo").symlink_to(ROOT / "demo")
    program = ""
    blocks = BLOCK.findall(TOUR)
    assert {kind for kind, _ in blocks} == {"console", "python"}
    for kind, block in blocks:
        if kind == "python":
            program += block
            continue
        for command, output in shown_commands(block):
            printed = execute(command, tmp_path)
            missing = words(output) - words(printed)
            # Learned words may be others elsewhere, and so may the three that a model of one minute has for a mask.
            allowed = max(3, 0.2 * len(words(output)))
            assert len(missing) <= allowed, f"{command}: not printed: {sorted(missing)}\n{printed}"
    printed = execute([sys.executable, "-c", program], tmp_path)
    promised = re.findall(r"# → (?:(such as) )?(.*)", program)
    assert len(promised) > 3
    assert len(printed.splitlines()) == len(promised)
    for line, (example, promise) in zip(printed.splitlines(), promised, strict=True):
        assert line == promise or example, f"{promise} promised, {line} printed"


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)", README))))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_the_two_commands_are_the_makefile_s() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in README
        assert re.search(rf"^{target}:", makefile, re.M)
