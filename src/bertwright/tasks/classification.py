"""Classification and regression of texts and of pairs of texts (section 4.1): one layer on the pooled [CLS] state.

N examples; S sequences, which for these tasks are the examples; T tokens; C labels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from torch import Tensor

from bertwright.batching.batch import offsets_from_lengths
from bertwright.io.tables import TableSchema, label_text, read_rows, skipped_rows_note
from bertwright.metrics import scores
from bertwright.models.heads import HeadSpec
from bertwright.tasks.task import (
    DisplayTable,
    Encoded,
    Ints,
    Outputs,
    Task,
    TaskBatch,
    check_metric,
    flat_ranges,
    percent,
    softmax,
)
from bertwright.vocabulary.tokenizer import Tokenizer
from bertwright.vocabulary.tokenizer_io import SPECIAL_TOKENS

LARGEST = float(np.finfo(np.float32).max)  # of a target: losses are float32
SHOWN_LABELS = 20  # in a message
LABELS_IN_TABLE = 30  # of what they were taken for
SEP = SPECIAL_TOKENS[3]

L = TypeVar("L")  # what is to be found: a label, or a number
L_co = TypeVar("L_co", covariant=True)
P = TypeVar("P")


class TextExample(NamedTuple, Generic[L]):
    """A text, or a pair of texts, and what is to be found in it. An empty text is a text: [CLS] [SEP]."""

    text: str
    text_pair: str | None
    """None where the task is about single texts."""
    label: L | None
    """None where it is not known."""
    location: str
    """Where it comes from, for messages: "file, line 3"."""

    @property
    def line(self) -> str:
        """All its text in one line, for people."""
        return self.text if self.text_pair is None else f"{self.text} / {self.text_pair}"


def empty_texts(examples: Sequence[TextExample[Any]]) -> int:
    """How many examples have a text of nothing but white space, which is legal but rarely meant."""
    return sum(not (text.strip() and (pair is None or pair.strip())) for text, pair, _, _ in examples)


# --- token sequences: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]


class SegmentTokens(NamedTuple):
    """Segment A, or segment B, of all sequences: runs of one flat array of ids."""

    ids: npt.NDArray[np.uint32]
    first: Ints
    """S, where each run starts."""
    lengths: Ints
    """S, its tokens."""

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: Tokenizer) -> SegmentTokens:
        """The runs of some texts; "[SEP]" in a text is three ordinary words there."""
        found = tokenizer.encode_raw(texts)
        return cls(found.ids, found.offsets[:-1], np.diff(found.offsets))

    def repeated(self, times: int) -> SegmentTokens:
        """Every run `times` times over, in place."""
        return self._replace(first=np.repeat(self.first, times), lengths=np.repeat(self.lengths, times))


def truncate_longest_first(lengths: Sequence[Ints], room: int) -> list[Ints]:
    """How many tokens of each sequence's one or two texts stay: the longer gives first, then both, the second keeping
    an odd one (`transformers`' longest_first).

    >>> [side.tolist() for side in truncate_longest_first([np.array([10, 10, 3]), np.array([3, 9, 9])], 7)]
    [[4, 4, 3], [3, 3, 4]]
    """
    if len(lengths) == 1:
        return [np.minimum(lengths[0], room)]
    a, b = lengths
    short = np.minimum(np.minimum(a, b), room // 2)
    first = np.where(a <= b, short, room - short)
    over = a + b > room
    return [np.where(over, first, a), np.where(over, room - first, b)]


def encode_segments(
    sides: Sequence[SegmentTokens], targets: npt.NDArray[Any], tokenizer: Tokenizer, max_length: int, width: int = 1
) -> Encoded:
    """Sequences of one or two segments, whose [CLS] states are read; one target an item of `width`, or none at all."""
    room = max_length - len(sides) - 1
    given = [side.lengths for side in sides]
    left = truncate_longest_first(given, room)
    lengths: Ints = np.sum(left, axis=0) + len(sides) + 1
    bounds = offsets_from_lengths(lengths)
    ids = np.full(bounds[-1], tokenizer.sep_id, dtype=np.int32)
    types = np.zeros(bounds[-1], dtype=np.int8)
    ids[bounds[:-1]] = tokenizer.cls_id
    at = bounds[:-1] + 1
    for number, (side, length) in enumerate(zip(sides, left, strict=True)):
        content, end = flat_ranges(at, length), at + length
        ids[content] = side.ids[flat_ranges(side.first, length)]
        types[content] = types[end] = number
        at = end + 1  # past its [SEP]
    items = len(lengths) // width
    cut = np.sum(given, axis=0) > room
    return Encoded(
        input_ids=ids,
        token_type_ids=types,
        lengths=lengths,
        example_ids=np.repeat(np.arange(items), width),
        positions=np.zeros(len(lengths), dtype=np.int32),
        position_counts=np.ones(len(lengths), dtype=np.int64),
        labels=targets,
        label_counts=np.full(items, int(len(targets) > 0)),
        sequences_per_item=width,
        truncated=int(np.count_nonzero(cut.reshape(items, width).any(1))),
    )


# --- the two kinds


@dataclass(frozen=True)
class TextTask(Task[TextExample[L], P], Generic[L, P]):
    """What both kinds share: how their tables are read, and how their texts become sequences."""

    text: str = "text"
    """Column with the text; a number counts from 1 in files without header."""
    text_pair: str | None = None
    """Column with the second text of a pair."""
    label: str = "label"
    """Column with the label, or with the number."""
    header: bool = True
    """Does the first line of .tsv, .csv and .txt name the columns?"""
    quotes: bool | None = None
    """Do quotes enclose fields? Unset: in .csv they do; in .tsv and .txt they are plain characters."""
    max_length: int = 128
    """Longest sequence in tokens, [CLS] and [SEP] included; of a longer pair the longer text is cut first."""
    max_short_rows: int = 0
    """Labelled rows with too few columns that may be left out, since a published file is known to have them."""

    def __post_init__(self) -> None:
        named = [column for column in (self.text, self.text_pair, self.label) if column is not None]
        if twice := [column for column in named if named.count(column) > 1]:
            raise ValueError(f"text, pair and label: {twice[0]!r} is named twice; each needs a column of its own")
        least = 3 if self.text_pair is None else 5
        if self.max_length < least:
            raise ValueError(f"max_length = {self.max_length}: at least {least}, [CLS] and [SEP] included")

    @abstractmethod
    def parse_label(self, value: Any, place: str) -> L:
        """What a file says is to be found. Raises ValueError, naming the place, where it says nothing of the sort."""

    @abstractmethod
    def encode_labels(self, examples: Sequence[TextExample[L]]) -> npt.NDArray[Any]:
        """N, what the head should say. Raises ValueError, naming the place, for what it could not say."""

    def read(self, path: str, labelled: bool = True) -> Iterator[TextExample[L]]:
        for place, values in read_rows(path, self._columns(labelled)):
            pair = None if self.text_pair is None else values[1]
            yield TextExample(values[0], pair, self.parse_label(values[-1], place) if labelled else None, place)

    @property
    def of_one_text(self) -> bool:
        return self.text_pair is None

    def examples_from_texts(self, texts: Sequence[str], place: str) -> list[TextExample[L]]:
        if self.text_pair is None:
            return [TextExample(text, None, None, place) for text in texts]
        if len(texts) != 2:
            raise ValueError(f"this task is about pairs: give two texts, not {len(texts)}")
        return [TextExample(texts[0], texts[1], None, place)]

    def _columns(self, labelled: bool) -> TableSchema:
        texts = (self.text,) if self.text_pair is None else (self.text, self.text_pair)
        hint = "choose columns with --text, --text-pair and --label"
        # Whoever asks for predictions counts on one for each row.
        label, max_short_rows = ((self.label,), self.max_short_rows) if labelled else ((), 0)
        return TableSchema(texts, label, self.header, self.quotes, hint, max_short_rows=max_short_rows)

    def beside(self, columns: Sequence[str], hint: str) -> TableSchema:
        return TableSchema((), tuple(columns), self.header, self.quotes, hint, nulls=True)

    def left_out(self, path: str) -> list[str]:
        return skipped_rows_note(path, self._columns(labelled=True))

    def check(self, examples: Sequence[TextExample[L]]) -> None:
        self.encode_labels(examples)

    def encode(self, examples: Sequence[TextExample[L]], tokenizer: Tokenizer, labelled: bool = True) -> Encoded:
        for example in examples:
            if (example.text_pair is None) != (self.text_pair is None):
                expected, found = ("one text", "a pair") if self.text_pair is None else ("a pair of texts", "one text")
                raise ValueError(f"{example.location}: {expected} expected by this task, {found} found")
        sides = [SegmentTokens.of([example.text for example in examples], tokenizer)]
        if self.text_pair is not None:
            sides.append(SegmentTokens.of([example.text_pair or "" for example in examples], tokenizer))
        return encode_segments(sides, self.encode_labels(examples if labelled else ()), tokenizer, self.max_length)

    def group_keys(self, examples: Sequence[TextExample[L]]) -> Sequence[Hashable]:
        return [(example.text, example.text_pair) for example in examples]  # a copy across would be known by heart

    def notes(self, examples: Sequence[TextExample[L]]) -> list[str]:
        empty = empty_texts(examples)
        found = [f"{empty:,} examples have an empty text: [CLS] and [SEP] are all that is read of it"] if empty else []
        if written := sum(SEP in example.text or SEP in (example.text_pair or "") for example in examples):
            advice = "" if self.text_pair else "; a pair's second text needs a column of its own"
            found.append(f"{written:,} examples have {SEP} written in a text: it is read as letters{advice}")
        return found

    def varied(self, examples: Sequence[TextExample[L]]) -> set[L]:
        """All that is to be found in the examples. Raises ValueError where it is one thing only: nothing to learn."""
        if not examples:
            raise ValueError("no examples to learn from")
        found = set(known_labels(examples))
        if len(found) < 2:
            raise ValueError(
                f"{examples[0].location}: from there on all examples ({len(examples):,}) have the same in {self.label!r}: "
                f"{examples[0].label!r}; at least two different ones are needed"
            )
        return found


class LabelPrediction(NamedTuple):
    """What a text was taken for."""

    label: str
    probabilities: dict[str, float]
    """Of every label, in the order of the task's labels; their sum is 1."""


CLASSIFICATION_METRICS = ("accuracy", "f1", "macro_f1", "matthews")
REGRESSION_METRICS = ("spearman", "pearson")


@dataclass(frozen=True)
class Classification(TextTask[str, LabelPrediction]):
    """Which of some labels does a text, or a pair of texts, have?"""

    kind: ClassVar[str] = "classification"

    metric: str = "accuracy"
    """The score that chooses: accuracy, f1 (of the positive one of two labels), macro_f1 or matthews."""
    pos_label: str | None = None
    """The label whose F1 is meant; unset: the last one."""
    labels: tuple[str, ...] = ()
    """All labels, in the order of the head's outputs; unset: those of the training data, sorted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_metric(self.metric, CLASSIFICATION_METRICS)
        if not self.labels:  # not fitted yet
            return
        if len(set(self.labels)) < len(self.labels) or len(self.labels) < 2:
            raise ValueError(f"labels = {listed(self.labels)}: two or more are needed, all different")
        if self.pos_label is not None and self.pos_label not in self.labels:
            raise ValueError(f"pos_label = {self.pos_label!r} is none of the labels: {listed(self.labels)}")
        if self.metric == "f1" and len(self.labels) > 2:
            raise ValueError(f"metric = 'f1' is for two labels, not for {len(self.labels)}; set it to macro_f1")

    @property
    def head(self) -> HeadSpec:
        if not self.labels:
            raise ValueError("the labels are not known yet: fit the task on training examples first")
        return HeadSpec("sequence", len(self.labels))

    @property
    def label_names(self) -> tuple[str, ...]:
        return self.labels

    def parse_label(self, value: Any, place: str) -> str:
        return label_text(value, self.label, place)

    def with_labels_of(self, examples: Sequence[TextExample[str]]) -> Self:
        """This task with the labels of the examples: sorted as text or, if all are numbers, as numbers."""
        found = self.varied(examples)
        for label in found:
            if (bare := label.strip()) != label and bare in found:
                place = next(example.location for example in examples if example.label == label)
                raise ValueError(f"{place}: the labels {label!r} and {bare!r} differ in white space alone; mend it")
        return replace(self, labels=self.labels or tuple(sorted(found, key=_order(found))))

    def encode_labels(self, examples: Sequence[TextExample[str]]) -> Ints:
        numbers = {label: number for number, label in enumerate(self.labels)}
        labels = known_labels(examples)
        for example, label in zip(examples, labels, strict=True):
            if label not in numbers:
                raise ValueError(
                    f"{example.location}: the label {label!r} is not one of the training data: {listed(self.labels)}"
                )
        return np.array([numbers[label] for label in labels], dtype=np.int64)

    def score_notes(self, examples: Sequence[TextExample[str]]) -> list[str]:
        found = set(known_labels(examples))
        if self.metric == "f1" and self._positive not in found:
            return [f"no example has the label {self._positive!r}, whose f1 is 0 whatever a model says"]
        if self.metric == "matthews" and len(found) == 1:
            return [f"all examples have the label {found.pop()!r}: matthews is 0 whatever a model says"]
        return []

    @property
    def _positive(self) -> str:
        """The label whose F1 is meant."""
        return self.labels[-1] if self.pos_label is None else self.pos_label

    def loss(self, logits: Tensor, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        return F.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=smoothing)

    def decode(self, examples: Sequence[TextExample[str]], encoded: Encoded, outputs: Outputs) -> list[LabelPrediction]:
        probabilities = softmax(outputs)
        best = probabilities.argmax(1).tolist()
        return [
            LabelPrediction(self.labels[number], dict(zip(self.labels, row, strict=True)))
            for number, row in zip(best, probabilities.tolist(), strict=True)
        ]

    def score(self, examples: Sequence[TextExample[str]], predictions: Sequence[LabelPrediction]) -> dict[str, float]:
        truth, found = known_labels(examples), [prediction.label for prediction in predictions]
        results = {"accuracy": scores.accuracy(truth, found)}
        if len(self.labels) == 2:
            results["f1"] = scores.f1(truth, found, self._positive)
        return results | {"macro_f1": scores.macro_f1(truth, found), "matthews": scores.matthews(truth, found)}

    def details(
        self, examples: Sequence[TextExample[str]], predictions: Sequence[LabelPrediction]
    ) -> list[DisplayTable]:
        """What each label's examples were taken for."""
        if len(self.labels) > LABELS_IN_TABLE:
            return []
        counts = Counter(zip(known_labels(examples), (one.label for one in predictions), strict=True))
        rows = []
        for right in self.labels:
            row = [counts[right, guess] for guess in self.labels]
            recall = counts[right, right] / max(sum(row), 1)
            rows.append((right, *(f"{number:,}" for number in row), percent(recall)))
        return [DisplayTable(("label (rows) taken for", *self.labels, "recall"), rows)]

    def record(self, example: TextExample[str], prediction: LabelPrediction) -> dict[str, Any]:
        shares = {f"p({label})": share for label, share in prediction.probabilities.items()}
        return {"label": prediction.label, "probability": prediction.probabilities[prediction.label]} | shares

    def shown(self, found: Sequence[tuple[TextExample[str], LabelPrediction]]) -> list[DisplayTable]:
        rows = [(example.line, one.label, f"{one.probabilities[one.label]:.1%}") for example, one in found]
        return [DisplayTable(("text", "label", "probability"), rows)]


@dataclass(frozen=True)
class Regression(TextTask[float, float]):
    """Which number belongs to a text, or to a pair of texts?"""

    kind: ClassVar[str] = "regression"

    metric: str = "spearman"
    """The score that chooses: spearman or pearson."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_metric(self.metric, REGRESSION_METRICS)

    @property
    def head(self) -> HeadSpec:
        return HeadSpec("sequence", 1)

    def parse_label(self, value: Any, place: str) -> float:
        text = label_text(value, self.label, place)
        number = _number(text)
        if number is None:
            raise ValueError(f"{place}: a finite number expected in {self.label!r}, {text!r} found")
        return number

    def with_labels_of(self, examples: Sequence[TextExample[float]]) -> Self:
        self.varied(examples)
        return self

    def check(self, examples: Sequence[TextExample[float]]) -> None:
        super().check(examples)
        if len(found := set(known_labels(examples))) == 1:
            reason = (
                "as are all others, and no score tells anything; test files that are published without their numbers "
                "look like that"
            )
            if len(examples) == 1:
                reason = "and there is no other: correlations need two at least"
            raise ValueError(f"{examples[0].location}: this number is {found.pop():g}, {reason}")

    def encode_labels(self, examples: Sequence[TextExample[float]]) -> Outputs:
        found = np.array(known_labels(examples), dtype=np.float64)
        if odd := np.flatnonzero(~(np.abs(found) <= LARGEST)).tolist():
            raise ValueError(f"{examples[odd[0]].location}: a finite number expected, {found[odd[0]]} found")
        return found.astype(np.float32)

    def loss(self, logits: Tensor, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        """Sum of squared errors. Raises ValueError for a smoothing: numbers have none."""
        if smoothing:
            raise ValueError(f"label smoothing = {smoothing}: a regression has no labels to smooth; set it to 0")
        return F.mse_loss(logits.squeeze(1), batch.labels, reduction="sum")

    def decode(self, examples: Sequence[TextExample[float]], encoded: Encoded, outputs: Outputs) -> list[float]:
        numbers: list[float] = outputs[:, 0].tolist()
        return numbers

    def score(self, examples: Sequence[TextExample[float]], predictions: Sequence[float]) -> dict[str, float]:
        truth = known_labels(examples)
        return {
            "spearman": scores.spearman(truth, predictions),
            "pearson": scores.pearson(truth, predictions),
            "mse": scores.mean_squared_error(truth, predictions),
        }

    def record(self, example: TextExample[float], prediction: float) -> dict[str, Any]:
        return {"score": prediction}

    def shown(self, found: Sequence[tuple[TextExample[float], float]]) -> list[DisplayTable]:
        return [DisplayTable(("text", "score"), [(example.line, f"{number:.3f}") for example, number in found])]


# --- what the kinds share


class Labelled(Protocol[L_co]):
    """An example of any kind that has one label, or none yet."""

    @property
    def label(self) -> L_co | None: ...

    @property
    def location(self) -> str: ...


def known_labels(examples: Sequence[Labelled[L]]) -> list[L]:
    """What is to be found, of every example. Raises ValueError, naming the place, where that is not known."""
    labels = [example.label for example in examples if example.label is not None]
    if len(labels) < len(examples):
        place = next(example.location for example in examples if example.label is None)
        raise ValueError(f"{place}: the label is not known, but needed here")
    return labels


def listed(labels: Sequence[str]) -> str:
    """Labels in a message: the first of them, where they are many."""
    shown = ", ".join(map(repr, labels[:SHOWN_LABELS]))
    return shown if len(labels) <= SHOWN_LABELS else f"{shown} … ({len(labels)} in all)"


def _number(text: str) -> float | None:
    """The finite number that a text spells, of the size that a float32 holds; None where it spells none."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) <= LARGEST else None


def _order(labels: set[str]) -> Callable[[str], tuple[float, str]]:
    """How labels are sorted: as numbers if all of them are, else as text."""
    numeric = all(_number(label) is not None for label in labels)
    return lambda label: (float(label) if numeric else 0.0, label)
