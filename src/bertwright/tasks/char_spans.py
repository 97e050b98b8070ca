"""Entities as spans of characters, as doccano, Label Studio, Prodigy and spaCy export them, and the tags of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from bertwright.metrics.tag_schemes import OUTSIDE

# Columns with words or text, and with their tags or spans, in the order in which they are looked for.
COLUMNS = (
    ("words", "tags"),
    ("tokens", "ner_tags"),
    *(("text", spans) for spans in ("spans", "entities", "ents", "labels", "label", "annotations")),
    ("data.text", "annotations"),
    ("tokens", "tags"),
    ("tokens", "labels"),
)
INSIDE = ("result", "value", "entities", "spans", "ents")  # members that hold spans
STARTS = ("start", "start_offset", "begin")
ENDS = ("end", "end_offset")
LABELS = ("label", "labels", "type", "tag", "entity", "entity_group", "category")


class CharSpan(NamedTuple):
    """The characters `start` to `end` (exclusive) of a text, and their label."""

    start: int
    end: int
    label: str


def parse_spans(value: Any, location: str) -> list[CharSpan]:
    """Convert spans as a file has them; of several annotations of a text, the first.

    >>> parse_spans([[0, 4, "PER"]], "") == parse_spans({"entities": [{"start": 0, "end": 4, "label": "PER"}]}, "")
    True
    """
    if isinstance(value, list):
        if len(value) == 3 and sorted(type(item).__name__ for item in value) == ["int", "int", "str"]:
            numbers = [item for item in value if isinstance(item, int)]
            return [CharSpan(numbers[0], numbers[1], next(item for item in value if isinstance(item, str)))]
        if value and isinstance(value[0], dict) and "result" in value[0]:
            value = [next((item for item in value if not item.get("was_cancelled")), {"result": []})]
        return [span for item in value for span in parse_spans(item, location)]
    if isinstance(value, dict):
        if inside := next((key for key in INSIDE if isinstance(value.get(key), list | dict)), None):
            return parse_spans(value[inside], location)
        start, end, label = (
            next((value[key] for key in keys if key in value), None) for keys in (STARTS, ENDS, LABELS)
        )
        label = label[0] if isinstance(label, list) and len(label) == 1 else label
        if type(start) is int and type(end) is int and isinstance(label, str):
            return [CharSpan(start, end, label)]
        if start is None and isinstance(value.get("type"), str):  # a relation, or a choice for the whole text
            return []
    form = '{"start": 0, "end": 4, "label": "PER"} or [0, 4, "PER"]'
    raise ValueError(f"{location}: expected spans as {form}, got {str(value)[:60]}")


def tags_of_spans(
    text: str, offsets: Sequence[tuple[int, int]], spans: Sequence[CharSpan]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the IOB2 tags of the words at `offsets`, and the texts of the spans that are not exactly their words.

    Such a span becomes all words that it touches. Where spans overlap, the longer one is kept.

    >>> tags_of_spans("in New York", [(0, 2), (3, 6), (7, 11)], [CharSpan(2, 11, "LOC")])
    (('O', 'B-LOC', 'I-LOC'), (' New York',))
    """
    tags = [OUTSIDE] * len(offsets)
    changed = []
    for start, end, label in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        touched = [n for n, (first, last) in enumerate(offsets) if first < end and last > start]
        is_free = bool(touched) and all(tags[n] == OUTSIDE for n in touched)
        if not is_free or (offsets[touched[0]][0], offsets[touched[-1]][1]) != (start, end):
            changed.append(text[max(start, 0) : end])
        if is_free:
            tags[touched[0] : touched[-1] + 1] = [f"B-{label}"] + [f"I-{label}"] * (len(touched) - 1)
    return tuple(tags), tuple(changed)
