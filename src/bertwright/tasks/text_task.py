"""Tasks on texts and pairs of texts, which are read from tables: what classification and regression share.

N examples, one sequence each.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy.typing as npt

from bertwright.base.messages import count_of
from bertwright.models.head_spec import HeadSpec
from bertwright.models.pooling import describe_pooling
from bertwright.tables.dialects import check_dialect
from bertwright.tables.label_dialects import labels_of_annotation
from bertwright.tables.schema import TableSchema, leave_out_rows
from bertwright.tables.tables import count_skipped_rows, read_rows
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.table_task import WITHOUT_HEADER, TableTask
from bertwright.tasks.task import LEARNED, count_labels
from bertwright.tasks.truncation import SegmentTokens, encode_both_orders, encode_segments
from bertwright.vocabulary.tokenizer import TextTokenizer
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS

if TYPE_CHECKING:
    from bertwright.models.encoder import TextEncoder
    from bertwright.models.heads import TaskHead

MANY_QUOTES = 0.05  # share of texts in quotes that may enclose the fields of a table
# Labels of rows without one, as programs write them.
MISSING: tuple[object, ...] = ("NULL", "NaN", "nan", "<NA>", "#N/A", [])
UNDECIDED = ("gold_label", "-")  # column and label of SNLI's and MultiNLI's rows on which the annotators disagreed
SEP = SPECIAL_TOKENS[3]
OF_WINDOWS = re.compile("[\x80-\x84\x86-\x9f]")  # cp1252 read as latin-1; U+0085 is a line end

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
class TextTask(TableTask[TextExample[L], P], Generic[L, P]):
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
        super().__post_init__()
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
            return super().head_builder
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
            rows = leave_out_rows(rows, path, self.label, MISSING, "missing (NULL, NaN, an empty list)")
        for location, values in rows:
            pair = None if self.text_pair is None else values[1]
            label = values[-1] if len(self.label_fields) == 1 else values[-len(self.label_fields) :]
            if isinstance(label, dict) and "cats" in label:  # of spaCy, in rows that are lists
                label = labels_of_annotation(label)
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

    column_options: ClassVar[str] = "--text, --text-pair and --label"
    """The options that name columns, for messages."""

    @property
    def label_fields(self) -> tuple[str, ...]:
        """Columns with the label; `parse_label` gets the value of one column, or a tuple of the values of several."""
        return (self.label,)

    def _schema(self, labeled: bool) -> TableSchema:
        texts = (self.text,) if self.text_pair is None else (self.text, self.text_pair)
        hint = f"choose columns with {self.column_options}{WITHOUT_HEADER}"
        # Without labels no row is skipped: there is one prediction per row.
        label, max_short_rows = (self.label_fields, self.max_short_rows) if labeled else ((), 0)
        elsewhere = self.label if self.label_fields == (self.label,) else ""
        others = {"hint": hint, "label": elsewhere, "dialect": self.dialect, "max_short_rows": max_short_rows}
        return self.make_schema(texts, label, **others)

    def passthrough_schema(self, columns: Sequence[str], hint: str) -> TableSchema:
        return self.make_schema((), tuple(columns), hint=hint, allow_nulls=True, dialect=self.dialect)

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
                    f"{count_of(count, 'row', 'rows')} with too few columns skipped (the published file is "
                    f"known to have {self.max_short_rows:,}); the first is {stats.first_short_row}"
                )
        if empty := count_empty_texts(examples):
            warnings.append(
                f"{count_of(empty, 'example has', 'examples have')} an empty text: the model reads [CLS] and [SEP] only"
            )
        quoted = [
            example for example in examples if len(example.text) > 1 and {example.text[0], example.text[-1]} == {'"'}
        ]
        if len(quoted) > MANY_QUOTES * len(examples):
            warnings.append(
                f"{len(quoted):,} texts begin and end with a quote, which stays ({quoted[0].location}); if it encloses "
                "the field, use --quotes True"
            )
        if count := sum(bool(OF_WINDOWS.search(f"{example.text}{example.text_pair or ''}")) for example in examples):
            text = "control characters from U+0080 to U+009F; if they are quotes, dashes or €, use --encoding cp1252"
            warnings.append(f"{count_of(count, 'example contains', 'examples contain')} {text}")
        if count := sum(SEP in example.text or SEP in (example.text_pair or "") for example in examples):
            hint = "" if self.text_pair else "; a pair's second text needs a column of its own (--text-pair)"
            examples_contain = count_of(count, "example contains", "examples contain")
            warnings.append(f"{examples_contain} {SEP} in a text: it is read as plain characters{hint}")
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


def count_empty_texts(examples: Sequence[TextExample[Any]]) -> int:
    """Count the examples with a text of white space only, which is valid but rarely intended."""
    return sum(not (text.strip() and (pair is None or pair.strip())) for text, pair, _, _ in examples)
