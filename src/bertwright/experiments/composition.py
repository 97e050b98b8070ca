"""Model folders composed of pre-trained BERTs: LTR beside RTL, and a BiLSTM on top (paper, section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from bertwright.interop.huggingface import load_model, save_model
from bertwright.models.composite import CompositeConfig, CompositeEncoder
from bertwright.models.encoder import BertEncoder
from bertwright.models.heads import EncoderModel
from bertwright.vocabulary.tokenizer import Tokenizer


def compose(folder: Path, models: Sequence[Path], lstm_layers: int, seed: int) -> None:
    """Write a folder with the encoders of some BERTs side by side, and a BiLSTM of random weights on top.

    Raises ValueError if the folder exists, and for models that do not fit together.
    """
    encoders = [cast(BertEncoder, load_model(model, heads="optional").model.encoder) for model in models]
    config = CompositeConfig(tuple(encoder.config for encoder in encoders), lstm_layers)
    composed = CompositeEncoder(config, seed=seed)
    for target, source in zip(composed.encoders, encoders, strict=True):
        target.load_state_dict(source.state_dict())
    save_model(folder, EncoderModel(composed), Tokenizer.load(models[0]))
