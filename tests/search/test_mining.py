"""Hard negatives: rules by hand, and no known positive among them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bertwright.search.bm25 import Bm25
from bertwright.search.mining import Collection, MiningRules, Pair, by_anchor, group_positives, mine

PAIRS = [Pair("q", "right"), Pair("q ", "also right"), Pair("other", "third")]
TEXTS = Collection.of(PAIRS, ["a", "b", " right ", "c", "q", "d"])  # right is in the corpus with other blanks


def found(*scored: tuple[str, float]) -> tuple[list[int], list[float]]:
    return [TEXTS.places[text] for text, _ in scored], [score for _, score in scored]


RANKED = {
    "q": found(("q", 1.0), ("a", 0.99), ("right", 0.9), ("b", 0.86), ("also right", 0.8), ("c", 0.7), ("d", 0.6)),
    "other": ([-1, -1], [-np.inf, -np.inf]),
}
SCORES = [0.9, 0.8, 0.5]


def test_texts_are_distinct_without_outer_blanks() -> None:
    assert TEXTS.texts == ["a", "b", " right ", "c", "q", "d", "also right", "third"]


def test_margin_and_known_positives_by_hand() -> None:
    mined, counts = mine(PAIRS, TEXTS, RANKED, SCORES, MiningRules(number=2, margin=0.05))
    assert [one.negatives for one in mined] == [("c", "d"), ("c", "d"), ()]  # b: 0.86 > 0.95 · 0.9 and 0.95 · 0.8
    assert mined[0].scores == (0.7, 0.6)
    assert mined[0].at_margin == ("b", 0.86)
    assert (counts.known, counts.margin, counts.fewer, counts.none) == (6, 4, 0, 1)


def test_ranks_count_without_known_positives() -> None:
    mined, _ = mine(PAIRS[:1], TEXTS, RANKED, SCORES[:1], MiningRules(1, from_rank=2, to_rank=3, margin=0))
    assert mined[0].negatives == ("b",)  # a is the first: q is the anchor, right is known by this row


def test_another_models_scores_replace_the_order_and_the_margin() -> None:
    def rescore(query: str, texts: Sequence[str]) -> list[float]:
        return [{"right": 0.5, " right ": 0.5, "a": 0.9, "d": 0.4}.get(text, 0.1) for text in texts]

    mined, counts = mine(PAIRS[:1], TEXTS, RANKED, SCORES[:1], MiningRules(2), rescore)
    assert mined[0].negatives[0] == "d"
    assert mined[0].at_margin == ("a", 0.9)
    assert counts.positive_scores == [0.5]


def test_random_negatives_are_a_function_of_the_seed() -> None:
    def run(seed: int) -> list[tuple[str, ...]]:
        rules = MiningRules(1, margin=0, sampling="random", seed=seed)
        return [one.negatives for one in mine(PAIRS, TEXTS, RANKED, SCORES, rules)[0]]

    assert run(3) == run(3)
    assert len({tuple(run(seed)) for seed in range(9)}) > 1


def test_no_known_positive_is_ever_returned() -> None:
    """Property over 10,000 rows of few words, so that most texts found are known or equal."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(["a", "b", "c", "d", "e", "f"], 3)) for _ in range(400)]
    pairs = [
        Pair(texts[first], texts[second] + " " * (second % 2)) for first, second in rng.integers(400, size=(10_000, 2))
    ]
    collection = Collection.of(pairs, texts)
    anchors = [*dict.fromkeys(pair.anchor.strip() for pair in pairs)]
    nearest = by_anchor(anchors, Bm25.build(collection.texts).find(anchors, 60))
    mined, _ = mine(pairs, collection, nearest, [9.0] * len(pairs), MiningRules(5, margin=0))
    known = group_positives(pairs, collection)
    right = {anchor: {collection.texts[place].strip() for place in places} for anchor, places in known.items()}
    chosen = [(one.pair.anchor.strip(), text.strip()) for one in mined for text in one.negatives]
    assert len(chosen) > 5_000
    assert not [text for anchor, text in chosen if text in right[anchor] or text == anchor]


@pytest.mark.parametrize("values", [{"number": 0}, {"margin": 1.5}, {"from_rank": 3, "to_rank": 4, "number": 5}])
def test_rules_that_cannot_hold_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"number|margin|ranks"):
        MiningRules(**values)  # type: ignore[arg-type]
