"""The examples of any task type as token sequences.

N examples; S sequences with T tokens that encode them; R positions whose states the head reads; C outputs per position;
K labels. An item is what a batch counts: one sequence, or all sequences that are scored against each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from bertwright.base.ragged import flat_ranges, offsets_from_lengths

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Outputs = npt.NDArray[np.float32]


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
    sequences_per_item: int | Ints = 1
    """Sequences that are scored against each other: one number for all items, or a number for each."""
    truncated: int = 0
    """Number of examples that lost tokens."""
    empty_words: int = 0
    """Number of [UNK] that stand for words without tokens, such as blanks; no vocabulary has them."""

    @property
    def num_items(self) -> int:
        return len(self.item_counts)

    @cached_property
    def item_counts(self) -> Ints:
        """Number of sequences of each item."""
        count = self.sequences_per_item
        return np.full(len(self.lengths) // count, count) if isinstance(count, int) else count

    @cached_property
    def item_starts(self) -> Ints:
        """First sequence of each item, and their end."""
        return offsets_from_lengths(self.item_counts)

    @cached_property
    def item_lengths(self) -> Ints:
        """Number of tokens of each item."""
        return np.diff(self.starts[self.item_starts])

    def sequences(self, items: Ints) -> Ints:
        """Return the indices of the sequences of some items, in order."""
        return flat_ranges(self.item_starts[items], self.item_counts[items])

    @cached_property
    def starts(self) -> Ints:
        """S + 1, start of each sequence in `input_ids`."""
        return offsets_from_lengths(self.lengths)

    @cached_property
    def position_starts(self) -> Ints:
        """S + 1, start of each sequence in `positions`."""
        return offsets_from_lengths(self.position_counts)

    def rows(self, items: Ints) -> Ints:
        """Return the indices in `positions` for some items, in order."""
        sequences = self.sequences(items)
        return flat_ranges(self.position_starts[sequences], self.position_counts[sequences])

    @cached_property
    def label_starts(self) -> Ints:
        """Start of each item in `labels`, and their end."""
        return offsets_from_lengths(self.label_counts)


def repeat_output(row: npt.NDArray[Any], encoded: Encoded) -> Outputs:
    """Return the same C outputs at all positions of some examples, R × C."""
    return np.tile(row.astype(np.float32), (len(encoded.positions), 1))
