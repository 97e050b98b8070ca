"""Entities as spans of characters, as doccano, Label Studio, Prodigy and spaCy export them, and the tags of words."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
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
    text: str | None = None
    """These characters as the file repeats them, which tell how it counts."""


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
            return [CharSpan(start, end, label, value["text"] if isinstance(value.get("text"), str) else None)]
        if start is None and isinstance(value.get("type"), str):  # a relation, or a choice for the whole text
            return []
    form = '{"start": 0, "end": 4, "label": "PER"} or [0, 4, "PER"]'
    raise ValueError(f"{location}: expected spans as {form}, got {str(value)[:SHOWN]}")


def _spans_by_label(value: dict[str, Any]) -> list[CharSpan] | None:
    """Return spans given as label, text and places, as CLUENER does; the end is inclusive if the text's length says so.

    >>> [span[:3] for span in _spans_by_label({"city": {"Bonn": [[3, 6]]}, "name": {"Ada": [[8, 11]]}})]
    [(3, 7, 'city'), (8, 11, 'name')]
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


COUNTED: dict[str, Callable[[str], int]] = {
    "characters": lambda character: 1,
    "UTF-16 units": lambda character: 1 + (character > "\uffff"),
    "characters, with \\r\\n as line ends": lambda character: 1 + (character == "\n"),
    "UTF-16 units, with \\r\\n as line ends": lambda character: 1 + (character > "\uffff" or character == "\n"),
    "characters, with \\n as line ends": lambda character: character != "\r",
    "UTF-16 units, with \\n as line ends": lambda character: (character != "\r") + (character > "\uffff"),
    "bytes of UTF-8": lambda character: len(character.encode("utf-8", "surrogatepass")),
}
"""What programs count, and how much a character adds."""


BY_TEXT = "units that are not known, and were found by their own texts"


def count_in_characters(
    text: str, spans: Sequence[CharSpan], words: Sequence[tuple[int, int]], location: str
) -> tuple[list[CharSpan], str]:
    """Return spans that count the characters of a text, and what they counted in the file, one of `COUNTED` or BY_TEXT.

    The texts of the spans decide; without these, the spans are to begin and end with words, if any count makes them.
    Raises ValueError for a span that is not in the text by any count.

    >>> count_in_characters("🎉 Ada", [CharSpan(3, 6, "PER")], [(0, 1), (2, 5)], "")
    ([CharSpan(start=2, end=5, label='PER', text=None)], 'UTF-16 units')
    """
    firsts, lasts = {first for first, _ in words}, {last for _, last in words}
    in_text, alphabet = None, {*text}
    for name, count in COUNTED.items():
        places = _find_places(text, alphabet, count)
        found = [
            span._replace(start=places[span.start], end=places[span.end])
            for span in spans
            if span.start in places and span.end in places
        ]
        if len(found) < len(spans) or not all(_has_text(text, span) for span in found):
            continue
        in_text = in_text or (found, name)
        if any(span.text for span in spans) or all(span.start in firsts and span.end in lasts for span in found):
            return found, name
    if in_text:
        return in_text
    if all(span.text and text.count(span.text) == 1 for span in spans):
        ends = [(text.index(span.text or "") + len(span.text or ""), span) for span in spans]
        return [span._replace(start=end - len(span.text or ""), end=end) for end, span in ends], BY_TEXT
    odd = next((span for span in spans if not _has_text(text, span)), max(spans, key=lambda span: span.end))
    got = text[max(odd.start, 0) : max(odd.end, 0)][:SHOWN]
    raise ValueError(
        f"{location}: expected {odd.text or odd.label!r} from {odd.start} to {odd.end}, got {got!r}; counted in "
        f"{', '.join([*COUNTED][:2])} or otherwise, the spans are not in the text: fix them"
    )


def _find_places(text: str, alphabet: set[str], count: Callable[[str], int]) -> range | dict[int, int]:
    """Return the character at each place that a count gives to the start of one, and the end of the text."""
    if all(count(character) == 1 for character in alphabet):  # in most texts
        return range(len(text) + 1)
    starts = [*accumulate(map(count, text), initial=0)]
    return dict(zip(reversed(starts), range(len(text), -1, -1), strict=True))


def _has_text(text: str, span: CharSpan) -> bool:
    """Return whether a span has the text that the file says, but for white space."""
    return span.text is None or text[span.start : span.end].split() == span.text.split()


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
    for start, end, label, _ in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        low, high = bisect_right(lasts, start), bisect_left(firsts, end)  # the words that it touches
        # The spans before are at least as long, so none of them lies between the first and the last of these words.
        is_free = low < high and tags[low] == tags[high - 1] == OUTSIDE
        if not is_free or (firsts[low], lasts[high - 1]) != (start, end):
            changed.append(text[max(start, 0) : min(end, max(start, 0) + SHOWN)])
        if is_free:
            tags[low:high] = [f"B-{label}"] + [f"I-{label}"] * (high - low - 1)
    return tuple(tags), tuple(changed)
