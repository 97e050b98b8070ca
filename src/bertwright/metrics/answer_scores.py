"""Exact match and F1 of extracted answers, as the official scripts of SQuAD and KorQuAD compute them.

SQuAD (Rajpurkar et al. 2016 and 2018) follows the rules of the 2.0 script. KorQuAD 1.0 (Lim et al. 2019) replaces
brackets and quotation marks by spaces, knows no articles, and counts characters in F1, because a particle follows its
noun without a space. On SQuAD 1.1 and KorQuAD the numbers equal their scripts', unless normalization removes a
gold answer completely.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only, as in the official scripts
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_KORQUAD_MARKS = re.compile("['\"《》<>〈〉()‘’]")


class Score(NamedTuple):
    """Scores of one answer, from 0 to 1."""

    exact_match: float
    f1: float


class Threshold(NamedTuple):
    """A threshold τ between answer and no answer, and the F1 that it gives."""

    value: float
    f1: float


def normalize_answer(answer: str) -> str:
    """Remove case, punctuation, articles and superfluous white space from an answer.

    >>> normalize_answer("The  Sun's core.")
    'suns core'
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def normalize_korquad_answer(answer: str) -> str:
    """Replace brackets and quotation marks by spaces; remove case, ASCII punctuation and superfluous white space.

    >>> normalize_korquad_answer("《한국 현대사》(1권), p.10")
    '한국 현대사 1권 p10'
    """
    return " ".join(_KORQUAD_MARKS.sub(" ", answer).lower().translate(_PUNCTUATION).split())


class Rules(NamedTuple):
    """The rules of an official script."""

    normalize: Callable[[str], str]
    split: Callable[[str], Sequence[str]]
    """Returns what F1 counts in a normalized answer: words or characters."""


SQUAD = Rules(normalize_answer, str.split)
RULES = {"squad": SQUAD, "korquad": Rules(normalize_korquad_answer, lambda text: "".join(text.split()))}


def answer_score(answer: str, gold: Iterable[str], rules: Rules = SQUAD) -> Score:
    """Compute the best match with any gold answer. Without gold answers, "" is right.

    >>> answer_score("the Denver Broncos", ["Broncos", "Denver Broncos"])
    Score(exact_match=1.0, f1=1.0)
    >>> answer_score("", [])
    Score(exact_match=1.0, f1=1.0)
    >>> answer_score("서울은", ["서울"], RULES["korquad"])
    Score(exact_match=0.0, f1=0.8)
    """
    given = rules.normalize(answer)
    candidates = {text for text in map(rules.normalize, gold) if text} or {""}
    return Score(float(given in candidates), max(_overlap(given, text, rules) for text in candidates))


def scores(y_true: Sequence[Sequence[str]], y_pred: Sequence[str], rules: Rules = SQUAD) -> dict[str, float]:
    """Compute mean scores over all questions, from 0 to 1; `y_true` lists the gold answers of each question.

    A question without gold answers is unanswerable. If there are any, the result also has the means over the answerable
    questions and over the others: `has_answer_exact_match`, `has_answer_f1`, `no_answer_accuracy`. Raises ValueError
    for no questions.
    """
    if not y_pred:
        raise ValueError("no questions to score; is the file empty?")
    table = np.array([answer_score(answer, gold, rules) for gold, answer in zip(y_true, y_pred, strict=True)])
    exact_match, f1 = table.mean(0).tolist()
    means: dict[str, float] = {"exact_match": exact_match, "f1": f1}
    answerable = np.array([len(gold) > 0 for gold in y_true])
    if answerable.all():
        return means
    if answerable.any():
        means["has_answer_exact_match"], means["has_answer_f1"] = table[answerable].mean(0).tolist()
    return means | {"no_answer_accuracy": float(table[~answerable, 0].mean())}


def best_threshold(
    y_true: Sequence[Sequence[str]], y_pred: Sequence[str], margins: npt.NDArray[np.float64], rules: Rules = SQUAD
) -> Threshold:
    """Find the τ of section 4.3 that maximizes the F1 over all questions.

    A question is answered if its margin exceeds τ. `y_pred`: the texts of the best spans; `margins`: per question,
    the score of its best span minus the score of no answer. As in the official search, questions are sorted by falling
    margin and the gain of answering each is accumulated. Among equal sums the first is taken, which answers the fewest
    questions. Questions of equal margin are answered together, since no threshold separates them. Raises ValueError
    for no questions.
    """
    if not len(margins):
        raise ValueError("no questions to choose a threshold on; name a file of questions")
    answered_f1 = np.array([answer_score(answer, gold, rules).f1 for gold, answer in zip(y_true, y_pred, strict=True)])
    unanswered_f1 = np.array([answer_score("", gold, rules).f1 for gold in y_true])
    order = np.argsort(-margins, kind="stable")
    falling = margins[order]
    totals = unanswered_f1.sum() + np.concatenate([[0.0], np.cumsum((answered_f1 - unanswered_f1)[order])])
    # Numbers of questions that a threshold can answer.
    counts = np.flatnonzero(np.concatenate([[True], falling[1:] != falling[:-1], [True]]))
    count = int(counts[totals[counts].argmax()])
    threshold = falling[count] if count < len(falling) else np.nextafter(falling[-1], -np.inf)
    return Threshold(float(threshold), float(totals[count] / len(margins)))


def _overlap(given: str, gold: str, rules: Rules) -> float:
    """Compute the F1 between the words or characters of two normalized answers; 1 if both are empty."""
    if not given or not gold:
        return float(given == gold)
    predicted, expected = rules.split(given), rules.split(gold)
    common = (Counter(predicted) & Counter(expected)).total()
    return 2 * common / (len(predicted) + len(expected))
