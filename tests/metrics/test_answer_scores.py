"""Exact match and F1 against the official scripts' rules and the scores of published systems."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertwright.metrics.answer_scores import (
    RULES,
    answer_score,
    best_threshold,
    normalize_answer,
    normalize_korquad_answer,
    scores,
)
from helpers import PUBLISHED, needs_data

TEXTS = st.lists(st.sampled_from(["a", "the", "An", "cat", "Cat,", "sat", "sat.", "9", "–", "..."]), max_size=6).map(
    " ".join
)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The Denver Broncos", "denver broncos"),
        ("a.b.c.", "abc"),  # punctuation is removed before articles, so "a." is an article and "a.b" is none
        ("an apple a day", "apple day"),
        ("Theatre", "theatre"),
        ("$4.50 – ok", "450 – ok"),  # only ASCII punctuation is removed
        ("\tsome\n\nlines ", "some lines"),
        ("The", ""),
    ],
)
def test_normalization_hand_worked(answer: str, expected: str) -> None:
    assert normalize_answer(answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("《난중일기》", "난중일기"),
        ("이순신(李舜臣)이", "이순신 李舜臣 이"),  # brackets become spaces, so the words are split
        ("〈아리랑〉과 '서편제'", "아리랑 과 서편제"),
        ('‘봄’ "봄" <봄>', "봄 봄 봄"),
        ("1,234.5명", "12345명"),  # other ASCII punctuation joins what it separates
        ("[각주 1] {a}", "각주 1 a"),
        ("“봄” 「봄」 · 봄…", "“봄” 「봄」 · 봄…"),  # the script does not know these marks
        ("The UN", "the un"),  # no articles in Korean
        (" 서울\t\n특별시 ", "서울 특별시"),
        ("()", ""),
    ],
)
def test_korquad_normalization_hand_worked(answer: str, expected: str) -> None:
    assert normalize_korquad_answer(answer) == expected


@pytest.mark.parametrize(
    ("answer", "gold", "exact_match", "f1"),
    [
        ("서울은", ["서울"], 0, 4 / 5),  # 2 of 3 characters are right, 2 of 2 are found
        ("서울", ["서울은", "서울"], 1, 1),
        ("한국 현대사", ["한국현대사"], 0, 1),  # F1 ignores spaces, exact match does not
        ("현대사 한국", ["한국 현대사"], 0, 1),  # nor does F1 know an order
        ("《한국》현대사", ["한국 현대사"], 1, 1),
        ("1945년 8월 15일", ["1945년"], 0, 2 * 5 / (10 + 5)),
        ("나나", ["나"], 0, 2 / 3),  # a character counts as often as the other answer has it
        ("서울", ["부산"], 0, 0),
        ("", ["부산"], 0, 0),
    ],
)
def test_korquad_scores_hand_worked(answer: str, gold: list[str], exact_match: float, f1: float) -> None:
    assert answer_score(answer, gold, RULES["korquad"]) == (exact_match, pytest.approx(f1))


def test_korquad_means_and_threshold_count_characters() -> None:
    y_true, y_pred = [["서울"], ["부산"]], ["서울은", "대구"]
    assert scores(y_true, y_pred, RULES["korquad"]) == {"exact_match": 0, "f1": pytest.approx(0.4)}
    assert scores(y_true, y_pred) == {"exact_match": 0, "f1": 0}
    best = best_threshold(y_true, y_pred, np.array([2.0, 1.0]), RULES["korquad"])
    assert best == (1.0, pytest.approx(0.4))


def test_best_gold_answer_counts() -> None:
    # two of three words right, two of four found: P 2/3, R 1/2
    assert answer_score("big red dog", ["red dog house garden"]) == (0.0, pytest.approx(4 / 7))
    assert answer_score("big red dog", ["red dog house garden", "The Dog!", "a big, red DOG"]) == (1.0, 1.0)
    assert answer_score("cat", ["dog"]) == (0.0, 0.0)


def test_unanswerable_question_scores_0_or_1() -> None:
    assert answer_score("", []) == (1.0, 1.0)
    assert answer_score("the", []) == (1.0, 1.0)  # normalization leaves nothing
    assert answer_score("cat", []) == (0.0, 0.0)
    assert answer_score("", ["cat"]) == (0.0, 0.0)
    assert answer_score("cat", ["...", "cat"]) == (1.0, 1.0)


@given(TEXTS, st.lists(TEXTS, max_size=3))
def test_scores_equal_the_official_formula(answer: str, right: list[str]) -> None:
    best_exact = best_f1 = 0.0
    for gold in [text for text in right if normalize_answer(text)] or [""]:
        tokens, golds = normalize_answer(answer).split(), normalize_answer(gold).split()
        same = sum((Counter(tokens) & Counter(golds)).values())
        if not tokens or not golds:
            f1 = float(tokens == golds)
        elif same == 0:
            f1 = 0.0
        else:
            precision, recall = same / len(tokens), same / len(golds)
            f1 = 2 * precision * recall / (precision + recall)
        best_exact, best_f1 = max(best_exact, float(tokens == golds)), max(best_f1, f1)
    assert answer_score(answer, right) == (best_exact, pytest.approx(best_f1))


def test_means_with_and_without_unanswerable_questions() -> None:
    assert scores([["cat"], ["dog"]], ["cat", "red dog"]) == {
        "exact_match": 0.5,
        "f1": pytest.approx((1 + 2 / 3) / 2),
    }
    assert scores([["cat"], [], []], ["cat", "", "cat"]) == {
        "exact_match": pytest.approx(2 / 3),
        "f1": pytest.approx(2 / 3),
        "has_answer_exact_match": 1.0,
        "has_answer_f1": 1.0,
        "no_answer_accuracy": 0.5,
    }
    assert scores([[]], [""]) == {"exact_match": 1.0, "f1": 1.0, "no_answer_accuracy": 1.0}


@needs_data
@pytest.mark.parametrize(
    ("version", "system", "exact_match", "f1"),
    [
        ("1.1", "BERT-ensemble", 86.21, 92.20),
        ("1.1", "logreg", 40.14, 50.98),
        ("2.0", "BERT-single", 78.74, 81.78),
    ],
)
def test_published_systems_have_their_published_scores(
    version: str, system: str, exact_match: float, f1: float
) -> None:
    folder = PUBLISHED / "squad"
    files = folder / f"dev-v{version}.json", folder / "published_predictions" / f"pred-v{version}-{system}.json"
    data, predictions = (json.loads(path.read_text(encoding="utf-8")) for path in files)
    questions: list[dict[str, Any]] = [
        question for article in data["data"] for paragraph in article["paragraphs"] for question in paragraph["qas"]
    ]
    found = scores(  # a question without an answer of the system is wrong
        [[answer["text"] for answer in question["answers"]] for question in questions],
        [predictions.get(question["id"], "") for question in questions],
    )
    assert (round(100 * found["exact_match"], 2), round(100 * found["f1"], 2)) == (exact_match, f1)


def f1_at(threshold: float, margins: list[float], answers: list[str], right: list[list[str]]) -> float:
    chosen = [answer if margin > threshold else "" for margin, answer in zip(margins, answers, strict=True)]
    return scores(right, chosen)["f1"]


QUESTIONS = st.lists(
    st.tuples(
        st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0]),
        st.sampled_from(["cat", "red dog", "the"]),
        st.sampled_from([[], ["cat"], ["dog"], ["sat", "red dog"]]),
    ),
    min_size=1,
    max_size=12,
)


@given(QUESTIONS)
def test_no_threshold_is_better_than_the_best(questions: list[tuple[float, str, list[str]]]) -> None:
    margins, answers, right = (list(column) for column in zip(*questions, strict=True))
    best = best_threshold(right, answers, np.array(margins))
    assert best.f1 == pytest.approx(f1_at(best.value, margins, answers, right))
    assert best.f1 >= max(f1_at(t, margins, answers, right) for t in [-9.0, *margins]) - 1e-12
    assert all(f1_at(t, margins, answers, right) < best.f1 - 1e-12 for t in margins if t > best.value)


def test_best_threshold_equals_that_of_the_official_search() -> None:
    rng = np.random.default_rng(0)
    margins = rng.normal(size=200)  # all different: the official search splits questions of equal margin by their order
    answers = rng.choice(["cat", "red dog", "sat"], 200).tolist()
    right = [[["cat"], ["dog"], []][kind] for kind in rng.integers(3, size=200)]
    odds = dict(enumerate(-margins))  # official: high odds mean no answer
    current = best = float(sum(not texts for texts in right))
    official = 0.0
    for number in sorted(odds, key=lambda number: odds[number]):
        gain = answer_score(answers[number], right[number]).f1 if right[number] else -1.0
        current += gain
        if current > best:
            best, official = current, odds[number]
    found = best_threshold(right, answers, margins)
    assert found.f1 == pytest.approx(best / 200)
    assert (margins > found.value).tolist() == [odds[number] <= official for number in range(200)]


def test_threshold_may_answer_all_or_no_questions() -> None:
    all_right = best_threshold([["cat"], ["dog"]], ["cat", "dog"], np.array([1.0, -3.0]))
    assert all_right.value < -3
    assert all_right.f1 == 1
    assert best_threshold([[], []], ["cat", "dog"], np.array([1.0, -3.0])) == (1.0, 1.0)


def test_no_questions_are_an_error() -> None:
    with pytest.raises(ValueError, match="no questions to score"):
        scores([], [])
    with pytest.raises(ValueError, match="no questions"):
        best_threshold([], [], np.empty(0))
