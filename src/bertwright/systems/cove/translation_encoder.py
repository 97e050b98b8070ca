"""The encoder of a translation model as context of a task's words (CoVe)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from bertwright.interop.model_files import model_folder
from bertwright.systems.cove.mt_lstm import CoveEncoder, MtLstm
from bertwright.systems.translation_models import load_translation_system
from bertwright.vocabulary.tokenizer import TextTokenizer


@dataclass(frozen=True)
class TranslationEncoder:
    """The encoder of a translation model, and the words that it knows; a `word_models.Context`."""

    reads_bytes: ClassVar[bool] = False
    keeps_digits: ClassVar[bool] = True
    encoder: CoveEncoder
    tokenizer: TextTokenizer

    def encoder_of(self, tokenizer: TextTokenizer) -> CoveEncoder:
        """Return the encoder with vectors for the words of another vocabulary, unknown ones included."""
        unknown = self.tokenizer.unk_id
        rows = [unknown if (row := self.tokenizer.id(word)) is None else row for word in tokenizer.tokens]
        encoder = CoveEncoder(replace(self.encoder.config, vocab_size=len(rows)))
        words = {"words.weight": self.encoder.words.weight[rows]}
        encoder.load_state_dict(self.encoder.state_dict() | words)
        return encoder


def load_translation_encoder(name: str) -> TranslationEncoder:
    """Load the encoder of an MT-LSTM. Raises ValueError for a folder with another model."""
    system = load_translation_system(model_folder(name))
    if not isinstance(system.model, MtLstm):
        raise ValueError(
            f"{name}: expected a model of train-translation --architecture mt-lstm, got a {system.model.architecture}; "
            "name another as translation_model"
        )
    return TranslationEncoder(system.model.encoder, system.source)
