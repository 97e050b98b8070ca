"""What stands on a frozen encoder: a mixture of its layers, a BiLSTM and a classification layer (section 5.3).

R states that a task reads, K layers of each, H their size, D numbers a word has after mixing, B runs of words,
C outputs.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from bertwright import seeding
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout

RepresentationName = Literal[
    "embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all"
]  # fmt: skip


class Representation(NamedTuple):
    """Which layers make a word's vector, and how."""

    layers: slice
    """Of the embeddings, which are layer 0, and the L layers above them."""
    weighted: bool
    """Added up with learned weights; else laid side by side."""
    paper: float
    """What BERT BASE reached with it: F1 on the dev set of CoNLL-2003 (table 7)."""


REPRESENTATIONS: dict[RepresentationName, Representation] = {
    "embeddings": Representation(slice(0, 1), weighted=False, paper=0.910),
    "second-to-last": Representation(slice(-2, -1), weighted=False, paper=0.956),
    "last": Representation(slice(-1, None), weighted=False, paper=0.949),
    "sum-last-four": Representation(slice(-4, None), weighted=True, paper=0.959),
    "concat-last-four": Representation(slice(-4, None), weighted=False, paper=0.961),
    "sum-all": Representation(slice(1, None), weighted=True, paper=0.955),
}


def layers_of(name: RepresentationName, num_layers: int) -> tuple[int, ...]:
    """The layers that a representation reads, lowest first; 0 is the embeddings.

    >>> layers_of("sum-last-four", num_layers=12), layers_of("embeddings", num_layers=12)
    ((9, 10, 11, 12), (0,))

    Raises ValueError for a model that has too few: the embeddings are none of its hidden layers.
    """
    layers = REPRESENTATIONS[name].layers
    if num_layers < -layers.start:
        raise ValueError(
            f'"{name}" needs {-layers.start} layers, this model has {num_layers}; leave it out of --representations'
        )
    return tuple(range(num_layers + 1)[layers])


class ScalarMix(nn.Module):
    """γ · Σ softmax(w)ₖ hₖ: a weighted sum of layers, both γ and w learned.

    The paper says "weighted sum" and no more; this is the one of ELMo (Peters et al. 2018, equation 1), with which it
    compares. It starts as the plain mean.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, states: Tensor) -> Tensor:
        """R × K × H → R × H."""
        return torch.einsum("k,rkh->rh", self.scale * self.weights.softmax(0), states)


class BiLstm(nn.Module):
    """A stack of bidirectional LSTMs over runs of words, with dropout before, between and after its layers."""

    def __init__(self, input_size: int, size: int, num_layers: int) -> None:
        """`size`: numbers it gives for a word, half of them from each direction."""
        super().__init__()
        if size % 2:
            raise ValueError(f"a BiLSTM of {size} dimensions: an even number is needed, half for each direction")
        self.layers = nn.ModuleList(
            nn.LSTM(size if number else input_size, size // 2, bidirectional=True) for number in range(num_layers)
        )

    def forward(self, words: Tensor, lengths: Sequence[int], drop: Dropout | None) -> Tensor:
        """R × D, the words of B runs end to end, none of them empty → R × size, in the same order."""
        packed = pack_sequence([*torch.split(words, [*lengths])], enforce_sorted=False)
        for site, layer in enumerate(self.layers):
            packed = packed._replace(data=dropout(packed.data, drop, site))
            packed, _ = layer(packed)
        return dropout(torch.cat(unpack_sequence(packed)), drop, len(self.layers))


class FeatureHeadConfig(NamedTuple):
    """What decides a probe's shape."""

    layers: int
    """K, how many layers are mixed."""
    weighted: bool
    """Added up with learned weights; else laid side by side."""
    hidden_size: int
    """H, of the encoder."""
    outputs: int
    """C, as in `HeadSpec`."""
    lstm_size: int
    """Numbers that the BiLSTM gives for a word, both directions together."""
    lstm_layers: int
    """How many there are; 0 leaves the classification layer alone, for tasks with one vector a text."""


class FeatureHead(nn.Module):
    """Layer mixing, BiLSTM, one linear layer. Random in the beginning, by numbers that belong to (seed, name)."""

    def __init__(self, shape: FeatureHeadConfig, seed: int = 0) -> None:
        super().__init__()
        self.mix = ScalarMix(shape.layers) if shape.weighted else nn.Flatten()  # R K H -> R D
        width = shape.hidden_size * (1 if shape.weighted else shape.layers)
        self.lstm = BiLstm(width, shape.lstm_size, shape.lstm_layers) if shape.lstm_layers else None
        self.classifier = nn.Linear(shape.lstm_size if shape.lstm_layers else width, shape.outputs)
        _draw(self, seed)

    def forward(self, states: Tensor, lengths: Sequence[int], drop: Dropout | None = None) -> Tensor:
        """Logits R × C of states R × K × H float32, which are B runs of these lengths, end to end."""
        words = self.mix(states)
        read = dropout(words, drop, 0) if self.lstm is None else self.lstm(words, lengths, drop)
        return cast(Tensor, self.classifier(read))


@torch.no_grad()
def _draw(probe: FeatureHead, seed: int) -> None:
    """PyTorch's own start of these layers: uniform within ±1/√n, n the numbers that an LSTM keeps or a layer reads."""
    for place, module in probe.named_modules():
        if isinstance(module, nn.LSTM | nn.Linear):
            bound = (module.hidden_size if isinstance(module, nn.LSTM) else module.in_features) ** -0.5
            for name, parameter in module.named_parameters():
                numbers = torch.Generator().manual_seed(
                    seeding.derive_key(seed, zlib.crc32(f"{place}.{name}".encode()))
                )
                parameter.uniform_(-bound, bound, generator=numbers)
