"""What the models of whole words have in common: the vectors of a word, the texts of a batch, the head of sentences.

On sentences and pairs, the head reads the maximum of the states (InferSent, Conneau et al. 2017; the baseline of GLUE,
Wang et al. 2019, table 1).

T rows of the batch: N words, and the special tokens between its texts; U distinct words, W characters per word;
D size of a word's vectors, H of its state; C outputs of the head.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.base.ragged import Ints, offsets_from_lengths
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout
from bertwright.models.distinct_words import DistinctWords, is_mark
from bertwright.models.encoder import TextEncoder
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch, TaskHead
from bertwright.models.initialization import Weight, glorot_bound
from bertwright.models.linear import Linear, make_dropout
from bertwright.models.packed_lstm import run_directions
from bertwright.models.packing import Packing, TimeMajor, WordBatch
from bertwright.systems.elmo.elmo import ElmoConfig
from bertwright.systems.language_model_states import NUM_LETTERS, ContextConfig, LanguageModelStates
from bertwright.systems.word_config import WordConfig
from bertwright.vocabulary.unknown_words import keyed_vectors

CNN_WIDTH = 3  # characters per filter


class CharacterCnn(nn.Module):
    """Filters over the characters of a word, and their maximum (figure 1)."""

    def __init__(self, config: WordConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.num_characters, config.char_size)
        self.filters = Linear(CNN_WIDTH * config.char_size, config.char_features)

    def forward(self, rows: Tensor, drop: Dropout | None) -> Tensor:
        """Compute the features of U words, U × W → U × features; filters also reach over both ends of a word."""
        letters = dropout(self.embedding(rows), drop, 0) * (rows > 0)[:, :, None]  # U W E
        padded = F.pad(letters, (0, 0, CNN_WIDTH - 1, CNN_WIDTH - 1))
        windows = padded.unfold(1, CNN_WIDTH, 1).transpose(2, 3).flatten(2)  # U W+2 3E
        filtered = self.filters(windows)  # U W+2 F
        lengths = (rows > 0).sum(1, keepdim=True) + CNN_WIDTH - 1
        outside = torch.arange(filtered.shape[1], device=rows.device) >= lengths  # U W+2
        return torch.tanh(filtered.masked_fill(outside[:, :, None], -torch.inf).amax(1))


class CharacterLstm(nn.Module):
    """The last states of a forward and a backward LSTM over the characters of a word (Lample et al. 2016, figure 4)."""

    def __init__(self, config: WordConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.num_characters, config.char_size)
        self.lstm = nn.LSTM(config.char_size, config.char_features // 2, bidirectional=True)

    def forward(self, rows: Tensor, drop: Dropout | None) -> Tensor:
        """Compute the features of U words, U × W → U × features."""
        letters = dropout(self.embedding(rows), drop, 0)  # U W E
        lengths = (rows > 0).sum(1).clamp_min(1)
        order = TimeMajor.of(lengths.cpu().numpy(), rows.device)
        inside = torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]
        return run_directions(self.lstm, order.pack(letters[inside]), order).at_ends(order).states


class WordEmbeddings(nn.Module):
    """A vector per word: its row of a table, and features of its characters."""

    def __init__(self, config: WordConfig) -> None:
        super().__init__()
        self.size = config.input_size
        self.word = nn.Embedding(config.vocab_size, config.word_size)
        self.word.weight.requires_grad_(not config.freeze_words)
        models = {"cnn": CharacterCnn, "lstm": CharacterLstm}
        self.characters = models[config.char_model](config) if config.char_model != "none" else None
        context = config.language_model if isinstance(config, ContextConfig) else None
        self.reads_bytes = isinstance(context, ElmoConfig)
        """Whether rows have the bytes of words as ELMo reads them, not ids of characters."""

    def forward(self, rows: Tensor, drop: Dropout | None, sparse: bool) -> Tensor:
        """Embed words, N × (1 + W) → N × D; features of characters are computed once for each distinct word."""
        if not len(rows):
            return self.word.weight.new_zeros(0, self.size)
        sparse = sparse and self.word.weight.requires_grad
        words = F.embedding(rows[:, 0].clamp_min(0), self.word.weight, sparse=sparse)
        if len(own := (rows[:, 0] < 0).nonzero()[:, 0]):  # words that determine their vectors themselves
            keys = rows[own, 0].cpu().numpy()
            words = words.index_copy(0, own, torch.from_numpy(keyed_vectors(keys, words.shape[1])).to(words.device))
        if self.characters is None:
            return words
        distinct = DistinctWords.of(letters_of_bytes(rows[:, 1:]) if self.reads_bytes else rows[:, 1:])
        drop = drop and drop._replace(first_token=0, positions=distinct.keys)
        features: Tensor = self.characters(distinct.rows, drop)
        return torch.cat([words, features[distinct.words]], 1)


def letters_of_bytes(rows: Tensor) -> Tensor:
    """Convert ELMo's rows to rows of letters: 0 fills up, and marks are left out. N × W → N × W - 2."""
    inner = rows[:, 1:-1]
    return torch.where(inner < NUM_LETTERS - 1, inner + 1, 0)


class Texts(NamedTuple):
    """The words of a batch without its special tokens, which end a text each."""

    words: Tensor
    """N int64, positions of the words among the T rows."""
    lengths: Ints
    """Words of each text, empty ones included."""

    @classmethod
    def of(cls, batch: WordBatch) -> Texts:
        """Find the words: rows without the ids of begin and end."""
        is_word = ~is_mark(batch.rows)
        ends = torch.cat([(~is_word).nonzero()[:, 0].cpu(), torch.tensor([len(is_word)])]).numpy()
        return cls(is_word.nonzero()[:, 0], np.diff(ends) - 1)

    def ends_text(self, packing: Packing) -> npt.NDArray[np.bool_]:
        """Return which places are texts: not those between two sequences, where the first token ends none."""
        ends_text = np.ones(len(self.lengths), dtype=bool)
        specials = offsets_from_lengths(self.lengths + 1)[:-1]
        ends_text[np.flatnonzero(np.isin(specials, packing.last_positions.cpu().numpy()))] = False
        return ends_text


class WordEncoder(TextEncoder):
    """An encoder of words, read text by text; the states of special tokens are 0.

    A subclass adds `layers` and, if it reads the states of a frozen model, `language_model`.
    """

    language_model: LanguageModelStates | None

    def __init__(self, config: Any) -> None:
        """Build the vectors of words; `config`: a `WordConfig` with layers."""
        super().__init__(config)
        self.embeddings = WordEmbeddings(config)

    def draw(self, weight: Weight) -> None:
        """Draw numbers in ±√(3 / size) for embeddings, and by Glorot's bound for matrices, for each gate of an LSTM.

        Biases are 0, and 1 for the forget gates (Ma & Hovy 2016, section 3.2). A frozen model keeps its weights.
        """
        name, owner, values, _ = weight
        if name.startswith("language_model."):
            return
        if values.ndim == 1:
            values.zero_()
            if name.startswith("layers.") and "bias_ih" in name:
                values[len(values) // 4 : len(values) // 2] = 1.0
        elif isinstance(owner, nn.Embedding):
            weight.draw_uniform((3 / owner.embedding_dim) ** 0.5)
        else:
            gates = 4 if isinstance(owner, nn.LSTM) else 1
            weight.draw_uniform(glorot_bound(len(values) // gates, values.shape[1]))

    def own_head(self, spec: HeadSpec) -> TaskHead | None:
        """Return the head of sentence-level tasks; others have a linear layer."""
        config = cast(WordConfig, self.config)
        return SentenceHead(spec, config, self.config.hidden_size) if spec.reads_sequence_state else None

    @property
    def has_penalty(self) -> bool:
        return self.language_model is not None and self.language_model.mix_penalty > 0

    def penalty(self, batch: TaskBatch, states: Tensor) -> Tensor:
        assert self.language_model is not None
        return self.language_model.penalty(batch)

    def hidden_states(
        self, batch: WordBatch, layers: Sequence[int] | None = None, positions: Tensor | None = None
    ) -> list[Tensor]:
        """Compute the states after each of `layers`; layer 0 is the vectors of the words."""
        layers = range(self.config.num_layers + 1) if layers is None else layers
        texts = Texts.of(batch)
        drop = make_dropout(self, self.config.hidden_dropout, batch.packing)
        words = self.embeddings(batch.rows[texts.words], drop, self.sparse_gradients)  # N D
        results = []
        for own in self.read_words(words, batch, texts, drop, layers):
            placed = own.new_zeros(len(batch.rows), own.shape[1]).index_copy(0, texts.words, own)
            results.append(placed if positions is None else placed[positions])
        return results

    @abstractmethod
    def read_words(
        self, words: Tensor, batch: WordBatch, texts: Texts, drop: Dropout | None, layers: Sequence[int]
    ) -> list[Tensor]:
        """Compute the states of the words of a batch, N × H, after each of `layers`, which ascend; 0: before them.

        `words`: their own vectors, N × D; `drop`: dropout of the T rows.
        """


class SentenceHead(TaskHead):
    """A hidden and a linear layer on the maximum u of a text's states; for pairs, on [u; v; |u − v|; u ∗ v]."""

    reads_all_tokens: ClassVar[bool] = True
    has_standard_class: ClassVar[bool] = True

    def __init__(self, spec: HeadSpec, config: WordConfig, hidden_size: int) -> None:
        super().__init__(spec)
        self.texts = config.texts
        self.dense = Linear(hidden_size * (1 if self.texts == 1 else 4), config.classifier_size)
        self.classifier = Linear(config.classifier_size, spec.outputs)

    def forward(self, states: Tensor, batch: TaskBatch, drop: Dropout | None) -> Tensor:
        """Compute logits B × C of states T × H."""
        vectors = self.pool(states, batch)
        if len(vectors) != self.texts * len(batch.packing):
            raise ValueError(
                f"texts = {self.texts}: expected as many texts per example as the model was made for, got "
                f"{len(vectors) / len(batch.packing):g}; train a new model (--architecture bilstm)"
            )
        if self.texts == 2:
            u, v = vectors[::2], vectors[1::2]
            vectors = torch.cat([u, v, (u - v).abs(), u * v], 1)
        drop = drop and drop.select(batch.packing.first_positions)
        hidden = torch.tanh(self.dense(dropout(vectors, drop, 0)))
        logits: Tensor = self.classifier(dropout(hidden, drop, 1))
        return logits

    @staticmethod
    def pool(states: Tensor, batch: TaskBatch) -> Tensor:
        """Return the maximum of each text's states; 0 for an empty text."""
        assert isinstance(batch.input, WordBatch)
        texts = Texts.of(batch.input)
        offsets = torch.from_numpy(offsets_from_lengths(texts.lengths)).to(states.device)
        pooled = torch.segment_reduce(states[texts.words], "max", offsets=offsets, axis=0)
        is_text = torch.from_numpy(texts.ends_text(batch.packing)).to(states.device)
        return pooled.masked_fill(torch.isinf(pooled), 0.0)[is_text]
