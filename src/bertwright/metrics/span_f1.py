"""Precision, recall and F1 of spans in tag sequences, as conlleval and `seqeval` compute them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from bertwright.tables.tag_schemes import OUTSIDE, find_spans, split_tag


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

    Uses `seqeval` in its default mode, as conlleval and published CoNLL scores do: an ill-formed prediction (I-PER
    after O) counts as a span. The strict mode would not count it. Raises ValueError for sequences of unequal number or
    length.
    """
    from seqeval.metrics.sequence_labeling import precision_recall_fscore_support  # imports scikit-learn: a second

    _check_lengths(y_true, y_pred)
    # A foreign model may have tags such as [PAD] or ORG-B: `seqeval` would take them for spans, they count as O here.
    lists = [[[tag if split_tag(tag)[1] else OUTSIDE for tag in tags] for tags in side] for side in (y_true, y_pred)]
    if not lists[0]:
        return SpanScores(SpanScore(0.0, 0.0, 0.0, 0), {})
    names = sorted({span.label for side in lists for tags in side for span in find_spans(tags)})
    total = precision_recall_fscore_support(*lists, average="micro", zero_division=0)
    columns = precision_recall_fscore_support(*lists, average=None, zero_division=0)
    by_type = zip(*columns, strict=True)
    return SpanScores(_score(*total), {name: _score(*values) for name, values in zip(names, by_type, strict=True)})


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


def _score(precision: float, recall: float, f1: float, support: int) -> SpanScore:
    return SpanScore(float(precision), float(recall), float(f1), int(support))


def _check_lengths(y_true: Sequence[Sequence[str]], y_pred: Sequence[Sequence[str]]) -> None:
    if len(y_true) != len(y_pred):
        raise ValueError(f"{len(y_true)} tag sequences, but predictions for {len(y_pred)}")
    for number, (tags, guesses) in enumerate(zip(y_true, y_pred, strict=True)):
        if len(tags) != len(guesses):
            raise ValueError(f"sequence {number} has {len(tags)} tags, but {len(guesses)} predicted")
