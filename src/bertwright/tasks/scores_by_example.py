"""Numbers per example of a task's metric, for bootstrap intervals over examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertwright.metrics.example_scores import ExampleScores
from bertwright.metrics.tag_schemes import find_spans, to_canonical_scheme
from bertwright.tasks.classification import Classification
from bertwright.tasks.conll import TagExample
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import Tagging, TagPrediction, known_tags
from bertwright.tasks.task import AnyTask


def example_scores(task: AnyTask, examples: Sequence[Any], predictions: Sequence[Any]) -> ExampleScores | None:
    """Return the per-example statistics of a task's metric; None for a metric that needs others, such as macro F1."""
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
