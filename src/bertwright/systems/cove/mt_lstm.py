"""The translation model of CoVe (McCann et al. 2017, "Learned in translation: contextualized word vectors").

Encoder: two bidirectional LSTM layers over word vectors, the MT-LSTM; the upper layer's states are CoVe. Decoder: two
LSTM layers that read the last token and the last attentional state, and attend to the encoder's states (section 3).

S words of all sources, T tokens of all targets, B sources, W words of the longest one; N rows of a step: K hypotheses
for each of n sources (in training K = 1). D size of word vectors, H of states, V tokens of the target vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from bertwright.base.ragged import Ints
from bertwright.base.settings import check_limit, check_minimum
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout
from bertwright.models.beam_search import StepDecoder
from bertwright.models.initialization import initialize
from bertwright.models.linear import Linear, make_dropout
from bertwright.models.packed_lstm import LstmValues, as_factor, run_directions
from bertwright.models.packing import PairBatch, TimeMajor, TokenBatch
from bertwright.systems.translation_models import TranslationModel

INITIAL_BOUND = 0.1  # initial weights are uniform in ±0.1 (section 4)


@dataclass(frozen=True)
class CoveConfig:
    """Sizes of a `CoveEncoder`; the defaults are the paper's."""

    vocab_size: int
    """Words with a vector."""
    word_size: int = 300
    """D, numbers per word vector."""
    hidden_size: int = 600
    """H, numbers per word of both directions together."""
    num_layers: int = 2
    """Bidirectional LSTM layers, and as many layers of the decoder."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "vocab_size", "word_size", "hidden_size", "num_layers")
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size = {self.hidden_size}: expected an even number, half for each direction")

    def __str__(self) -> str:
        return f"MT-LSTM L{self.num_layers} H{self.hidden_size}"


@dataclass(frozen=True)
class MtLstmConfig:
    """Sizes of an `MtLstm`."""

    encoder: CoveConfig
    vocab_size: int
    """V, tokens of the target vocabulary."""
    dropout: float = 0.2
    """Dropout of the inputs and outputs of all layers (section 4)."""
    freeze_words: bool = False
    """True if the source's word vectors keep their first values, as in the paper."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "vocab_size")
        check_limit(self, "from 0 to below 1", "dropout")

    def __str__(self) -> str:
        words = f"{self.encoder.vocab_size:,} source words"
        return f"{self.encoder}, attentional decoder, {words}{' (fixed vectors)' if self.freeze_words else ''}"


class Encoded(NamedTuple):
    """States of a `CoveEncoder`."""

    layers: list[Tensor]
    """Vectors of the words, S × D, then the states after each LSTM layer, S × H."""
    ends: list[LstmValues]
    """States and cells of both directions after their last words, B × H for each layer."""


class CoveEncoder(nn.Module):
    """Word vectors and a stack of bidirectional LSTMs."""

    def __init__(self, config: CoveConfig) -> None:
        super().__init__()
        self.config = config
        self.words = nn.Embedding(config.vocab_size, config.word_size)
        self.layers = nn.ModuleList(
            nn.LSTM(config.hidden_size if number else config.word_size, config.hidden_size // 2, bidirectional=True)
            for number in range(config.num_layers)
        )

    def forward(
        self, ids: Tensor, lengths: Ints, drop: Dropout | None = None, dtype: torch.dtype = torch.float32
    ) -> Encoded:
        """Read S words by their ids; `lengths`: B, words of each source, at least 1; `dtype`: of the products."""
        order = TimeMajor.of(lengths, ids.device)
        drop = drop and drop.select(order.order)
        words = self.words(ids)
        states, layers = dropout(order.pack(words), drop, 0), [words]
        ends = list[LstmValues]()
        for site, layer in enumerate(self.layers, 1):
            inputs = as_factor(states, dtype)
            directions = run_directions(cast(nn.LSTM, layer), inputs, order)
            states = dropout(order.join_directions(directions.states), drop, site)
            layers.append(order.unpack(states))
            ends.append(directions.at_ends(order))
        return Encoded(layers, ends)


class Memory(NamedTuple):
    """The encoder's states of sources, padded."""

    states: Tensor  # B W H
    is_padding: Tensor  # B W

    @classmethod
    def of(cls, states: Tensor, lengths: Ints) -> Memory:
        """Pad the states S × H of packed sources with 0; `lengths`: B, words of each source."""
        places = torch.arange(int(lengths.max(initial=1)), device=states.device)
        is_padding = places >= torch.from_numpy(lengths).to(states.device)[:, None]
        padded = states.new_zeros(*is_padding.shape, states.shape[1])
        return cls(padded.masked_scatter(~is_padding[:, :, None], states), is_padding)

    def select(self, sources: Tensor | slice) -> Memory:
        """Return the states of some of the sources."""
        return Memory(self.states[sources], self.is_padding[sources])

    def attend(self, queries: Tensor) -> Tensor:
        """Compute the context Hᵀα with α = softmax(H q) of each query: N × H, K for each source → N × H."""
        by_source = queries.view(len(self.states), -1, queries.shape[1])  # n K H
        scores = torch.bmm(by_source, self.states.transpose(1, 2))  # n K W
        weights = scores.masked_fill(self.is_padding[:, None], -torch.inf).softmax(2)
        return torch.bmm(weights, self.states).flatten(0, 1)


class DecoderState(NamedTuple):
    """What a step of the decoder hands to the next one."""

    hidden: list[Tensor]  # N H of each layer
    cells: list[Tensor]  # N H of each layer
    attended: Tensor  # N H, the attentional state h̃

    def select(self, rows: Tensor | slice) -> DecoderState:
        """Return some of the rows, in any order."""
        return DecoderState([h[rows] for h in self.hidden], [c[rows] for c in self.cells], self.attended[rows])


class Decoder(nn.Module):
    """Two LSTM layers with attention and input feeding."""

    def __init__(self, config: MtLstmConfig) -> None:
        super().__init__()
        word_size, hidden, layers = config.encoder.word_size, config.encoder.hidden_size, config.encoder.num_layers
        self.words = nn.Embedding(config.vocab_size, word_size)
        # Gates i, f, g, o of each layer from its input and its last state. The first one's input is [z; h̃]; the part
        # of z does not wait for earlier steps.
        self.word_gates = Linear(word_size, 4 * hidden, bias=False)
        self.gates = nn.ModuleList(Linear(2 * hidden, 4 * hidden) for _ in range(layers))
        self.query = Linear(hidden, hidden)  # W₁, b₁
        self.combine = Linear(2 * hidden, hidden)  # W₂, b₂
        self.output = Linear(hidden, config.vocab_size)  # W_out, b_out

    def start(self, source: Encoded) -> DecoderState:
        """Return the state before the first token: the encoder's last one, and h̃ = 0."""
        hidden, cells = ([*values] for values in zip(*source.ends, strict=True))
        return DecoderState(hidden, cells, torch.zeros_like(hidden[0]))

    def embed(self, ids: Tensor, drop: Dropout | None, site: int) -> Tensor:
        """Compute the part of the first layer's gates that depends on the tokens alone, T → T × 4H."""
        gates: Tensor = self.word_gates(dropout(self.words(ids), drop, site))
        return gates

    def step(
        self, embedded: Tensor, state: DecoderState, memory: Memory, masks: Sequence[Tensor] | None = None
    ) -> DecoderState:
        """Read one token in each row, N × 4H of `embed`; `masks`: dropout factors of each output, N × H."""
        inputs, hidden, cells = state.attended, [], []
        for number, (layer, last, cell) in enumerate(zip(self.gates, state.hidden, state.cells, strict=True)):
            gates = layer(torch.cat([inputs, last], 1))
            gates = gates if number else gates + embedded
            i, f, g, o = gates.chunk(4, 1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            inputs = o.sigmoid() * cell.tanh()
            hidden.append(inputs)
            cells.append(cell)
            inputs = inputs if masks is None else inputs * masks[number]
        context = memory.attend(self.query(inputs))
        attended = torch.tanh(self.combine(torch.cat([context, inputs], 1)))
        return DecoderState(hidden, cells, attended if masks is None else attended * masks[-1])


class MtLstm(TranslationModel):
    """Encoder and decoder; initial weights are a function of the seed. Dropout acts in training mode only."""

    architecture: ClassVar[str] = "mt-lstm"
    config: MtLstmConfig

    def __init__(self, config: MtLstmConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = torch.float32
        """Dtype of the softmax over the vocabulary and, if it is bfloat16, of the encoder's products."""
        self.encoder = CoveEncoder(config.encoder)
        self.decoder = Decoder(config)
        self.encoder.words.weight.requires_grad_(not config.freeze_words)
        initialize(self, lambda weight: weight.draw_uniform(INITIAL_BOUND), seed)

    def forward(self, batch: PairBatch) -> Tensor:
        """Compute the attentional states of all target tokens, T × H.

        Targets are read step by step, longest first, so that the rows of a step are the first rows of the last one.
        """
        decoder, target = self.decoder, batch.target
        encoded, memory = self.encode(batch.source)
        order = TimeMajor.of(target.packing.lengths, target.input_ids.device)
        memory, state = memory.select(order.sequences), decoder.start(encoded).select(order.sequences)
        drop = make_dropout(self, self.config.dropout, target.packing)
        drop, site = drop and drop.select(order.order), self.config.encoder.num_layers + 1
        embedded, counts = decoder.embed(order.pack(target.input_ids), drop, site), order.batch_sizes.tolist()
        ones = torch.ones(len(embedded), embedded.shape[1] // 4, device=embedded.device)
        sites = range(site + 1, site + len(decoder.gates) + 2)
        masks = [torch.split(dropout(ones, drop, number), counts) for number in sites]
        states = []
        # Slices whose gradients would fill whole tensors with zeros at each step are taken once, or when counts change.
        for words, *step_masks in zip(torch.split(embedded, counts), *masks, strict=True):
            if (count := len(words)) < len(state.attended):
                state, memory = state.select(slice(count)), memory.select(slice(count))
            state = decoder.step(words, state, memory, step_masks if drop else None)
            states.append(state.attended)
        return order.unpack(torch.cat(states)).to(self.compute_dtype)

    def encode(self, source: TokenBatch) -> tuple[Encoded, Memory]:
        drop = make_dropout(self, self.config.dropout, source.packing)
        encoded = self.encoder(source.input_ids, source.packing.lengths, drop, self.compute_dtype)
        return encoded, Memory.of(encoded.layers[-1], source.packing.lengths)

    def softmax_weights(self) -> tuple[Tensor, Tensor]:
        return self.decoder.output.weight, self.decoder.output.bias

    def start_decoding(self, source: TokenBatch) -> StepDecoder:
        return MtLstmSteps(self, source)


class MtLstmSteps:
    """The decoder with the states of all hypotheses; see `beam_search.StepDecoder`."""

    def __init__(self, model: MtLstm, source: TokenBatch) -> None:
        self.model = model
        encoded, self.memory = model.encode(source)
        self.state = model.decoder.start(encoded)

    def advance(self, tokens: Tensor, parents: Tensor, sources: Tensor) -> Tensor:
        """Compute the logits after one more token of each hypothesis, N × V."""
        decoder, device = self.model.decoder, self.memory.states.device
        embedded = decoder.embed(tokens.to(device), None, 0)
        memory = self.memory.select(sources.to(device))
        self.state = decoder.step(embedded, self.state.select(parents.to(device)), memory)
        return cast(Tensor, decoder.output(self.state.attended)).cpu()
