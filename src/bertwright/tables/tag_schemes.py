"""Tag schemes: detect, check and convert the spellings of spans in tag sequences.

Ill-formed sequences are read as conlleval reads them: I-PER without a PER before it begins a span.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Scheme = Literal["iob1", "iob2", "bioes", "none"]
"""Spelling of spans. iob2: every span begins with B-. iob1, of the original CoNLL-2003: a span begins with I-, or with
B- if a span of the same type ends just before. bioes: as iob2, with E- for the last word of a span and S- for a span of
one word, or L- and U- (BILOU). none: tags are plain classes, such as parts of speech."""

OUTSIDE = "O"
IOB_TAG = re.compile(r"O|[BI](-.+)?")
TAG = {"iob1": IOB_TAG, "iob2": IOB_TAG, "bioes": re.compile(r"O|[BIESLU](-.+)?")}
PREFIXES = {"iob1": "BI", "iob2": "BI", "bioes": "BIES"}  # prefixes of canonical tags
BARE = frozenset("BIESLU")  # tags of spans without a type
UNNAMED = "_"  # their type, as in `seqeval`
BILOU = {"L": "E", "U": "S"}
OUTSIDES = ("O", "o", "0", "-", "_")  # spellings of O
PREFIXED = re.compile(r"([BIESLUM])[-_](.+)", re.IGNORECASE)
SUFFIXED = re.compile(r"(.+)[-_]([BIESLUM])", re.IGNORECASE)


class Span(NamedTuple):
    """An entity: the words `first` to `last` (inclusive) and their type."""

    label: str
    first: int
    last: int


class InvalidTag(NamedTuple):
    """A tag that its scheme does not allow."""

    word_index: int
    """Index in the sequence, from 0."""
    reason: str
    """The tags that the scheme allows, and a hint."""


@cache
def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag into prefix and type; both are empty if the word is in no span.

    >>> split_tag("B-PER"), split_tag("I"), split_tag("O"), split_tag("[PAD]"), split_tag("O-X")
    (('B', 'PER'), ('I', '_'), ('', ''), ('', ''), ('', ''))
    """
    prefix, _, label = tag.partition("-")
    label = UNNAMED if tag in BARE else label
    return (prefix, label) if label and prefix in BARE else ("", "")


@cache
def normalize_tag(tag: str) -> str:
    """Return a tag of spans in the usual spelling: O or a capital, a hyphen and the type; other tags are unchanged.

    >>> [normalize_tag(tag) for tag in ("0", "b_per", "LOC-I", "M-ORG", "i", "B-PER", "NN")]
    ['O', 'B-per', 'I-LOC', 'I-ORG', 'I', 'B-PER', 'NN']
    """
    if tag in OUTSIDES:
        return OUTSIDE
    if TAG["bioes"].fullmatch(tag):
        return tag
    if found := PREFIXED.fullmatch(tag):
        prefix, label = found.groups()
    elif found := SUFFIXED.fullmatch(tag):
        label, prefix = found.groups()
    else:
        return tag.upper() if tag.upper() in BARE else tag
    return f"{prefix.upper().replace('M', 'I')}-{label}"


class AllowedTags(NamedTuple):
    """The tags that may begin and end a sentence and follow each other, of C tags."""

    transitions: npt.NDArray[np.bool_]
    """C × C, from the row's tag to the column's."""
    start: npt.NDArray[np.bool_]
    """C."""
    end: npt.NDArray[np.bool_]
    """C."""


def allowed_tags(labels: Sequence[str]) -> AllowedTags:
    """Return the limits of valid BIOES.

    >>> allowed = allowed_tags(["O", "B-PER", "I-PER", "E-PER", "S-LOC"])
    >>> allowed.transitions.astype(int).tolist()
    [[1, 1, 0, 0, 1], [0, 0, 1, 1, 0], [0, 0, 1, 1, 0], [1, 1, 0, 0, 1], [1, 1, 0, 0, 1]]
    >>> allowed.start.astype(int).tolist(), allowed.end.astype(int).tolist()
    ([1, 1, 0, 0, 1], [1, 0, 0, 1, 1])
    """
    tags = [split_tag(label) for label in labels]
    opens = np.array([prefix in ("B", "I") for prefix, _ in tags])  # the span goes on after this word
    continues = np.array([prefix in ("I", "E") for prefix, _ in tags])  # the span began before this word
    same = np.array([[label == other for _, other in tags] for _, label in tags])
    return AllowedTags(np.where(opens[:, None], continues & same, ~continues), ~continues, ~opens)


def spellings(types: Iterable[str], scheme: Scheme) -> list[str]:
    """Return all tags of spans of some types.

    >>> spellings(["PER"], "iob2"), spellings(["_"], "bioes")
    (['B-PER', 'I-PER'], ['B', 'I', 'E', 'S'])
    """
    ends = ["" if name == UNNAMED else f"-{name}" for name in types]
    return [f"{prefix}{end}" for end in ends for prefix in PREFIXES[scheme]]


def spell(spans: Iterable[Span], num_words: int, scheme: Scheme) -> tuple[str, ...]:
    """Return the tags of spans in valid IOB2 or, with scheme bioes, BIOES.

    >>> spell([Span("PER", 1, 2), Span("_", 3, 3)], 5, "iob2")
    ('O', 'B-PER', 'I-PER', 'B', 'O')
    """
    tags = [OUTSIDE] * num_words
    for label, first, last in spans:
        end = "" if label == UNNAMED else f"-{label}"
        tags[first : last + 1] = [f"I{end}"] * (last - first + 1)
        if scheme == "bioes":
            tags[last] = f"E{end}"
        tags[first] = f"S{end}" if scheme == "bioes" and first == last else f"B{end}"
    return tuple(tags)


def find_spans(tags: Sequence[str]) -> list[Span]:
    """Return the spans that IOB or BIOES tags spell, in order, as conlleval and `seqeval` read them.

    >>> find_spans(["B-PER", "I-PER", "O", "I-LOC", "I-ORG", "S-ORG"])
    [Span(label='PER', first=0, last=1), Span(label='LOC', first=3, last=3), Span(label='ORG', first=4, last=4), \
Span(label='ORG', first=5, last=5)]
    """
    spans: list[Span] = []
    first, label = 0, ""  # the open span, if label is not empty
    for index, tag in enumerate([*tags, OUTSIDE]):
        prefix, span_label = split_tag(tag)
        if label and (prefix in ("B", "S") or span_label != label):
            spans.append(Span(label, first, index - 1))
            label = ""
        if span_label and not label:
            first, label = index, span_label
        if label and prefix in ("E", "S"):
            spans.append(Span(label, first, index))
            label = ""
    return spans


def to_canonical_scheme(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """Convert tags to the form that a model learns: IOB1 to IOB2, BILOU to BIOES; plain tags are unchanged.

    >>> to_canonical_scheme(["I-PER", "I-PER", "B-PER", "O"], "iob1")
    ('B-PER', 'I-PER', 'B-PER', 'O')
    >>> to_canonical_scheme(["B-PER", "L-PER", "U-LOC"], "bioes")
    ('B-PER', 'E-PER', 'S-LOC')
    """
    if scheme == "none":
        return tuple(tags)
    if scheme == "bioes":
        return tuple([BILOU[tag[0]] + tag[1:] if split_tag(tag)[0] in BILOU else tag for tag in tags])
    pairs = [split_tag(tag) for tag in tags]
    begins = [
        prefix == "I" and span_label != last
        for (prefix, span_label), (_, last) in zip(pairs, [("", ""), *pairs], strict=False)
    ]
    return tuple(["B" + tag[1:] if begin else tag for tag, begin in zip(tags, begins, strict=True)])


def detect_scheme(sequences: Iterable[Sequence[str]]) -> Scheme:
    """Detect the scheme of a data set from all its tag sequences.

    Tags spell spans if each is O or has a prefix (B-PER), or if all except O are bare prefixes with B or I among them
    (B I O: spans of one type). If O occurs, a stray tag without prefix, such as PER, does not change that:
    `find_invalid_tag` reports it. Without O, tags are plain classes if only some look like IOB (such as "S-" in Arabic
    treebanks). IOB that is not valid IOB2 is iob1, which allows more.

    >>> [detect_scheme([tags]) for tags in (["B-PER", "I-PER", "O"], ["I-PER", "I-PER", "O"], ["S-PER", "O"], ["NN"])]
    ['iob2', 'iob1', 'bioes', 'none']
    """
    distinct = {tuple(tags) for tags in sequences}
    known = {tag for tags in distinct for tag in tags}
    tags_of_spans = known - {OUTSIDE}
    one_type = tags_of_spans <= BARE and bool(tags_of_spans & {"B", "I"}) and OUTSIDE in known
    prefixed = tags_of_spans if one_type else {tag for tag in tags_of_spans - BARE if TAG["bioes"].fullmatch(tag)}
    if not prefixed or (OUTSIDE not in known and prefixed != known):
        return "none"
    if not all(TAG["iob2"].fullmatch(tag) for tag in prefixed):
        return "bioes"
    return "iob2" if all(to_canonical_scheme(tags, "iob2") == tags for tags in distinct) else "iob1"


def find_invalid_tag(tags: Sequence[str], scheme: Scheme) -> InvalidTag | None:
    """Return the first tag that the scheme does not have, or that iob2 does not allow at its position; else None.

    >>> find_invalid_tag(["O", "I-PER"], "iob2")
    InvalidTag(word_index=1, reason='a span of iob2 begins with B-; in --scheme iob1, I- may begin one')
    >>> find_invalid_tag(["O", "I-PER"], "iob1")
    """
    if scheme == "none":
        return None
    pattern, canonical = TAG[scheme], to_canonical_scheme(tags, scheme)
    for index, tag in enumerate(tags):
        if not pattern.fullmatch(tag):
            shapes = ", ".join(f"{prefix}-…" for prefix in ("BIESLU" if scheme == "bioes" else "BI"))
            return InvalidTag(index, f"expected a tag of {scheme}: O, {shapes}")
        if scheme == "iob2" and tag != canonical[index]:
            return InvalidTag(index, "a span of iob2 begins with B-; in --scheme iob1, I- may begin one")
    return None
