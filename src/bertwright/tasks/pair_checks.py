"""Oddities of rows that harm the training of text vectors; training and `bertwright survey --pairs` say them.

N rows, B rows of a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from statistics import median

from bertwright.tables.text_roles import TextRow

MOST = 0.5  # share of the texts that must be questions, if it is questions that show the direction of a pair
LONGER = 3  # times as many characters, by which an anchor looks like an answer


def find_oddities(rows: Sequence[TextRow], are_directed: bool) -> Iterator[str]:
    """Yield a sentence for each oddity of rows; `are_directed`: anchors look for texts, not the other way round."""
    equal = [row for row in rows if row.anchor.strip() in {text.strip() for text in row.positives}]
    if equal:
        what = "have the same text as anchor and positive, which teaches nothing"
        yield f"{len(equal):,} of {len(rows):,} rows {what}; the first is {equal[0].location}"
    counts = Counter(row[:1] + row[2:] for row in rows)
    if twice := len(rows) - len(counts):
        first = next(row for row in rows if counts[row[:1] + row[2:]] > 1)
        yield f"{twice:,} of {len(rows):,} rows are copies of others, such as of {first.location}"
    if are_directed and (why := _look_swapped(rows)):
        roles = "--columns anchor=COLUMN positive=COLUMN swaps them"
        yield f"{rows[0].location}: are the columns swapped? {why}; {roles}"


def _look_swapped(rows: Sequence[TextRow]) -> str:
    """Say what makes positives look like queries, and anchors like answers; empty if nothing does."""
    anchors = [row.anchor for row in rows]
    positives = [*chain.from_iterable(row.positives for row in rows)]
    asked, answered = (
        sum(text.rstrip().endswith(("?", "？")) for text in texts) / max(len(texts), 1)
        for texts in (positives, anchors)
    )
    if asked > MOST and answered < MOST / 5:
        return f"{asked:.0%} of the positives are questions, and {answered:.0%} of the anchors"
    long, short = (median(map(len, texts)) if texts else 0 for texts in (anchors, positives))
    return f"anchors have {long:,.0f} characters, positives {short:,.0f} (medians)" if long > LONGER * short > 0 else ""


def expect_masked(rows: Sequence[TextRow], batch_size: int) -> float:
    """Return the number of pairs that `ranking` masks in a step of B rows, on average over all steps.

    Masked are, for each row, the positives of other rows that are its anchor, or a known positive of its anchor.
    """
    known: dict[str, set[str]] = {}
    columns = Counter[str]()
    for row in rows:
        positives = [text.strip() for text in row.positives]
        known.setdefault(row.anchor.strip(), {row.anchor.strip()}).update(positives)
        columns.update(positives)
    own = sum(len(row.positives) for row in rows)
    masked = sum(columns[text] for row in rows for _ in row.positives for text in known[row.anchor.strip()]) - own
    return masked * batch_size * (batch_size - 1) / max(own * (own - 1), 1)
