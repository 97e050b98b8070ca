"""The composed models of table 5 (paper, section 5.1): LTR with a BiLSTM on top, and LTR next to RTL.

A composed encoder concatenates the states of several BERTs, and a BiLSTM may read them; fine-tuning trains everything
together.

T tokens, B sequences, R positions whose states are read, H size of a state: the sum over the encoders.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from bertwright.base.reporter import Reporter
from bertwright.interop.huggingface import load_model, save_model
from bertwright.interop.model_format import Architecture
from bertwright.kernels.dropout import skip_sites
from bertwright.models.encoder import EncoderModel, TextEncoder
from bertwright.models.initialization import initialize, uniform_by_size
from bertwright.models.linear import make_dropout
from bertwright.models.packed_lstm import BiLSTM
from bertwright.models.packing import TokenBatch
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.training.device_settings import DeviceSettings
from bertwright.trials.trial import Trial
from bertwright.vocabulary.open_tokenizer import open_tokenizer


@dataclass(frozen=True)
class CompositeConfig:
    """Configurations of the BERTs, and the size of the BiLSTM on them."""

    is_causal: ClassVar[bool] = False
    """False: sentence tasks read the first position, where `CompositeEncoder` puts the summary of a sequence."""

    encoders: tuple[BertConfig, ...]
    """Configurations that differ in their direction alone."""
    lstm_layers: int = 0
    """Layers of the BiLSTM, which has H outputs per token; 0: no BiLSTM."""
    lstm_learning_rate: float = 1e-3
    """Peak learning rate of the BiLSTM in fine-tuning: its weights are new, so they need a higher rate."""

    def __post_init__(self) -> None:
        if len({replace(config, is_reversed=False) for config in self.encoders}) != 1:
            raise ValueError("encoders: expected one or more configurations that differ in is_reversed alone")

    def __str__(self) -> str:
        """Format as "L2 H128 A2 left-to-right + L2 H128 A2 right-to-left"."""
        names = [f"{config} {config.direction}" for config in self.encoders]
        return " + ".join(names + ([f"{self.lstm_layers}-layer BiLSTM"] if self.lstm_layers else []))

    @property
    def hidden_size(self) -> int:
        """Size of a state, H: the sum over the encoders."""
        return len(self.encoders) * self.encoders[0].hidden_size

    @property
    def num_layers(self) -> int:
        """Layers of an encoder, and one for the BiLSTM."""
        return self.encoders[0].num_layers + bool(self.lstm_layers)

    @property
    def num_parameters(self) -> int:
        size = self.hidden_size
        lstm = self.lstm_layers * 4 * size * (size + size // 2 + 2)
        return sum(config.num_encoder_parameters for config in self.encoders) + lstm

    @property
    def vocab_size(self) -> int:
        return self.encoders[0].vocab_size

    @property
    def max_positions(self) -> int:
        return self.encoders[0].max_positions

    @property
    def type_vocab_size(self) -> int:
        return self.encoders[0].type_vocab_size

    @property
    def hidden_dropout(self) -> float:
        return self.encoders[0].hidden_dropout

    @property
    def initializer_range(self) -> float:
        return self.encoders[0].initializer_range

    def with_dropout(self, rate: float) -> CompositeConfig:
        return replace(self, encoders=tuple(config.with_dropout(rate) for config in self.encoders))


class CompositeEncoder(TextEncoder):
    """BERTs side by side, and a BiLSTM on top; its initial weights are a function of the seed.

    The state of a sequence's first token is the summary of the sequence: the states of the encoders at their own
    summary positions (the token that a causal encoder reads last), or the last output of each direction of the BiLSTM.
    """

    model_type: ClassVar[str] = "bert-composite"
    config: CompositeConfig

    def __init__(self, config: CompositeConfig, seed: int = 0) -> None:
        super().__init__(config)
        self.encoders = nn.ModuleList(BertEncoder(encoder, seed=seed) for encoder in config.encoders)
        self.lstm = BiLSTM(config.hidden_size, config.hidden_size, config.lstm_layers) if config.lstm_layers else None
        if self.lstm is not None:
            self.learning_rates = {"lstm": config.lstm_learning_rate}
            initialize(self.lstm, uniform_by_size, seed)

    @property
    def num_dropout_sites(self) -> int:
        """Number of dropout sites: the encoders' sites in order, then the BiLSTM's."""
        lstm = self.config.lstm_layers + 1 if self.lstm is not None else 0
        return sum(cast(BertEncoder, encoder).num_dropout_sites for encoder in self.encoders) + lstm

    def forward(self, batch: TokenBatch, positions: Tensor | None = None) -> Tensor:
        """Compute the states, T × H; with `positions` (R distinct int64), compute these R states only."""
        packing, states, summaries, first_site = batch.packing, [], [], 0
        for encoder in cast(Sequence[BertEncoder], self.encoders):
            encoder.sparse_gradients = self.sparse_gradients
            own_sites = skip_sites(packing.dropout_seed, first_site)
            states.append(encoder(batch.with_dropout(own_sites, packing.first_token)))
            summaries.append(states[-1][encoder.pooled_positions(packing)])
            first_site += encoder.num_dropout_sites
        outputs = torch.cat(states, 1)  # T H
        if self.lstm is not None:
            dropout = make_dropout(self, self.config.hidden_dropout, packing)
            own_dropout = dropout and dropout.after(first_site)
            outputs = self.lstm(outputs.float(), packing.lengths.tolist(), own_dropout)  # T H
            half = self.config.hidden_size // 2
            summaries = [outputs[packing.last_positions, :half], outputs[packing.first_positions, half:]]
        outputs = outputs.index_copy(0, packing.first_positions, torch.cat(summaries, 1))
        return outputs if positions is None else outputs[positions]

    def hidden_states(
        self, batch: TokenBatch, layers: Sequence[int] | None = None, positions: Tensor | None = None
    ) -> list[Tensor]:
        """Raise NotImplementedError: table 5 fine-tunes composed models, and reads no features."""
        raise NotImplementedError("a composed model has no features of single layers")


FOLDER = Architecture(CompositeEncoder, CompositeConfig, "BertComposite")


def compose(folder: Path, models: Sequence[Path], settings: ComposeSettings) -> None:
    """Write a folder with the encoders of some BERTs side by side, and a BiLSTM of random weights on top.

    Raises ValueError if the folder exists, and for models that do not fit together.
    """
    encoders = [cast(BertEncoder, load_model(model, heads="optional").model.encoder) for model in models]
    configs = tuple(encoder.config for encoder in encoders)
    config = CompositeConfig(configs, settings.lstm_layers, settings.lstm_learning_rate)
    composed = CompositeEncoder(config, seed=settings.seed)
    for target, source in zip(composed.encoders, encoders, strict=True):
        target.load_state_dict(source.state_dict())
    save_model(folder, EncoderModel(composed), open_tokenizer(models[0]))


@dataclass(frozen=True)
class ComposeSettings:
    """Settings of a composed model."""

    lstm_layers: int
    lstm_learning_rate: float
    seed: int
    device: DeviceSettings
    """Not used: the trial only copies files."""


@dataclass(frozen=True)
class Compose(Trial):
    """Composition of the parents' models into one model folder."""

    settings: ComposeSettings

    kind: ClassVar[str] = "compose"
    described: ClassVar[str] = "composed models"

    def run(self, folder: Path, parents: Sequence[Path], reporter: Reporter) -> Mapping[str, float]:
        if not (folder / "model").is_dir():  # else a process was killed before it wrote the result
            compose(folder / "model", [parent / "model" for parent in parents], self.settings)
        return {}

    @property
    def shape(self) -> Hashable:
        """Layers of the BiLSTM, and the sizes of the parents' models."""
        return self.settings.lstm_layers, super().shape
