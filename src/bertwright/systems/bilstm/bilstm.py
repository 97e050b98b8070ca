"""BiLSTM-CNN of Ma & Hovy 2016 ("End-to-end sequence labeling via bi-directional LSTM-CNNs-CRF").

Each word is a vector from a table and a vector of its characters, and a bidirectional LSTM reads them. The CRF on its
states is a task's head (`models/crf.py`).

N words of the batch, H size of a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from bertwright.base.settings import check_choice, check_minimum
from bertwright.interop.model_format import Architecture
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout
from bertwright.models.encoder import count_parameters
from bertwright.models.packed_lstm import as_factor, run_bilstm
from bertwright.models.packing import TimeMajor, WordBatch
from bertwright.systems.language_model_states import ContextConfig, LanguageModelStates
from bertwright.systems.word_encoder import Texts, WordEncoder
from bertwright.systems.word_settings import LmDirections


@dataclass(frozen=True)
class BiLSTMConfig(ContextConfig):
    """Sizes of a `BiLSTMEncoder`; the defaults are Ma & Hovy's (section 3.2)."""

    lstm_size: int = 200
    """Size of each direction's state."""
    num_layers: int = 1
    """LSTM layers."""
    lm_places: tuple[int, ...] = (0,)
    """Where its states are joined: 0, to the vectors of the words; n, to the states of LSTM layer n."""
    lm_directions: LmDirections = "both"
    """The directions whose states are joined."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimum(self, 1, "lstm_size", "num_layers")
        check_choice(self, "lm_directions")
        if not all(0 <= place <= self.num_layers for place in self.lm_places):
            raise ValueError(f"lm_places = {self.lm_places}: expected numbers from 0 to {self.num_layers}, the layers")

    def __str__(self) -> str:
        return f"BiLSTM L{self.num_layers} H{self.lstm_size}+{self.lstm_size}, {self.describe_words()}"

    @property
    def hidden_size(self) -> int:
        return self.state_size(self.num_layers)

    def state_size(self, layer: int) -> int:
        """Return the numbers per word after an LSTM layer, or at layer 0 of its vectors together."""
        own = self.input_size if layer == 0 else 2 * self.lstm_size
        if self.language_model is None or layer not in self.lm_places:
            return own
        return own + self.language_model.hidden_size // (1 if self.lm_directions == "both" else 2)

    @property
    def num_parameters(self) -> int:
        return count_parameters(lambda: BiLSTMEncoder(self))


class BiLSTMEncoder(WordEncoder):
    """Words with characters, read by bidirectional LSTMs."""

    model_type: ClassVar[str] = "bilstm"
    config: BiLSTMConfig

    def __init__(self, config: BiLSTMConfig, seed: int = 0) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(
            nn.LSTM(config.state_size(number), config.lstm_size, bidirectional=True)
            for number in range(config.num_layers)
        )
        self.language_model = (
            LanguageModelStates(config, config.lm_places, config.lm_directions) if config.language_model else None
        )
        self.initialize(seed)

    @property
    def num_dropout_sites(self) -> int:
        """One for the characters, one for the input of each layer."""
        return 1 + self.config.num_layers

    def read_words(
        self, words: Tensor, batch: WordBatch, texts: Texts, drop: Dropout | None, layers: Sequence[int]
    ) -> list[Tensor]:
        if not len(words):
            return [words.new_zeros(0, self.config.state_size(number)) for number in layers]
        order = TimeMajor.of(texts.lengths[texts.lengths > 0], words.device)
        joined = self.language_model(batch, texts, self.compute_dtype) if self.language_model else {}  # by place, N H'
        packed, drop = order.pack(words), drop and drop.select(texts.words[order.order])
        states = []
        for number in range(layers[-1] + 1):
            if number:
                layer = cast(nn.LSTM, self.layers[number - 1])
                inputs = as_factor(dropout(packed, drop, number), self.compute_dtype)
                packed = run_bilstm(layer, inputs, order)  # N 2 lstm_size
            if number in joined:
                packed = torch.cat([packed, order.pack(joined[number])], 1)
            if number in layers:
                states.append(order.unpack(packed))
        return states


FOLDER = Architecture(BiLSTMEncoder, BiLSTMConfig, "BiLSTM")
