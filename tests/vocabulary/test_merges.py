"""Learning by merging: hand-worked, and against a naive implementation that recounts after every merge."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.kernels import native_library
from bertwright.vocabulary.learn.merges import (
    RULES,
    Criterion,
    NativeMergeTrainer,
    PythonMergeTrainer,
    Rule,
    initial_symbols,
    make_trainer,
)

WORDS = st.dictionaries(st.text(alphabet="abc한", min_size=1, max_size=9), st.integers(1, 40), max_size=25)
CRITERIA = st.builds(Criterion, st.sampled_from(RULES), st.integers(1, 12), st.sampled_from(("##", "</w>")))


def naive(words: dict[str, int], criterion: Criterion, wanted: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Learn by the definition, recount all, score all, merge the best; return the tokens and the merges."""
    merges: list[tuple[str, str]] = []
    spelling = {word: initial_symbols(word, criterion.mark) for word in words}
    seen = {symbol for symbols in spelling.values() for symbol in symbols}
    learned: list[str] = []
    while len(learned) < wanted:
        singles: Counter[str] = Counter()
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for symbol in spelling[word]:
                singles[symbol] += count
            for pair in pairwise(spelling[word]):
                pairs[pair] += count
        scores = {
            pair: score(criterion.rule, count, singles[pair[0]] * singles[pair[1]], singles.total())
            for pair, count in pairs.items()
            if count >= criterion.min_frequency
        }
        if not scores or (criterion.rule == "gain" and max(scores.values()) <= 0):
            break
        a, b = min(scores, key=lambda pair: (-scores[pair], pair))
        merges.append((a, b))
        merged = a + b.removeprefix("##")
        if merged not in seen:
            learned.append(merged)
            seen.add(merged)
        for symbols in spelling.values():
            index = 0
            while index + 1 < len(symbols):
                if symbols[index : index + 2] == [a, b]:
                    symbols[index : index + 2] = [merged]
                index += 1
    return learned, merges


def score(rule: Rule, count: int, product: int, total: int) -> float:
    """Score a pair from its frequency, the product of its symbols' frequencies, and the number of symbols."""
    return count if rule == "bpe" else count * math.log(float(count) * float(total) / float(product))


MakeTrainer = Callable[[Mapping[str, int], Criterion], PythonMergeTrainer | NativeMergeTrainer]


def trainers() -> Iterator[MakeTrainer]:
    yield PythonMergeTrainer
    if library := native_library.load_library("wordpiece"):
        yield lambda words, criterion: NativeMergeTrainer(words, criterion, library)


@settings(max_examples=300)
@given(WORDS, CRITERIA)
def test_trainers_learn_what_the_naive_implementation_learns(words: dict[str, int], criterion: Criterion) -> None:
    expected = naive(words, criterion, 1000)
    for make in trainers():
        trainer = make(words, criterion)
        assert (trainer.advance(1000), trainer.merges()) == expected


@settings(max_examples=100)
@given(WORDS, CRITERIA, st.lists(st.integers(0, 5), max_size=8))
def test_advance_in_steps_gives_the_same_tokens(words: dict[str, int], criterion: Criterion, steps: list[int]) -> None:
    for make in trainers():
        trainer = make(words, criterion)
        in_steps = [token for step in steps for token in trainer.advance(step)]
        assert in_steps == make(words, criterion).advance(sum(steps))


@pytest.mark.parametrize("make", list(trainers()))
def test_trainer_on_five_words_learns_the_tokens_worked_by_hand(make: MakeTrainer) -> None:
    # Pairs: ##u ##g 20, p ##u 17, ##u ##n 16, h ##u 15, ##g ##s 5, b ##u 4.
    # Symbols: ##u 36, ##g 20, p 17, ##n 16, h 15, ##s 5, b 4.
    words = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}
    assert make(words, Criterion("bpe", min_frequency=1)).advance(3) == ["##ug", "##un", "hug"]
    # Gain, N = 113: ##u ##g 20 log(20 · 113 / (36 · 20)) = 22.9, p ##u 17 log(17 · 113 / (17 · 36)) = 19.4,
    # ##u ##n 16 log(16 · 113 / (36 · 16)) = 18.3, h ##u 15 log(15 · 113 / (15 · 36)) = 17.2, ##g ##s 5 log(5 · 113 /
    # (20 · 5)) = 8.7, b ##u 4 log(4 · 113 / (4 · 36)) = 4.6. So ##ug, after which N = 93 and ##u always precedes ##n:
    # 16 log(16 · 93 / (16 · 16)) = 28.2 is more than h ##ug, 15 log(15 · 93 / (15 · 20)) = 23.1.
    assert make(words, Criterion("gain", min_frequency=1)).advance(3) == ["##ug", "##un", "hug"]


@pytest.mark.parametrize("make", list(trainers()))
def test_gain_weighs_the_ratio_by_the_frequency(make: MakeTrainer) -> None:
    criterion = Criterion("gain", min_frequency=1)
    assert 10 / (10 * 10) > 50 / (60 * 50)  # f(xy) / (f(x) f(y)) is larger, but ab is more frequent
    assert make({"ab": 50, "ac": 10, "xy": 10}, criterion).advance(1) == ["ab"]
    assert make({"ab": 10, "ac": 9, "db": 9, "xy": 9}, criterion).advance(1) == ["xy"]  # although ab is more frequent


@pytest.mark.parametrize("make", list(trainers()))
def test_gain_merges_no_pair_that_is_less_frequent_than_by_chance(make: MakeTrainer) -> None:
    # a ##b occurs twice, a and ##b 13 times each among 48 symbols: 2 · log(2 · 48 / (13 · 13)) < 0.
    words = {"ab": 2} | {f"a{other}": 1 for other in "cdefghijklm"} | {f"{other}b": 1 for other in "cdefghijklm"}
    assert make(words, Criterion("gain", min_frequency=2)).advance(9) == []
    assert make(words, Criterion("bpe", min_frequency=2)).advance(9) == ["ab"]


@pytest.mark.parametrize("make", list(trainers()))
@pytest.mark.parametrize("rule", RULES)
def test_trainer_without_frequent_pairs_learns_nothing(make: MakeTrainer, rule: Rule) -> None:
    assert make({}, Criterion(rule, 1)).advance(5) == []
    assert make({"a": 3, "語": 2}, Criterion(rule, 1)).advance(5) == []
    assert make({"abc": 3}, Criterion(rule, 4)).advance(5) == []


def test_tokens_do_not_depend_on_the_order_of_words_or_on_words_with_unknown_characters() -> None:
    words = {"abc": 4, "bcd": 5, "abd": 6, "xab": 100}
    alphabet = frozenset("abcd")
    expected, _ = naive({"abc": 4, "bcd": 5, "abd": 6}, Criterion("gain", 1), 9)
    assert make_trainer(words, alphabet, Criterion("gain", 1)).advance(9) == expected
    assert make_trainer(dict(reversed(words.items())), alphabet, Criterion("gain", 1)).advance(9) == expected


@pytest.mark.parametrize("word", ["a\0b", "a\nb", "\n"])
def test_word_with_nul_or_line_end_raises_an_error(word: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(word))):
        make_trainer({"ab": 9, word: 9}, frozenset("ab\0\n"), Criterion("gain", 1))
