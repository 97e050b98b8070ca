"""The head on a frozen encoder: a combination of layers, a BiLSTM and a linear classifier (section 5.3).

R states that a task reads, in B sequences; K layers per state, H hidden size, C outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from torch import Tensor, nn

from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout
from bertwright.models.initialization import initialize, uniform_by_size
from bertwright.models.layer_mix import LayerMix
from bertwright.models.packed_lstm import BiLSTM


class FeatureHeadConfig(NamedTuple):
    """Sizes of a `FeatureHead`."""

    num_layers: int
    """K, number of layers that are combined."""
    weighted: bool
    """True if the layers are summed with learned weights; otherwise they are concatenated."""
    hidden_size: int
    """H, size of the encoder's states."""
    outputs: int
    """C, number of logits per state."""
    lstm_size: int
    """Outputs of the BiLSTM per word, both directions together."""
    lstm_layers: int
    """Layers of the BiLSTM; 0 in tasks with one vector per text, which have no BiLSTM."""


class FeatureHead(nn.Module):
    """Layer combination, BiLSTM and linear classifier; its initial weights are a function of the seed."""

    def __init__(self, config: FeatureHeadConfig, seed: int = 0) -> None:
        super().__init__()
        self.mix = LayerMix(config.num_layers) if config.weighted else None
        input_size = config.hidden_size * (1 if config.weighted else config.num_layers)
        self.lstm = BiLSTM(input_size, config.lstm_size, config.lstm_layers) if config.lstm_layers else None
        self.classifier = nn.Linear(config.lstm_size if config.lstm_layers else input_size, config.outputs)
        initialize(self, uniform_by_size, seed)

    def forward(self, states: Tensor, lengths: Sequence[int], drop: Dropout | None = None) -> Tensor:
        """Compute logits R × C of states R × K × H float32; `lengths` (B): number of states of each sequence."""
        words = states.flatten(1) if self.mix is None else self.mix(states.unbind(1))  # R D
        features = dropout(words, drop, 0) if self.lstm is None else self.lstm(words, lengths, drop)
        return cast(Tensor, self.classifier(features))
