"""The packed batch: all sequences laid end to end, without padding.

T tokens of B sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # torch takes a second to import, and the settings of commands use the functions on lengths
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Input of an encoder: token arrays of length T, and the offsets of its B sequences."""

    input_ids: Tensor
    """T int64, token ids."""
    token_type_ids: Tensor
    """T int64, 0 for segment A and 1 for segment B."""
    position_ids: Tensor
    """T int64, position within the token's own sequence."""
    cu_seqlens: Tensor
    """B + 1 int32, start of each sequence; the last entry is T."""
    lengths: np.ndarray
    """B int64, tokens of each sequence; stays on the CPU, so that reading it never waits for a GPU."""
    dropout_seed: int = 0
    """Key of counter-based dropout, derived from (run seed, step)."""
    first_token: int = 0
    """Position of the first token in the whole step, so that dropout does not depend on micro-batches or ranks."""
    fixed_seqlen: int = 0
    """Minimum of `max_seqlen`, by which batches that are padded to equal shapes have the same; 0 for others."""

    def __len__(self) -> int:
        """Return the number of sequences, B."""
        return len(self.cu_seqlens) - 1

    @property
    def max_seqlen(self) -> int:
        """Length of the longest sequence in tokens, or `fixed_seqlen` if that is larger."""
        return max(int(self.lengths.max(initial=0)), self.fixed_seqlen)

    @property
    def num_tokens(self) -> int:
        """Number of tokens, T."""
        return len(self.input_ids)

    def to(self, device: torch.device | str) -> Batch:
        """Copy the batch to a device, without waiting if the memory is pinned."""
        return replace(
            self,
            input_ids=self.input_ids.to(device, non_blocking=True),
            token_type_ids=self.token_type_ids.to(device, non_blocking=True),
            position_ids=self.position_ids.to(device, non_blocking=True),
            cu_seqlens=self.cu_seqlens.to(device, non_blocking=True),
        )


def pack(sequences: Sequence[np.ndarray], token_types: Sequence[np.ndarray] | None = None) -> Batch:
    """Pack sequences of token ids; without `token_types` every token belongs to segment A.

    >>> batch = pack([np.array([2, 7, 3]), np.array([2, 3])])
    >>> batch.input_ids.tolist(), batch.position_ids.tolist(), batch.cu_seqlens.tolist(), batch.max_seqlen
    ([2, 7, 3, 2, 3], [0, 1, 2, 0, 1], [0, 3, 5], 3)

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


def from_flat(input_ids: np.ndarray, token_type_ids: np.ndarray, lengths: np.ndarray) -> Batch:
    """Build a batch from packed arrays of T tokens; `lengths` (B) are the token counts of the sequences."""
    import torch

    return Batch(
        input_ids=torch.from_numpy(input_ids.astype(np.int64, copy=False)),
        token_type_ids=torch.from_numpy(token_type_ids.astype(np.int64, copy=False)),
        position_ids=torch.from_numpy(positions_from_lengths(lengths)),
        cu_seqlens=torch.from_numpy(offsets_from_lengths(lengths).astype(np.int32)),
        lengths=lengths,
    )


def offsets_from_lengths(lengths: np.ndarray) -> np.ndarray:
    """Return the start of each of several sequences laid end to end, and the end of the last one.

    >>> offsets_from_lengths(np.array([3, 2])).tolist()
    [0, 3, 5]
    """
    bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def positions_from_lengths(lengths: np.ndarray) -> np.ndarray:
    """Return the positions within each of several sequences laid end to end.

    >>> positions_from_lengths(np.array([3, 0, 2])).tolist()
    [0, 1, 2, 0, 1]
    """
    bounds = offsets_from_lengths(lengths)
    counting: np.ndarray = np.arange(bounds[-1]) - np.repeat(bounds[:-1], lengths)
    return counting
