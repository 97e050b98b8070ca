"""The head on a frozen encoder: a combination of layers, a BiLSTM and a linear classifier (section 5.3).

R states that a task reads, in B sequences; K layers of each, H hidden size, C outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

from torch import Tensor, nn

from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout
from bertwright.models.rnn import BiLSTM, ScalarMix, initialize_uniform

RepresentationName = Literal[
    "embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all"
]  # fmt: skip


class Representation(NamedTuple):
    """A way to make one vector per word from an encoder's layers."""

    layers: slice
    """Selection from the embeddings, which are layer 0, and the L layers above them."""
    weighted: bool
    """True if the layers are summed with learned weights; otherwise they are concatenated."""
    paper: float
    """F1 of BERT BASE on the dev set of CoNLL-2003 (table 7)."""


REPRESENTATIONS: dict[RepresentationName, Representation] = {
    "embeddings": Representation(slice(0, 1), weighted=False, paper=0.910),
    "second-to-last": Representation(slice(-2, -1), weighted=False, paper=0.956),
    "last": Representation(slice(-1, None), weighted=False, paper=0.949),
    "sum-last-four": Representation(slice(-4, None), weighted=True, paper=0.959),
    "concat-last-four": Representation(slice(-4, None), weighted=False, paper=0.961),
    "sum-all": Representation(slice(1, None), weighted=True, paper=0.955),
}


def layers_of(name: RepresentationName, num_layers: int) -> tuple[int, ...]:
    """Return the layers that a representation reads, ascending; 0 is the embeddings.

    >>> layers_of("sum-last-four", num_layers=12), layers_of("embeddings", num_layers=12)
    ((9, 10, 11, 12), (0,))

    Raises ValueError if the model has too few layers; the embeddings do not count as one.
    """
    layers = REPRESENTATIONS[name].layers
    if num_layers < -layers.start:
        raise ValueError(
            f'"{name}" needs {-layers.start} layers, this model has {num_layers}; leave it out of --representations'
        )
    return tuple(range(num_layers + 1)[layers])


class FeatureHeadConfig(NamedTuple):
    """The sizes of a `FeatureHead`."""

    layers: int
    """K, number of layers that are combined."""
    weighted: bool
    """As in `Representation`."""
    hidden_size: int
    """H, of the encoder."""
    outputs: int
    """C, as in `HeadSpec`."""
    lstm_size: int
    """Outputs of the BiLSTM per word, both directions together."""
    lstm_layers: int
    """Layers of the BiLSTM; 0 for none, in tasks with one vector per text."""


class FeatureHead(nn.Module):
    """Layer combination, BiLSTM and linear classifier; its initial weights are a function of the seed."""

    def __init__(self, config: FeatureHeadConfig, seed: int = 0) -> None:
        super().__init__()
        self.mix = ScalarMix(config.layers) if config.weighted else nn.Flatten()  # R K H -> R D
        input_size = config.hidden_size * (1 if config.weighted else config.layers)
        self.lstm = BiLSTM(input_size, config.lstm_size, config.lstm_layers) if config.lstm_layers else None
        self.classifier = nn.Linear(config.lstm_size if config.lstm_layers else input_size, config.outputs)
        initialize_uniform(self, seed)

    def forward(self, states: Tensor, lengths: Sequence[int], drop: Dropout | None = None) -> Tensor:
        """Compute logits R × C of states R × K × H float32; `lengths` (B) are the sequences' state counts."""
        words = self.mix(states)  # R D
        features = dropout(words, drop, 0) if self.lstm is None else self.lstm(words, lengths, drop)
        return cast(Tensor, self.classifier(features))
