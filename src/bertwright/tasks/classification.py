"""Classification of texts and pairs of texts (section 4.1): one linear layer on the pooled [CLS] state.

N examples, one sequence each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from bertwright.metrics import scores
from bertwright.metrics.example_scores import ExampleScores
from bertwright.tables.schema import list_names
from bertwright.tables.tables import format_label, parse_number
from bertwright.tasks.encoded import Encoded, Floats, Ints, Outputs, repeat_output
from bertwright.tasks.score_formats import DisplayTable, format_percent
from bertwright.tasks.task import LEARNED, balance, check_metric, softmax, sum_cross_entropy
from bertwright.tasks.teacher_outputs import check_outputs, open_outputs
from bertwright.tasks.text_task import TextExample, TextTask, known_labels
from bertwright.vocabulary.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.interop.head_config import HeadRecord
    from bertwright.models.heads import TaskBatch

REPR_LABELS = 3  # maximum number of labels in the text of a prediction
MAX_TABLE_LABELS = 30  # maximum number of labels in a confusion table
WORST = 10  # labels and confusions that are shown instead of a larger table
MANY_LABELS = 20  # if more than half of the examples have a label of their own, it is rarely a class
LABEL_SEPARATORS = ("|", ";", ",")
DISTILLED_TEMPERATURE = 2.0  # T of both softmaxes, as for DistilBERT: improbable labels count more than with 1
ABSTAINED = ""  # in place of a label whose probability is too low


class LabelPrediction(NamedTuple):
    """The most probable label of a text."""

    label: str
    probabilities: dict[str, float]
    """Probability of every label, in the order of the task's labels; their sum is 1."""

    @property
    def probability(self) -> float:
        """The probability of the label; without a label, of the most probable one."""
        return self.probabilities.get(self.label, max(self.probabilities.values()))

    def abstain_below(self, probability: float) -> LabelPrediction:
        """Return the prediction with the label ABSTAINED if its probability is lower than this."""
        return self if self.probability >= probability else self._replace(label=ABSTAINED)

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """Return the `k` most probable labels with their probabilities, from the most probable one on."""
        return most_probable(self.probabilities, k)

    def __repr__(self) -> str:
        return f"LabelPrediction({self.label!r}, {abbreviate_probabilities(self.probabilities)})"


Examples = Sequence[TextExample[str]]
Predictions = Sequence[LabelPrediction]


@dataclass(frozen=True)
class Classification(TextTask[str, LabelPrediction]):
    """Classification: a label per text, or per pair of texts."""

    kind: ClassVar[str] = "classification"
    leaves_out_missing: ClassVar[bool] = True

    metric: str = "accuracy"
    """Score that selects the best checkpoint: accuracy, f1 (of one of two labels), macro_f1 or matthews."""
    pos_label: str | None = None
    """The label whose F1 is the metric f1; unset: the last one in sorted order."""
    teacher_logits: str = ""
    """File with a teacher's logits of each training row, which bertwright distill writes; they replace the labels."""
    labels: tuple[str, ...] = field(default=(), metadata=LEARNED)
    """All labels, in the order of the head's outputs; empty: the labels of the training data, sorted."""
    class_weights: tuple[float, ...] = field(default=(), metadata=LEARNED)
    """Factor of each label's examples in the loss of training; empty: 1."""
    temperature: float = field(default=1.0, metadata=LEARNED)
    """Number by which logits are divided, so that probabilities are as large as the share of right answers."""
    threshold: float = field(default=0.5, metadata=LEARNED)
    """Of two labels: probability of the label that `f1_label` names above which it is predicted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_decision(self.temperature, self.threshold)
        check_metric(self.metric, ("accuracy", "f1", "macro_f1", "matthews"))
        if not self.labels:  # not known yet
            return
        if len(set(self.labels)) < len(self.labels) or len(self.labels) < 2:
            raise ValueError(f"labels = {format_labels(self.labels)}: at least two are needed, all different")
        if self.pos_label is not None and self.pos_label not in self.labels:
            raise ValueError(f"pos_label = {self.pos_label!r} is none of the labels: {format_labels(self.labels)}")
        if self.metric == "f1" and len(self.labels) > 2:
            raise ValueError(f"metric = 'f1' is for two labels, not for {len(self.labels)}; set it to macro_f1")

    @classmethod
    def from_head(cls, record: HeadRecord, max_positions: int) -> Self | None:
        if record.head.kind != "sequence" or record.regression or record.multi_label:
            return None
        return cls(max_length=max_positions, labels=record.labels)

    def parse_label(self, value: Any, location: str) -> str:
        if isinstance(value, list) and len(value) == 1:  # as doccano writes the label of a text
            value = value[0]
        if isinstance(value, list):
            raise ValueError(
                f"{location}: expected a string or a number in {self.label!r}, got a list of {len(value)}; if a text "
                "has several labels, fine-tune with --task multi-label"
            )
        return format_label(value, self.label, location)

    def with_labels_of(self, examples: Examples) -> Self:
        """Return the task with the labels of the examples: sorted as text or, if all are numbers, as numbers."""
        if self.teacher_logits:
            return self  # `prepare_splits` reads the teacher's labels, which need not all occur
        labels = self.distinct_labels(examples)
        for label in labels:
            if (bare := label.strip()) != label and bare in labels:
                location = next(example.location for example in examples if example.label == label)
                raise ValueError(
                    f"{location}: labels {label!r} and {bare!r} differ in white space only; fix one of them"
                )
        return replace(self, labels=self.labels or tuple(sorted(labels, key=label_sort_key(labels))))

    def encode_labels(self, examples: Examples) -> Ints:
        ids = {label: number for number, label in enumerate(self.labels)}
        labels = known_labels(examples)
        for example, label in zip(examples, labels, strict=True):
            if label not in ids:
                raise ValueError(
                    f"{example.location}: label {label!r} is not one of the training data: {format_labels(self.labels)}"
                )
        return np.array([ids[label] for label in labels], dtype=np.int64)

    def prepare_splits(self, splits: Mapping[str, Examples]) -> tuple[Self, dict[str, Examples]]:
        """Return the task with the teacher's labels, if there is one."""
        if not self.teacher_logits:
            return super().prepare_splits(splits)
        record = check_outputs("teacher_logits", self.teacher_logits, [*self.texts(splits["train"])])
        return replace(self, labels=record.labels), {**splits}

    def encode(self, examples: Examples, tokenizer: TextTokenizer, labeled: bool = True) -> Encoded:
        if not labeled or not self.teacher_logits:
            return super().encode(examples, tokenizer, labeled)
        logits = open_outputs(self.teacher_logits)
        encoded = super().encode(examples, tokenizer, labeled=False)
        return replace(encoded, labels=logits, label_counts=np.ones(len(logits), dtype=np.int64))

    def warnings(self, examples: Examples, paths: Sequence[str] = ()) -> list[str]:
        warnings = super().warnings(examples, paths)
        labels = set(known_labels(examples))
        if combined := find_combined_label(labels):
            warnings.append(
                f"labels look like lists, such as {combined!r}, and each list counts as one label; if a text has "
                "several labels, fine-tune with --task multi-label"
            )
        if len(labels) > max(MANY_LABELS, len(examples) // 2):
            warnings.append(
                f"{len(labels):,} labels in {len(examples):,} examples: is {self.label!r} the right column?"
            )
        if labels and self.metric == "f1" and self.f1_label not in labels:
            warnings.append(f"no example has the label {self.f1_label!r}: its f1 is 0 for any prediction")
        if self.metric == "matthews" and len(labels) == 1:
            warnings.append(f"all examples have the label {labels.pop()!r}: matthews is 0 for any prediction")
        return warnings

    @property
    def f1_label(self) -> str:
        """The label whose F1 is the metric f1: `pos_label`, else the last one by sorting, whatever the head's order."""
        return max(self.labels, key=label_sort_key({*self.labels})) if self.pos_label is None else self.pos_label

    def loss(self, logits: Tensor, /, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        if self.teacher_logits:
            return soft_cross_entropy(logits, batch.labels)
        return sum_cross_entropy(logits, batch.labels, smoothing, self.class_weights)

    def balanced_weights(self, examples: Examples) -> Floats:
        return balance(np.bincount(self.encode_labels(examples), minlength=len(self.labels)))

    def frequent_outputs(self, train: Encoded, encoded: Encoded) -> Outputs:
        labels = train.labels.argmax(1) if self.teacher_logits else train.labels
        return repeat_output(np.bincount(labels, minlength=len(self.labels)), encoded)

    def decode(self, examples: Examples, encoded: Encoded, outputs: Outputs) -> list[LabelPrediction]:
        probabilities = softmax(outputs / np.float32(self.temperature))
        best = probabilities.argmax(1).tolist()
        if len(self.labels) == 2 and self.threshold != 0.5:
            positive = self.labels.index(self.f1_label)
            best = np.where(probabilities[:, positive] > self.threshold, positive, 1 - positive).tolist()
        return [
            LabelPrediction(self.labels[number], dict(zip(self.labels, row, strict=True)))
            for number, row in zip(best, probabilities.tolist(), strict=True)
        ]

    def merge(self, others: Sequence[Self]) -> Self:
        """Return the task with the mean threshold, for outputs that the temperatures have divided."""
        return replace(self, temperature=1.0, threshold=float(np.mean([task.threshold for task in (self, *others)])))

    def merge_outputs(self, tasks: Sequence[Self], outputs: Sequence[Outputs], encoded: Encoded) -> Outputs:
        divided = [rows / np.float32(task.temperature) for task, rows in zip(tasks, outputs, strict=True)]
        return super().merge_outputs(tasks, divided, encoded)

    def score(self, examples: Examples, predictions: Predictions) -> dict[str, float]:
        y_true, y_pred = known_labels(examples), [prediction.label for prediction in predictions]
        results = {"accuracy": scores.accuracy(y_true, y_pred)}
        if len(self.labels) == 2:
            results["f1"] = scores.f1(y_true, y_pred, self.f1_label)
        return results | {"macro_f1": scores.macro_f1(y_true, y_pred), "matthews": scores.matthews(y_true, y_pred)}

    def example_scores(self, examples: Examples, predictions: Predictions) -> ExampleScores | None:
        pairs = [(true, guess.label) for true, guess in zip(known_labels(examples), predictions, strict=True)]
        if self.metric == "accuracy":
            return ExampleScores("mean", np.array([[true == guess] for true, guess in pairs], dtype=float))
        if self.metric == "f1":
            hits = [(true == self.f1_label, guess == self.f1_label) for true, guess in pairs]
            return ExampleScores("f1", np.array([(true and guess, guess, true) for true, guess in hits], dtype=float))
        if self.metric == "matthews" and len(self.labels) == 2:
            cells = [2 * self.labels.index(true) + self.labels.index(guess) for true, guess in pairs]
            return ExampleScores("matthews", np.eye(4)[cells])
        return None

    def score_tables(self, examples: Examples, predictions: Predictions) -> list[DisplayTable]:
        """Format the confusion table; of many labels, the ones with the lowest F1 and the most frequent confusions."""
        counts = count_confusions(examples, predictions)
        if len(self.labels) > MAX_TABLE_LABELS:
            return self._worst_labels(examples, predictions, counts)
        rows = []
        for true in self.labels:
            row = [counts[true, guess] for guess in self.labels]
            recall = counts[true, true] / max(sum(row), 1)
            rows.append((true, *(f"{number:,}" for number in row), format_percent(recall)))
        return [DisplayTable(("label (rows) predicted as", *self.labels, "recall"), rows)]

    def _worst_labels(
        self,
        examples: Examples,
        predictions: Predictions,
        counts: Counter[tuple[str, str]],
    ) -> list[DisplayTable]:
        wrong = Counter({pair: number for pair, number in counts.items() if pair[0] != pair[1]})
        confused = [(true, guess, f"{number:,}") for (true, guess), number in wrong.most_common(WORST)]
        tables = [table_of_labels(self._label_scores(examples, predictions), worst=True)]
        return tables + ([DisplayTable(("label", "most often predicted as", "examples"), confused)] if confused else [])

    def _label_scores(self, examples: Examples, predictions: Predictions) -> dict[str, scores.LabelScores]:
        return scores.score_labels(known_labels(examples), [guess.label for guess in predictions], self.labels)

    def score_details(self, examples: Examples, predictions: Predictions) -> dict[str, Any]:
        """Return the scores of each label, and the confusion matrix without zeros: label → predicted label → number."""
        matrix: dict[str, dict[str, int]] = {}
        for (true, guess), number in sorted(count_confusions(examples, predictions).items()):
            matrix.setdefault(true, {})[guess] = number
        by_label = self._label_scores(examples, predictions)
        return {"labels": {label: one._asdict() for label, one in by_label.items()}, "confusion_matrix": matrix}

    def is_right(self, example: TextExample[str], prediction: LabelPrediction) -> bool:
        return prediction.label == example.label

    def count_gold(self, examples: Examples) -> Mapping[str, int]:
        return Counter(known_labels(examples))

    def predicted_classes(self, predictions: Predictions) -> set[str]:
        return {prediction.label for prediction in predictions}

    def to_record(self, example: TextExample[str], prediction: LabelPrediction) -> dict[str, Any]:
        shares = {f"p({label})": share for label, share in prediction.probabilities.items()}
        return {"label": prediction.label, "probability": prediction.probability} | shares

    def display(self, predicted: Sequence[tuple[TextExample[str], LabelPrediction]]) -> list[DisplayTable]:
        rows = [(str(example), guess.label, f"{guess.probability:.1%}") for example, guess in predicted]
        return [DisplayTable(("text", "label", "probability"), rows)]


def soft_cross_entropy(logits: Tensor, teacher: Tensor) -> Tensor:
    """Compute the sum of T² · KL(teacher ‖ student) over N × C logits, both divided by T (Hinton et al. 2015)."""
    from torch.nn.functional import kl_div, log_softmax

    target, found = (log_softmax(scores / DISTILLED_TEMPERATURE, 1) for scores in (teacher.to(logits), logits))
    return DISTILLED_TEMPERATURE**2 * kl_div(found, target, reduction="sum", log_target=True)


def check_decision(temperature: float, *thresholds: float) -> None:
    """Raise ValueError for numbers of `task.json` that decide nothing."""
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature = {temperature}: expected a number above 0")
    for threshold in thresholds:
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold = {threshold}: expected a probability, from 0 to 1")


def most_probable(probabilities: dict[str, float], k: int) -> list[tuple[str, float]]:
    """Return the `k` most probable labels with their probabilities, from the most probable one on."""
    return sorted(probabilities.items(), key=lambda item: -item[1])[:k]


def abbreviate_probabilities(probabilities: dict[str, float]) -> str:
    """Format the probabilities of the most probable labels, and the number of the others."""
    shown = ", ".join(f"{label!r}: {share:.4f}" for label, share in most_probable(probabilities, REPR_LABELS))
    more = len(probabilities) - REPR_LABELS
    return f"{{{shown}{f', … {more} more' if more > 0 else ''}}}"


def table_of_labels(by_label: Mapping[str, scores.LabelScores], worst: bool) -> DisplayTable:
    """Format the scores of all labels or, if only the `worst` are asked for, of the ones with the lowest F1."""
    names = sorted((one.f1, label) for label, one in by_label.items() if one.examples)[:WORST]
    chosen = {label: by_label[label] for _, label in names} if worst else by_label
    rows = [(label, *map(format_percent, one[:3]), f"{one.examples:,}") for label, one in chosen.items()]
    return DisplayTable(
        ("labels with the lowest F1" if worst else "label", "precision", "recall", "F1", "examples"), rows
    )


def count_confusions(examples: Examples, predictions: Predictions) -> Counter[tuple[str, str]]:
    return Counter(zip(known_labels(examples), (guess.label for guess in predictions), strict=True))


def format_labels(labels: Sequence[str]) -> str:
    """Format labels for a message; of many, the first ones."""
    return list_names([*map(repr, labels)])


def find_combined_label(labels: set[str]) -> str | None:
    """Return a label that is a list of other labels' parts, if most labels with a separator are; else None.

    >>> find_combined_label({"3,15", "25", "3,15,26"}), find_combined_label({"Food, drink", "Travel"})
    ('3,15', None)
    """
    for separator in LABEL_SEPARATORS:
        split = {label: {part.strip() for part in label.split(separator)} for label in sorted(labels)}
        counts = Counter(part for parts in split.values() for part in parts)
        listed = {label: parts for label, parts in split.items() if len(parts) > 1}
        shared = [label for label, parts in listed.items() if sum(counts[part] > 1 for part in parts) * 2 >= len(parts)]
        if len(shared) > 1 and len(shared) * 2 >= len(listed):
            return shared[0]
    return None


def label_sort_key(labels: set[str]) -> Callable[[str], tuple[float, str]]:
    """Return the sort key of labels: their value if all of them are numbers, else their text."""
    numeric = all(parse_number(label) is not None for label in labels)
    return lambda label: (float(label) if numeric else 0.0, label)
