"""Exact match and F1 of answers in text, as SQuAD's official scripts count them (Rajpurkar et al. 2016 and 2018).

The rules are those of the script of version 2.0. On 1.1 they give the numbers of its own script, which differs only
where nothing of a right answer is left after normalization.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only, as in the official scripts
_ARTICLES = re.compile(r"\b(a|an|the)\b")


class Score(NamedTuple):
    """How well one answer meets its question, each from 0 to 1."""

    exact_match: float
    f1: float


class Threshold(NamedTuple):
    """Where to draw the line between answers and none, and the F1 that this gives."""

    value: float
    f1: float


def normalize_answer(answer: str) -> str:
    """An answer without case, punctuation, articles and superfluous white space.

    >>> normalize_answer("The  Sun's core.")
    'suns core'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def answer_score(answer: str, right: Iterable[str]) -> Score:
    """The best match with any right answer. No right answer means that "" is right.

    >>> answer_score("the Denver Broncos", ["Broncos", "Denver Broncos"])
    Score(exact_match=1.0, f1=1.0)
    >>> answer_score("", [])
    Score(exact_match=1.0, f1=1.0)
    """
    given = normalize_answer(answer)
    candidates = {text for text in map(normalize_answer, right) if text} or {""}
    return Score(float(given in candidates), max(_overlap(given, text) for text in candidates))


def scores(answers: Sequence[str], right: Sequence[Sequence[str]]) -> dict[str, float]:
    """Means over all questions, each from 0 to 1; those without a right answer count as questions without answer.

    Where there are such questions, also the means over those with and over those without: `has_answer_exact_match`,
    `has_answer_f1`, `no_answer_accuracy`. Raises ValueError for no questions.
    """
    if not answers:
        raise ValueError("no questions to score; is the file empty?")
    table = np.array([answer_score(answer, texts) for answer, texts in zip(answers, right, strict=True)])
    exact_match, f1 = table.mean(0).tolist()
    found: dict[str, float] = {"exact_match": exact_match, "f1": f1}
    answerable = np.array([len(texts) > 0 for texts in right])
    if answerable.all():
        return found
    if answerable.any():
        found["has_answer_exact_match"], found["has_answer_f1"] = table[answerable].mean(0).tolist()
    return found | {"no_answer_accuracy": float(table[~answerable, 0].mean())}


def best_threshold(
    margins: npt.NDArray[np.float64], answers: Sequence[str], right: Sequence[Sequence[str]]
) -> Threshold:
    """The τ of section 4.3: a question is answered if its margin exceeds τ, such that F1 over all is the highest.

    `margins`: by how much the score of each question's best span exceeds that of no answer; `answers`: those spans'
    texts. The official search goes through the questions by falling margin and adds up what each gains by being
    answered; of equal sums the first stands, the one with the fewest answers. Questions of equal margin are answered
    together, since no threshold can part them. Raises ValueError for no questions.
    """
    if not len(margins):
        raise ValueError("no questions to choose a threshold on; name a file of questions")
    spoken = np.array([answer_score(answer, texts).f1 for answer, texts in zip(answers, right, strict=True)])
    silent = np.array([answer_score("", texts).f1 for texts in right])
    order = np.argsort(-margins, kind="stable")
    falling = margins[order]
    totals = silent.sum() + np.concatenate([[0.0], np.cumsum((spoken - silent)[order])])
    borders = np.flatnonzero(np.concatenate([[True], falling[1:] != falling[:-1], [True]]))  # how many are answered
    answered = int(borders[totals[borders].argmax()])
    unanswered = falling[answered] if answered < len(falling) else np.nextafter(falling[-1], -np.inf)
    return Threshold(float(unanswered), float(totals[answered] / len(margins)))


def _overlap(given: str, right: str) -> float:
    """F1 between the words of two normalized answers; of two empty ones 1."""
    if not given or not right:
        return float(given == right)
    words, others = given.split(), right.split()
    common = (Counter(words) & Counter(others)).total()
    return 2 * common / (len(words) + len(others))
