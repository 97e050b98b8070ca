"""Encoders composed of pre-trained BERTs, for the left-to-right ablations of section 5.1 of the paper.

The states of several BERTs are concatenated (LTR + RTL), and a BiLSTM reads them (LTR + BiLSTM); everything is
fine-tuned together.

T tokens, B sequences, R positions whose states are read, E encoders of hidden size Hᵢ, H their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from bertwright.kernels.dropout import Dropout, skip_sites
from bertwright.models.config import BertConfig
from bertwright.models.encoder import BertEncoder, make_dropout
from bertwright.models.packing import Packing, TokenBatch
from bertwright.models.rnn import BiLSTM, initialize_uniform
from bertwright.models.text_encoder import TextEncoder


@dataclass(frozen=True)
class CompositeConfig:
    """Configurations of the BERTs, and the size of the BiLSTM on them."""

    encoders: tuple[BertConfig, ...]
    lstm_layers: int = 0
    """Layers of the BiLSTM, which has as many outputs per token as the encoders together; 0: no BiLSTM."""

    def __post_init__(self) -> None:
        if not self.encoders:
            raise ValueError("encoders: expected at least one configuration")
        for name in ("vocab_size", "max_positions", "type_vocab_size", "num_layers"):
            values = [getattr(config, name) for config in self.encoders]
            if len({*values}) > 1:
                raise ValueError(f"{name}: expected the same value for all encoders, got {values}")
        if self.lstm_layers < 0 or (self.lstm_layers and self.hidden_size % 2):
            raise ValueError(f"lstm_layers: expected at least 0, got {self.lstm_layers}, and an even hidden size")

    def __str__(self) -> str:
        """Format as "L2 H128 A2 left-to-right + L2 H128 A2 right-to-left"."""
        names = [f"{config} {config.direction}" for config in self.encoders]
        return " + ".join(names + ([f"{self.lstm_layers}-layer BiLSTM"] if self.lstm_layers else []))

    @property
    def vocab_size(self) -> int:
        """Number of tokens."""
        return self.encoders[0].vocab_size

    @property
    def hidden_size(self) -> int:
        """Size of a state: the sum over the encoders."""
        return sum(config.hidden_size for config in self.encoders)

    @property
    def num_layers(self) -> int:
        """Layers of an encoder, and one for the BiLSTM."""
        return self.encoders[0].num_layers + bool(self.lstm_layers)

    @property
    def max_positions(self) -> int:
        """Length of the longest sequence in tokens."""
        return self.encoders[0].max_positions

    @property
    def type_vocab_size(self) -> int:
        """Number of segments that a sequence may have."""
        return self.encoders[0].type_vocab_size

    @property
    def is_causal(self) -> bool:
        """Sentence tasks read the first position, where `CompositeEncoder` puts the summary of a sequence."""
        return False

    @property
    def hidden_dropout(self) -> float:
        """Dropout rate of states, of the BiLSTM and of task heads."""
        return self.encoders[0].hidden_dropout

    @property
    def initializer_range(self) -> float:
        """Standard deviation of the initial weights of new heads."""
        return self.encoders[0].initializer_range

    @property
    def num_parameters(self) -> int:
        """Number of parameters of encoders and BiLSTM."""
        size = self.hidden_size
        lstm = self.lstm_layers * 4 * size * (size + size // 2 + 2)
        return sum(config.num_encoder_parameters for config in self.encoders) + lstm

    def with_dropout(self, rate: float) -> CompositeConfig:
        """Return this configuration with all dropout rates set."""
        return replace(self, encoders=tuple(config.with_dropout(rate) for config in self.encoders))


class CompositeEncoder(TextEncoder):
    """BERTs side by side, and a BiLSTM on top; its initial weights are a function of the seed.

    After every layer, the state of a sequence's first token is the summary of the sequence: of each encoder, the state
    at its own summary position ([CLS], or the token that a causal encoder reads last); of a BiLSTM, the forward
    direction's last output and the backward direction's last one, which is at the first token.
    """

    model_type: ClassVar[str] = "bert-composite"
    config: CompositeConfig

    def __init__(self, config: CompositeConfig, compute_dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        super().__init__(config, compute_dtype)
        self.encoders = nn.ModuleList(BertEncoder(one, compute_dtype, seed) for one in config.encoders)
        self.lstm = BiLSTM(config.hidden_size, config.hidden_size, config.lstm_layers) if config.lstm_layers else None
        if self.lstm is not None and not next(self.lstm.parameters()).is_meta:
            initialize_uniform(self.lstm, seed)

    @property
    def num_dropout_sites(self) -> int:
        """Number of dropout sites: those of the encoders in order, then those of the BiLSTM."""
        lstm = self.config.lstm_layers + 1 if self.lstm is not None else 0
        return sum(encoder.num_dropout_sites for encoder in self._encoders) + lstm

    @property
    def head_depth(self) -> int:
        """Depth of a task's head, by the layers of one encoder: L + 1."""
        return self._encoders[0].head_depth

    def depth_of(self, parameter: str) -> int:
        """Return the depth of a parameter in its encoder; the BiLSTM is new, as a head is: L + 1."""
        module, _, rest = parameter.partition(".")
        if module != "encoders":
            return self.head_depth
        number, _, inside = rest.partition(".")
        return self._encoders[int(number)].depth_of(inside)

    def forward(self, batch: TokenBatch, positions: Tensor | None = None) -> Tensor:
        """Compute the states: T × H or, with `positions` (R int64, distinct), theirs alone, R × H."""
        states = [encoder(own) for encoder, own in self._with_own_batches(batch)]
        if self.lstm is None:
            outputs = self._concatenate(states, batch)  # T H
        else:
            outputs = self.lstm(
                torch.cat(states, 1).float(), batch.packing.lengths.tolist(), self._lstm_dropout(batch.packing)
            )  # T H
            half, packing = self.config.hidden_size // 2, batch.packing
            summary = torch.cat(
                [outputs[packing.last_positions, :half], outputs[packing.first_positions, half:]], 1
            )  # B H
            outputs = outputs.index_copy(0, packing.first_positions, summary)
        return outputs if positions is None else outputs[positions]

    def hidden_states(
        self, batch: TokenBatch, layers: Sequence[int] | None = None, positions: Tensor | None = None
    ) -> list[Tensor]:
        """Compute the concatenated states after each of `layers`, T × H or R × H; the BiLSTM's outputs are the last."""
        layers = range(self.config.num_layers + 1) if layers is None else layers
        below = [layer for layer in layers if layer <= self.config.encoders[0].num_layers]
        states = []
        if below:
            each = [encoder.hidden_states(own, below) for encoder, own in self._with_own_batches(batch)]
            states = [self._concatenate(found, batch) for found in zip(*each, strict=True)]
        states = states if positions is None else [state[positions] for state in states]
        return states + ([self(batch, positions)] if len(below) < len(layers) else [])

    def _concatenate(self, states: Sequence[Tensor], batch: TokenBatch) -> Tensor:
        """Concatenate the encoders' states, T × Hᵢ each, to T × H, with each sequence's summary at its first token."""
        pairs = zip(self._encoders, states, strict=True)
        summary = torch.cat([state[encoder.pooled_positions(batch.packing)] for encoder, state in pairs], 1)  # B H
        return torch.cat([*states], 1).index_copy(0, batch.packing.first_positions, summary)

    @property
    def _encoders(self) -> list[BertEncoder]:
        return cast(list[BertEncoder], list(self.encoders))

    def _with_own_batches(self, batch: TokenBatch) -> list[tuple[BertEncoder, TokenBatch]]:
        """Return the encoders, each with the batch under its own dropout sites."""
        found, first_site, packing = [], 0, batch.packing
        for encoder in self._encoders:
            encoder.compute_dtype, encoder.sparse_gradients = self.compute_dtype, self.sparse_gradients
            found.append(
                (encoder, batch.with_dropout(skip_sites(packing.dropout_seed, first_site), packing.first_token))
            )
            first_site += encoder.num_dropout_sites
        return found

    def _lstm_dropout(self, packing: Packing) -> Dropout | None:
        drop = make_dropout(self, self.config.hidden_dropout, packing)
        first_site = sum(encoder.num_dropout_sites for encoder in self._encoders)
        return drop and drop.after(first_site)
