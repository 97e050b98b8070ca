"""Multiple choice (section 4.4): which of several endings follows? One score an ending, from one vector C.

N examples of W endings each; S = N · W sequences [CLS] prompt [SEP] ending [SEP], side by side where they belong
together.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from bertwright.io.tables import TableSchema, label_text, read_rows
from bertwright.metrics import scores
from bertwright.models.heads import HeadSpec
from bertwright.tasks.classification import SegmentTokens, encode_segments, known_labels
from bertwright.tasks.task import DisplayTable, Encoded, Outputs, Task, TaskBatch, check_metric, softmax
from bertwright.vocabulary.tokenizer import Tokenizer


class ChoiceExample(NamedTuple):
    """A prompt and what may follow it."""

    prompt: str
    endings: tuple[str, ...]
    """Two or more; each whole, with the text that begins all of them."""
    label: int | None
    """Place of the right ending, from 0; None where it is not known."""
    location: str
    """Where it comes from, for messages: "file, line 3"."""


class ChoicePrediction(NamedTuple):
    """The ending that was chosen."""

    choice: int
    """Its place, from 0."""
    probabilities: tuple[float, ...]
    """Of every ending; their sum is 1."""


@dataclass(frozen=True)
class MultipleChoice(Task[ChoiceExample, ChoicePrediction]):
    """Which of several endings follows a prompt?"""

    kind: ClassVar[str] = "multiple-choice"

    prompt: str = "prompt"
    """Column with what is continued; a number counts from 1 in files without header."""
    start: str | None = None
    """Column whose text begins every ending, as SWAG's sent2."""
    endings: tuple[str, ...] = ("ending0", "ending1", "ending2", "ending3")
    """Columns with the endings, or one column that holds a list of them (.jsonl, .parquet)."""
    label: str = "label"
    """Column with the number of the right ending, or with its letter, A for the first."""
    first_label: int = 0
    """Number of the first ending, 0 or 1."""
    header: bool = True
    """Does the first line of .tsv, .csv and .txt name the columns?"""
    quotes: bool | None = None
    """Do quotes enclose fields? Unset: in .csv they do; in .tsv and .txt they are plain characters."""
    max_length: int = 128
    """Longest sequence in tokens, [CLS] and [SEP] included; of prompt and ending the longer one is cut first."""
    metric: str = "accuracy"
    """The score that chooses: accuracy."""

    def __post_init__(self) -> None:
        named = [self.prompt, *self.endings, self.label, *(() if self.start is None else (self.start,))]
        if twice := [column for column in named if named.count(column) > 1]:
            raise ValueError(
                f"prompt, start, endings and label: {twice[0]!r} is named twice; each needs its own column"
            )
        if not self.endings:
            raise ValueError("endings is empty: name the columns with the endings, or one that holds a list of them")
        if self.first_label not in (0, 1):
            raise ValueError(f"first_label = {self.first_label}: endings are counted from 0 or from 1")
        if self.max_length < 5:
            raise ValueError(f"max_length = {self.max_length}: at least 5, [CLS] and [SEP] included")
        check_metric(self.metric, ("accuracy",))

    @property
    def head(self) -> HeadSpec:
        return HeadSpec("choice", 1)

    def read(self, path: str, labelled: bool = True) -> Iterator[ChoiceExample]:
        in_list = len(self.endings) == 1
        before = (self.prompt,) if self.start is None else (self.prompt, self.start)
        label = (self.label,) if labelled else ()
        texts, values = (before, self.endings + label) if in_list else (before + self.endings, label)
        hint = "choose columns with --prompt, --start, --endings and --label"
        columns = TableSchema(texts, values, self.header, self.quotes, hint, codes=True)
        at, width, first = len(before), 0, ""
        for place, row in read_rows(path, columns):
            begin = "" if self.start is None else f"{row[1]} "
            found = self._list(row[at], place) if in_list else row[at : at + len(self.endings)]
            width, first = width or len(found), first or place
            _check_width(found, place, width, first)
            number = self._number(row[-1], width, place) if labelled else None
            yield ChoiceExample(row[0], tuple(begin + ending for ending in found), number, place)

    def examples_from_texts(self, texts: Sequence[str], place: str) -> list[ChoiceExample]:
        if len(texts) < 3:
            raise ValueError("multiple choice takes a prompt and two endings or more")
        return [ChoiceExample(texts[0], tuple(texts[1:]), None, place)]

    def beside(self, columns: Sequence[str], hint: str) -> TableSchema:
        return TableSchema((), tuple(columns), self.header, self.quotes, hint, nulls=True)

    def predictable(self, examples: Iterable[ChoiceExample], form: str) -> Iterator[ChoiceExample]:
        width = 0
        for example in examples:
            found = len(example.endings)
            width = width or found
            if found != width:  # which within one file `read` has refused
                raise ValueError(f"{example.location}: {width} endings expected, as in the file before, {found} found")
            yield example

    def _list(self, value: Any, place: str) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(ending, str) for ending in value):
            raise ValueError(
                f"{place}: a list of strings expected in {self.endings[0]!r}; endings in columns of their own need the "
                "names of all these columns"
            )
        return value

    def _number(self, value: Any, width: int, place: str) -> int:
        """Place of the right ending, from 0, as a file says it."""
        text = label_text(value, self.label, place)
        if len(text) == 1 and text in ascii_uppercase[:width]:
            return ascii_uppercase.index(text)
        known = range(self.first_label, self.first_label + width)
        try:
            number = float(text)  # "2.0" is what becomes of whole numbers in a column with a gap
        except ValueError:
            number = math.nan
        if number not in known:
            hint = "; are they counted from 1? Set first_label to 1" if number == width else ""
            raise ValueError(
                f"{place}: the right ending's number expected in {self.label!r}, {known[0]} to {known[-1]}, "
                f"{text!r} found{hint}"
            )
        return int(number) - self.first_label

    def with_labels_of(self, examples: Sequence[ChoiceExample]) -> Self:
        """This task: an ending's score does not depend on its place, so there is nothing to find out."""
        if not examples:
            raise ValueError("no examples to learn from")
        return self

    def check(self, examples: Sequence[ChoiceExample]) -> None:
        known_labels(examples)

    def notes(self, examples: Sequence[ChoiceExample]) -> list[str]:
        if self.first_label == 0 and len(examples) > 20 and all(example.label for example in examples):
            return ["no right ending is the first one; are they counted from 1? (--first-label 1)"]
        return []

    def group_keys(self, examples: Sequence[ChoiceExample]) -> Sequence[Hashable]:
        return [example.prompt for example in examples]

    def encode(self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer, labelled: bool = True) -> Encoded:
        width, first = len(examples[0].endings), examples[0].location
        for example in examples:
            _check_width(example.endings, example.location, width, first)
        prompts = SegmentTokens.of([example.prompt for example in examples], tokenizer).repeated(width)
        endings = SegmentTokens.of([ending for example in examples for ending in example.endings], tokenizer)
        targets = np.array(known_labels(examples) if labelled else [], dtype=np.int64)
        return encode_segments([prompts, endings], targets, tokenizer, self.max_length, width)

    def loss(self, logits: Tensor, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        of_items = logits.view(len(batch.labels), -1)  # N · W × 1 -> N × W
        return F.cross_entropy(of_items, batch.labels, reduction="sum", label_smoothing=smoothing)

    def decode(self, examples: Sequence[ChoiceExample], encoded: Encoded, outputs: Outputs) -> list[ChoicePrediction]:
        shares = softmax(outputs.reshape(-1, encoded.sequences_per_item))
        best = shares.argmax(1).tolist()
        return [ChoicePrediction(choice, tuple(row)) for choice, row in zip(best, shares.tolist(), strict=True)]

    def score(self, examples: Sequence[ChoiceExample], predictions: Sequence[ChoicePrediction]) -> dict[str, float]:
        return {"accuracy": scores.accuracy(known_labels(examples), [prediction.choice for prediction in predictions])}

    def record(self, example: ChoiceExample, prediction: ChoicePrediction) -> dict[str, Any]:
        """The choice, counted from `first_label` (where labels are letters, too), and every ending's probability."""
        shares = {f"p({number})": share for number, share in enumerate(prediction.probabilities, self.first_label)}
        best = prediction.probabilities[prediction.choice]
        return {"choice": prediction.choice + self.first_label, "probability": best} | shares

    def shown(self, found: Sequence[tuple[ChoiceExample, ChoicePrediction]]) -> list[DisplayTable]:
        tables = []
        for example, chosen in found:
            shares = [f"{share:.1%}" for share in chosen.probabilities]
            rows = list(zip(example.endings, shares, strict=True))
            tables.append(DisplayTable(("ending", "probability"), rows, heading=example.endings[chosen.choice]))
        return tables


def _check_width(endings: Sequence[str], place: str, width: int, first: str) -> None:
    """Raise ValueError for endings that are too few, or not as many as in the first example, whose place is `first`."""
    if len(endings) < 2:
        raise ValueError(f"{place}: two endings or more expected, {len(endings)} found")
    if len(endings) != width:
        raise ValueError(
            f"{place}: {width} endings expected, as in the examples before, {len(endings)} found; {first} set the "
            "number: examples with another one need a file of their own, and each file is predicted by itself"
        )
