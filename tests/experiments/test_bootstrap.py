"""Bootstrap: scores of resampled examples are the official ones, and intervals are those of theory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bertwright.experiments.bootstrap import Sample, bootstrap_differences, difference
from bertwright.experiments.plans import Claim
from bertwright.experiments.report import ClaimResult
from bertwright.metrics.example_scores import ExampleScores, compute_scores
from bertwright.tasks.classification import Classification, LabelPrediction, TextExample
from bertwright.tasks.conll import TagExample
from bertwright.tasks.example_scores import example_scores
from bertwright.tasks.multiple_choice import ChoiceExample, ChoicePrediction, MultipleChoice
from bertwright.tasks.question_answering import Answer, QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.squad import GoldAnswer, QaExample
from bertwright.tasks.tagging import Tagging, TagPrediction
from bertwright.tasks.task import AnyTask

N = 40


def texts(labels: Sequence[Any]) -> list[TextExample[Any]]:
    return [TextExample("a", None, label, "file:1") for label in labels]


def make_classification(metric: str, rng: np.random.Generator) -> tuple[AnyTask, list[Any], list[Any]]:
    task = Classification(metric=metric, labels=("no", "yes"))
    examples = texts(rng.choice(["no", "yes"], N).tolist())
    return task, examples, [LabelPrediction(label, {}) for label in rng.choice(["no", "yes"], N).tolist()]


def make_regression(rng: np.random.Generator) -> tuple[AnyTask, list[Any], list[Any]]:
    values = rng.integers(0, 6, N).astype(float)
    return Regression(), texts(values.tolist()), (values + rng.normal(0, 2, N)).round().tolist()


def make_tagging(metric: str, rng: np.random.Generator) -> tuple[AnyTask, list[Any], list[Any]]:
    tags = ["O", "B-PER", "I-PER", "B-LOC"]
    task = Tagging(metric=metric, scheme="iob1", labels=tuple(tags))
    examples, predictions = [], []
    for _ in range(N):
        words = tuple("abcde"[: int(rng.integers(1, 6))])
        true, found = (tuple(rng.choice(tags, len(words)).tolist()) for _ in range(2))
        examples.append(TagExample(words, true))
        predictions.append(TagPrediction(words, found, (1.0,) * len(words), ()))
    return task, examples, predictions


def make_choice(rng: np.random.Generator) -> tuple[AnyTask, list[Any], list[Any]]:
    examples = [ChoiceExample("a", ("b", "c"), int(label), "file:1") for label in rng.integers(0, 2, N)]
    return MultipleChoice(), examples, [ChoicePrediction(int(choice), ()) for choice in rng.integers(0, 2, N)]


def make_questions(rng: np.random.Generator) -> tuple[AnyTask, list[Any], list[Any]]:
    words = "red blue green old new".split()
    examples = [QaExample(str(n), "what", "a text", (GoldAnswer(" ".join(rng.choice(words, 3)), 0),)) for n in range(N)]
    return QuestionAnswering(), examples, [answer(" ".join(rng.choice(words, 2))) for _ in range(N)]


def answer(text: str) -> Answer:
    values = {"text": text, "start": 0, "end": len(text)}
    return Answer(**{name: values.get(name, 0.0) for name in Answer._fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["accuracy", "f1", "matthews", "spearman", "spans", "words", "choice", "questions"])
def test_scores_of_resampled_examples_are_the_official_ones(kind: str) -> None:
    rng = np.random.default_rng(3)
    if kind in ("accuracy", "f1", "matthews"):
        task, examples, predictions = make_classification(kind, rng)
    elif kind == "spearman":
        task, examples, predictions = make_regression(rng)
    elif kind in ("spans", "words"):
        task, examples, predictions = make_tagging("f1" if kind == "spans" else "accuracy", rng)
    else:
        task, examples, predictions = (make_choice if kind == "choice" else make_questions)(rng)
    numbers = example_scores(task, examples, predictions)
    assert numbers is not None
    samples = [rng.integers(0, N, N) for _ in range(5)] + [np.arange(N)]
    weights = np.stack([np.bincount(sample, minlength=N) for sample in samples]).astype(float)
    official = [
        task.score([examples[n] for n in sample], [predictions[n] for n in sample])[task.metric] for sample in samples
    ]
    assert compute_scores(numbers, weights) == pytest.approx(official, abs=1e-9)


def test_a_metric_without_numbers_per_example_has_none() -> None:
    task, examples, predictions = make_classification("macro_f1", np.random.default_rng(0))
    assert example_scores(task, examples, predictions) is None


def shares(accuracy: float, seed: int, number: int = 2_000) -> ExampleScores:
    return ExampleScores("mean", (np.random.default_rng(seed).random((number, 1)) < accuracy).astype(float))


def test_the_interval_over_examples_is_that_of_the_normal_approximation() -> None:
    better, worse = shares(0.8, 1), shares(0.7, 2)
    pair = [Sample([float(one.values.mean())], [one]) for one in (better, worse)]
    found = difference([(pair[0], pair[1])])
    paired = better.values - worse.values
    assert found.mean == pytest.approx(paired.mean())
    expected = 2 * 1.96 * paired.std() / np.sqrt(len(paired))
    assert found.high - found.low == pytest.approx(expected, rel=0.1)


def test_the_interval_over_seeds_is_that_of_their_mean() -> None:
    rng = np.random.default_rng(0)
    scores = [rng.normal(0.8, 0.02, 200).tolist(), rng.normal(0.7, 0.01, 200).tolist()]
    found = difference([(Sample(scores[0], ()), Sample(scores[1], ()))])
    expected = 2 * 1.96 * np.sqrt((np.var(scores[0]) + np.var(scores[1])) / 200)
    assert found.high - found.low == pytest.approx(expected, rel=0.1)


def test_examples_are_resampled_together_for_both_systems() -> None:
    numbers = shares(0.6, 0)
    sample = Sample([float(numbers.values.mean())], [numbers])
    assert not bootstrap_differences(sample, sample).any()


@pytest.mark.parametrize(
    ("better", "worse", "verdict"), [(0.8, 0.7, "shown"), (0.7, 0.8, "reversed"), (0.7, 0.7, "not shown")]
)
def test_a_claim_is_shown_if_its_interval_excludes_zero(better: float, worse: float, verdict: str) -> None:
    pair = [Sample([float(one.values.mean())], [one]) for one in (shares(better, 5), shares(worse, 6))]
    result = ClaimResult(
        Claim("A beats B", "A", "B", ("sst2",)), ("sst2",), difference([(pair[0], pair[1])]), 1.5, True
    )
    assert result.verdict == verdict
    assert f"A beats B: {verdict} at this budget" in str(result)
    assert "paper +1.5" in str(result)


def test_a_claim_without_an_interval_is_not_shown() -> None:
    found = difference([(Sample([0.8], ()), Sample([0.7], ()))])
    result = ClaimResult(Claim("A beats B", "A", "B", ("x",)), ("x",), found, None, False)
    assert result.verdict == "not shown"
    assert "no interval" in str(result)
