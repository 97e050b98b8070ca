"""What all kinds of task share: examples become sequences, a head reads some of their states, its outputs are decoded.

N examples; S sequences and T tokens that encode them; R states that the head reads; C outputs for each; K targets.
An item is what a batch counts: one sequence, or the `width` sequences that are weighed against each other.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertwright.batching.batch import Batch, from_flat, offsets_from_lengths, positions_from_lengths
from bertwright.files import write_text
from bertwright.io.tables import TableSchema
from bertwright.models.heads import HeadSpec
from bertwright.models.text_encoder import EncoderConfig
from bertwright.settings import convert, did_you_mean
from bertwright.vocabulary.tokenizer import Tokenizer

Ints = npt.NDArray[np.int64]
Outputs = npt.NDArray[np.float32]

E = TypeVar("E")  # an example, as it was read
P = TypeVar("P")  # a prediction, as the user gets it


@dataclass(frozen=True)
class Encoded:
    """Examples as token sequences laid end to end, with what the head reads and what it should say."""

    input_ids: npt.NDArray[np.int32]
    """T, token ids."""
    token_type_ids: npt.NDArray[np.int8]
    """T, 0 for segment A and 1 for segment B."""
    lengths: Ints
    """S, tokens of each sequence."""
    example_ids: Ints
    """S, the example that each sequence encodes, or a part of it; ascending."""
    positions: npt.NDArray[np.int32]
    """R, the places, each within its own sequence and ascending there, whose states the head reads."""
    position_counts: Ints
    """S, how many rows each sequence has."""
    labels: npt.NDArray[Any]
    """K (or K × more), what the head should say; empty where nothing is known of it."""
    label_counts: Ints
    """Items, how many targets each one has; all 0 where `targets` is empty."""
    sequences_per_item: int = 1
    """Sequences of one item."""
    truncated: int = 0
    """Examples that lost tokens to the task's `limit`."""

    @property
    def num_items(self) -> int:
        """How many items there are to make batches of."""
        return len(self.lengths) // self.sequences_per_item

    @cached_property
    def item_lengths(self) -> Ints:
        """Items, tokens of each one."""
        summed: Ints = self.lengths.reshape(-1, self.sequences_per_item).sum(1)
        return summed

    def sequences(self, items: Ints) -> Ints:
        """The sequences of some items, in their order."""
        return (items[:, None] * self.sequences_per_item + np.arange(self.sequences_per_item)).reshape(-1)

    @cached_property
    def starts(self) -> Ints:
        """S + 1, where each sequence starts."""
        return offsets_from_lengths(self.lengths)

    @cached_property
    def position_starts(self) -> Ints:
        """S + 1, where each sequence's rows start."""
        return offsets_from_lengths(self.position_counts)

    @cached_property
    def label_starts(self) -> Ints:
        """Items + 1, where each item's targets start."""
        return offsets_from_lengths(self.label_counts)


@dataclass(frozen=True)
class TaskBatch:
    """Some items, ready for the model."""

    batch: Batch
    positions: Tensor
    """R int64, places in the batch whose states the head reads."""
    labels: Tensor
    """What it should say; floating point for a regression, else int64."""
    num_labels: int
    """Targets of the whole step, by which its loss is divided once."""

    def to(self, device: torch.device) -> TaskBatch:
        return replace(
            self,
            batch=self.batch.to(device),
            positions=self.positions.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
        )


class DisplayTable(NamedTuple):
    """Predictions or scores as people read them: a table, and what stands above it."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    heading: str = ""
    nothing: str = ""
    """What is said where there are no rows."""


def check_segments(encoded: Encoded, config: EncoderConfig) -> None:
    """Raise ValueError for sequences of two segments where a model knows but one."""
    if encoded.token_type_ids.max(initial=0) >= config.type_vocab_size:
        raise ValueError(
            f"pairs have two kinds of segments, and this model knows one alone (type_vocab_size = "
            f"{config.type_vocab_size}); take another model"
        )


def collate(encoded: Encoded, items: Ints, num_labels: int | None = None) -> TaskBatch:
    """These items as one packed batch; `num_labels` as in `TaskBatch`, by default the number of their own targets."""
    sequences = encoded.sequences(items)
    lengths = encoded.lengths[sequences]
    tokens = flat_ranges(encoded.starts[sequences], lengths)
    positions = encoded.positions[flat_ranges(encoded.position_starts[sequences], encoded.position_counts[sequences])]
    sequence_offsets = np.repeat(offsets_from_lengths(lengths)[:-1], encoded.position_counts[sequences])
    labels = encoded.labels[flat_ranges(encoded.label_starts[items], encoded.label_counts[items])]
    return TaskBatch(
        from_flat(encoded.input_ids[tokens].astype(np.int64), encoded.token_type_ids[tokens].astype(np.int64), lengths),
        torch.from_numpy(positions + sequence_offsets),
        torch.from_numpy(labels),
        len(labels) if num_labels is None else num_labels,
    )


def flat_ranges(first: Ints, lengths: Ints) -> Ints:
    """Places of several runs, end to end, given where each starts.

    >>> flat_ranges(np.array([10, 0]), np.array([2, 3])).tolist()
    [10, 11, 0, 1, 2]
    """
    places_of_all: Ints = np.repeat(first, lengths) + positions_from_lengths(lengths)
    return places_of_all


class Task(ABC, Generic[E, P]):
    """One kind of task, whole: read, encode, loss, decode, score.

    Each kind is a frozen dataclass. Its fields are what a user may set and what training discovers (labels, a
    threshold), and all of them are kept in the model folder as `task.json`.
    """

    kind: ClassVar[str]
    """Its name on the command line and in `task.json`."""
    metric: str
    """The score that chooses between checkpoints and between settings; the higher the better."""
    max_length: int
    """Longest sequence in tokens, [CLS] and [SEP] included."""
    limit: ClassVar[str] = "max_length"
    """The setting to which examples are cut that `Encoded.truncated` counts."""
    form: ClassVar[str] = ""
    """Suffix of the files in which the kind's own scorer reads predictions; most kinds have none."""

    @property
    @abstractmethod
    def head(self) -> HeadSpec:
        """What stands on the encoder. Raises ValueError before `fitted` where it depends on the labels."""

    @abstractmethod
    def read(self, path: str, labelled: bool = True) -> Iterator[E]:
        """The examples of one file, in order; with `labelled` each must have its label.

        Raises ValueError with file, line, value and way out for a row that is not as it should be.
        """

    @abstractmethod
    def with_labels_of(self, examples: Sequence[E]) -> Self:
        """This task with what only the training examples can tell: its labels. Raises ValueError for one label only."""

    @abstractmethod
    def check(self, examples: Sequence[E]) -> None:
        """Raise ValueError, naming the place, for an example that cannot be scored: its label is not known."""

    @abstractmethod
    def group_keys(self, examples: Sequence[E]) -> Sequence[Hashable]:
        """For each example, what is equal in those that must not be parted between training and dev."""

    @property
    def of_one_text(self) -> bool:
        """Is an example one text, so that each line of text can be one?"""
        return False

    @abstractmethod
    def examples_from_texts(self, texts: Sequence[str], place: str) -> list[E]:
        """What somebody has typed, as examples: each text, where it can be one, or else one example of all texts.

        `place` is what messages should call them. Raises ValueError for texts too few or too many.
        """

    def beside(self, columns: Sequence[str], hint: str) -> TableSchema | None:
        """How other columns of its files are read, which say nothing about the task; None where files are no tables."""
        return None

    def left_out(self, path: str) -> list[str]:
        """What labelled `read` leaves out of a file, one sentence each; of most kinds and files, nothing."""
        return []

    def notes(self, examples: Sequence[E]) -> list[str]:
        """What a user should know of labelled examples before training, one sentence each: what is odd or left out."""
        return []

    def score_notes(self, examples: Sequence[E]) -> list[str]:
        """What makes a score of labelled examples say less than it seems to, one sentence each."""
        return []

    def reported(self, examples: Sequence[E]) -> dict[str, Any]:
        """Of labelled examples that were trained on, what `notes` has no room for: plain values for a run's report."""
        return {}

    @abstractmethod
    def encode(self, examples: Sequence[E], tokenizer: Tokenizer, labelled: bool = True) -> Encoded:
        """Examples as sequences; with `labelled`, with targets. Raises ValueError as `check` does, for those.

        What cannot be trained on, such as an answer without a place, is left out with `labelled`, and only then; so
        predictions are made of examples that were encoded without.
        """

    @abstractmethod
    def loss(self, logits: Tensor, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        """Sum of the losses of all targets in the batch, of logits R × C float32; `smoothing` as in cross entropy."""

    @abstractmethod
    def decode(self, examples: Sequence[E], encoded: Encoded, outputs: Outputs) -> list[P]:
        """One prediction an example, in order, from the head's outputs for all rows, R × C float32."""

    @abstractmethod
    def score(self, examples: Sequence[E], predictions: Sequence[P]) -> dict[str, float]:
        """Official scores by name, shares from 0 to 1 (correlations from -1 to 1); `metric` is one of the names."""

    def details(self, examples: Sequence[E], predictions: Sequence[P]) -> list[DisplayTable]:
        """Scores of parts of the examples, such as those of each label; most kinds have no such parts."""
        return []

    @abstractmethod
    def record(self, example: E, prediction: P) -> dict[str, Any]:
        """One line of a predictions file: plain values by column name, the same columns for every example."""

    def predictable(self, examples: Iterable[E], form: str) -> Iterator[E]:
        """Examples of one file or several, as they come, that are to be predicted in one go and written in a form.

        Raises ValueError, naming the place, for one that cannot be written so, or does not go with those before it.
        """
        return iter(examples)

    def formatted(self, found: Iterable[tuple[E, P]]) -> Iterator[str]:
        """Predictions in the kind's own `form`, piece by piece."""
        return iter(())

    @abstractmethod
    def shown(self, found: Sequence[tuple[E, P]]) -> list[DisplayTable]:
        """Some examples with their predictions, for people."""

    def with_threshold_from(self, examples: Sequence[E], predictions: Sequence[P]) -> Self:
        """This task with what the dev examples can tell (a threshold); most kinds have nothing of the sort."""
        return self

    def limited_to(self, positions: int) -> Self:
        """This task for a model of so many positions; lengths that depend on one another stay possible."""
        return replace(self, max_length=min(self.max_length, positions))  # type: ignore[type-var]

    def facts(self) -> dict[str, str]:
        """What distinguishes it, by name, beside what every task has; of most kinds, nothing."""
        return {}

    @property
    def label_names(self) -> tuple[str, ...]:
        """Name of each of the head's outputs, for `config.json`; empty where they have none."""
        return ()


def check_metric(metric: str, known: Sequence[str]) -> None:
    """Raise ValueError for the name of a score that a kind does not have, or that cannot choose."""
    if metric not in known:
        raise ValueError(f"metric = {metric!r}: {did_you_mean(metric, known)}")


def percent(share: float) -> str:
    """A share as papers print it.

    >>> percent(0.92204)
    '92.20'
    """
    return f"{100 * share:.2f}"


def softmax(outputs: Outputs) -> npt.NDArray[np.float64]:
    """Probabilities N × C of logits N × C, in double precision, so that those of one row add up to 1."""
    shares: npt.NDArray[np.float64] = torch.from_numpy(outputs).double().softmax(1).numpy()
    return shares


TASK_FILE = "task.json"


def write_task(folder: Path, task: Task[Any, Any]) -> None:
    """Write a task beside the weights that were trained on it."""
    write_text(folder / TASK_FILE, json.dumps({"kind": task.kind} | asdict(task), indent=2, ensure_ascii=False) + "\n")  # type: ignore[call-overload]


def from_fields(cls: type[Task[Any, Any]], values: Mapping[str, Any], path: Path) -> Task[Any, Any]:
    """A task from what `task.json` holds, its kind left out."""
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    if odd := sorted(values.keys() - known):
        raise ValueError(f"{path}: unknown fields: {', '.join(odd)}; was it written by a later version?")
    kinds = get_type_hints(cls)
    return cls(**{name: convert(value, kinds[name], f"{path}: {name}") for name, value in values.items()})
