"""Entities as spans of characters, as doccano, Label Studio, Prodigy and spaCy export them, and the tags of words."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from bertwright.tables.tag_schemes import OUTSIDE

INSIDE = ("result", "value", "entities", "spans", "ents")  # members that hold spans
STARTS = ("start", "start_offset", "begin", "offset")
ENDS = ("end", "end_offset")
MAX_DEPTH = 20  # lists and objects around a span; Label Studio has six
SHOWN = 60  # characters of a span in messages
LABELS = ("label", "labels", "type", "tag", "entity", "entity_group", "category")


class CharSpan(NamedTuple):
    """The characters `start` to `end` (exclusive) of a text, and their label."""

    start: int
    end: int
    label: str


def parse_spans(value: Any, location: str, depth: int = 0) -> list[CharSpan]:
    """Convert spans as a file has them; of several annotations of a text, the first.

    >>> parse_spans([[0, 4, "PER"]], "") == parse_spans({"entities": [{"start": 0, "end": 4, "label": "PER"}]}, "")
    True
    """
    if isinstance(value, list) and depth < MAX_DEPTH:
        if len(value) == 3 and sorted(type(item).__name__ for item in value) == ["int", "int", "str"]:
            numbers = [item for item in value if isinstance(item, int)]
            return [CharSpan(numbers[0], numbers[1], next(item for item in value if isinstance(item, str)))]
        if value and isinstance(value[0], dict) and "result" in value[0]:
            valid = (item for item in value if not (isinstance(item, dict) and item.get("was_cancelled")))
            value = [next(valid, {"result": []})]
        return [span for item in value for span in parse_spans(item, location, depth + 1)]
    if isinstance(value, dict) and depth < MAX_DEPTH:
        if (nested := _spans_by_label(value)) is not None:
            return nested
        if inside := next((key for key in INSIDE if isinstance(value.get(key), list | dict)), None):
            return parse_spans(value[inside], location, depth + 1)
        start, end, label = (
            next((value[key] for key in keys if key in value), None) for keys in (STARTS, ENDS, LABELS)
        )
        if isinstance(value.get("span"), list) and len(value["span"]) == 2:
            start, end = value["span"]
        if type(start) is int and end is None and type(value.get("length")) is int:
            end = start + value["length"]
        label = label[0] if isinstance(label, list) and len(label) == 1 else label
        if type(start) is int and type(end) is int and isinstance(label, str):
            return [CharSpan(start, end, label)]
        if start is None and isinstance(value.get("type"), str):  # a relation, or a choice for the whole text
            return []
    form = '{"start": 0, "end": 4, "label": "PER"} or [0, 4, "PER"]'
    raise ValueError(f"{location}: expected spans as {form}, got {str(value)[:SHOWN]}")


def _spans_by_label(value: dict[str, Any]) -> list[CharSpan] | None:
    """Return spans given as label, text and places, as CLUENER does; the end is inclusive if the text's length says so.

    >>> _spans_by_label({"city": {"Bonn": [[3, 6]]}, "name": {"Ada": [[8, 11]]}})
    [CharSpan(start=3, end=7, label='city'), CharSpan(start=8, end=11, label='name')]
    """
    spans = []
    for label, texts in value.items():
        for text, places in texts.items() if isinstance(texts, dict) else [(None, None)]:
            if not isinstance(text, str) or not isinstance(places, list):
                return None
            for place in places:
                if not isinstance(place, list) or [*map(type, place)] != [int, int]:
                    return None
                start, end = place
                spans.append(CharSpan(start, end + (end - start == len(text) - 1), label))
    return spans


def tags_of_spans(
    text: str, offsets: Sequence[tuple[int, int]], spans: Sequence[CharSpan]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the IOB2 tags of the words at `offsets`, and the texts of the spans that are not exactly their words.

    Such a span becomes all words that it touches. Where spans overlap, the longer one is kept.

    >>> tags_of_spans("in New York", [(0, 2), (3, 6), (7, 11)], [CharSpan(2, 11, "LOC")])
    (('O', 'B-LOC', 'I-LOC'), (' New York',))
    """
    tags = [OUTSIDE] * len(offsets)
    firsts, lasts = [first for first, _ in offsets], [last for _, last in offsets]
    changed = []
    for start, end, label in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        low, high = bisect_right(lasts, start), bisect_left(firsts, end)  # the words that it touches
        # The spans before are at least as long, so none of them lies between the first and the last of these words.
        is_free = low < high and tags[low] == tags[high - 1] == OUTSIDE
        if not is_free or (firsts[low], lasts[high - 1]) != (start, end):
            changed.append(text[max(start, 0) : min(end, max(start, 0) + SHOWN)])
        if is_free:
            tags[low:high] = [f"B-{label}"] + [f"I-{label}"] * (high - low - 1)
    return tuple(tags), tuple(changed)
