"""Hard negatives: texts that a search finds for an anchor, though they do not belong to it (NV-Retriever, 2407.15831).

The search is exact, so that the result is a function of the texts, the scores and the seed. R rows, k found texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from bertwright.base.seeding import make_rng
from bertwright.base.settings import check_choice, check_minimum, check_range
from bertwright.search.exact_search import Neighbours

Rescore = Callable[[str, Sequence[str]], Sequence[float]]
"""A function of a query and texts that returns a score for each text."""


@dataclass(frozen=True)
class MiningRules:
    """Which of the texts that a search finds become negatives."""

    number: int = 5
    """Negatives per row."""
    from_rank: int = 1
    """First rank that may become a negative; known positives do not count as ranks."""
    to_rank: int = 100
    """Last rank that may become a negative."""
    margin: float = 0.05
    """A negative's score is at most (1 - margin) times the positive's; 1 lets none pass that has a score above 0."""
    sampling: Literal["top", "random"] = "top"
    """Which of the remaining texts: the nearest, or a random sample of them."""
    seed: int = 0
    """Seed of the random sample."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "number", "from_rank", "to_rank")
        check_range(self, 0, 1, "margin")
        check_choice(self, "sampling")
        if self.to_rank - self.from_rank + 1 < self.number:
            raise ValueError(
                f"--from-rank {self.from_rank} --to-rank {self.to_rank}: expected at least --number {self.number} ranks"
            )


class Pair(NamedTuple):
    """An anchor and its text."""

    anchor: str
    positive: str


class Mined(NamedTuple):
    """A pair with its negatives, nearest first."""

    pair: Pair
    positive_score: float
    negatives: tuple[str, ...]
    scores: tuple[float, ...]
    at_margin: tuple[str, float] | None
    """Of the texts that the margin rule has left out, the one nearest to the margin, and its score."""


@dataclass
class MiningCounts:
    """How many found texts fell to which rule, and how many rows got fewer negatives than asked for."""

    known: int = 0
    """Known positives, and texts equal to the anchor."""
    margin: int = 0
    fewer: int = 0
    none: int = 0
    positive_scores: list[float] = field(default_factory=list)
    negative_scores: list[float] = field(default_factory=list)


class Collection(NamedTuple):
    """Distinct texts that may become negatives."""

    texts: list[str]
    places: Mapping[str, int]
    """Position by trimmed text."""

    @classmethod
    def of(cls, pairs: Sequence[Pair], corpus: Sequence[str]) -> Collection:
        """Collect the texts of a corpus and all positives; of texts that differ in outer blanks, the first."""
        places: dict[str, int] = {}
        texts = list[str]()
        for text in (*corpus, *(pair.positive for pair in pairs)):
            if text.strip() and text.strip() not in places:
                places[text.strip()] = len(texts)
                texts.append(text)
        return cls(texts, places)


def group_positives(pairs: Sequence[Pair], texts: Collection) -> dict[str, set[int]]:
    """Return by anchor the positions that never become its negatives: its positives in all rows, and itself."""
    known: dict[str, set[int]] = {}
    for pair in pairs:
        of_anchor = known.setdefault(pair.anchor.strip(), set())
        of_anchor.add(texts.places[pair.positive.strip()])
        if pair.anchor.strip() in texts.places:
            of_anchor.add(texts.places[pair.anchor.strip()])
    return known


def mine(
    pairs: Sequence[Pair],
    texts: Collection,
    found: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    positive_scores: Sequence[float],
    rules: MiningRules,
    rescore: Rescore | None = None,
) -> tuple[list[Mined], MiningCounts]:
    """Choose the negatives of each pair from the positions and scores that a search found for its anchor.

    `positive_scores`: R, the same search's scores of the positives. `rescore` replaces all scores, by another model.
    """
    known, counts, mined = group_positives(pairs, texts), MiningCounts(), list[Mined]()
    for row, (pair, positive_score) in enumerate(zip(pairs, positive_scores, strict=True)):
        places, scores = found[pair.anchor.strip()]
        right = known[pair.anchor.strip()]
        ranked = [(place, score) for place, score in zip(places, scores, strict=True) if place >= 0]
        others = [(place, score) for place, score in ranked if place not in right]
        counts.known += len(ranked) - len(others)
        window = others[rules.from_rank - 1 : rules.to_rank]
        if rescore is not None and window:
            positive_score, *fresh = rescore(pair.anchor, [pair.positive, *(texts.texts[place] for place, _ in window)])
            order = np.argsort(-np.array(fresh), kind="stable")
            window = [(window[index][0], fresh[index]) for index in order.tolist()]
        limit = positive_score - rules.margin * abs(positive_score)
        far = [(place, score) for place, score in window if score <= limit]
        near = [(place, score) for place, score in window if score > limit]
        counts.margin += len(near)
        if rules.sampling == "random" and len(far) > rules.number:
            chosen = make_rng(rules.seed, row).choice(len(far), rules.number, replace=False)
            far = [far[index] for index in np.sort(chosen).tolist()]
        far = far[: rules.number]
        counts.fewer += 0 < len(far) < rules.number
        counts.none += not far
        counts.positive_scores.append(positive_score)
        counts.negative_scores += [score for _, score in far]
        last = (texts.texts[near[-1][0]], near[-1][1]) if near else None
        negatives = tuple(texts.texts[place] for place, _ in far)
        mined.append(Mined(pair, positive_score, negatives, tuple(score for _, score in far), last))
    return mined, counts


def by_anchor(anchors: Sequence[str], found: Neighbours) -> dict[str, tuple[list[int], list[float]]]:
    """Return what was found by trimmed anchor."""
    rows = zip(anchors, found.positions.tolist(), found.scores.tolist(), strict=True)
    return {anchor.strip(): (places, scores) for anchor, places, scores in rows}
