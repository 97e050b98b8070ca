"""The corpus of the demo: prose alone, with its words unchanged."""

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "demo" / "corpus.py"
spec = importlib.util.spec_from_file_location("demo_corpus", PATH)
assert spec is not None
assert spec.loader is not None
demo = importlib.util.module_from_spec(spec)
spec.loader.exec_module(demo)

MODULE = b'''
# This comment explains why the function below
# has to do its work in no more than one step.

def add(a, b):
    """Add two numbers to one another.

    >>> add(1, 2)
    3

    - The *first* of them may be ``None`` to mean nothing at all.

    :param a: a number that is added to the other one.
    """
    return a + b  # a comment behind code is left out, however long it may be.
'''


def test_prose_of_a_module_is_in_order() -> None:
    assert demo.tidy(demo.module_paragraphs(MODULE), set()).split("\n") == [
        "This comment explains why the function below has to do its work in no more than one step.",
        "Add two numbers to one another.",
        "The first of them may be None to mean nothing at all.",
    ]


def test_repeated_paragraphs_and_small_documents_are_dropped() -> None:
    seen: set[str] = set()
    text = "One sentence that is here. And a second one. The third of them ends it."
    assert demo.tidy([text, text], seen) == text
    assert demo.tidy([text], seen) == ""
    assert demo.tidy(["Only one sentence stands in here."], seen) == ""


@pytest.mark.parametrize(
    "paragraph",
    [
        "x = 1\ny = 2",
        ">>> print(1)\n1",
        "name      description\n====      ===========",
        "Copyright (C) 2004 Python Software Foundation, all rights reserved.",
        "foo(a, b) -> a thing that has been made of both of them.",
    ],
)
def test_code_tables_and_credits_are_dropped(paragraph: str) -> None:
    assert not demo.is_prose(paragraph)
