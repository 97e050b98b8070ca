"""A stacked bidirectional LSTM, and PyTorch's initialization of LSTM and linear layers.

R words of B sequences, end to end; D size of their vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertwright.base.ragged import Ints, offsets_from_lengths, positions_from_lengths
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout
from bertwright.models.initialization import parameter_rng


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
        mirrored = np.repeat(offsets_from_lengths(lengths)[1:], lengths) - 1 - steps  # in the packed batch
        mirror = inverse[mirrored[order]]
        on_device = (torch.from_numpy(array).to(device) for array in (order, inverse, mirror, sequences))
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


class BiLSTM(nn.Module):
    """A stack of bidirectional LSTMs with dropout before, between and after its layers."""

    def __init__(self, input_size: int, size: int, num_layers: int) -> None:
        """Build `num_layers` layers; `size` is the number of outputs per word, half of them from each direction."""
        super().__init__()
        if size % 2:
            raise ValueError(f"BiLSTM size: expected an even number, got {size}; each direction gives half of it")
        self.layers = nn.ModuleList(
            nn.LSTM(size if number else input_size, size // 2, bidirectional=True) for number in range(num_layers)
        )

    def forward(self, words: Tensor, lengths: Sequence[int], drop: Dropout | None) -> Tensor:
        """Encode words, R × D → R × size, in the same order; `lengths` (B): words per sequence, at least 1."""
        # An LSTM reads the words of all sequences step by step; dropout still depends on the token alone.
        time_major = TimeMajor.of(np.asarray(lengths, dtype=np.int64), words.device)
        in_order = None if drop is None else drop.select(time_major.order)
        packed = time_major.pack(words)
        for site, layer in enumerate(self.layers):
            packed = layer(PackedSequence(dropout(packed, in_order, site), time_major.batch_sizes))[0].data
        return dropout(time_major.unpack(packed), drop, len(self.layers))


@torch.no_grad()
def initialize_uniform(model: nn.Module, seed: int) -> None:
    """Draw LSTM and linear weights by PyTorch's rule: uniform in ±1/√n.

    n is the hidden size of an LSTM, or the input size of a linear layer. Every parameter's numbers are a function of
    (seed, name).
    """
    for path, module in model.named_modules():
        if isinstance(module, nn.LSTM | nn.Linear):
            bound = (module.hidden_size if isinstance(module, nn.LSTM) else module.in_features) ** -0.5
            for name, parameter in module.named_parameters():
                parameter.uniform_(-bound, bound, generator=parameter_rng(seed, f"{path}.{name}"))
