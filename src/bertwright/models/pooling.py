"""Poolings: from the states of a sequence's tokens to one vector. Add yours here: a function, and a row of `POOLINGS`.

Text vectors, the heads of sequence-level tasks and folders of sentence-transformers read this table. T tokens of the
batch, B sequences, P windows of N texts, H hidden size. The module does not import torch until a state is pooled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.models.packing import Packing

Vectors = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SequenceStates(ABC):
    """States of the tokens of B sequences, and what a pooling makes of them."""

    hidden: Tensor
    """States, T × H float32; of padded sequences B × N × H."""
    number: Tensor
    """Position of each token in its sequence, from 1: T, or B × N, where padding has 0."""

    @property
    @abstractmethod
    def lengths(self) -> Tensor:
        """B, number of tokens."""

    @abstractmethod
    def reduce(self, values: Tensor, how: str) -> Tensor:
        """Reduce T × … (B × N × …) values to B × …, without padding; `how`: "sum", "mean" or "max"."""

    @abstractmethod
    def first(self) -> Tensor:
        """Return the state of each sequence's first token, B × H."""

    @abstractmethod
    def last(self) -> Tensor:
        """Return the state of each sequence's last token, B × H."""

    def weighted_mean(self) -> Tensor:
        """Return the mean with the weight n for the n-th token (SGPT)."""
        weights = self.number[..., None].float()
        return self.reduce(self.hidden * weights, "sum") / self.reduce(weights, "sum")


@dataclass(frozen=True)
class PackedStates(SequenceStates):
    """States of packed sequences."""

    bounds: Tensor
    """B + 1 int64, start of each sequence, and the end of the last one."""

    @property
    def lengths(self) -> Tensor:
        return self.bounds.diff()

    def reduce(self, values: Tensor, how: str) -> Tensor:
        import torch

        return torch.segment_reduce(values, how, offsets=self.bounds, axis=0)

    def first(self) -> Tensor:
        return self.hidden[self.bounds[:-1]]

    def last(self) -> Tensor:
        return self.hidden[self.bounds[1:] - 1]


class PaddedStates(SequenceStates):
    """States of sequences that are padded to one length N."""

    @property
    def lengths(self) -> Tensor:
        return (self.number > 0).sum(1)

    def reduce(self, values: Tensor, how: str) -> Tensor:
        is_token = self.number[..., None] > 0
        if how == "max":
            return values.masked_fill(~is_token, -1e30).amax(1)
        total = (values * is_token).sum(1)
        return total / self.lengths[:, None] if how == "mean" else total

    def first(self) -> Tensor:
        return self.hidden[:, 0]

    def last(self) -> Tensor:
        index = (self.lengths - 1)[:, None, None].expand(-1, 1, self.hidden.shape[2])
        return self.hidden.gather(1, index)[:, 0]


class Pooling(NamedTuple):
    """A way to make one vector of a sequence's states."""

    pool: Callable[[SequenceStates], Tensor]
    """Compute B × H."""
    weigh: Callable[[Ints], npt.NDArray[Any]] | None
    """Weights of the windows of a long text, from their numbers of tokens; None: their maximum is taken."""
    former_name: str = ""
    """Name in folders that sentence-transformers wrote before 5.4; empty: it had none."""
    is_root: bool = False
    """The sum of weighted windows is divided by the root of the summed squares of their weights, not by their sum."""


POOLINGS: dict[str, Pooling] = {
    "cls": Pooling(lambda states: states.first(), np.ones_like, "pooling_mode_cls_token"),
    "max": Pooling(lambda states: states.reduce(states.hidden, "max"), None, "pooling_mode_max_tokens"),
    "mean": Pooling(lambda states: states.reduce(states.hidden, "mean"), np.copy, "pooling_mode_mean_tokens"),
    "mean_sqrt_len_tokens": Pooling(
        lambda states: states.reduce(states.hidden, "sum") / states.lengths[:, None].sqrt(),
        np.sqrt, "pooling_mode_mean_sqrt_len_tokens", is_root=True,
    ),
    "weightedmean": Pooling(
        lambda states: states.weighted_mean(),
        lambda tokens: tokens * (tokens + 1) / 2, "pooling_mode_weightedmean_tokens",
    ),
    "lasttoken": Pooling(lambda states: states.last(), np.ones_like, "pooling_mode_lasttoken"),
}  # fmt: skip
# What a head of a sequence-level task may read: names of poolings, whose vectors are concatenated. The first, the
# paper's, is the pooler's output for [CLS].
HEAD_POOLINGS: dict[str, tuple[str, ...]] = {
    "cls": (),
    **{name: (name,) for name in POOLINGS if name != "cls"},
    "concat": ("cls", "max", "mean"),
}


if TYPE_CHECKING:
    PoolingName = str
    HeadPoolingName = str
else:  # types of settings, whose choices are the rows of the tables
    PoolingName, HeadPoolingName = Literal[tuple(POOLINGS)], Literal[tuple(HEAD_POOLINGS)]


def check_pooling(name: str | None, known: Sequence[str] = tuple(POOLINGS)) -> None:
    """Raise ValueError for a value of `--pooling` that is not known; None leaves it unset."""
    if name is not None and name not in known:
        raise ValueError(f"pooling: expected one of {', '.join(known)}, got {name!r}")


def describe_pooling(modes: Sequence[str]) -> str:
    """Describe what a sequence-level head reads."""
    return f"{', '.join(modes)} pooling" if modes else "the pooler's output"


def pool_states(hidden: Tensor, packing: Packing, modes: Sequence[str], skip: int = 0) -> Tensor:
    """Pool the states T × H of packed sequences to B × modes·H float32, without the first `skip` tokens of each."""
    import torch

    hidden, number, bounds = hidden.float(), packing.position_ids + 1, packing.cu_seqlens.long()
    if skip:
        hidden, number = hidden[number > skip], number[number > skip]
        bounds = torch.cat([bounds[:1], (bounds.diff() - skip).clamp(min=0).cumsum(0)])
    states = PackedStates(hidden, number, bounds)
    return torch.cat([POOLINGS[mode].pool(states) for mode in modes], dim=1)


def pool_padded(hidden: Tensor, attention_mask: Tensor, modes: Sequence[str]) -> Tensor:
    """Pool the states B × N × H of padded sequences to B × modes·H; `attention_mask`: B × N, 1 for tokens, then 0."""
    import torch

    states = PaddedStates(hidden, attention_mask.cumsum(1) * attention_mask)
    return torch.cat([POOLINGS[mode].pool(states) for mode in modes], dim=1)


def merge_windows(pooled: Vectors, sizes: Ints, first_of_text: Ints, mode: str) -> Vectors:
    """Merge the vectors P × H of windows of `sizes` tokens into the vectors N × H of their texts.

    `first_of_text`: N, number of each text's first window; a text's windows are adjacent and in order.
    """
    weigh = POOLINGS[mode].weigh
    if weigh is None:
        return np.maximum.reduceat(pooled, first_of_text)
    weights = weigh(sizes).astype(np.float32)[:, None]
    merged: Vectors = np.add.reduceat(pooled * weights, first_of_text)
    if POOLINGS[mode].is_root:
        merged /= np.sqrt(np.add.reduceat(weights**2, first_of_text))
    else:
        merged /= np.add.reduceat(weights, first_of_text)
    return merged
