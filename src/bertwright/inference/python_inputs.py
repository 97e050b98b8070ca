"""Conversion of the Python interface's input: lists, arrays and columns of texts to examples. All else is an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bertwright.tables.qa_example import QaExample
from bertwright.tables.tag_example import TagExample
from bertwright.tasks.multiple_choice import ChoiceExample
from bertwright.tasks.ranking_examples import RankingExample
from bertwright.tasks.text_task import TextExample
from bertwright.text.decoding import SURROGATE

UNORDERED = (Mapping, set, frozenset)  # iteration over these yields keys, or values in arbitrary order
MAX_SHOWN = 40  # characters of a value in a message


def to_list(values: Any, name: str) -> list[Any]:
    """Convert a list, an array or a column of a data frame to a list. Raises ValueError for anything else."""
    expected = f"{name}: expected a list, an array or a column"
    if isinstance(values, str | bytes) or not isinstance(values, Iterable) or getattr(values, "shape", None) == ():
        raise ValueError(f"{expected}, got {abbreviate(values)}")
    if isinstance(values, UNORDERED) or hasattr(values, "columns"):
        hint = "give one of its columns" if hasattr(values, "columns") else "give its values as a list"
        raise ValueError(f"{expected}, got a {type(values).__name__}; {hint}")
    return list(values)


def check_text(value: Any, location: str) -> str:
    """Return a value that is a text. Raises ValueError, naming the location, for other types and lone surrogates."""
    if not isinstance(value, str):  # the tokenizer would accept bytes
        raise ValueError(f"{location}: expected a text, got {abbreviate(value)}")
    if surrogate := SURROGATE.search(value):
        code = f"U+{ord(surrogate[0]):04X}"
        raise ValueError(f"{location}: lone surrogate {code} at character {surrogate.start()}; remove it")
    return value


def text_example(value: Any, location: str) -> TextExample[Any]:
    """Build an example from a text or a pair of texts. Raises ValueError for other values."""
    if isinstance(value, str):
        return TextExample(check_text(value, location), None, None, location)
    pair = to_tuple(value)
    if len(pair) != 2 or not all(isinstance(text, str) for text in pair):
        raise ValueError(f"{location}: expected a text or a pair of texts (a, b), got {abbreviate(value)}")
    first, second = (check_text(text, location) for text in pair)
    return TextExample(first, second, None, location)


def choice_example(prompt: Any, endings: Any, location: str) -> ChoiceExample:
    """Build an example from a prompt and its endings. Raises ValueError for fewer than two endings and other types."""
    texts = to_tuple(endings)
    if len(texts) < 2:
        raise ValueError(f"{location}: expected a list of at least two endings, got {abbreviate(endings)}")
    checked = [check_text(text, location) for text in (prompt, *texts)]
    return ChoiceExample(checked[0], tuple(checked[1:]), None, location)


def ranking_example(query: Any, texts: Any, first: int = 0) -> RankingExample:
    """Build an example from a query and its candidates, whose index in messages begins with `first`.

    Raises ValueError for an empty text and for other values.
    """
    given = {"query": query} | {f"text {index}": text for index, text in enumerate(to_list(texts, "texts"), first)}
    for name, text in given.items():
        if not check_text(text, name).strip():
            raise ValueError(f"{name}: expected a text, got an empty one; leave it out")
    return RankingExample(query, tuple(given.values())[1:], None, None, "this query")


def qa_example(number: int, question: Any, context: Any) -> QaExample:
    """Build an example from a question and its context. Raises ValueError if one of them is not a text."""
    location = f"question {number}"
    return QaExample(
        f"{number}", check_text(question, location), check_text(context, f"context {number}"), location=location
    )


def tag_example(value: Any, location: str) -> TagExample:
    """Build an example from a text or from its words. Raises ValueError for anything else."""
    if isinstance(value, str):
        return TagExample.from_text(check_text(value, location), source=location)
    return TagExample(check_words(value, location, "a text or a list of its words"), source=location)


def check_words(value: Any, location: str, expected: str) -> tuple[str, ...]:
    """Return a list of words or of tags as a tuple. Raises ValueError for empty words and for other values."""
    words = to_tuple(value)
    if not is_ordered(value) or not all(isinstance(word, str) and word for word in words):
        raise ValueError(f"{location}: expected {expected}, got {abbreviate(value)}")
    return tuple(check_text(word, location) for word in words)


def to_tuple(value: Any) -> tuple[Any, ...]:
    """Return the items of a list or another ordered collection; an empty tuple for other values, such as a text."""
    return tuple(value) if is_ordered(value) else ()


def is_ordered(value: Any) -> bool:
    """Return whether a value is a collection of items in order. A text is not."""
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, *UNORDERED))


def abbreviate(value: Any) -> str:
    """Format a value and its type for a message, on one line.

    >>> abbreviate("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx… (str)"
    """
    text = repr(value)
    shown = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    return f"{' '.join(shown.split())} ({type(value).__name__})"
