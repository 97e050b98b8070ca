"""Trials that compose pre-trained models for table 5: LTR with a BiLSTM on top, and LTR next to RTL."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

from bertwright.base.reporter import Reporter
from bertwright.interop.huggingface import load_model, save_model
from bertwright.models.encoder import EncoderModel
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.composite import CompositeConfig, CompositeEncoder
from bertwright.training.device_settings import DeviceSettings
from bertwright.trials.trial import Trial
from bertwright.vocabulary.open_tokenizer import open_tokenizer


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
        """Write the model; it has no scores."""
        if not (folder / "model").is_dir():  # else a process was killed before it wrote the result
            compose(folder / "model", [parent / "model" for parent in parents], self.settings)
        return {}

    @property
    def shape(self) -> Hashable:
        """Layers of the BiLSTM, and the sizes of the parents' models."""
        return self.settings.lstm_layers, super().shape
