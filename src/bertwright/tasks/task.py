"""The interface of every task type: examples become sequences, a head reads their states, its outputs are decoded.

N examples; S sequences with T tokens that encode them; R positions whose states the head reads; C outputs per position;
K labels. An item is what a batch counts: one sequence, or the `sequences_per_item` sequences of one choice.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, get_type_hints

import numpy as np
import numpy.typing as npt

from bertwright.files import write_text
from bertwright.models.head_spec import HeadSpec
from bertwright.ragged import offsets_from_lengths
from bertwright.settings import convert, did_you_mean
from bertwright.vocabulary.tokenizer import Tokenizer

if TYPE_CHECKING:  # torch takes a second to import, and the options of tasks are shown by --help
    import torch
    from torch import Tensor, nn

    from bertwright.models.packing import PackedInput, Packing

Ints = npt.NDArray[np.int64]
Outputs = npt.NDArray[np.float32]

E = TypeVar("E")  # an example
P = TypeVar("P")  # a prediction

LEARNED = {"option": False}  # metadata of fields that training or a preset sets: they are no options of the user


@dataclass(frozen=True)
class Encoded:
    """Examples as token sequences laid end to end, the positions that the head reads, and their labels."""

    input_ids: npt.NDArray[np.int32]
    """T, token ids; or T × W, the characters of words."""
    token_type_ids: npt.NDArray[np.int8] | None
    """T, 0 for segment A and 1 for segment B; None if the layout of the sequences has no segment types."""
    lengths: Ints
    """S, tokens per sequence."""
    example_ids: Ints
    """S, index of the example that each sequence encodes; ascending. A long example has several sequences."""
    positions: npt.NDArray[np.int32]
    """R, positions whose states the head reads, each within its own sequence and ascending there."""
    position_counts: Ints
    """S, positions per sequence."""
    labels: npt.NDArray[Any]
    """K, or K × more: the targets; empty if the examples were encoded without labels."""
    label_counts: Ints
    """Labels per item; all 0 if `labels` is empty."""
    sequences_per_item: int = 1
    """Sequences that are scored against each other."""
    truncated: int = 0
    """Number of examples that lost tokens."""

    @property
    def num_items(self) -> int:
        """Number of items."""
        return len(self.lengths) // self.sequences_per_item

    @cached_property
    def item_lengths(self) -> Ints:
        """Tokens per item."""
        summed: Ints = self.lengths.reshape(-1, self.sequences_per_item).sum(1)
        return summed

    def sequences(self, items: Ints) -> Ints:
        """Return the sequences of some items, in their order."""
        return (items[:, None] * self.sequences_per_item + np.arange(self.sequences_per_item)).reshape(-1)

    @cached_property
    def starts(self) -> Ints:
        """S + 1, start of each sequence in `input_ids`."""
        return offsets_from_lengths(self.lengths)

    @cached_property
    def position_starts(self) -> Ints:
        """S + 1, start of each sequence in `positions`."""
        return offsets_from_lengths(self.position_counts)

    @cached_property
    def label_starts(self) -> Ints:
        """Start of each item in `labels`, and their end."""
        return offsets_from_lengths(self.label_counts)


@dataclass(frozen=True)
class TaskBatch:
    """Items as the model reads them, packed."""

    input: PackedInput
    positions: Tensor
    """R int64, positions in the batch whose states the head reads."""
    labels: Tensor
    """Targets: int64, in a regression float32."""
    num_labels: int
    """Number of labels of the whole step, by which its loss is divided."""

    @property
    def packing(self) -> Packing:
        """Packing of the input."""
        return self.input.packing

    def to(self, device: torch.device) -> TaskBatch:
        """Copy to a device."""
        return replace(
            self,
            input=self.input.to(device),
            positions=self.positions.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
        )


class Task(ABC, Generic[E, P]):
    """A task type: read, encode, loss, decode, score.

    Each one is a frozen dataclass. Its fields are the user's options and what training finds (labels, a threshold).
    All are saved in the model folder as `task.json`. How predictions are shown and written: `tasks.presentation`.
    """

    kind: ClassVar[str]
    """Name on the command line and in `task.json`."""
    metric: str
    """The score that selects checkpoints and settings; higher is better."""
    max_length: int
    """Longest sequence in tokens, [CLS] and [SEP] included."""

    @property
    @abstractmethod
    def head(self) -> HeadSpec:
        """The head on the encoder. Raises ValueError if it depends on labels that are not known yet."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """Name of each output of the head, for `config.json`; empty if outputs have no names."""
        return ()

    @abstractmethod
    def read(self, path: str, labeled: bool = True) -> Iterator[E]:
        """Read the examples of a file in order; with `labeled`, each must have its label.

        Raises ValueError with file, line, value and hint for invalid input.
        """

    @abstractmethod
    def examples_from_texts(self, texts: Sequence[str], location: str) -> list[E]:
        """Convert texts to unlabeled examples: one per text, or one of all texts if the task reads several.

        `location` names them in messages. Raises ValueError for a wrong number of texts.
        """

    @abstractmethod
    def with_labels_of(self, examples: Sequence[E]) -> Self:
        """Return the task with what it learns from the training examples, such as the labels.

        Raises ValueError if there is nothing to learn, such as a single label.
        """

    @abstractmethod
    def check(self, examples: Sequence[E]) -> None:
        """Raise ValueError with the location of an example that cannot be scored, such as one with an unknown label."""

    def warnings(self, examples: Sequence[E], paths: Sequence[str] = ()) -> list[str]:
        """Describe oddities of labeled examples, one sentence each; `paths`: the files that they were read from."""
        return []

    @abstractmethod
    def group_keys(self, examples: Sequence[E]) -> Sequence[Hashable]:
        """Return a key per example; examples with equal keys stay in the same split."""

    @abstractmethod
    def encode(self, examples: Sequence[E], tokenizer: Tokenizer, labeled: bool = True) -> Encoded:
        """Encode examples as sequences; with `labeled`, with labels. Raises ValueError as `check` does for those.

        With `labeled`, examples that cannot be trained on, such as an answer that does not occur in its context, are
        left out. To predict, encode without labels.
        """

    def initialize_head(self, classifier: nn.Linear) -> None:
        """Set what the head's initial weights should know of the training examples; by default nothing."""
        return

    @abstractmethod
    def loss(self, logits: Tensor, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        """Compute the sum of the losses of all labels in a batch from logits, R × C float32.

        `smoothing`: as `label_smoothing` of `torch.nn.functional.cross_entropy`.
        """

    @abstractmethod
    def decode(self, examples: Sequence[E], encoded: Encoded, outputs: Outputs) -> list[P]:
        """Convert the head's outputs at all positions, R × C float32, to one prediction per example, in order."""

    @abstractmethod
    def score(self, examples: Sequence[E], predictions: Sequence[P]) -> dict[str, float]:
        """Compute the official scores by name: shares from 0 to 1, correlations from -1 to 1; one is `metric`."""

    def with_threshold_from(self, examples: Sequence[E], predictions: Sequence[P]) -> Self:
        """Return the task with the decision threshold that is best on dev examples; most task types have none."""
        return self

    def limited_to(self, max_positions: int) -> Self:
        """Return the task for a model with this number of positions; dependent lengths are adapted."""
        return replace(self, max_length=min(self.max_length, max_positions))  # type: ignore[type-var]


AnyTask = Task[Any, Any]


def sum_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Compute the sum of the cross entropies of N × C logits and N labels."""
    import torch.nn.functional as F

    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)


def check_metric(metric: str, known: Sequence[str]) -> None:
    """Raise ValueError for a metric that a task type does not have, or that cannot select checkpoints."""
    if metric not in known:
        raise ValueError(f"metric = {metric!r}: {did_you_mean(metric, known)}")


def softmax(outputs: Outputs) -> npt.NDArray[np.float64]:
    """Convert logits N × C to probabilities N × C in double precision."""
    import torch

    probabilities: npt.NDArray[np.float64] = torch.from_numpy(outputs).double().softmax(1).numpy()
    return probabilities


TASK_FILE = "task.json"


def write_task(folder: Path, task: Task[Any, Any]) -> None:
    """Write `task.json` into a model folder."""
    write_text(folder / TASK_FILE, json.dumps({"kind": task.kind} | asdict(task), indent=2, ensure_ascii=False) + "\n")  # type: ignore[call-overload]


def from_fields(cls: type[Task[Any, Any]], values: Mapping[str, Any], path: Path) -> Task[Any, Any]:
    """Build a task from the fields of `task.json` at `path` except "kind". Raises ValueError for unknown fields."""
    known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
    odd = sorted(values.keys() - known)
    if odd:
        raise ValueError(f"{path}: unknown fields: {', '.join(odd)}; was it written by a later version?")
    types = get_type_hints(cls)
    return cls(**{name: convert(value, types[name], f"{path}: {name}") for name, value in values.items()})
