"""Tag sequences: the schemes by which tags spell spans, the spans they spell, and their scores.

Ill-formed sequences are read as the shared task's conlleval reads them: I-PER with no PER before it begins a span.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Literal, NamedTuple

Scheme = Literal["iob1", "iob2", "bioes", "none"]
"""How tags spell spans. iob2: B- begins each. iob1, of the original CoNLL-2003: I- begins one, and B- only where a span
of the same type ends just before. bioes: also E- for the last word and S- for a single one, or L- and U- (BILOU).
none: tags are plain classes, such as parts of speech."""

OUTSIDE = "O"
IOB_TAG = re.compile(r"O|[BI](-.+)?")
TAG = {"iob1": IOB_TAG, "iob2": IOB_TAG, "bioes": re.compile(r"O|[BIESLU](-.+)?")}
PREFIXES = {"iob1": "BI", "iob2": "BI", "bioes": "BIES"}  # of tags as `to_canonical_scheme` gives them
BARE = frozenset("BIESLU")  # tags of spans that are all of one kind, which is not named
UNNAMED = "_"  # that kind, as `seqeval` calls it
BILOU = {"L": "E", "U": "S"}


class Span(NamedTuple):
    """Words `first` … `last`, both included, are one thing of a type."""

    label: str
    first: int
    last: int


class SpanScore(NamedTuple):
    """How many of the spans were found, exactly and with their type; shares from 0 to 1."""

    precision: float
    recall: float
    f1: float
    support: int
    """Spans that are there."""


class InvalidTag(NamedTuple):
    """A tag that does not belong into its sequence."""

    place: int
    """Its number in the sequence, from 0."""
    reason: str
    """What the scheme has instead, and the way out."""


@cache
def split_tag(tag: str) -> tuple[str, str]:
    """A tag's prefix and type; no type means that the word is in no span.

    >>> split_tag("B-PER"), split_tag("I"), split_tag("O"), split_tag("[PAD]")
    (('B', 'PER'), ('I', '_'), ('', ''), ('', ''))
    """
    prefix, _, of = tag.partition("-")
    of = UNNAMED if tag in BARE else of
    return (prefix, of) if of else ("", "")


def spans(tags: Sequence[str]) -> list[Span]:
    """The spans that IOB or BIOES tags spell, in order, as conlleval and `seqeval` read them.

    >>> spans(["B-PER", "I-PER", "O", "I-LOC", "I-ORG", "S-ORG"])
    [Span(label='PER', first=0, last=1), Span(label='LOC', first=3, last=3), Span(label='ORG', first=4, last=4), \
Span(label='ORG', first=5, last=5)]
    """
    found: list[Span] = []
    first, label = 0, ""  # of the span that is open; "" for none
    for place, tag in enumerate([*tags, OUTSIDE]):
        prefix, of = split_tag(tag)
        if label and (prefix in ("B", "S") or of != label):
            found.append(Span(label, first, place - 1))
            label = ""
        if of and not label:
            first, label = place, of
        if label and prefix in ("E", "S"):
            found.append(Span(label, first, place))
            label = ""
    return found


def to_canonical_scheme(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """The same spans in the one form that a model learns: IOB2, or BIOES; plain tags as they are.

    >>> to_canonical_scheme(["I-PER", "I-PER", "B-PER", "O"], "iob1"), to_canonical_scheme(["B-PER", "L-PER", "U-LOC"], "bioes")
    (('B-PER', 'I-PER', 'B-PER', 'O'), ('B-PER', 'E-PER', 'S-LOC'))
    """
    if scheme == "none":
        return tuple(tags)
    if scheme == "bioes":
        return tuple([BILOU[tag[0]] + tag[1:] if split_tag(tag)[0] in BILOU else tag for tag in tags])
    pairs = [split_tag(tag) for tag in tags]
    begun = [prefix == "I" and of != last for (prefix, of), (_, last) in zip(pairs, [("", ""), *pairs], strict=False)]
    return tuple(["B" + tag[1:] if begins else tag for tag, begins in zip(tags, begun, strict=True)])


def detect(sequences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme of a data set, from all its tag sequences.

    Spans are spelled where every tag is O or has a prefix (B-PER), or where all but O are bare prefixes, B or I among
    them (B I O: spans of one kind). A stray tag among those with prefixes, such as PER, does not change that if there
    is an O: it is a mistake, which `find_invalid_tag` finds. IOB that is not flawless IOB2 is iob1, which allows more. Without
    O, tags of which some only look like IOB (as "S-" in Arabic treebanks) are plain ones.

    >>> detect([["B-PER", "I-PER", "O"]]), detect([["I-PER", "I-PER", "O"]]), detect([["S-PER", "O"]]), detect([["NN"]])
    ('iob2', 'iob1', 'bioes', 'none')
    """
    distinct = {tuple(tags) for tags in sequences}
    known = {tag for tags in distinct for tag in tags}
    others = known - {OUTSIDE}
    one_kind = others <= BARE and bool(others & {"B", "I"}) and OUTSIDE in known
    prefixed = others if one_kind else {tag for tag in others - BARE if TAG["bioes"].fullmatch(tag)}
    if not prefixed or (OUTSIDE not in known and prefixed != known):
        return "none"
    if not all(TAG["iob2"].fullmatch(tag) for tag in prefixed):
        return "bioes"
    return "iob2" if all(to_canonical_scheme(tags, "iob2") == tags for tags in distinct) else "iob1"


def find_invalid_tag(tags: Sequence[str], scheme: Scheme) -> InvalidTag | None:
    """The first tag that the scheme does not have, or that iob2 does not have in this place; None if all is well.

    >>> find_invalid_tag(["O", "I-PER"], "iob2")
    InvalidTag(place=1, reason='in iob2 a span begins with B-; iob1 is the scheme in which I- may begin one')
    >>> find_invalid_tag(["O", "I-PER"], "iob1")
    """
    if scheme == "none":
        return None
    pattern, meant = TAG[scheme], to_canonical_scheme(tags, scheme)
    for place, tag in enumerate(tags):
        if not pattern.fullmatch(tag):
            shapes = ", ".join(f"{prefix}-…" for prefix in ("BIESLU" if scheme == "bioes" else "BI"))
            return InvalidTag(place, f"tags of {scheme} are O, {shapes}; scheme none takes tags as plain classes")
        if scheme == "iob2" and tag != meant[place]:
            return InvalidTag(place, "in iob2 a span begins with B-; iob1 is the scheme in which I- may begin one")
    return None


class SpanScores(NamedTuple):
    """Scores of all spans, and of those of each type."""

    total: SpanScore
    types: dict[str, SpanScore]


def span_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> SpanScores:
    """Span precision, recall and F1 of tag sequences in one normal form, by `seqeval`; 0 where there is no span.

    In its default mode, as conlleval has it and as published CoNLL scores were made, an ill-formed prediction (I-PER
    after O) counts as the span that it evidently means; the strict mode would count it as none.
    Raises ValueError for sequences of unequal number or length.
    """
    from seqeval.metrics.sequence_labeling import (  # costs a second, by scikit-learn
        precision_recall_fscore_support,
    )

    _paired(gold, predicted)
    # A model from elsewhere may have tags such as X or [PAD], of which seqeval would make spans, and we make none.
    lists = [[[tag if split_tag(tag)[1] else OUTSIDE for tag in tags] for tags in side] for side in (gold, predicted)]
    if not lists[0]:
        return SpanScores(SpanScore(0.0, 0.0, 0.0, 0), {})
    names = sorted({span.label for side in lists for tags in side for span in spans(tags)})
    total = precision_recall_fscore_support(*lists, average="micro", zero_division=0)
    columns = precision_recall_fscore_support(*lists, average=None, zero_division=0)
    rows = zip(*columns, strict=True)
    return SpanScores(_score(*total), {name: _score(*row) for name, row in zip(names, rows, strict=True)})


def accuracy(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """Share of words that have the right tag; ValueError where there is no word, or sequences do not pair up.

    >>> accuracy([["O", "B-PER"], ["O"]], [["O", "O"], ["O"]])
    0.6666666666666666
    """
    _paired(gold, predicted)
    words = sum(len(tags) for tags in gold)
    if not words:
        raise ValueError("no word to score")
    pairs = zip(chain.from_iterable(gold), chain.from_iterable(predicted), strict=True)
    return sum(tag == guess for tag, guess in pairs) / words


def _score(precision: float, recall: float, f1: float, support: int) -> SpanScore:
    return SpanScore(float(precision), float(recall), float(f1), int(support))


def _paired(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> None:
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} tag sequences, but predictions for {len(predicted)}")
    for number, (tags, guesses) in enumerate(zip(gold, predicted, strict=True)):
        if len(tags) != len(guesses):
            raise ValueError(f"sequence {number} has {len(tags)} tags, but {len(guesses)} predicted")
