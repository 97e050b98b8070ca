"""Bootstrap: scores of resampled examples are the official ones, and intervals are those of theory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import sem, t

from bertwright.metrics.example_scores import ExampleScores, compute_scores
from bertwright.metrics.statistics import Difference, Interval, Sample, difference, estimate
from bertwright.tables.qa_example import GoldAnswer, QaExample
from bertwright.tables.tag_example import TagExample
from bertwright.tasks.classification import Classification, LabelPrediction
from bertwright.tasks.multiple_choice import ChoiceExample, ChoicePrediction, MultipleChoice
from bertwright.tasks.question_answering import Answer, QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import Tagging, TagPrediction
from bertwright.tasks.task import AnyTask
from bertwright.tasks.text_task import TextExample
from bertwright.trials.paper_table import Claim
from bertwright.trials.table import ClaimResult

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
    numbers = task.example_scores(examples, predictions)
    assert numbers is not None
    samples = [rng.integers(0, N, N) for _ in range(5)] + [np.arange(N)]
    weights = np.stack([np.bincount(sample, minlength=N) for sample in samples]).astype(float)
    official = [
        task.score([examples[n] for n in sample], [predictions[n] for n in sample])[task.metric] for sample in samples
    ]
    assert compute_scores(numbers, weights) == pytest.approx(official, abs=1e-9)


def test_a_metric_without_numbers_per_example_has_none() -> None:
    task, examples, predictions = make_classification("macro_f1", np.random.default_rng(0))
    assert task.example_scores(examples, predictions) is None


def shares(accuracy: float, seed: int, number: int = 2_000) -> ExampleScores:
    return ExampleScores("mean", (np.random.default_rng(seed).random((number, 1)) < accuracy).astype(float))


def compare(better: Sample, worse: Sample, columns: Sequence[str] = ("sst2",)) -> Difference:
    """Return the difference of two systems that have the same results in each of the columns."""
    estimates = [estimate(column, {"better": better, "worse": worse}) for column in columns]
    return difference([(found["better"], found["worse"]) for found in estimates])


def interval_of(found: Difference) -> Interval:
    assert found.interval is not None
    return found.interval


def sample_of(*examples: ExampleScores) -> Sample:
    return Sample([float(one.values.mean()) for one in examples], examples)


def test_the_interval_over_examples_is_that_of_the_normal_approximation() -> None:
    better, worse = shares(0.8, 1), shares(0.7, 2)
    found = compare(sample_of(better), sample_of(worse))
    paired = better.values - worse.values
    assert found.mean == pytest.approx(paired.mean())
    expected = 2 * 1.96 * paired.std() / np.sqrt(len(paired))
    low, high = interval_of(found)
    assert high - low == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("seeds", [2, 5, 200])
def test_the_interval_over_seeds_is_that_of_their_mean(seeds: int) -> None:
    scores = np.random.default_rng(0).normal(0.8, 0.02, seeds)
    found = estimate("sst2", {"a": Sample(scores.tolist(), ())}, draws=100_000)["a"].interval
    expected = t(seeds - 1, scores.mean(), sem(scores)).interval(0.95)
    assert np.subtract(found, scores.mean()) == pytest.approx(np.subtract(expected, scores.mean()), rel=0.05)


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_systems_are_rarely_different(seeds: int) -> None:
    """A bootstrap of the seeds alone finds a difference in a third of the cases with two seeds."""
    rng = np.random.default_rng(seeds)
    found = [
        interval_of(compare(*(Sample(rng.normal(0.8, 0.02, seeds).tolist(), ()) for _ in range(2)), [str(n)]))
        for n in range(400)
    ]
    assert np.mean([one.low > 0 or one.high < 0 for one in found]) < 0.05


def test_examples_are_resampled_together_for_all_systems() -> None:
    numbers = shares(0.6, 0)
    found = estimate("sst2", {row: sample_of(numbers) for row in "ab"})
    assert np.array_equal(np.asarray(found["a"].draws), np.asarray(found["b"].draws))


def test_columns_are_resampled_independently() -> None:
    """The interval of a mean over seven columns narrows by √7, in whatever order their seeds are numbered."""
    numbers = [shares(accuracy, seed, 200) for seed, accuracy in enumerate(np.linspace(0.7, 0.8, 20))]
    better, worse = sample_of(*numbers), sample_of(*(shares(0.7, seed, 200) for seed in range(20, 40)))
    turned = sample_of(*reversed(numbers))
    columns = [f"task{n}" for n in range(7)]
    one = interval_of(compare(better, worse))
    seven = interval_of(compare(better, worse, columns))
    mixed = [estimate(column, {"better": (better, turned)[n % 2], "worse": worse}) for n, column in enumerate(columns)]
    turned_seven = interval_of(difference([(found["better"], found["worse"]) for found in mixed]))
    assert seven.high - seven.low == pytest.approx((one.high - one.low) / np.sqrt(7), rel=0.1)
    assert turned_seven.high - turned_seven.low == pytest.approx(seven.high - seven.low, rel=0.1)


def test_the_smallest_effect_is_half_of_the_width() -> None:
    """A difference of this size with the same noise reaches 0 with its interval's end."""
    found = compare(sample_of(shares(0.72, 1)), sample_of(shares(0.70, 2)))
    interval = interval_of(found)
    assert interval.smallest_effect == pytest.approx((interval.high - interval.low) / 2)
    shifted = interval.low + interval.smallest_effect - found.mean
    assert shifted == pytest.approx(0, abs=0.1 * interval.smallest_effect)  # the interval's middle is the difference


def check_claim(better: Sample, worse: Sample) -> ClaimResult:
    found = compare(better, worse)
    return ClaimResult(Claim("A beats B", "A", "B", ("sst2",)), ("sst2",), found, 1.5, pretrainings=3)


@pytest.mark.parametrize(
    ("better", "worse", "verdict"), [(0.8, 0.7, "shown"), (0.7, 0.8, "reversed"), (0.7, 0.7, "not shown")]
)
def test_a_claim_is_shown_if_its_interval_excludes_zero(better: float, worse: float, verdict: str) -> None:
    result = check_claim(sample_of(shares(better, 5)), sample_of(shares(worse, 6)))
    assert result.verdict == verdict
    assert f"A beats B, sst2: {verdict} at this budget" in str(result)
    assert "; 3 pre-trainings each)" in str(result)
    smallest = 100 * interval_of(result.difference).smallest_effect
    assert f", which could show {smallest:.1f} or more; paper +1.5" in str(result)


def test_fewer_than_three_pre_trainings_have_no_verdict() -> None:
    result = check_claim(sample_of(shares(0.8, 5)), sample_of(shares(0.7, 6)))
    one, two = (replace(result, pretrainings=number) for number in (1, 2))
    assert (result.verdict, one.verdict, two.verdict) == ("shown", "no verdict", "no verdict")
    assert "one pre-training each, so that" in str(one)
    assert "; 2 pre-trainings each: a verdict needs 3)" in str(two)
    assert "p =" not in str(one)


def test_a_row_with_one_run_has_no_verdict_and_the_columns_of_the_paper_are_named() -> None:
    claim = Claim("A beats B", "A", "B", ("sst2", "rte"))
    found = compare(sample_of(shares(0.8, 5)), sample_of(shares(0.7, 6)))
    result = ClaimResult(claim, claim.columns, found, 1.5, ("sst2",), ("B",))
    assert result.verdict == "no verdict"
    assert "A beats B, mean of sst2, rte: no verdict at this budget" in str(result)
    assert "; a single run of B)" in str(result)
    assert "paper +1.5 on sst2" in str(result)
    assert "paper +1.5;" in str(replace(result, paper_columns=claim.columns))


def test_a_claim_without_an_interval_is_not_shown() -> None:
    result = check_claim(Sample([0.8], ()), Sample([0.7], ()))
    assert result.verdict == "not shown"
    assert "no interval" in str(result)


def test_a_column_without_an_interval_has_no_share_in_that_of_the_mean() -> None:
    drawn = estimate("sst2", {"A": sample_of(shares(0.8, 5)), "B": sample_of(shares(0.7, 6))})
    fixed = estimate("rte", {"A": Sample([0.8], ()), "B": Sample([0.6], ())})
    alone, found = difference([(drawn["A"], drawn["B"])]), difference([(one["A"], one["B"]) for one in (drawn, fixed)])
    assert found.mean == pytest.approx((alone.mean + 0.2) / 2)
    assert interval_of(found).low == pytest.approx((interval_of(alone).low + 0.2) / 2)


def test_scores_of_several_pre_trainings_are_averaged_first() -> None:
    """Two pre-trainings that differ by 10 points, two seeds each that differ by 1: t with one degree of freedom."""
    scores = [0.70, 0.71, 0.80, 0.81]
    grouped = Sample(scores, (), (0, 0, 1, 1))
    assert grouped.independent_means() == pytest.approx([0.705, 0.805])
    found = estimate("sst2", {"A": grouped, "B": Sample(scores, ())})
    assert found["A"].mean == found["B"].mean == pytest.approx(0.755)
    wide, narrow = (found[row].interval for row in "AB")
    assert wide is not None
    assert narrow is not None
    assert wide[1] - wide[0] == pytest.approx(2 * 12.71 * 0.05, rel=0.1)  # quantile of t, error of the mean of two
    assert narrow[1] - narrow[0] == pytest.approx(2 * 3.18 * np.std(scores, ddof=1) / 2, rel=0.1)
    assert Sample(scores, (), (0, 0, 0, 0)).independent_means() == scores
