"""Multi-label classification: any number of labels per text, one logistic output per label on the pooled [CLS] state.

N examples, C labels.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bertwright.base.settings import check_not_str
from bertwright.metrics import scores
from bertwright.metrics.example_scores import ExampleScores
from bertwright.tables.tables import format_label, parse_number
from bertwright.tasks.classification import (
    LABEL_SEPARATORS,
    MAX_TABLE_LABELS,
    abbreviate_probabilities,
    check_decision,
    format_labels,
    label_sort_key,
    most_probable,
    table_of_labels,
)
from bertwright.tasks.encoded import Encoded, Floats, Outputs, repeat_output
from bertwright.tasks.score_formats import DisplayTable, format_percent
from bertwright.tasks.task import LEARNED, check_metric
from bertwright.tasks.text_task import TextExample, TextTask, known_labels

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.interop.head_config import HeadRecord
    from bertwright.models.heads import TaskBatch

Bools = npt.NDArray[np.bool_]
Label = str | tuple[str, ...]  # the text of a cell, not yet split, or a list of labels
Examples = Sequence[TextExample[Label]]
THRESHOLDS = np.arange(1, 100) / 100  # candidates
NO_LABEL = "(none)"
MARKS = {"1": True, "0": False, "true": True, "false": False}


class LabelsPrediction(NamedTuple):
    """The labels of a text: all whose probability exceeds the task's threshold."""

    labels: tuple[str, ...]
    probabilities: dict[str, float]
    """Of every label, in the order of the task's labels; each is independent of the others."""

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """Return the `k` most probable labels with their probabilities, from the most probable one on."""
        return most_probable(self.probabilities, k)

    def __repr__(self) -> str:
        return f"LabelsPrediction({self.labels!r}, {abbreviate_probabilities(self.probabilities)})"


Predictions = Sequence[LabelsPrediction]


@dataclass(frozen=True)
class MultiLabel(TextTask[Label, LabelsPrediction]):
    """Any number of labels per text, or per pair of texts."""

    kind: ClassVar[str] = "multi-label"
    is_multi_label: ClassVar[bool] = True
    column_options: ClassVar[str] = "--text, --text-pair and --label or, of 1 and 0 for each label, --label-columns"

    label: str = "label"
    """Column with the labels: a list, or a text with separators; an empty one means no label."""
    label_separator: str | None = None
    """Separator of the labels in a text; unset: the first of | ; , that the training labels contain."""
    label_columns: tuple[str, ...] = ()
    """Columns that hold 1 or 0, one per label, in place of the column with the labels."""
    metric: str = "micro_f1"
    """Score that selects the best checkpoint and the threshold: micro_f1, macro_f1 or exact_match."""
    threshold: float = field(default=0.5, metadata=LEARNED)
    """Probability above which a label is predicted; chosen on dev."""
    labels: tuple[str, ...] = field(default=(), metadata=LEARNED)
    """All labels, in the order of the head's outputs; empty: the labels of the training data, sorted."""
    class_weights: tuple[float, ...] = field(default=(), metadata=LEARNED)
    """Factor in the loss of training of the examples that have the label; empty: 1."""
    temperature: float = field(default=1.0, metadata=LEARNED)
    """Number by which logits are divided, so that probabilities are as large as the share of right answers."""
    thresholds: tuple[float, ...] = field(default=(), metadata=LEARNED)
    """Probability of each label above which it is predicted, for costs that the user has stated; empty: `threshold`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_str(self, "label_columns")
        check_metric(self.metric, ("micro_f1", "macro_f1", "exact_match"))
        if self.label_separator == "":
            raise ValueError("label_separator: expected one or more characters, got an empty text; omit it")
        check_decision(self.temperature, self.threshold, *self.thresholds)
        if self.thresholds and len(self.thresholds) != len(self.labels):
            raise ValueError(f"thresholds: expected {len(self.labels)}, one per label, got {len(self.thresholds)}")
        for name in ("labels", "label_columns"):
            if len(set(values := getattr(self, name))) < len(values):
                raise ValueError(f"{name} = {format_labels(values)}: expected different ones")

    @property
    def label_fields(self) -> tuple[str, ...]:
        return self.label_columns or super().label_fields

    @classmethod
    def from_head(cls, record: HeadRecord, max_positions: int) -> Self | None:
        return cls(max_length=max_positions, labels=record.labels) if record.multi_label else None

    def with_threshold(self, threshold: float) -> Self:
        return replace(self, threshold=threshold, thresholds=())

    def label_thresholds(self) -> Floats:
        """Return the threshold of each label, C."""
        return np.array(self.thresholds or [self.threshold] * len(self.labels), dtype=np.float64)

    def merge(self, others: Sequence[Self]) -> Self:
        """Return the task with the mean thresholds, for outputs that the temperatures have divided."""
        tasks = (self, *others)
        of_labels: tuple[float, ...] = ()
        if any(task.thresholds for task in tasks):
            of_labels = tuple(np.mean([task.label_thresholds() for task in tasks], axis=0).tolist())
        mean = float(np.mean([task.threshold for task in tasks]))
        return replace(self, temperature=1.0, threshold=mean, thresholds=of_labels)

    # Labels

    def parse_label(self, value: Any, location: str) -> Label:
        """Parse a list of labels, or one mark per label column; return a text unchanged, because it is split later."""
        if self.label_columns:
            marks = value if len(self.label_columns) > 1 else (value,)
            pairs = zip(self.label_columns, marks, strict=True)
            return tuple(column for column, mark in pairs if _parse_mark(mark, column, location))
        if isinstance(value, str):
            if not (value.startswith("[") and value.endswith("]")):
                return value
            value = _parse_list(value, self.label, location)
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(dict.fromkeys(format_label(item, self.label, location).strip() for item in items))

    def label_sets(self, examples: Examples) -> list[tuple[str, ...]]:
        """Return the labels of each example. Raises ValueError with the location of an example without known labels."""
        labels: list[Label] = known_labels(examples)
        return [self._split(label) for label in labels]

    def _split(self, label: Label) -> tuple[str, ...]:
        if not isinstance(label, str):
            return label
        parts = label.split(self.label_separator) if self.label_separator else [label]
        return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))

    def with_labels_of(self, examples: Examples) -> Self:
        """Return the task with the separator and the labels of the examples."""
        self.distinct_labels(examples)
        texts = [example.label for example in examples if isinstance(example.label, str)]
        detected = next((mark for mark in LABEL_SEPARATORS if any(mark in text for text in texts)), None)
        task = replace(self, label_separator=self.label_separator or detected)
        labels = {label for several in task.label_sets(examples) for label in several}
        return replace(
            task, labels=self.labels or self.label_columns or tuple(sorted(labels, key=label_sort_key(labels)))
        )

    def encode_labels(self, examples: Examples) -> Outputs:
        """Convert the labels to N × C float32: 1 for a label that the example has, else 0."""
        columns = {label: number for number, label in enumerate(self.labels)}
        targets = np.zeros((len(examples), len(self.labels)), dtype=np.float32)
        for row, (example, labels) in enumerate(zip(examples, self.label_sets(examples), strict=True)):
            if unknown := [label for label in labels if label not in columns]:
                raise ValueError(
                    f"{example.location}: label {unknown[0]!r} is not one of the training data: "
                    f"{format_labels(self.labels)}"
                )
            targets[row, [columns[label] for label in labels]] = 1
        return targets

    def warnings(self, examples: Examples, paths: Sequence[str] = ()) -> list[str]:
        found = super().warnings(examples, paths)
        if examples and all(len(labels) == 1 for labels in self.label_sets(examples)):
            hint = "" if self.label_separator else "; if a text has several, set --label-separator"
            if {*self.labels} <= {*MARKS}:
                hint = "; if each label has a column of 1 and 0, name the columns with --label-columns"
            found.append(f"every example has one label: consider --task classification{hint}")
        return found

    # The head

    def loss(self, logits: Tensor, /, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        """Compute the sum over examples of the mean cross entropy of their labels, as `transformers` does."""
        import torch.nn.functional as F

        targets = batch.labels.to(logits.dtype) * (1 - smoothing) + smoothing / 2
        weight = logits.new_tensor(self.class_weights) if self.class_weights else None
        losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="sum", pos_weight=weight)
        return losses / len(self.labels)

    def balanced_weights(self, examples: Examples) -> Floats:
        """Compute the number of examples without the label per example that has it."""
        present = self.encode_labels(examples).sum(0, dtype=np.float64)
        weights: Floats = np.maximum(len(examples) - present, 1) / np.maximum(present, 1)
        return weights

    def frequent_outputs(self, train: Encoded, encoded: Encoded) -> Outputs:
        shares = np.clip(train.labels.reshape(-1, len(self.labels)).mean(0), 1e-6, 1 - 1e-6)
        return repeat_output(np.log(shares / (1 - shares)), encoded)

    def decode(self, examples: Examples, encoded: Encoded, outputs: Outputs) -> list[LabelsPrediction]:
        probabilities = np.exp(-np.logaddexp(0, -outputs.astype(np.float64) / self.temperature))
        chosen = (probabilities > self.label_thresholds()).tolist()
        return [
            LabelsPrediction(tuple(compress(self.labels, marks)), dict(zip(self.labels, row, strict=True)))
            for marks, row in zip(chosen, probabilities.tolist(), strict=True)
        ]

    def merge_outputs(self, tasks: Sequence[Self], outputs: Sequence[Outputs], encoded: Encoded) -> Outputs:
        """Compute the logits of the mean probabilities."""
        logits = np.array([rows / task.temperature for task, rows in zip(tasks, outputs, strict=True)], np.float64)
        present = np.logaddexp.reduce(-np.logaddexp(0, -logits), axis=0)
        absent = np.logaddexp.reduce(-np.logaddexp(0, logits), axis=0)
        merged: Outputs = (present - absent).astype(np.float32)
        return merged

    # Scores

    def _compare(self, examples: Examples, predictions: Predictions) -> tuple[Bools, Bools]:
        """Return the true and the predicted labels, N × C each."""
        guessed: list[TextExample[Label]] = [TextExample("", None, guess.labels, "prediction") for guess in predictions]
        return self.encode_labels(examples) > 0, self.encode_labels(guessed) > 0

    def score(self, examples: Examples, predictions: Predictions) -> dict[str, float]:
        return scores.multi_label_scores(*self._compare(examples, predictions))

    def with_threshold_from(self, examples: Examples, predictions: Predictions) -> Self:
        """Return the task with the threshold that maximizes the metric of these predictions."""
        return self.with_threshold(self.best_threshold(examples, predictions)[0])

    def best_threshold(self, examples: Examples, predictions: Predictions) -> tuple[float, float]:
        """Find the threshold that maximizes the metric, whatever they were decoded with; return it and the metric.

        Of equally good ones, the nearest to 0.5 is returned.
        """
        y_true = self.encode_labels(examples) > 0
        shares = np.array([[*prediction.probabilities.values()] for prediction in predictions])
        reached = [(scores.multi_label_scores(y_true, shares > value)[self.metric], value) for value in THRESHOLDS]
        score, value = max(reached, key=lambda pair: (pair[0], -abs(pair[1] - 0.5)))
        return float(value), score

    def score_notes(self, examples: Examples, predictions: Predictions) -> list[str]:
        value, score = self.best_threshold(examples, predictions)
        metric = self.metric.replace("_", " ")
        return [f"best on these examples: {metric} {format_percent(score)}, with --threshold {value:g}"]

    def example_scores(self, examples: Examples, predictions: Predictions) -> ExampleScores | None:
        y_true, y_pred = self._compare(examples, predictions)
        if self.metric == "exact_match":
            return ExampleScores("mean", (y_true == y_pred).all(1, keepdims=True).astype(float))
        if self.metric == "micro_f1":
            sums = [marks.sum(1) for marks in (y_true & y_pred, y_pred, y_true)]
            return ExampleScores("f1", np.stack(sums, axis=1).astype(float))
        return None

    def _label_scores(self, examples: Examples, predictions: Predictions) -> dict[str, scores.LabelScores]:
        y_true, y_pred = self._compare(examples, predictions)
        sums = zip(*(marks.sum(0).tolist() for marks in (y_true & y_pred, y_pred, y_true)), strict=True)
        return {label: scores.LabelScores.of(*counts) for label, counts in zip(self.labels, sums, strict=True)}

    def score_tables(self, examples: Examples, predictions: Predictions) -> list[DisplayTable]:
        """Format precision, recall and F1 of each label; of many labels, those with the lowest F1."""
        return [table_of_labels(self._label_scores(examples, predictions), worst=len(self.labels) > MAX_TABLE_LABELS)]

    def score_details(self, examples: Examples, predictions: Predictions) -> dict[str, Any]:
        by_label = self._label_scores(examples, predictions)
        return {"labels": {label: one._asdict() for label, one in by_label.items()}}

    def is_right(self, example: TextExample[Label], prediction: LabelsPrediction) -> bool:
        return {*self.label_sets([example])[0]} == {*prediction.labels}

    def gold_columns(self, example: TextExample[Label]) -> dict[str, Any]:
        gold = None if example.label is None else list(self.label_sets([example])[0])
        return super().gold_columns(example) | {"gold": gold}

    def show(self, example: TextExample[Label]) -> dict[str, str]:
        gold = {} if example.label is None else {"gold": ", ".join(self.label_sets([example])[0]) or NO_LABEL}
        return super().show(example) | gold

    def count_gold(self, examples: Sequence[TextExample[Label]]) -> Mapping[str, int]:
        return Counter(label for labels in self.label_sets(examples) for label in labels or (NO_LABEL,))

    def predicted_classes(self, predictions: Predictions) -> set[str]:
        return {", ".join(prediction.labels) or NO_LABEL for prediction in predictions}

    # Reports and files

    def describe(self) -> dict[str, str]:
        own = f"from {min(self.thresholds):.3g} to {max(self.thresholds):.3g}" if self.thresholds else ""
        return super().describe() | {"threshold": f"labels with a probability above {own or f'{self.threshold:g}'}"}

    def to_record(self, example: TextExample[Label], prediction: LabelsPrediction) -> dict[str, Any]:
        shares = {f"p({label})": share for label, share in prediction.probabilities.items()}
        return {"labels": list(prediction.labels)} | shares

    def display(self, predicted: Sequence[tuple[TextExample[Label], LabelsPrediction]]) -> list[DisplayTable]:
        rows = []
        for example, (labels, shares) in predicted:
            rows.append((str(example), ", ".join(f"{label} {shares[label]:.1%}" for label in labels) or NO_LABEL))
        return [DisplayTable(("text", "labels"), rows)]


def _parse_mark(value: Any, column: str, location: str) -> bool:
    """Parse the 1 or 0 of a label's column."""
    text = format_label(value, column, location).strip().lower()
    number = parse_number(text)
    mark = MARKS.get(text if number is None else f"{number:g}")
    if mark is None:
        raise ValueError(f"{location}: expected 1 or 0 in {column!r}, got {text!r}")
    return mark


def _parse_list(text: str, column: str, location: str) -> list[Any]:
    """Parse a list that pandas or numpy wrote into a cell: ['a', 'b'], ["a", "b"] or ['a' 'b']."""
    try:
        parsed = ast.literal_eval(re.sub(r"""(?<=['"])\s+(?=['"])""", ", ", text))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        parsed = None
    if not isinstance(parsed, list):
        raise ValueError(f'{location}: expected a list in {column!r}, got {text[:60]!r}; write it as ["a", "b"]')
    return parsed
