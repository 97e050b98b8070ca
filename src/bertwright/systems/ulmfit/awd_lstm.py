"""ULMFiT (Howard & Ruder 2018): the AWD-LSTM language model of Merity et al. 2017, and the classifier on its states.

Word vectors → LSTM layers, of which the last one has the size of the word vectors → softmax with the same table. There
are five dropouts: of whole rows of the table, of the vectors, between the layers, of the last states, and of the
weights from state to state. A mask of vectors and states is the same at every step of a sequence ("variational"), a
mask of rows or weights the same in the whole step.

T tokens of B sequences, in a packed batch or, where a name says time, in `TimeMajor` order; H size of the last state,
C cells of a layer, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.base.settings import check_limit, check_minimum
from bertwright.interop.model_format import Architecture
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout
from bertwright.kernels.linear_cross_entropy import linear_cross_entropy
from bertwright.models.batch_norm import BatchNorm
from bertwright.models.encoder import EncoderModel, TextEncoder, count_parameters
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch, TaskHead
from bertwright.models.initialization import Weight, uniform_by_size
from bertwright.models.linear import Linear
from bertwright.models.packed_lstm import LstmValues, as_factor, run_lstm
from bertwright.models.packing import Packing, TimeMajor, TokenBatch, WordBatch
from bertwright.models.pooling import PoolingName, pool_states
from bertwright.models.token_scores import score_next_tokens
from bertwright.systems.registry import named_size
from bertwright.systems.ulmfit.defaults import ACTIVATION_PENALTY, SLOWNESS_PENALTY

DROPOUTS = ("embedding_dropout", "input_dropout", "weight_dropout", "hidden_dropout", "output_dropout")
MAX_DROPOUT = 0.9
EMBEDDING_RANGE = 0.1  # initial word vectors are uniform in ± this (released code of AWD-LSTM)


@dataclass(frozen=True)
class AwdLstmConfig:
    """Sizes and dropouts of an `AwdLstmEncoder`; the defaults are ULMFiT's (section 4.1)."""

    type_vocab_size: ClassVar[int] = 2
    is_causal: ClassVar[bool] = True

    vocab_size: int
    """V, rows of the table of word vectors."""
    embedding_size: int = 400
    """H, numbers per word vector, and size of the last layer's state."""
    lstm_size: int = 1150
    """Size of the other layers' states."""
    num_layers: int = 3
    """LSTM layers."""
    embedding_dropout: float = 0.05
    """Dropout of whole words: all their vectors are 0 in a step."""
    input_dropout: float = 0.4
    """Dropout of the word vectors."""
    weight_dropout: float = 0.5
    """Dropout of the weights from a state to the next one."""
    hidden_dropout: float = 0.3
    """Dropout of the states between the layers."""
    output_dropout: float = 0.4
    """Dropout of the last layer's states."""
    classifier_size: int = 50
    """Size of the classifier's hidden layer."""
    classifier_dropouts: tuple[float, float] = (0.4, 0.1)
    """Dropout of the pooled states, and of the hidden layer."""
    bptt: int = 70
    """Steps over which gradients flow back (BPTT, and BPT3C in the classifier)."""
    pooled_tokens: int = 1400
    """Last tokens of a text, in the order of reading, that the classifier pools."""
    is_reversed: bool = False
    """True if the model reads from right to left."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights of new heads."""
    max_positions: int = 100_000
    """Longest sequence; the model has no positions, so that this bounds memory only."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "vocab_size", "embedding_size", "lstm_size", "num_layers", "classifier_size", "bptt")
        check_minimum(self, 1, "pooled_tokens", "max_positions")
        check_limit(self, "from 0 to below 1", *DROPOUTS)
        check_limit(self, "above 0", "initializer_range")

    @classmethod
    def from_size(cls, size: str | None, vocab_size: int, **changes: Any) -> AwdLstmConfig:
        """Return the configuration of a named size, base if None. Raises ValueError for an unknown name."""
        return cls(vocab_size, **{**named_size("ulmfit", size), **changes})

    def __str__(self) -> str:
        return f"AWD-LSTM L{self.num_layers} E{self.embedding_size} H{self.lstm_size}"

    @property
    def hidden_size(self) -> int:
        return self.embedding_size

    @property
    def num_parameters(self) -> int:
        return count_parameters(lambda: AwdLstmLanguageModel(self))

    def layer_sizes(self) -> Iterator[tuple[int, int]]:
        """Yield the sizes of each layer's input and state."""
        for number in range(self.num_layers):
            is_last = number == self.num_layers - 1
            yield (
                (self.lstm_size if number else self.embedding_size),
                (self.embedding_size if is_last else self.lstm_size),
            )

    def with_dropout(self, rate: float) -> AwdLstmConfig:
        """Return a copy with a `hidden_dropout` of `rate`, and all other rates in the paper's ratio to it."""
        factor = rate / AwdLstmConfig.hidden_dropout
        rates = {name: min(factor * getattr(AwdLstmConfig, name), MAX_DROPOUT) for name in DROPOUTS}
        first, second = (min(factor * own, MAX_DROPOUT) for own in AwdLstmConfig.classifier_dropouts)
        return replace(self, classifier_dropouts=(first, second), **rates)

    def count_training_flops(self, tokens: int) -> int:
        """Count the operations of a forward and a backward pass."""
        layers = sum(4 * state * (size + state) for size, state in self.layer_sizes())
        return 6 * tokens * (layers + self.embedding_size * self.vocab_size)


class Reading(NamedTuple):
    """The result of reading a batch."""

    outputs: list[Tensor]
    """T × size: the word vectors, then the states of each layer; all after their dropout."""
    states: Tensor
    """T × H, states of the last layer before dropout."""
    last: list[LstmValues]
    """States and cells of each layer after the last word of each sequence, B × C, without gradients; the order is
    `TimeMajor`'s."""


class AwdLstmEncoder(TextEncoder):
    """Word vectors, and LSTM layers that read them from left to right or, if `is_reversed`, from right to left."""

    model_type: ClassVar[str] = "awd-lstm"
    config: AwdLstmConfig
    embeddings: Any

    def __init__(self, config: AwdLstmConfig, seed: int = 0) -> None:
        super().__init__(config)
        self.embeddings = nn.Module()
        self.embeddings.word = nn.Embedding(config.vocab_size, config.embedding_size)
        self.layers = nn.ModuleList(nn.LSTM(size, state) for size, state in config.layer_sizes())
        self.initialize(seed)

    def draw(self, weight: Weight) -> None:
        """Draw word vectors in ±0.1 and LSTMs in ±1 / √C, as the released code of AWD-LSTM and PyTorch do."""
        if isinstance(weight.owner, nn.Embedding):
            weight.draw_uniform(EMBEDDING_RANGE)
        else:
            uniform_by_size(weight)

    @property
    def num_dropout_sites(self) -> int:
        """Two for rows and vectors, and two for the weights and the states of each layer."""
        return 2 + 2 * self.config.num_layers

    def own_head(self, spec: HeadSpec) -> TaskHead | None:
        return ConcatPoolingHead(spec, self.config) if spec.reads_sequence_state else None

    @property
    def has_penalty(self) -> bool:
        return True

    def penalty(self, batch: TaskBatch, states: Tensor) -> Tensor:
        """Compute a micro-batch's share of α · mean(h²) + β · mean((h_t − h_t+1)²), as in the released classifier."""
        follows = batch.packing.position_ids[1:] > 0
        differences = states.diff(dim=0)[follows].square().sum() / max(batch.num_next_tokens, 1)
        squares = states.square().sum() / (batch.num_next_tokens + batch.num_sequences)
        return (ACTIVATION_PENALTY * squares + SLOWNESS_PENALTY * differences) / states.shape[1]

    def hidden_states(
        self, batch: TokenBatch | WordBatch, layers: Sequence[int] | None = None, positions: Tensor | None = None
    ) -> list[Tensor]:
        """Compute the states after each of `layers`; layer 0 is the word vectors.

        The output dropout is the language model's alone: a classifier reads the last layer's states before it, as in
        the released code, and has a dropout of its own.
        """
        reading = self.read(batch)
        outputs = [*reading.outputs[:-1], reading.states]
        chosen = outputs if layers is None else [outputs[number] for number in layers]
        return chosen if positions is None else [states[positions] for states in chosen]

    def read(self, batch: TokenBatch | WordBatch, first: Sequence[LstmValues] | None = None) -> Reading:
        """Read a batch; `first`: values of each layer before the first step, in the order of the sequences; None: 0.

        With `first`, all sequences must have one length, and gradients flow back to the first step; without, they
        flow back over `bptt` steps.
        """
        packing, config = batch.packing, self.config
        ids = batch.rows[:, 0] if isinstance(batch, WordBatch) else batch.input_ids
        order = TimeMajor.of(packing.lengths, ids.device)
        sizes = order.batch_sizes.tolist()
        max_steps = config.bptt if first is None else len(sizes)
        # The key of a locked mask is the first token of the sequence, of a mask of rows the word.
        starts = packing.first_positions.repeat_interleave(packing.cu_seqlens.diff().long())  # T
        locked = order.pack(starts) + packing.first_token
        mirror = order.mirror if config.is_reversed else slice(None)
        time_ids = order.pack(ids)[mirror]

        def drop_at(rate: float, keys: Tensor | None) -> Dropout | None:
            return Dropout(rate, packing.dropout_seed, 0, keys) if self.training and rate else None

        ones = torch.ones(len(time_ids), 1, device=ids.device)
        factors = dropout(ones, drop_at(config.embedding_dropout, time_ids), 0)
        words = F.embedding(time_ids, self.embeddings.word.weight) * factors
        time_outputs = [dropout(words, drop_at(config.input_dropout, locked), 1)]
        values = LstmValues(words, words)
        last = []
        firsts = [None] * config.num_layers if first is None else first
        for number, layer in enumerate(cast(Sequence[nn.LSTM], self.layers)):
            hidden = layer.get_parameter("weight_hh_l0")
            weights = dropout(hidden, drop_at(config.weight_dropout, None), 2 + 2 * number)
            inputs = as_factor(time_outputs[-1], self.compute_dtype)
            values = run_lstm(layer, inputs, sizes, weights, firsts[number], max_steps)
            rate = config.output_dropout if number + 1 == config.num_layers else config.hidden_dropout
            time_outputs.append(dropout(values.states, drop_at(rate, locked), 3 + 2 * number))
            last.append(values.detach_last(sizes[-1]))
        outputs = [order.unpack(output[mirror]) for output in time_outputs]
        return Reading(outputs, order.unpack(values.states[mirror]), last)


class ConcatPoolingHead(TaskHead):
    """The classifier (section 3.3): [last state; maximum; mean] of a text's last tokens, then two blocks.

    A block is batch normalization, dropout and a linear layer; ReLU is between the two.
    """

    reads_all_tokens: ClassVar[bool] = True
    has_standard_class: ClassVar[bool] = True

    def __init__(self, spec: HeadSpec, config: AwdLstmConfig) -> None:
        super().__init__(spec)
        self.pooled_tokens, self.dropouts = config.pooled_tokens, config.classifier_dropouts
        self.is_reversed = config.is_reversed
        self.pooled_norm = BatchNorm(3 * config.hidden_size)
        self.dense = Linear(3 * config.hidden_size, config.classifier_size)
        self.dense_norm = BatchNorm(config.classifier_size)
        self.classifier = Linear(config.classifier_size, spec.outputs)

    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> Tensor:
        """Compute logits B × C float32 of states T × H."""
        packing = batch.packing
        drop = drop and drop.select(packing.first_positions)
        if packing.max_seqlen > self.pooled_tokens:
            lengths = packing.cu_seqlens.diff().long()
            read_before = packing.position_ids + 1
            if not self.is_reversed:
                read_before = lengths.repeat_interleave(lengths) - packing.position_ids
            states = states[read_before <= self.pooled_tokens]
            packing = Packing.of(packing.lengths.clip(max=self.pooled_tokens)).to(states.device)
        last: PoolingName = "cls" if self.is_reversed else "lasttoken"
        pooled = self.pooled_norm(pool_states(states, packing, (last, "max", "mean")))
        first, second = (drop and drop._replace(rate=rate) for rate in self.dropouts)
        hidden = torch.relu(self.dense(dropout(pooled, first, 0)))
        logits: Tensor = self.classifier(dropout(self.dense_norm(hidden), second, 1))
        return logits


class CarriedValues:
    """States and cells that a batch of streams hands to the next one (truncated back-propagation through time)."""

    def __init__(self, config: AwdLstmConfig) -> None:
        self.config = config
        self.layers: list[LstmValues] = []
        """B × C for each layer."""

    def start(self, streams: int, device: torch.device) -> None:
        """Set the values of a number of streams to 0."""
        sizes = (state for _, state in self.config.layer_sizes())
        self.layers = [LstmValues(*torch.zeros(2, streams, size, device=device)) for size in sizes]

    def read(self, streams: slice) -> list[LstmValues]:
        """Return copies of the values of some streams."""
        return [LstmValues(*(values[streams].clone() for values in layer)) for layer in self.layers]

    def write(self, streams: slice, layers: Sequence[LstmValues]) -> None:
        """Replace the values of some streams."""
        for own, layer in zip(self.layers, layers, strict=True):
            own.states[streams], own.cells[streams] = layer

    def state(self) -> dict[str, Tensor]:
        """Return the values as named tensors, for a checkpoint."""
        named = [(number, layer._asdict()) for number, layer in enumerate(self.layers)]
        return {f"{number}.{name}": values for number, layer in named for name, values in layer.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned."""
        numbers = range(len(state) // 2)
        self.layers = [LstmValues(state[f"{number}.states"], state[f"{number}.cells"]) for number in numbers]


class AwdLstmLanguageModel(EncoderModel):
    """The encoder with a softmax whose weights are the word vectors."""

    encoder: AwdLstmEncoder
    config: AwdLstmConfig

    def __init__(self, config: AwdLstmConfig, seed: int = 0) -> None:
        super().__init__(AwdLstmEncoder(config, seed=seed))
        self.softmax_bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.carried, self.evaluated = CarriedValues(config), CarriedValues(config)

    def depth_of(self, parameter: str) -> int:
        """Return the depth of a parameter; the table is at the top, because it is the softmax's as well."""
        depth = super().depth_of(parameter)
        return depth if depth > 0 else self.encoder.head_depth

    def score_tokens(self, batch: TokenBatch | WordBatch) -> Tensor:
        if self.config.is_reversed:
            return super().score_tokens(batch)
        ids = batch.rows[:, 0] if isinstance(batch, WordBatch) else batch.input_ids
        table = self.encoder.embeddings.word.weight
        logits = partial(F.linear, weight=table, bias=self.softmax_bias)
        return score_next_tokens(batch.packing, ids, self.encoder(batch), logits)

    def cross_entropy(self, states: Tensor, labels: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        states, table = as_factor(states, self.encoder.compute_dtype), self.encoder.embeddings.word.weight
        return linear_cross_entropy(states, table, self.softmax_bias, labels, scale)


@torch.no_grad()
def adapt_vocabulary(
    model: AwdLstmLanguageModel, tokens: Sequence[str], new_tokens: Sequence[str]
) -> tuple[AwdLstmLanguageModel, int]:
    """Return the model with another vocabulary, and the number of its words that the old one has.

    A new word gets the mean of all rows (section 3.2, released code).
    """
    numbers = {token: number for number, token in enumerate(tokens)}
    rows = torch.tensor([numbers.get(token, -1) for token in new_tokens])
    adapted = AwdLstmLanguageModel(replace(model.config, vocab_size=len(new_tokens)))
    table, bias = model.encoder.embeddings.word.weight, model.softmax_bias
    state = model.state_dict() | {
        "encoder.embeddings.word.weight": torch.where(rows[:, None] < 0, table.mean(0), table[rows]),
        "softmax_bias": torch.where(rows < 0, bias.mean(), bias[rows]),
    }
    adapted.load_state_dict(state)
    return adapted, int((rows >= 0).sum())


FOLDER = Architecture(AwdLstmEncoder, AwdLstmConfig, "AwdLstm", AwdLstmLanguageModel)
