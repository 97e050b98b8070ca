"""The biattentive classification network of CoVe (McCann et al. 2017, section 5), for texts and pairs of texts.

ReLU layer → BiLSTM → biattention → BiLSTM that integrates → four pools → three maxout layers. A single text is paired
with itself. Words are vectors, beside which may stand the states of a frozen translation or language model.

N words of M texts, W words of the longest text, T rows of the batch; D size of a word's vectors, H of its states (both
directions together), B sequences, C outputs of the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from bertwright.base.ragged import Ints
from bertwright.base.settings import check_minimum
from bertwright.interop.model_format import Architecture
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout
from bertwright.models.batch_norm import BatchNorm
from bertwright.models.encoder import count_parameters
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch, TaskHead
from bertwright.models.linear import Linear
from bertwright.models.packed_lstm import as_factor, run_bilstm
from bertwright.models.packing import TimeMajor, WordBatch
from bertwright.systems.cove.mt_lstm import Memory
from bertwright.systems.language_model_states import ContextConfig, LanguageModelStates
from bertwright.systems.word_encoder import Texts, WordEncoder
from bertwright.systems.word_settings import LmLayers

CHANNELS = 4  # linear maps of a maxout layer, of which the largest output counts


@dataclass(frozen=True)
class BcnConfig(ContextConfig):
    """Sizes of a `BcnEncoder` and its head."""

    num_layers: ClassVar[int] = 2

    hidden_dropout: float = 0.2
    """Dropout of the input of each layer (paper: 0.1 to 0.3)."""
    lstm_size: int = 300
    """Size of each direction's state, and of the ReLU layer."""
    reduction: int = 4
    """Factor by which the first maxout layer is smaller than its input (paper: 2, 4 or 8); the second one halves."""
    lm_layers: LmLayers = "top"
    initializer_range: float = 0.03
    """σ of the head's initial weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimum(self, 1, "lstm_size", "reduction")

    def __str__(self) -> str:
        return f"BCN H{self.lstm_size}+{self.lstm_size}, {self.describe_words()}"

    @property
    def hidden_size(self) -> int:
        return 2 * self.lstm_size

    @property
    def num_parameters(self) -> int:
        return count_parameters(lambda: BcnEncoder(self))


class Reader(nn.Module):
    """A ReLU layer and a bidirectional LSTM."""

    def __init__(self, input_size: int, lstm_size: int) -> None:
        super().__init__()
        self.dense = Linear(input_size, lstm_size)
        self.lstm = nn.LSTM(lstm_size, lstm_size, bidirectional=True)

    def forward(self, words: Tensor, lengths: Ints, drop: Dropout | None) -> Tensor:
        """Compute N × D → N × H; `lengths`: words of each text that has some."""
        return run_in_order(self.lstm, torch.relu(self.dense(dropout(words, drop, 1))), lengths)


class Integrators(nn.Module):
    """Biattention, and a bidirectional LSTM for the first and one for the second texts of pairs."""

    def __init__(self, size: int, texts: int) -> None:
        super().__init__()
        self.lstms = nn.ModuleList(nn.LSTM(3 * size, size // 2, bidirectional=True) for _ in range(texts))

    def forward(self, words: Tensor, lengths: Ints, drop: Dropout | None, dtype: torch.dtype) -> Tensor:
        """Compute N × H → N × H, with products in `dtype`.

        `lengths`: words of all M texts, the two of a pair one after the other.
        """
        others = attend_to_partners(words, lengths, len(self.lstms))
        joined = dropout(torch.cat([words, words - others, words * others], 1), drop, 2)
        joined = as_factor(joined, dtype)
        results = torch.zeros_like(words)
        roles = np.arange(len(lengths)) % len(self.lstms)
        for role, lstm in enumerate(self.lstms):
            rows = torch.from_numpy(np.flatnonzero(np.repeat(roles, lengths) == role)).to(words.device)
            own = lengths[(roles == role) & (lengths > 0)]
            if len(own):
                results = results.index_copy(0, rows, run_in_order(lstm, joined[rows], own))
        return results


def attend_to_partners(words: Tensor, lengths: Ints, texts: int) -> Tensor:
    """Compute the context of each word in its partner text, N × H: the mean of that text's states y by softmax(x · y).

    The partner is the pair's other text or, if `texts` is 1, the same one. Beside an empty text, the context is 0.
    """
    memory = Memory.of(words, lengths)
    partners = torch.arange(len(lengths), device=words.device)
    partners = partners ^ 1 if texts == 2 else partners
    context = memory.select(partners).attend(memory.states.flatten(0, 1)).view_as(memory.states)
    is_empty = torch.from_numpy(lengths == 0).to(words.device)
    return context.masked_fill(is_empty[partners, None, None], 0)[~memory.is_padding]


def run_in_order(lstm: nn.Module, words: Tensor, lengths: Ints) -> Tensor:
    """Run a bidirectional LSTM over texts that lie end to end."""
    assert isinstance(lstm, nn.LSTM)
    order = TimeMajor.of(lengths, words.device)
    return order.unpack(run_bilstm(lstm, order.pack(words), order))


class BcnEncoder(WordEncoder):
    """Words with context, up to the integrated states."""

    model_type: ClassVar[str] = "bcn"
    num_dropout_sites: ClassVar[int] = 3
    """One for the characters, one for the input of each layer."""
    config: BcnConfig

    def __init__(self, config: BcnConfig, seed: int = 0) -> None:
        super().__init__(config)
        context = config.language_model
        self.language_model = LanguageModelStates(config, [0]) if context else None
        input_size = config.input_size + (context.hidden_size if context else 0)
        self.layers = nn.ModuleList(
            [Reader(input_size, config.lstm_size), Integrators(config.hidden_size, config.texts)]
        )
        self.initialize(seed)

    def own_head(self, spec: HeadSpec) -> TaskHead | None:
        return BcnHead(spec, self.config) if spec.reads_sequence_state else None

    def read_words(
        self, words: Tensor, batch: WordBatch, texts: Texts, drop: Dropout | None, layers: Sequence[int]
    ) -> list[Tensor]:
        lengths = texts.lengths[texts.ends_text(batch.packing)]
        if len(lengths) != self.config.texts * len(batch.packing):
            kinds = ("single texts", "pairs of texts")
            expected, given = kinds[self.config.texts - 1], kinds[2 - self.config.texts]
            raise ValueError(f"bcn: expected {expected}, which this model was trained on, got {given}; train a new one")
        if not len(words):
            return [words.new_zeros(0, self.config.hidden_size) if number else words for number in layers]
        if self.language_model:
            words = torch.cat([words, self.language_model(batch, texts, self.compute_dtype)[0]], 1)
        drop = drop and drop.select(texts.words)
        read = self.layers[0](as_factor(words, self.compute_dtype), lengths[lengths > 0], drop)
        states = [words, read, self.layers[1](read, lengths, drop, self.compute_dtype)]
        return [states[number] for number in layers]


class BcnHead(TaskHead):
    """Maximum, mean, minimum and self-attentive mean of each text's states; then three maxout layers."""

    reads_all_tokens: ClassVar[bool] = True
    has_standard_class: ClassVar[bool] = True

    def __init__(self, spec: HeadSpec, config: BcnConfig) -> None:
        super().__init__(spec)
        self.texts = config.texts
        self.attention = Linear(config.hidden_size, config.texts)  # one for the first and one for the second texts
        size = 4 * config.texts * config.hidden_size
        first = max(size // config.reduction, 1)
        sizes = [size, first, max(first // 2, 1), spec.outputs]
        self.norms = nn.ModuleList(BatchNorm(size) for size in sizes[:-1])
        self.maxouts = nn.ModuleList(Linear(inputs, CHANNELS * outputs) for inputs, outputs in pairwise(sizes))

    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> Tensor:
        """Compute logits B × C of states T × H."""
        assert isinstance(batch.input, WordBatch)
        texts = Texts.of(batch.input)
        vectors = self.pool(states[texts.words], texts.lengths[texts.ends_text(batch.packing)])  # M 4H
        x = vectors.view(len(batch.packing), -1)
        drop = drop and drop.select(batch.packing.first_positions)
        for site, (norm, maxout) in enumerate(zip(self.norms, self.maxouts, strict=True)):
            x = maxout(norm(dropout(x, drop, site))).unflatten(1, (CHANNELS, -1)).amax(1)
        return x

    def pool(self, words: Tensor, lengths: Ints) -> Tensor:
        """Compute the four pools of each text, N × H → M × 4H; 0 for an empty text."""
        states, is_padding = Memory.of(words, lengths)
        outside = is_padding[:, :, None]
        role = torch.arange(len(states), device=states.device) % self.texts
        scores = self.attention(states).gather(2, role[:, None, None].expand(-1, states.shape[1], 1))  # M W 1
        weights = scores.masked_fill(outside, -torch.inf).softmax(1)
        counts = torch.from_numpy(lengths).to(words)[:, None]
        pools = [
            states.masked_fill(outside, -torch.inf).amax(1),
            states.sum(1) / counts,
            states.masked_fill(outside, torch.inf).amin(1),
            (weights * states).sum(1),
        ]
        return torch.cat(pools, 1).masked_fill(counts == 0, 0)


FOLDER = Architecture(BcnEncoder, BcnConfig, "Bcn")
