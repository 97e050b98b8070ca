"""Precision, recall and F1 of spans in tag sequences, as conlleval and `seqeval` compute them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from bertwright.tables.tag_schemes import find_spans


class SpanScore(NamedTuple):
    """Scores of spans that match exactly, including their type; from 0 to 1."""

    precision: float
    recall: float
    f1: float
    support: int
    """Number of spans in `y_true`."""


class SpanScores(NamedTuple):
    """Scores of all spans, and of the spans of each type."""

    total: SpanScore
    types: dict[str, SpanScore]


def span_scores(y_true: Sequence[Sequence[str]], y_pred: Sequence[Sequence[str]]) -> SpanScores:
    """Compute span precision, recall and F1 of tag sequences in canonical form; 0 if undefined.

    As for conlleval, published CoNLL scores and `seqeval` in its default mode, an ill-formed prediction (I-PER after O)
    counts as a span. Raises ValueError for sequences of unequal number or length.
    """
    _check_lengths(y_true, y_pred)
    # A foreign model may have tags such as [PAD] or ORG-B, which `find_spans` takes for O, as `seqeval` does not.
    true, found = (
        {(number, span) for number, tags in enumerate(side) for span in find_spans(tags)} for side in (y_true, y_pred)
    )
    counts = [Counter(span.label for _, span in spans) for spans in (true, found, true & found)]
    by_type = {name: _score(*(count[name] for count in counts)) for name in sorted(counts[0] | counts[1])}
    return SpanScores(_score(*(count.total() for count in counts)), by_type)


def accuracy(y_true: Sequence[Sequence[str]], y_pred: Sequence[Sequence[str]]) -> float:
    """Compute the share of words with the right tag. Raises ValueError for no words, or sequences of unequal length.

    >>> accuracy([["O", "B-PER"], ["O"]], [["O", "O"], ["O"]])
    0.6666666666666666
    """
    _check_lengths(y_true, y_pred)
    words = sum(len(tags) for tags in y_true)
    if not words:
        raise ValueError("no word to score")
    pairs = zip(chain.from_iterable(y_true), chain.from_iterable(y_pred), strict=True)
    return sum(tag == guess for tag, guess in pairs) / words


def _score(true: int, found: int, hits: int) -> SpanScore:
    precision, recall = hits / max(found, 1), hits / max(true, 1)
    f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
    return SpanScore(precision, recall, f1, true)


def _check_lengths(y_true: Sequence[Sequence[str]], y_pred: Sequence[Sequence[str]]) -> None:
    if len(y_true) != len(y_pred):
        raise ValueError(f"{len(y_true)} tag sequences, but predictions for {len(y_pred)}")
    for number, (tags, guesses) in enumerate(zip(y_true, y_pred, strict=True)):
        if len(tags) != len(guesses):
            raise ValueError(f"sequence {number} has {len(tags)} tags, but {len(guesses)} predicted")
