"""Multiple choice (section 4.4): one score per ending, from the pooled [CLS] state of prompt and ending.

N examples with W endings each; S = N · W sequences [CLS] prompt [SEP] ending [SEP], example by example.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from statistics import mode
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np

from bertwright.base.messages import count_of
from bertwright.metrics import scores
from bertwright.metrics.example_scores import ExampleScores
from bertwright.models.head_spec import HeadSpec
from bertwright.tables.dialects import check_dialect
from bertwright.tables.schema import TableSchema
from bertwright.tables.tables import format_label, parse_number, read_rows
from bertwright.tasks.encoded import Encoded, Floats, Outputs
from bertwright.tasks.score_formats import DisplayTable
from bertwright.tasks.table_task import WITHOUT_HEADER, TableTask
from bertwright.tasks.task import (
    LEARNED,
    check_metric,
    log_softmax_of_groups,
    score_each,
    softmax,
    sum_cross_entropy,
)
from bertwright.tasks.text_task import known_labels
from bertwright.tasks.truncation import SegmentTokens, encode_segments
from bertwright.vocabulary.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.interop.head_config import HeadRecord
    from bertwright.models.heads import TaskBatch

ROWS_SHOWN = 200  # rows that show the usual number of endings


class ChoiceExample(NamedTuple):
    """A prompt and its possible endings."""

    prompt: str
    endings: tuple[str, ...]
    """At least two; each includes the text that begins all of them."""
    label: int | None
    """Index of the right ending, from 0; None if unknown."""
    location: str
    """File and line, for messages."""


class ChoicePrediction(NamedTuple):
    """The most probable ending."""

    choice: int
    """Index of the ending, from 0."""
    probabilities: tuple[float, ...]
    """Probability of each ending; their sum is 1."""

    @property
    def probability(self) -> float:
        return self.probabilities[self.choice]


Examples = Sequence[ChoiceExample]
Predictions = Sequence[ChoicePrediction]


@dataclass(frozen=True)
class MultipleChoice(TableTask[ChoiceExample, ChoicePrediction]):
    """The ending that continues a prompt, out of several."""

    kind: ClassVar[str] = "multiple-choice"
    inference_call: ClassVar[str] = "choose(prompt, endings)"
    dialect_parts: ClassVar[tuple[str, ...]] = ("labels", "json", "rows")
    head: ClassVar[HeadSpec] = HeadSpec("choice", 1)
    num_segments: ClassVar[int] = 2

    prompt: str = "prompt"
    """Column with the prompt; a number counts from 1 in files without header."""
    start: str | None = None
    """Column whose text begins every ending, such as SWAG's sent2; unset: none."""
    endings: tuple[str, ...] = ("ending0", "ending1", "ending2", "ending3")
    """Columns with the endings, or one column with a list of them, texts or objects with a text (.jsonl, .json,
    .parquet)."""
    label: str = "label"
    """Column with the number of the right ending, or with its letter (A for the first); or the one of --endings that
    always holds the right one."""
    first_label: int = 0
    """Number of the first ending in the label column: 0 or 1."""
    dialect: str | None = None
    """Layout of all files: {dialects}, or plain for files as they stand; unset: recognized in a file that lacks
    columns, with a warning (docs/dialects.md)."""
    max_length: int = 128
    """Longest sequence in tokens, [CLS] and [SEP] included; of two segments, the longer one is truncated first."""
    metric: str = "accuracy"
    """Score that selects the best checkpoint: accuracy."""
    pooling: tuple[str, ...] = field(default=(), metadata=LEARNED)
    """Modes in which the head pools the states of all tokens; empty: it reads the pooler's output for [CLS]."""

    def __post_init__(self) -> None:
        named = [self.prompt, *self.endings, *(() if self.start is None else (self.start,))]
        named += [] if self.label_is_ending else [self.label]
        if twice := [column for column in named if named.count(column) > 1]:
            raise ValueError(
                f"prompt, start, endings, label: {twice[0]!r} is named twice; name a different column for each"
            )
        super().__post_init__()
        check_dialect(self.dialect, self.dialect_parts)
        if not self.endings:
            raise ValueError("endings is empty: name the columns with the endings, or one that holds a list of them")
        if self.first_label not in (0, 1):
            raise ValueError(f"first_label = {self.first_label}: expected 0 or 1")
        if self.max_length < 5:
            raise ValueError(f"max_length = {self.max_length}: at least 5, [CLS] and [SEP] included")
        check_metric(self.metric, ("accuracy",))

    @property
    def label_is_ending(self) -> bool:
        """Whether the label names a column of endings, as in SciQ, instead of a column with numbers."""
        return len(self.endings) > 1 and self.label in self.endings

    @classmethod
    def from_head(cls, record: HeadRecord, max_positions: int) -> Self | None:
        return cls(max_length=max_positions) if record.head.kind == "choice" else None

    def read(self, path: str, labeled: bool = True) -> Iterator[ChoiceExample]:
        offset = 1 if self.start is None else 2
        read = read_rows(path, self._schema(labeled))
        rows = ((location, row, self._endings_in(row[offset:], location)) for location, row in read)
        shown = list(islice(rows, ROWS_SHOWN))
        # The usual number of endings, if nearly all have it: a few questions of ARC have three or five.
        numbers = [len(endings) for _, _, endings in shown]
        usual = mode(numbers)
        is_usual = 10 * sum(number != usual for number in numbers) <= len(numbers)
        count = usual if is_usual else numbers[0]
        first, left_out = "", list[str]()
        for location, row, endings in chain(shown, rows):
            if labeled and is_usual and len(endings) not in (0, 1, count):
                left_out.append(location)
                continue
            first = first or location
            _check_number_of_endings(endings, location, count, first)
            begin = "" if self.start is None else f"{row[1]} "
            choice: int | None = None
            if labeled and self.label_is_ending:
                choice = self.endings.index(self.label)
            elif labeled:
                keys, key = _keys_of(row[offset]), row[-1]
                choice = self._find_key(key, keys, location) if keys else self._parse_choice(key, count, location)
            yield ChoiceExample(row[0], tuple(begin + ending for ending in endings), choice, location)
        if left_out:
            unread = count_of(len(left_out), "row", "rows")
            text = f"{unread} left out: expected {count} endings ({left_out[0]})"
            warnings.warn(f"{path}: {text}", stacklevel=1)

    def examples_from_texts(self, texts: Sequence[str], location: str) -> list[ChoiceExample]:
        if len(texts) < 3:
            raise ValueError("multiple choice: give a prompt and at least two endings")
        return [ChoiceExample(texts[0], tuple(texts[1:]), None, location)]

    def _schema(self, labeled: bool) -> TableSchema:
        texts: tuple[str, ...] = (self.prompt,) if self.start is None else (self.prompt, self.start)
        values: tuple[str, ...] = (self.label,) if labeled and not self.label_is_ending else ()
        texts, values = (texts, self.endings + values) if len(self.endings) == 1 else (texts + self.endings, values)
        hint = f"choose columns with --prompt, --start, --endings and --label{WITHOUT_HEADER}"
        others = {"hint": hint, "dialect": self.dialect, "in_parallel": True, "keep_label_ids": True}
        return self.make_schema(texts, values, label="" if self.label_is_ending else self.label, **others)

    def passthrough_schema(self, columns: Sequence[str], hint: str) -> TableSchema:
        others = {"hint": hint, "dialect": self.dialect, "in_parallel": True, "allow_nulls": True}
        return self.make_schema((), tuple(columns), **others)

    def _endings_in(self, values: Sequence[Any], location: str) -> Sequence[str]:
        """Return the endings of a row; `values`: of the columns after the texts that begin them."""
        if len(self.endings) > 1:
            return values[: len(self.endings)]
        value = values[0]
        if isinstance(value, list) and all(isinstance(ending, dict) and "text" in ending for ending in value):
            value = [ending["text"] for ending in value]  # as CommonsenseQA publishes its choices
        if not isinstance(value, list) or not all(isinstance(ending, str) for ending in value):
            raise ValueError(
                f"{location}: expected a list of strings in {self.endings[0]!r}; if they are in separate columns, "
                "name all of them with --endings"
            )
        return value

    def _find_key(self, value: Any, keys: list[str], location: str) -> int:
        """Return the index of the ending whose own label is the given one, as in ARC, whose labels are A or 1."""
        text = format_label(value, self.label, location)
        if text not in keys:
            raise ValueError(
                f"{location}: expected a label of the endings, {', '.join(keys)}, got {text!r}; fix the row"
            )
        return keys.index(text)

    def _parse_choice(self, value: Any, count: int, location: str) -> int:
        """Parse the index of the right ending, from 0."""
        text = format_label(value, self.label, location)
        if len(text) == 1 and text in ascii_uppercase[:count]:
            return ascii_uppercase.index(text)
        known = range(self.first_label, self.first_label + count)
        number = parse_number(text)  # "2.0": integers in a column with missing values, as pandas writes them
        if number not in known:
            hint = "; if endings are counted from 1, set --first-label 1" if number == count else ""
            raise ValueError(
                f"{location}: expected the number of the right ending in {self.label!r}, {known[0]} to {known[-1]}, "
                f"got {text!r}{hint}"
            )
        assert number is not None
        return int(number) - self.first_label

    def with_labels_of(self, examples: Examples) -> Self:
        """Return the task unchanged: the score of an ending does not depend on its index."""
        if not examples:
            raise ValueError("no examples to learn from")
        return self

    def check(self, examples: Examples) -> None:
        known_labels(examples)

    def warnings(self, examples: Examples, paths: Sequence[str] = ()) -> list[str]:
        is_counted = self.first_label == 0 and not self.label_is_ending
        if is_counted and len(examples) > 20 and all(example.label for example in examples):
            return ["the first ending is never the right one; if endings are counted from 1, set --first-label 1"]
        return []

    def group_keys(self, examples: Examples) -> Sequence[Hashable]:
        return [example.prompt for example in examples]

    def texts(self, examples: Examples) -> Iterator[str]:
        return (text for example in examples for text in (example.prompt, *example.endings))

    def encode(self, examples: Examples, tokenizer: TextTokenizer, labeled: bool = True) -> Encoded:
        count, first = len(examples[0].endings), examples[0].location
        for example in examples:
            _check_number_of_endings(example.endings, example.location, count, first)
        prompts = SegmentTokens.of([example.prompt for example in examples], tokenizer).repeat(count)
        endings = SegmentTokens.of([ending for example in examples for ending in example.endings], tokenizer)
        labels = np.array(known_labels(examples) if labeled else [], dtype=np.int64)
        return encode_segments([prompts, endings], labels, tokenizer, self.max_length, count)

    def loss(self, logits: Tensor, /, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        scores_of_items = logits.view(len(batch.labels), -1)  # N · W × 1 -> N × W
        return sum_cross_entropy(scores_of_items, batch.labels, smoothing)

    def frequent_outputs(self, train: Encoded, encoded: Encoded) -> Outputs:
        counts = np.bincount(train.labels, minlength=int(encoded.item_counts[0])).astype(np.float32)
        return np.tile(counts, encoded.num_items)[:, None]  # N · W × 1

    def decode(self, examples: Examples, encoded: Encoded, outputs: Outputs) -> list[ChoicePrediction]:
        probabilities = softmax(outputs.reshape(len(examples), -1))
        best = probabilities.argmax(1).tolist()
        return [ChoicePrediction(choice, tuple(row)) for choice, row in zip(best, probabilities.tolist(), strict=True)]

    def log_probabilities(self, outputs: Floats, encoded: Encoded) -> Floats:
        return log_softmax_of_groups(outputs, encoded.item_counts)

    def score(self, examples: Examples, predictions: Predictions) -> dict[str, float]:
        return {"accuracy": scores.accuracy(known_labels(examples), [prediction.choice for prediction in predictions])}

    def example_scores(self, examples: Examples, predictions: Predictions) -> ExampleScores:
        return score_each(self, examples, predictions)

    def to_record(self, example: ChoiceExample, prediction: ChoicePrediction) -> dict[str, Any]:
        """Convert a choice; endings are counted from `first_label`, also if the labels are letters."""
        shares = {f"p({number})": share for number, share in enumerate(prediction.probabilities, self.first_label)}
        return {"choice": prediction.choice + self.first_label, "probability": prediction.probability} | shares

    def is_right(self, example: ChoiceExample, prediction: ChoicePrediction) -> bool:
        return example.label is None or prediction.choice == example.label

    def gold_columns(self, example: ChoiceExample) -> dict[str, Any]:
        gold = None if example.label is None else example.label + self.first_label
        return {
            "location": example.location, "prompt": example.prompt, "endings": list(example.endings), "gold": gold,
        }  # fmt: skip

    def show(self, example: ChoiceExample) -> dict[str, str]:
        """Return the prompt and each ending, of which the right one is marked."""
        endings = {
            f"ending {number + self.first_label}{', right' if number == example.label else ''}": ending
            for number, ending in enumerate(example.endings)
        }
        return {"location": example.location, "prompt": example.prompt} | endings

    def count_gold(self, examples: Examples) -> Mapping[str, int]:
        return Counter(f"ending {label + self.first_label}" for label in sorted(known_labels(examples)))

    def display(self, predicted: Sequence[tuple[ChoiceExample, ChoicePrediction]]) -> list[DisplayTable]:
        tables = []
        for example, prediction in predicted:
            shares = [f"{share:.1%}" for share in prediction.probabilities]
            rows = list(zip(example.endings, shares, strict=True))
            tables.append(DisplayTable(("ending", "probability"), rows, heading=example.endings[prediction.choice]))
        return tables

    def check_writable(self, examples: Iterable[ChoiceExample], suffix: str) -> Iterator[ChoiceExample]:
        """Yield the examples. Raises ValueError unless all have the same number of endings."""
        count = 0
        for example in examples:
            endings = len(example.endings)
            count = count or endings
            if endings != count:  # `read` has checked this within each file
                raise ValueError(f"{example.location}: expected {count} endings, as in the file before, got {endings}")
            yield example


def _keys_of(endings: Any) -> list[str]:
    """Return the labels of endings that are objects with a text and a label each; none for others.

    >>> _keys_of([{"text": "a mill", "label": "A"}, {"text": "a river", "label": "B"}]), _keys_of(["a mill"])
    (['A', 'B'], [])
    """
    objects = [ending for ending in endings if isinstance(ending, dict)] if isinstance(endings, list) else []
    keys = [str(ending["label"]) for ending in objects if "label" in ending]
    return keys if len({*keys}) == len(keys) == len(endings) > 0 else []


def _check_number_of_endings(endings: Sequence[str], location: str, count: int, first: str) -> None:
    """Raise ValueError for fewer than two endings, or for more or fewer than the `count` of the example at `first`."""
    if len(endings) < 2:
        raise ValueError(f"{location}: expected at least two endings, got {len(endings)}")
    if len(endings) != count:
        raise ValueError(
            f"{location}: expected {count} endings, as in {first}, got {len(endings)}; put examples with another "
            "number of endings into a file of their own, and predict each file separately"
        )
