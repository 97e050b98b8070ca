"""The lessons in docs/lessons: every example prints what the page says."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

LESSONS = sorted((Path(__file__).parents[2] / "docs/lessons").glob("*.md"))


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_prints_what_it_says(lesson: Path) -> None:
    failed, examples = doctest.testfile(str(lesson), module_relative=False)
    assert (failed, examples > 10) == (0, True)
