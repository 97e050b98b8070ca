"""Learning by merging: worked by hand, and against a naive twin that recounts everything after every merge."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.kernels import native
from bertwright.vocabulary.merges import (
    Criterion,
    NativeMergeTrainer,
    PythonMergeTrainer,
    initial_symbols,
    make_trainer,
)

WORDS = st.dictionaries(st.text(alphabet="abc한", min_size=1, max_size=9), st.integers(1, 40), max_size=25)
CRITERIA = st.builds(Criterion, st.booleans(), st.integers(1, 12))


def naive(words: dict[str, int], criterion: Criterion, wanted: int) -> list[str]:
    """The definition, read aloud: recount all, score all, merge the best."""
    spelling = {word: initial_symbols(word) for word in words}
    seen = {symbol for symbols in spelling.values() for symbol in symbols}
    learned: list[str] = []
    floor = None
    while len(learned) < wanted:
        singles: Counter[str] = Counter()
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for symbol in spelling[word]:
                singles[symbol] += count
            for pair in pairwise(spelling[word]):
                pairs[pair] += count
        if floor is None:
            floor = criterion.min_frequency
            if criterion.likelihood and pairs:
                floor = max(floor, *pairs.values())
        while not any(count >= floor for count in pairs.values()) and floor > criterion.min_frequency:
            floor = max(criterion.min_frequency, floor // 2)
        scores = {
            (a, b): count / (singles[a] * singles[b]) if criterion.likelihood else count
            for (a, b), count in pairs.items()
            if count >= floor
        }
        if not scores:
            break
        a, b = min(scores, key=lambda pair: (-scores[pair], pair))
        merged = a + b[2:]
        if merged not in seen:
            learned.append(merged)
            seen.add(merged)
        for symbols in spelling.values():
            place = 0
            while place + 1 < len(symbols):
                if symbols[place : place + 2] == [a, b]:
                    symbols[place : place + 2] = [merged]
                place += 1
    return learned


def learners():
    yield PythonMergeTrainer
    if library := native.load_library("wordpiece"):
        yield lambda words, criterion: NativeMergeTrainer(words, criterion, library)


@settings(max_examples=300)
@given(WORDS, CRITERIA)
def test_incremental_learning_is_the_naive_one(words, criterion):
    expected = naive(words, criterion, 1000)
    for make in learners():
        assert make(words, criterion).advance(1000) == expected


@settings(max_examples=100)
@given(WORDS, CRITERIA, st.lists(st.integers(0, 5), max_size=8))
def test_learning_goes_on_where_it_stopped(words, criterion, steps):
    for make in learners():
        pieces = make(words, criterion)
        in_steps = [piece for step in steps for piece in pieces.advance(step)]
        assert in_steps == make(words, criterion).advance(sum(steps))


@pytest.mark.parametrize("make", list(learners()))
def test_hand_worked(make):
    # Pairs: ##u ##g 20, p ##u 17, ##u ##n 16, h ##u 15, ##g ##s 5, b ##u 4.
    # Symbols: ##u 36, ##g 20, p 17, ##n 16, h 15, ##s 5, b 4.
    words = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}
    assert make(words, Criterion(likelihood=False, min_frequency=1)).advance(3) == ["##ug", "##un", "hug"]
    # Likelihood, floor 20: ##u ##g is alone. Floor 10: ##u is left 16 times, always before ##n, so ##u ##n has
    # 16 / (16 · 16), p ##u 12 / (17 · 16), h ##ug 15 / (15 · 20) = 0.050 is less than 0.0625: ##un. Then p ##un at
    # 12 / (17 · 16) = 0.044: hug. Then pun. Floor 5: ##ug is left 5 times, after p: 5 / (5 · 5); hug ##s 5 / (15 · 5).
    learned = make(words, Criterion(likelihood=True, min_frequency=5)).advance(99)
    assert learned == ["##ug", "##un", "hug", "pun", "pug", "hugs"]


@pytest.mark.parametrize("make", list(learners()))
def test_ratio_prefers_the_pair_that_chance_explains_least(make):
    words = {"ab": 10, "xy": 10, "ad": 9, "cb": 9}  # a and b occur elsewhere too, x and y do not
    assert make(words, Criterion(likelihood=True, min_frequency=10)).advance(9) == ["xy", "ab"]
    assert make(words, Criterion(likelihood=False, min_frequency=10)).advance(9) == ["ab", "xy"]


@pytest.mark.parametrize("make", list(learners()))
@pytest.mark.parametrize("likelihood", [True, False])
def test_nothing_to_learn(make, likelihood):
    assert make({}, Criterion(likelihood, 1)).advance(5) == []
    assert make({"a": 3, "語": 2}, Criterion(likelihood, 1)).advance(5) == []
    assert make({"abc": 3}, Criterion(likelihood, 4)).advance(5) == []


def test_order_of_words_and_unknown_characters_change_nothing():
    words = {"abc": 4, "bcd": 5, "abd": 6, "xab": 100}
    alphabet = frozenset("abcd")
    expected = naive({"abc": 4, "bcd": 5, "abd": 6}, Criterion(True, 1), 9)
    assert make_trainer(words, alphabet, Criterion(True, 1)).advance(9) == expected
    assert make_trainer(dict(reversed(words.items())), alphabet, Criterion(True, 1)).advance(9) == expected


@pytest.mark.parametrize("word", ["a\0b", "a\nb", "\n"])
def test_word_with_nul_or_line_end_is_an_error(word: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(word))):
        make_trainer({"ab": 9, word: 9}, frozenset("ab\0\n"), Criterion(True, 1))
