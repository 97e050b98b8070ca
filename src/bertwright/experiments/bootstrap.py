"""Bootstrap intervals of differences between two systems, over seeds and over examples (Efron 1979).

N examples of a dev split, K numbers per example, S seeds, D draws of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.metrics.tag_schemes import find_spans, to_canonical_scheme
from bertwright.seeding import make_rng
from bertwright.tasks.classification import Classification
from bertwright.tasks.conll import TagExample
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import Tagging, TagPrediction, known_tags
from bertwright.tasks.task import AnyTask

Floats = npt.NDArray[np.float64]
Formula = Literal["mean", "f1", "matthews", "spearman"]

DRAWS = 1_000
COVERAGE = 0.95
SEED = 0


class ExampleScores(NamedTuple):
    """Numbers per example from which a metric of any sample of examples follows."""

    formula: Formula
    """mean: of the one number; f1: true positives, predicted, actual; matthews: the confusion matrix of two classes,
    row by row; spearman: true and predicted value."""
    values: Floats
    """N × K."""


class Difference(NamedTuple):
    """A difference of two mean scores with its bootstrap interval."""

    mean: float
    low: float
    high: float


def example_scores(task: AnyTask, examples: Sequence[Any], predictions: Sequence[Any]) -> ExampleScores | None:
    """Return the numbers per example of a task's metric; None for a metric that needs others, such as macro F1."""
    if isinstance(task, Tagging):
        counts = [_tag_counts(task, example, found) for example, found in zip(examples, predictions, strict=True)]
        return ExampleScores("f1", np.array(counts, dtype=float))
    if isinstance(task, Regression):
        pairs = [(example.label, value) for example, value in zip(examples, predictions, strict=True)]
        return ExampleScores("spearman", np.array(pairs, dtype=float)) if task.metric == "spearman" else None
    if isinstance(task, Classification):
        labels = [(example.label, found.label) for example, found in zip(examples, predictions, strict=True)]
        return _label_scores(task, labels)
    if isinstance(task, MultipleChoice | QuestionAnswering):
        single = [task.score([one], [found])[task.metric] for one, found in zip(examples, predictions, strict=True)]
        return ExampleScores("mean", np.array(single, dtype=float)[:, None])
    return None


def _tag_counts(task: Tagging, example: TagExample, prediction: TagPrediction) -> tuple[int, int, int]:
    """Count right, predicted and true spans of a sentence; for plain classes, words instead of spans."""
    scheme: Any = task.scheme
    true = to_canonical_scheme(known_tags(example), scheme)
    if task.metric == "accuracy":
        guessed = to_canonical_scheme(prediction.tags, scheme) if scheme == "iob1" else prediction.tags
        return sum(map(str.__eq__, true, guessed)), len(true), len(true)
    spans, found = {*find_spans(true)}, {*find_spans(prediction.tags)}
    return len(spans & found), len(found), len(spans)


def _label_scores(task: Classification, labels: Sequence[tuple[str, str]]) -> ExampleScores | None:
    if task.metric == "accuracy":
        return ExampleScores("mean", np.array([[true == found] for true, found in labels], dtype=float))
    if task.metric == "f1":
        hits = [(true == task.f1_label, found == task.f1_label) for true, found in labels]
        return ExampleScores("f1", np.array([(true and found, found, true) for true, found in hits], dtype=float))
    if task.metric == "matthews" and len(task.labels) == 2:
        cells = [2 * task.labels.index(true) + task.labels.index(found) for true, found in labels]
        return ExampleScores("matthews", np.eye(4)[cells])
    return None


def compute_scores(scores: ExampleScores, weights: Floats) -> Floats:
    """Compute the metric of samples of the examples: `weights` (D × N) counts each example in each sample; returns D.

    An undefined score is 0, as in `metrics.scores`.
    """
    if scores.formula == "spearman":
        return np.array([_spearman(np.repeat(scores.values, counts.astype(int), axis=0)) for counts in weights])
    sums = weights @ scores.values  # D K
    if scores.formula == "mean":
        return _divide(sums[:, 0], weights.sum(1))
    if scores.formula == "f1":
        return _divide(2 * sums[:, 0], sums[:, 1] + sums[:, 2])
    tn, fp, fn, tp = sums.T
    return _divide(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


def _divide(numerator: Floats, denominator: Floats) -> Floats:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)


def _spearman(pairs: Floats) -> float:
    from scipy.stats import rankdata

    ranks = rankdata(pairs, axis=0)
    ranks -= ranks.mean(0)
    norms = np.sqrt((ranks**2).sum(0))
    return float(ranks[:, 0] @ ranks[:, 1] / norms.prod()) if norms.all() else 0.0


class Sample(NamedTuple):
    """The results of one system in one column: a score per seed and, if they are known, the examples' numbers."""

    scores: Sequence[float]
    """S."""
    examples: Sequence[ExampleScores]
    """S, or empty."""


Draw = Callable[[Sample, Sample], tuple[Floats, Floats]]


def bootstrap_differences(better: Sample, worse: Sample, draws: int = DRAWS) -> Floats:
    """Return `draws` differences of the two systems' mean scores, each on resampled seeds and examples.

    Both systems are scored on the same resampled examples; their seeds are resampled independently. Without numbers
    per example, only seeds are resampled; with a single seed, only examples.
    """
    rng = make_rng(SEED, draws)
    count = len(better.examples[0].values) if better.examples and worse.examples else 0
    weights = rng.multinomial(count, np.full(count, 1 / count), size=draws).astype(float) if count else None
    means = []
    for sample in (better, worse):
        if weights is None:
            table = np.tile(np.asarray(sample.scores, dtype=float), (draws, 1))  # D S
        else:
            table = np.stack([compute_scores(one, weights) for one in sample.examples], axis=1)
        chosen = rng.integers(table.shape[1], size=table.shape)
        means.append(np.take_along_axis(table, chosen, axis=1).mean(1))
    return np.asarray(means[0] - means[1])


def difference(samples: Sequence[tuple[Sample, Sample]]) -> Difference:
    """Return the difference between two systems, averaged over columns, with its 95 % percentile interval.

    `samples`: for each column, those of the better and of the worse system.
    """
    mean = float(np.mean([np.mean(better.scores) - np.mean(worse.scores) for better, worse in samples]))
    drawn = np.mean([bootstrap_differences(better, worse) for better, worse in samples], axis=0)
    low, high = np.quantile(drawn, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return Difference(mean, float(low), float(high))
