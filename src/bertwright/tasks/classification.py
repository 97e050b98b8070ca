"""Classification of texts and pairs of texts (section 4.1): one linear layer on the pooled [CLS] state.

N examples, one sequence each.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from bertwright.corpus.documents import check_encoding, check_format
from bertwright.metrics import scores
from bertwright.metrics.example_scores import ExampleScores
from bertwright.models.head_spec import HeadSpec
from bertwright.models.pooling import describe_pooling
from bertwright.tables.dialects import check_dialect
from bertwright.tables.row_formats import TABLE_FORMATS
from bertwright.tables.schema import TableSchema
from bertwright.tables.tables import count_skipped_rows, format_label, leave_out_rows, read_rows
from bertwright.tasks.score_formats import DisplayTable, format_percent
from bertwright.tasks.task import (
    LEARNED,
    Encoded,
    Floats,
    Ints,
    Outputs,
    Task,
    balance,
    check_metric,
    count_labels,
    make_pooled_head,
    repeat_output,
    softmax,
    sum_cross_entropy,
)
from bertwright.tasks.truncation import SegmentTokens, encode_both_orders, encode_segments
from bertwright.vocabulary.tokenizer import TextTokenizer
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.interop.head_config import HeadRecord
    from bertwright.models.encoder import TextEncoder
    from bertwright.models.heads import TaskBatch, TaskHead

MAX_NUMBER = float(np.finfo(np.float32).max)  # largest label of a regression, because losses are float32
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
SHOWN_LABELS = 20  # maximum number of labels in a message
REPR_LABELS = 3  # maximum number of labels in the text of a prediction
MAX_TABLE_LABELS = 30  # maximum number of labels in a confusion table
WORST = 10  # labels and confusions that are shown instead of a larger table
MANY_LABELS = 20  # if more than half of the examples have a label of their own, it is rarely a class
MANY_QUOTES = 0.05  # share of texts in quotes that may enclose the fields of a table
MISSING = ("NULL", "NaN", "nan", "<NA>", "#N/A")  # labels of rows without one, as programs write them
UNDECIDED = ("gold_label", "-")  # column and label of SNLI's and MultiNLI's rows on which the annotators disagreed
LABEL_SEPARATORS = ("|", ";", ",")
SEP = SPECIAL_TOKENS[3]
WITHOUT_HEADER = "; if line 1 is no header, use --header False and columns by number"

L = TypeVar("L")  # a label: text, or a number
L_co = TypeVar("L_co", covariant=True)
P = TypeVar("P")


class TextExample(NamedTuple, Generic[L]):
    """A text, or a pair of texts, and its label. A text may be empty: [CLS] [SEP]."""

    text: str
    text_pair: str | None
    """None if the task reads single texts."""
    label: L | None
    """None if unknown."""
    location: str
    """File and line, for messages."""

    def __str__(self) -> str:
        return self.text if self.text_pair is None else f"{self.text} / {self.text_pair}"


@dataclass(frozen=True)
class TextTask(Task[TextExample[L], P], Generic[L, P]):
    """A task on texts or pairs of texts, which are read from tables."""

    inference_call: ClassVar[str] = "classify(texts)"
    dialect_parts: ClassVar[tuple[str, ...]] = ("labels", "json", "rows")
    leaves_out_missing: ClassVar[bool] = False
    """True if labeled rows whose label is written as missing are left out; else they are an error or a label."""

    text: str = "text"
    """Column with the text; a number counts from 1 in files without header; a.b is the field b of the object in a."""
    text_pair: str | None = None
    """Column with the second text of a pair; unset: single texts."""
    label: str = "label"
    """Column with the label; in a regression, with the number."""
    header: bool = True
    """Whether the first line of .tsv, .csv and .txt names the columns."""
    quotes: bool | None = None
    """Whether quotes enclose fields; unset: in .csv they do, in .tsv and .txt they are plain characters, as in GLUE."""
    encoding: str = "utf-8"
    """Encoding of text files by its name in Python, such as latin-1 or cp949."""
    format: str | None = None
    """Format of all files, whatever their suffixes: txt, tsv, csv, jsonl, json or parquet; unset: by suffix."""
    dialect: str | None = None
    """Layout of all files: {dialects}, or plain for files as they stand; unset: recognized in a file that lacks
    columns, with a warning (docs/dialects.md)."""
    max_length: int = 128
    """Longest sequence in tokens, [CLS] and [SEP] included; of two segments, the longer one is truncated first."""
    both_orders: bool = False
    """Read each pair in both orders, and add the two states that the head reads, because the order of similar texts
    means nothing (GPT, section 3.3)."""
    max_short_rows: int = field(default=0, metadata=LEARNED)
    """Number of labeled rows with missing columns that are skipped, because a published file is known to have them."""
    pooling: tuple[str, ...] = field(default=(), metadata=LEARNED)
    """Modes in which the head pools the states of all tokens; empty: it reads the pooler's output for [CLS]."""

    def __post_init__(self) -> None:
        named = [column for column in (self.text, self.text_pair, *self.label_fields) if column is not None]
        if twice := [column for column in named if named.count(column) > 1]:
            raise ValueError(f"text, text_pair, label: {twice[0]!r} is named twice; name a different column for each")
        check_encoding(self.encoding)
        check_format(self.format, TABLE_FORMATS)
        check_dialect(self.dialect, self.dialect_parts)
        min_length = 3 if self.text_pair is None else 5
        if self.max_length < min_length:
            raise ValueError(f"max_length = {self.max_length}: at least {min_length}, [CLS] and [SEP] included")
        if self.both_orders and (self.text_pair is None or self.pooling):
            got = "single texts" if self.text_pair is None else describe_pooling(self.pooling)
            raise ValueError(f"both_orders = True: expected pairs, and a head without pooling, got {got}; omit it")

    @property
    def head(self) -> HeadSpec:
        return HeadSpec("sequence", count_labels(self.labels))

    @property
    def head_builder(self) -> Callable[[TextEncoder], TaskHead] | None:
        if not self.both_orders:
            return make_pooled_head(self.head, self.pooling)
        from bertwright.models.heads import BothOrdersHead

        return partial(BothOrdersHead, self.head)

    @abstractmethod
    def parse_label(self, value: Any, location: str) -> L:
        """Parse a label as a file has it. Raises ValueError with the location of an invalid one."""

    @abstractmethod
    def encode_labels(self, examples: Sequence[TextExample[L]]) -> npt.NDArray[Any]:
        """Convert the labels of N examples to targets. Raises ValueError with the location of an unknown one."""

    def read(self, path: str, labeled: bool = True) -> Iterator[TextExample[L]]:
        rows = read_rows(path, self._schema(labeled))
        field, mark = UNDECIDED
        if labeled and self.label_fields == (field,):
            rows = leave_out_rows(rows, path, field, (mark,), repr(mark))
        if labeled and self.leaves_out_missing:
            rows = leave_out_rows(rows, path, self.label, MISSING, "missing (NULL, NaN)")
        for location, values in rows:
            pair = None if self.text_pair is None else values[1]
            label = values[-1] if len(self.label_fields) == 1 else values[-len(self.label_fields) :]
            yield TextExample(values[0], pair, self.parse_label(label, location) if labeled else None, location)

    @property
    def reads_single_texts(self) -> bool:
        return self.text_pair is None

    def examples_from_texts(self, texts: Sequence[str], location: str) -> list[TextExample[L]]:
        if self.text_pair is None:
            return [TextExample(text, None, None, location) for text in texts]
        if len(texts) != 2:
            raise ValueError(f"this task is about pairs: give two texts, not {len(texts)}")
        return [TextExample(texts[0], texts[1], None, location)]

    @property
    def label_fields(self) -> tuple[str, ...]:
        """Columns with the label; `parse_label` gets the value of one column, or a tuple of the values of several."""
        return (self.label,)

    def _schema(self, labeled: bool) -> TableSchema:
        texts = (self.text,) if self.text_pair is None else (self.text, self.text_pair)
        hint = f"choose columns with --text, --text-pair and --label{WITHOUT_HEADER}"
        # Without labels no row is skipped: there is one prediction per row.
        label, max_short_rows = (self.label_fields, self.max_short_rows) if labeled else ((), 0)
        elsewhere = self.label if self.label_fields == (self.label,) else ""
        form: dict[str, Any] = {"encoding": self.encoding, "suffix": self.format, "dialect": self.dialect}
        form |= {"max_short_rows": max_short_rows}
        return TableSchema(texts, label, self.header, self.quotes, hint, label=elsewhere, **form)

    def passthrough_schema(self, columns: Sequence[str], hint: str) -> TableSchema:
        schema = self._schema(labeled=False)
        return replace(schema, texts=(), values=tuple(columns), hint=hint, allow_nulls=True, label="")

    @property
    def num_segments(self) -> int:
        return 1 if self.text_pair is None else 2

    def texts(self, examples: Sequence[TextExample[L]]) -> Iterator[str]:
        return (text for example in examples for text in (example.text, example.text_pair) if text is not None)

    def check(self, examples: Sequence[TextExample[L]]) -> None:
        self.encode_labels(examples)

    def encode(self, examples: Sequence[TextExample[L]], tokenizer: TextTokenizer, labeled: bool = True) -> Encoded:
        for example in examples:
            if (example.text_pair is None) != (self.text_pair is None):
                expected, got = ("one text", "a pair") if self.text_pair is None else ("a pair of texts", "one text")
                raise ValueError(f"{example.location}: expected {expected}, got {got}")
        segments = [SegmentTokens.of([example.text for example in examples], tokenizer)]
        if self.text_pair is not None:
            segments.append(SegmentTokens.of([example.text_pair or "" for example in examples], tokenizer))
        labels = self.encode_labels(examples if labeled else ())
        if self.both_orders:
            return encode_both_orders(segments[0], segments[1], labels, tokenizer, self.max_length)
        return encode_segments(segments, labels, tokenizer, self.max_length)

    def describe(self) -> dict[str, str]:
        return {"head reads": describe_pooling(self.pooling)} if self.pooling else {}

    def gold_columns(self, example: TextExample[L]) -> dict[str, Any]:
        pair = {} if example.text_pair is None else {"text_pair": example.text_pair}
        return {"location": example.location, "text": example.text, **pair, "gold": example.label}

    def group_keys(self, examples: Sequence[TextExample[L]]) -> Sequence[Hashable]:
        """Return the texts: copies of a training example would make its score too high."""
        return [(example.text, example.text_pair) for example in examples]

    def warnings(self, examples: Sequence[TextExample[L]], paths: Sequence[str] = ()) -> list[str]:
        warnings = []
        for stats in (count_skipped_rows(path, self._schema(labeled=True)) for path in paths):
            if count := stats.short_rows:
                warnings.append(
                    f"{count:,} {'row' if count == 1 else 'rows'} with too few columns skipped (the published file is "
                    f"known to have {self.max_short_rows:,}); the first is {stats.first_short_row}"
                )
        if empty := count_empty_texts(examples):
            warnings.append(f"{empty:,} examples have an empty text: the model reads [CLS] and [SEP] only")
        quoted = [
            example for example in examples if len(example.text) > 1 and {example.text[0], example.text[-1]} == {'"'}
        ]
        if len(quoted) > MANY_QUOTES * len(examples):
            warnings.append(
                f"{len(quoted):,} texts begin and end with a quote, which stays ({quoted[0].location}); if it encloses "
                "the field, use --quotes True"
            )
        if count := sum(SEP in example.text or SEP in (example.text_pair or "") for example in examples):
            hint = "" if self.text_pair else "; a pair's second text needs a column of its own (--text-pair)"
            warnings.append(f"{count:,} examples contain {SEP} in a text: it is read as plain characters{hint}")
        return warnings

    def distinct_labels(self, examples: Sequence[TextExample[L]]) -> set[L]:
        """Return all labels of the examples. Raises ValueError if there is only one: nothing to learn."""
        if not examples:
            raise ValueError("no examples to learn from")
        labels = set(known_labels(examples))
        if len(labels) < 2:
            raise ValueError(
                f"{examples[0].location}: from there on all examples ({len(examples):,}) have the same {self.label!r}: "
                f"{examples[0].label!r}; at least two different ones are needed"
            )
        return labels


class LabelPrediction(NamedTuple):
    """The most probable label of a text."""

    label: str
    probabilities: dict[str, float]
    """Probability of every label, in the order of the task's labels; their sum is 1."""

    @property
    def probability(self) -> float:
        """The probability of the label."""
        return self.probabilities[self.label]

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """Return the `k` most probable labels with their probabilities, from the most probable one on."""
        return most_probable(self.probabilities, k)

    def __repr__(self) -> str:
        return f"LabelPrediction({self.label!r}, {abbreviate_probabilities(self.probabilities)})"


@dataclass(frozen=True)
class Classification(TextTask[str, LabelPrediction]):
    """Classification: a label per text, or per pair of texts."""

    kind: ClassVar[str] = "classification"
    leaves_out_missing: ClassVar[bool] = True

    metric: str = "accuracy"
    """Score that selects the best checkpoint: accuracy, f1 (of one of two labels), macro_f1 or matthews."""
    pos_label: str | None = None
    """The label whose F1 is the metric f1; unset: the last one in sorted order."""
    labels: tuple[str, ...] = field(default=(), metadata=LEARNED)
    """All labels, in the order of the head's outputs; empty: the labels of the training data, sorted."""
    class_weights: tuple[float, ...] = field(default=(), metadata=LEARNED)
    """Factor of each label's examples in the loss of training; empty: 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
                "has several labels or none, use --task multi-label"
            )
        return format_label(value, self.label, location)

    def with_labels_of(self, examples: Sequence[TextExample[str]]) -> Self:
        """Return the task with the labels of the examples: sorted as text or, if all are numbers, as numbers."""
        labels = self.distinct_labels(examples)
        for label in labels:
            if (bare := label.strip()) != label and bare in labels:
                location = next(example.location for example in examples if example.label == label)
                raise ValueError(
                    f"{location}: labels {label!r} and {bare!r} differ in white space only; fix one of them"
                )
        return replace(self, labels=self.labels or tuple(sorted(labels, key=label_sort_key(labels))))

    def encode_labels(self, examples: Sequence[TextExample[str]]) -> Ints:
        ids = {label: number for number, label in enumerate(self.labels)}
        labels = known_labels(examples)
        for example, label in zip(examples, labels, strict=True):
            if label not in ids:
                raise ValueError(
                    f"{example.location}: label {label!r} is not one of the training data: {format_labels(self.labels)}"
                )
        return np.array([ids[label] for label in labels], dtype=np.int64)

    def warnings(self, examples: Sequence[TextExample[str]], paths: Sequence[str] = ()) -> list[str]:
        warnings = super().warnings(examples, paths)
        labels = set(known_labels(examples))
        if combined := find_combined_label(labels):
            warnings.append(
                f"labels look like lists, such as {combined!r}, and each list counts as one label; if a text has "
                "several labels, use --task multi-label"
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
        return sum_cross_entropy(logits, batch.labels, smoothing, self.class_weights)

    def balanced_weights(self, examples: Sequence[TextExample[str]]) -> Floats:
        return balance(np.bincount(self.encode_labels(examples), minlength=len(self.labels)))

    def frequent_outputs(self, train: Encoded, encoded: Encoded) -> Outputs:
        return repeat_output(np.bincount(train.labels, minlength=len(self.labels)), encoded)

    def decode(self, examples: Sequence[TextExample[str]], encoded: Encoded, outputs: Outputs) -> list[LabelPrediction]:
        probabilities = softmax(outputs)
        best = probabilities.argmax(1).tolist()
        return [
            LabelPrediction(self.labels[number], dict(zip(self.labels, row, strict=True)))
            for number, row in zip(best, probabilities.tolist(), strict=True)
        ]

    def score(self, examples: Sequence[TextExample[str]], predictions: Sequence[LabelPrediction]) -> dict[str, float]:
        y_true, y_pred = known_labels(examples), [prediction.label for prediction in predictions]
        results = {"accuracy": scores.accuracy(y_true, y_pred)}
        if len(self.labels) == 2:
            results["f1"] = scores.f1(y_true, y_pred, self.f1_label)
        return results | {"macro_f1": scores.macro_f1(y_true, y_pred), "matthews": scores.matthews(y_true, y_pred)}

    def example_scores(
        self, examples: Sequence[TextExample[str]], predictions: Sequence[LabelPrediction]
    ) -> ExampleScores | None:
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

    def score_tables(
        self, examples: Sequence[TextExample[str]], predictions: Sequence[LabelPrediction]
    ) -> list[DisplayTable]:
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
        examples: Sequence[TextExample[str]],
        predictions: Sequence[LabelPrediction],
        counts: Counter[tuple[str, str]],
    ) -> list[DisplayTable]:
        by_label = self._label_scores(examples, predictions)
        worst = sorted((one.f1, label) for label, one in by_label.items() if one.examples)[:WORST]
        rows = [
            (label, *(format_percent(share) for share in by_label[label][:3]), f"{by_label[label].examples:,}")
            for _, label in worst
        ]
        wrong = Counter({pair: number for pair, number in counts.items() if pair[0] != pair[1]})
        confused = [(true, guess, f"{number:,}") for (true, guess), number in wrong.most_common(WORST)]
        tables = [DisplayTable(("labels with the lowest F1", "precision", "recall", "F1", "examples"), rows)]
        return tables + ([DisplayTable(("label", "most often predicted as", "examples"), confused)] if confused else [])

    def _label_scores(
        self, examples: Sequence[TextExample[str]], predictions: Sequence[LabelPrediction]
    ) -> dict[str, scores.LabelScores]:
        return scores.score_labels(known_labels(examples), [guess.label for guess in predictions], self.labels)

    def score_details(
        self, examples: Sequence[TextExample[str]], predictions: Sequence[LabelPrediction]
    ) -> dict[str, Any]:
        """Return the scores of each label, and the confusion matrix without zeros: label → predicted label → number."""
        matrix: dict[str, dict[str, int]] = {}
        for (true, guess), number in sorted(count_confusions(examples, predictions).items()):
            matrix.setdefault(true, {})[guess] = number
        by_label = self._label_scores(examples, predictions)
        return {"labels": {label: one._asdict() for label, one in by_label.items()}, "confusion_matrix": matrix}

    def is_right(self, example: TextExample[str], prediction: LabelPrediction) -> bool:
        return prediction.label == example.label

    def count_gold(self, examples: Sequence[TextExample[str]]) -> Mapping[str, int]:
        return Counter(known_labels(examples))

    def predicted_classes(self, predictions: Sequence[LabelPrediction]) -> set[str]:
        return {prediction.label for prediction in predictions}

    def to_record(self, example: TextExample[str], prediction: LabelPrediction) -> dict[str, Any]:
        shares = {f"p({label})": share for label, share in prediction.probabilities.items()}
        return {"label": prediction.label, "probability": prediction.probability} | shares

    def display(self, predicted: Sequence[tuple[TextExample[str], LabelPrediction]]) -> list[DisplayTable]:
        rows = [(str(example), guess.label, f"{guess.probability:.1%}") for example, guess in predicted]
        return [DisplayTable(("text", "label", "probability"), rows)]


def most_probable(probabilities: dict[str, float], k: int) -> list[tuple[str, float]]:
    """Return the `k` most probable labels with their probabilities, from the most probable one on."""
    return sorted(probabilities.items(), key=lambda item: -item[1])[:k]


def abbreviate_probabilities(probabilities: dict[str, float]) -> str:
    """Format the probabilities of the most probable labels, and the number of the others."""
    shown = ", ".join(f"{label!r}: {share:.4f}" for label, share in most_probable(probabilities, REPR_LABELS))
    more = len(probabilities) - REPR_LABELS
    return f"{{{shown}{f', … {more} more' if more > 0 else ''}}}"


class Labeled(Protocol[L_co]):
    """An example of any task type with one label, or None."""

    @property
    def label(self) -> L_co | None: ...

    @property
    def location(self) -> str: ...


def known_labels(examples: Sequence[Labeled[L]]) -> list[L]:
    """Return the label of every example. Raises ValueError with the location of an example without label."""
    labels = [example.label for example in examples if example.label is not None]
    if len(labels) < len(examples):
        location = next(example.location for example in examples if example.label is None)
        raise ValueError(f"{location}: the label is not known, but needed here")
    return labels


def count_confusions(
    examples: Sequence[TextExample[str]], predictions: Sequence[LabelPrediction]
) -> Counter[tuple[str, str]]:
    """Count the examples of each label and predicted label."""
    return Counter(zip(known_labels(examples), (guess.label for guess in predictions), strict=True))


def count_empty_texts(examples: Sequence[TextExample[Any]]) -> int:
    """Count the examples with a text of white space only, which is valid but rarely intended."""
    return sum(not (text.strip() and (pair is None or pair.strip())) for text, pair, _, _ in examples)


def format_labels(labels: Sequence[str]) -> str:
    """Format labels for a message; of many, the first ones."""
    shown = ", ".join(map(repr, labels[:SHOWN_LABELS]))
    return shown if len(labels) <= SHOWN_LABELS else f"{shown} … ({len(labels)} in all)"


def parse_number(text: str) -> float | None:
    """Parse a finite number within the range of float32; None for any other text.

    >>> parse_number(" -2.5e1"), parse_number("1_000"), parse_number("nan"), parse_number("1e99")
    (-25.0, None, None, None)
    """
    if not NUMBER.fullmatch(text.strip()):  # float also reads underscores and the digits of other scripts
        return None
    number = float(text)
    return number if abs(number) <= MAX_NUMBER else None


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
