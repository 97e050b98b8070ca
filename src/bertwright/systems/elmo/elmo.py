"""ELMo's bidirectional language model (Peters et al. 2018, "Deep contextualized word representations").

Characters of a word → convolutions → highway layers → projection → two LSTM stacks, one per direction. The sizes are
the released model's; what the paper leaves open follows its code (bilm-tf).

T rows of the batch: the words of all sequences with the marks of their beginnings and ends; U distinct words, L bytes
per word; P projection size, C cell size. A state has H = 2 P numbers: forward, then backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bertwright.base.settings import check_limit, check_minimum
from bertwright.interop.huggingface import load_model
from bertwright.interop.model_files import model_folder
from bertwright.interop.model_format import Architecture
from bertwright.kernels.fused_ops import dropout
from bertwright.kernels.linear_cross_entropy import linear_cross_entropy
from bertwright.models.distinct_words import DistinctWords, is_mark
from bertwright.models.encoder import EncoderModel, TextEncoder, count_parameters
from bertwright.models.initialization import Weight, glorot_bound, initialize
from bertwright.models.linear import make_dropout
from bertwright.models.packed_lstm import Clips, ProjectedLSTM, as_factor
from bertwright.models.packing import TimeMajor, WordBatch
from bertwright.models.token_scores import score_next_tokens
from bertwright.systems.elmo.defaults import FILTERS, Filters
from bertwright.systems.registry import named_size
from bertwright.vocabulary.tokenizer import TextTokenizer
from bertwright.vocabulary.word_bytes import NUM_BYTES, PADDING, WORD_BYTES, mark_rows
from bertwright.vocabulary.word_tokenizer import BEGIN, END

CARRY_BIAS = -2.0  # of the highway layers' gates: at first, they mostly hand on their input
CONVOLUTION_RANGE = 0.05  # initial weights of the convolutions are uniform in ± this


@dataclass(frozen=True)
class ElmoConfig:
    """Sizes of an `ElmoEncoder`; the defaults are the released model's (93.6 million parameters)."""

    type_vocab_size: ClassVar[int] = 1
    is_causal: ClassVar[bool] = False

    vocab_size: int
    """Words that the language model predicts; the encoder reads any word by its characters."""
    char_size: int = 16
    """Numbers per character vector."""
    filters: Filters = FILTERS
    """Width in characters and number of the filters of each convolution."""
    num_highway: int = 2
    """Highway layers (Srivastava et al. 2015)."""
    projection_size: int = 512
    """P, numbers per word and direction in every layer."""
    cell_size: int = 4096
    """C, size of an LSTM's cell."""
    num_layers: int = 2
    """LSTM layers per direction."""
    cell_clip: float = 3.0
    """Largest absolute value in a cell; 0: no limit."""
    projection_clip: float = 3.0
    """Largest absolute value in a projected state; 0: no limit."""
    hidden_dropout: float = 0.1
    """Dropout of the input of each layer and of the last layer's output."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights of new heads."""
    max_positions: int = 100_000
    """Longest sequence; the model has no positions, so that this bounds memory only."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "vocab_size", "char_size", "projection_size", "cell_size", "num_layers", "max_positions")
        check_minimum(self, 0, "num_highway", "cell_clip", "projection_clip")
        check_limit(self, "from 0 to below 1", "hidden_dropout")
        if not self.filters or any(not 1 <= width <= WORD_BYTES or count < 1 for width, count in self.filters):
            raise ValueError(f"filters: expected pairs of a width up to {WORD_BYTES} and a number, got {self.filters}")

    @classmethod
    def from_size(cls, size: str | None, vocab_size: int, **changes: Any) -> ElmoConfig:
        """Return the configuration of a named size, base if None. Raises ValueError for an unknown name."""
        return cls(vocab_size, **{**named_size("elmo", size), **changes})

    def __str__(self) -> str:
        return f"ELMo L{self.num_layers} P{self.projection_size} C{self.cell_size}, {self.num_filters} filters"

    @property
    def num_filters(self) -> int:
        return sum(count for _, count in self.filters)

    @property
    def hidden_size(self) -> int:
        return 2 * self.projection_size

    @property
    def num_parameters(self) -> int:
        return count_parameters(lambda: ElmoEncoder(self))

    def with_dropout(self, rate: float) -> ElmoConfig:
        return replace(self, hidden_dropout=rate)

    def count_training_flops(self, words: int, predictions: int, candidates: int) -> int:
        """Count the operations of a forward and a backward pass, without the characters of distinct words."""
        per_cell = self.projection_size * (4 * 2 + 1)  # gates read the input and the state; then the projection
        layers = 2 * self.num_layers * self.cell_size * per_cell * words
        return 6 * (layers + predictions * candidates * self.projection_size)


class Highway(nn.Module):
    """g · relu(W x + b) + (1 − g) · x, with g = σ(V x + c)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(size, size)
        self.gate = nn.Linear(size, size)

    def forward(self, words: Tensor) -> Tensor:
        return torch.lerp(words, torch.relu(self.transform(words)), torch.sigmoid(self.gate(words)))


class CharacterEncoder(nn.Module):
    """A vector per word from its bytes: convolutions, maximum over places, ReLU, highway layers, projection."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.widest = max(width for width, _ in config.filters)
        self.embedding = nn.Embedding(NUM_BYTES, config.char_size)
        self.convolutions = nn.ModuleList(nn.Conv1d(config.char_size, count, width) for width, count in config.filters)
        self.highways = nn.ModuleList(Highway(config.num_filters) for _ in range(config.num_highway))
        self.projection = nn.Linear(config.num_filters, config.projection_size)

    def forward(self, rows: Tensor) -> Tensor:
        """Encode words, U × L bytes → U × P."""
        # Filters also read padding. Beyond one window of it, more padding gives no new value to the maximum.
        used = int((rows != PADDING).sum(1).max()) + self.widest
        characters = self.embedding(rows[:, :used]).transpose(1, 2)  # U char_size L
        maxima = [convolution(characters).amax(2) for convolution in self.convolutions]
        words = torch.relu(torch.cat(maxima, 1))  # U filters
        for highway in self.highways:
            words = highway(words)
        projected: Tensor = self.projection(words)
        return projected


class WordVectors(nn.Module):
    """Vectors of words; the characters of each distinct word of a batch are read once."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        self.characters = CharacterEncoder(config)

    def forward(self, rows: Tensor) -> Tensor:
        """Encode words, T × L bytes → T × P."""
        distinct = DistinctWords.of(rows)
        vectors: Tensor = self.characters(distinct.rows)
        return vectors.index_select(0, distinct.words)


class ElmoEncoder(TextEncoder):
    """Words by their characters, read by a stack of LSTMs from left to right, and by another one from right to left."""

    model_type: ClassVar[str] = "elmo"
    config: ElmoConfig

    def __init__(self, config: ElmoConfig, seed: int = 0) -> None:
        super().__init__(config)
        self.embeddings = WordVectors(config)
        clips = Clips(config.cell_clip, config.projection_clip)
        self.layers = nn.ModuleList(
            ProjectedLSTM(config.projection_size, config.cell_size, config.projection_size, clips)
            for _ in range(config.num_layers)
        )
        self.initialize(seed)

    def draw(self, weight: Weight) -> None:
        """Draw characters in ±1, convolutions in ±0.05, LSTMs by Glorot's bound for each gate.

        Linear layers: normal with σ = √(1 / columns). Biases are 0, the forget gates' 1, the highway gates' −2.
        """
        name, owner, values, _ = weight
        if name.endswith("bias"):
            values.fill_(CARRY_BIAS if name.endswith("gate.bias") else 0.0)
            if isinstance(owner, ProjectedLSTM):
                values[:, self.config.cell_size : 2 * self.config.cell_size] = 1.0
        elif isinstance(owner, ProjectedLSTM):
            gates = 1 if name.endswith("hr") else 4
            weight.draw_uniform(glorot_bound(values.shape[1] // gates, values.shape[2]))
        elif isinstance(owner, nn.Linear):
            weight.draw_normal(owner.in_features**-0.5)
        else:
            weight.draw_uniform(CONVOLUTION_RANGE if isinstance(owner, nn.Conv1d) else 1.0)

    @property
    def num_dropout_sites(self) -> int:
        """Two for the input of each layer and for the last output: one per direction."""
        return 2 * (self.config.num_layers + 1)

    def hidden_states(
        self, batch: WordBatch, layers: Sequence[int] | None = None, positions: Tensor | None = None
    ) -> list[Tensor]:
        """Compute the states after each of `layers` (ascending); layer 0 is the word's vector, twice."""
        layers = range(self.config.num_layers + 1) if layers is None else layers
        drop = make_dropout(self, self.config.hidden_dropout, batch.packing)
        words = self.embeddings(word_bytes(batch.rows))  # T P
        order = TimeMajor.of(batch.packing.lengths, batch.rows.device)
        states, sizes = order.both_directions(order.pack(words)), order.batch_sizes.tolist()  # 2 T P
        # The masks of a direction are a function of the word, not of the order.
        drops = [drop and drop.select(words) for words in order.both_directions(order.order)]

        def drop_at(number: int) -> Tensor:
            return torch.stack([dropout(states[d], drops[d], 2 * number + d) for d in range(2)])

        at_layers = [states] if 0 in layers else []
        for number, layer in enumerate(self.layers):
            output = layer(as_factor(drop_at(number), self.compute_dtype), sizes)
            states = output + states if number else output  # the residual skips the first layer
            if number + 1 in layers:
                at_layers.append(drop_at(number + 1) if number + 1 == len(self.layers) else states)
        unpacked = (order.unpack(order.join_directions(layer_states)) for layer_states in at_layers)
        return [layer_states if positions is None else layer_states[positions] for layer_states in unpacked]


def word_bytes(rows: Tensor) -> Tensor:
    """Return the bytes of words, T × W, from rows of an id and bytes; the marks of texts have bytes of their own."""
    marks = torch.from_numpy(mark_rows()).to(rows)  # 2 W
    return torch.where(is_mark(rows)[:, None], marks[rows[:, 0].clamp(BEGIN, END)], rows[:, 1:])


class BidirectionalLM(EncoderModel):
    """The encoder with a softmax over words, which both directions share (section 3.1)."""

    encoder: ElmoEncoder
    config: ElmoConfig

    def __init__(self, config: ElmoConfig, seed: int = 0) -> None:
        super().__init__(ElmoEncoder(config, seed=seed))
        self.softmax = nn.Linear(config.projection_size, config.vocab_size)
        initialize(self, self.encoder.draw, seed, only=("softmax.",))

    def predicting_states(self, batch: WordBatch, positions: Sequence[Tensor]) -> Tensor:
        """Compute the forward states at the first positions and the backward states at the second ones, M × P."""
        forward, backward = self.encoder(batch).chunk(2, 1)
        return torch.cat([forward[positions[0]], backward[positions[1]]])

    def score_tokens(self, batch: WordBatch) -> Tensor:
        """Compute log p of each word by the forward direction; as an answer, a rare word is the unknown one."""
        forward = self.encoder(batch).chunk(2, 1)[0]
        return score_next_tokens(batch.packing, batch.rows[:, 0], forward, self.softmax)

    def cross_entropy(self, states: Tensor, labels: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        states = as_factor(states, self.encoder.compute_dtype)
        return linear_cross_entropy(states, self.softmax.weight, self.softmax.bias, labels, scale)


def load_language_model(name: str, tokenizer: TextTokenizer) -> ElmoEncoder:
    """Load the encoder of an ELMo, which reads any words by their bytes.

    Raises ValueError for a folder with another model.
    """
    encoder = load_model(model_folder(name), heads="optional").model.encoder
    if not isinstance(encoder, ElmoEncoder):
        raise ValueError(
            f"{name}: expected a model of pretrain --architecture elmo, got {encoder.model_type}; name another as "
            "language_model"
        )
    return encoder


# `allennlp.py` reads and writes the released format.
FOLDER = Architecture(ElmoEncoder, ElmoConfig, "Elmo", BidirectionalLM)
