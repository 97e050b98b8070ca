"""Packed inputs: all sequences of a batch laid end to end, without padding.

A `Packing` holds the bounds of the sequences; an input adds their content: tokens, the characters of words, or a pair
of texts. T tokens of B sequences; W characters per word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from bertwright.base.ragged import Ints, offsets_from_lengths, positions_from_lengths


@dataclass(frozen=True)
class Packing:
    """Offsets, lengths and positions of B sequences with T tokens, and the keys of their dropout."""

    lengths: Ints
    """B, tokens of each sequence; stays on the CPU, so that reading it never waits for a GPU."""
    position_ids: Tensor
    """T int64, position within the token's own sequence."""
    cu_seqlens: Tensor
    """B + 1 int32, start of each sequence; the last entry is T."""
    dropout_seed: int = 0
    """Key of counter-based dropout, derived from (run seed, step)."""
    first_token: int = 0
    """Position of the first token in the whole step, so that dropout does not depend on micro-batches or ranks."""
    fixed_seqlen: int = 0
    """Lower bound of `max_seqlen`; makes it equal for all padded batches."""

    @classmethod
    def of(cls, lengths: Ints) -> Packing:
        """Pack sequences of these numbers of tokens, on the CPU and without dropout keys."""
        return cls(
            lengths,
            position_ids=torch.from_numpy(positions_from_lengths(lengths)),
            cu_seqlens=torch.from_numpy(offsets_from_lengths(lengths).astype(np.int32)),
        )

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return len(self.position_ids)

    @property
    def max_seqlen(self) -> int:
        """Length of the longest sequence in tokens, or `fixed_seqlen` if that is larger."""
        return max(int(self.lengths.max(initial=0)), self.fixed_seqlen)

    @property
    def first_positions(self) -> Tensor:
        """B int64, position of each sequence's first token."""
        return self.cu_seqlens[:-1].long()

    @property
    def last_positions(self) -> Tensor:
        """B int64, position of each sequence's last token."""
        return self.cu_seqlens[1:].long() - 1

    def to(self, device: torch.device | str) -> Packing:
        """Copy the tensors to a device, without waiting if their memory is pinned."""
        return replace(
            self,
            position_ids=self.position_ids.to(device, non_blocking=True),
            cu_seqlens=self.cu_seqlens.to(device, non_blocking=True),
        )


class PackedInput(Protocol):
    """Input of an encoder: arrays with one row per token, and their packing."""

    @property
    def packing(self) -> Packing: ...

    def with_dropout(self, seed: int, first_token: int = 0) -> Self:
        """Return the same input under other dropout keys, `dropout_seed` and `first_token` of its packing."""

    def to(self, device: torch.device | str) -> Self:
        """Copy the input to a device, without waiting if its memory is pinned."""


@dataclass(frozen=True)
class TokenBatch:
    """Tokens and, for models that have them, segments."""

    packing: Packing
    input_ids: Tensor
    """T int64, token ids."""
    token_type_ids: Tensor | None = None
    """T int64, 0 for segment A and 1 for segment B; None for models without segments."""

    def with_dropout(self, seed: int, first_token: int = 0) -> TokenBatch:
        return replace(self, packing=replace(self.packing, dropout_seed=seed, first_token=first_token))

    def to(self, device: torch.device | str) -> TokenBatch:
        types = self.token_type_ids
        return TokenBatch(
            self.packing.to(device),
            self.input_ids.to(device, non_blocking=True),
            None if types is None else types.to(device, non_blocking=True),
        )


@dataclass(frozen=True)
class WordBatch:
    """Words as rows of ids."""

    packing: Packing
    rows: Tensor
    """T × W int64, the characters of each word, or its number and its characters; the model defines the columns."""

    def with_dropout(self, seed: int, first_token: int = 0) -> WordBatch:
        return replace(self, packing=replace(self.packing, dropout_seed=seed, first_token=first_token))

    def to(self, device: torch.device | str) -> WordBatch:
        return WordBatch(self.packing.to(device), self.rows.to(device, non_blocking=True))


@dataclass(frozen=True)
class PairBatch:
    """Sources and targets: sequence n of `target` belongs to sequence n of `source`. Target tokens are predicted."""

    source: TokenBatch
    target: TokenBatch

    @property
    def packing(self) -> Packing:
        return self.target.packing

    def with_dropout(self, seed: int, first_token: int = 0) -> PairBatch:
        return PairBatch(self.source.with_dropout(seed, first_token), self.target.with_dropout(seed, first_token))

    def to(self, device: torch.device | str) -> PairBatch:
        return PairBatch(self.source.to(device), self.target.to(device))


def pack(sequences: Sequence[np.ndarray], token_types: Sequence[np.ndarray] | None = None) -> TokenBatch:
    """Pack sequences of token ids; without `token_types` every token belongs to segment A.

    >>> batch = pack([np.array([2, 7, 3]), np.array([2, 3])])
    >>> batch.input_ids.tolist(), batch.packing.position_ids.tolist(), batch.packing.cu_seqlens.tolist()
    ([2, 7, 3, 2, 3], [0, 1, 2, 0, 1], [0, 3, 5])

    Raises ValueError for an empty sequence: it would have no [CLS] state to read.
    """
    lengths = np.array([len(sequence) for sequence in sequences], dtype=np.int64)
    if (lengths == 0).any():
        raise ValueError(f"sequence {int(lengths.argmin())} is empty; every sequence needs at least its [CLS] token")
    if token_types is not None and [len(types) for types in token_types] != lengths.tolist():
        raise ValueError("token_types: expected the lengths of the sequences")
    ids = np.concatenate(sequences, dtype=np.int64) if len(sequences) else np.zeros(0, np.int64)
    types = np.concatenate(token_types, dtype=np.int64) if token_types else np.zeros(len(ids), np.int64)
    return from_flat(ids, types, lengths)


def from_flat(input_ids: np.ndarray, token_type_ids: np.ndarray | None, lengths: np.ndarray) -> TokenBatch:
    """Build a batch from packed arrays of T tokens; `lengths` (B) are the token counts of the sequences."""
    types = None if token_type_ids is None else torch.from_numpy(token_type_ids.astype(np.int64, copy=False))
    return TokenBatch(Packing.of(lengths), torch.from_numpy(input_ids.astype(np.int64, copy=False)), types)


def make_input(ids: np.ndarray, token_type_ids: np.ndarray | None, lengths: np.ndarray) -> TokenBatch | WordBatch:
    """Build the input from packed ids: T token ids, or the T × W ids of T words."""
    if ids.ndim == 2:
        return WordBatch(Packing.of(lengths), torch.from_numpy(ids.astype(np.int64, copy=False)))
    return from_flat(ids, token_type_ids, lengths)


class TimeMajor(NamedTuple):
    """The order in which recurrent networks read B sequences: the first words of all, then the second words, and on.

    Longer sequences come first, so that the sequences of each step are the first ones of the step before.
    """

    order: Tensor
    """R int64, index of each word of this order in the packed batch."""
    inverse: Tensor
    """R int64, place in this order of each word of the packed batch."""
    mirror: Tensor
    """R int64, place in this order of the word that is as far from its sequence's other end."""
    last: Tensor
    """B int64, place in this order of each sequence's last word."""
    sequences: Tensor
    """B int64, the sequences from the longest to the shortest."""
    batch_sizes: Tensor
    """Words per step, int64 on the CPU."""

    @classmethod
    def of(cls, lengths: Ints, device: torch.device | str = "cpu") -> TimeMajor:
        """Return the order of sequences with these numbers of words, each at least 1."""
        steps = positions_from_lengths(lengths)
        sequences = np.argsort(-lengths, kind="stable")
        rank = np.argsort(sequences)
        order = np.argsort(steps * len(lengths) + np.repeat(rank, lengths))
        inverse = np.argsort(order)
        ends = offsets_from_lengths(lengths)[1:] - 1  # in the packed batch
        mirror = inverse[(np.repeat(ends, lengths) - steps)[order]]
        arrays = (order, inverse, mirror, inverse[ends], sequences)
        on_device = (torch.from_numpy(array).to(device) for array in arrays)
        return cls(*on_device, torch.from_numpy(np.bincount(steps)))  # type: ignore[call-arg]

    def pack(self, words: Tensor) -> Tensor:
        """Return R rows of a packed batch in this order."""
        return words.index_select(0, self.order)

    def unpack(self, words: Tensor) -> Tensor:
        """Return R rows of this order in the packed batch's."""
        return words.index_select(0, self.inverse)

    def both_directions(self, words: Tensor) -> Tensor:
        """Return R rows of this order twice, 2 × R × any size: as they are, and from each sequence's other end."""
        return torch.stack([words, words.index_select(0, self.mirror)])

    def join_directions(self, states: Tensor) -> Tensor:
        """Return the states of both directions, 2 × R × H, side by side in this order, R × 2H."""
        forward, backward = states
        return torch.cat([forward, backward.index_select(0, self.mirror)], 1)
