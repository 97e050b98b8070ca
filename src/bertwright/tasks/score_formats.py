"""Formats of scores and tables for people, the same for every task type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class DisplayTable(NamedTuple):
    """A table for people, with a heading."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    heading: str = ""
    if_empty: str = ""
    """Text in place of a table without rows."""


def format_percent(share: float) -> str:
    """Format a share in percent, as papers print it.

    >>> format_percent(0.92204)
    '92.20'
    """
    return f"{100 * share:.2f}"


def format_score(score: float | None, name: str = "") -> str:
    """Format a share or a correlation in percent with two decimals, and a squared error unscaled.

    >>> format_score(0.92204), format_score(None), format_score(3.012, "mse")
    ('92.20', '', '3.012')
    """
    if score is None:
        return ""
    return f"{score:.4g}" if name == "mse" else format_percent(score)


def format_scores(scores: Mapping[str, float]) -> str:
    """Format the first four scores for a line of text.

    >>> format_scores({"f1": 0.9, "accuracy": 0.95})
    'f1 90.00, accuracy 95.00'
    """
    return ", ".join(
        f"{name.replace('_', ' ')} {format_score(value, name)}" for name, value in list(scores.items())[:4]
    )


def make_score_table(results: Mapping[str, Mapping[str, float]], metric: str) -> DisplayTable:
    """Format scores by name, one column per split; the metric that selects the checkpoint comes first."""
    names = dict.fromkeys(name for scores in results.values() for name in scores)
    rows = []
    for name in sorted(names, key=lambda name: name != metric):
        cells = (format_score(scores.get(name), name) for scores in results.values())
        rows.append((name.replace("_", " "), *cells))
    return DisplayTable(("", *results), rows)
