"""A stacked bidirectional LSTM, and PyTorch's initialization of LSTM and linear layers.

R words of B sequences, end to end; D size of their vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout
from bertwright.models.initialization import parameter_rng


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
        tokens = torch.arange(len(words), device=words.device)
        # An LSTM reads the words of all sequences step by step; dropout still depends on the token alone.
        order = pack_sequence([*torch.split(tokens, [*lengths])], enforce_sorted=False)
        packed = order._replace(data=words.index_select(0, order.data))
        in_order = None if drop is None else drop.select(order.data)
        for site, layer in enumerate(self.layers):
            packed = packed._replace(data=dropout(packed.data, in_order, site))
            packed, _ = layer(packed)
        return dropout(torch.cat(unpack_sequence(packed)), drop, len(self.layers))


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
