"""The window network of Collobert et al. 2011 ("Natural language processing (almost) from scratch", section 3.2.1).

The vectors of a word and of its neighbors on both sides, end to end, pass through one layer of hard tanh. The paper's
sentence-level likelihood is the CRF of a tagging task (`models/crf.py`); a text is represented by the maximum of its
words' states, as in the paper's sentence approach. The characters of words replace the paper's features of capitals.

N words of all texts, D size of a word's vectors, K words in a window, H size of a state; T rows of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.baselines.bilstm_crf import BiLSTMConfig, CharacterModel, SentenceHead, Texts, WordEmbeddings
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout
from bertwright.models.encoder import Linear, make_dropout
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskHead
from bertwright.models.initialization import parameter_rng
from bertwright.models.packing import WordBatch
from bertwright.models.text_encoder import TextEncoder
from bertwright.settings import check_limit, check_minimum


@dataclass(frozen=True)
class WindowConfig:
    """Sizes of a `WindowEncoder`; the defaults are the paper's for tagging (table 5)."""

    SHARED: ClassVar[tuple[str, ...]] = (
        *("vocab_size", "num_characters", "word_size", "char_model", "char_size", "char_features"),
        *("freeze_words", "texts"),
    )
    """Fields that a `BiLSTMConfig` has with the same meaning."""

    vocab_size: int
    """Rows of the table of word vectors."""
    num_characters: int
    """Rows of the table of character vectors."""
    word_size: int = 50
    """Numbers per word vector."""
    char_model: CharacterModel = "cnn"
    """Model of a word's characters, as in `BiLSTMConfig`."""
    char_size: int = 30
    """Numbers per character vector."""
    char_features: int = 30
    """Numbers that the character model gives a word."""
    reach: int = 2
    """Words on each side of a word in its window."""
    hidden_size: int = 300
    """H; an even number."""
    hidden_dropout: float = 0.0
    """Dropout of character vectors and of windows; the paper has none."""
    freeze_words: bool = False
    """True if the word vectors keep their first values."""
    texts: int = 1
    """Texts per sequence in sentence-level tasks: 2 for pairs."""
    classifier_size: int = 512
    """Size of the hidden layer in sentence-level heads."""
    initializer_range: float = 0.07
    """σ of the head's initial weights."""
    max_positions: int = 100_000
    """Longest sequence; the model has no positions, so that this bounds memory only."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "reach", "hidden_size")
        check_limit(self, "above 0", "initializer_range")
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size = {self.hidden_size}: expected an even number")
        _ = self.parts  # checks the other sizes

    def __str__(self) -> str:
        characters = "no characters" if self.char_model == "none" else f"characters by {self.char_model.upper()}"
        return f"window of {2 * self.reach + 1} words, H{self.hidden_size}, words {self.word_size}, {characters}"

    @property
    def num_layers(self) -> int:
        return 1

    @property
    def type_vocab_size(self) -> int:
        return 2

    @property
    def is_causal(self) -> bool:
        return False

    @property
    def parts(self) -> BiLSTMConfig:
        """Configuration of the parts that are a BiLSTM's as well: embeddings and sentence-level head."""
        shared = {name: getattr(self, name) for name in self.SHARED}
        shared |= {"lstm_size": self.hidden_size // 2, "classifier_size": self.classifier_size}
        return BiLSTMConfig(**shared, hidden_dropout=self.hidden_dropout)

    @property
    def num_parameters(self) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in WindowEncoder(self).parameters())

    def with_dropout(self, rate: float) -> WindowConfig:
        return replace(self, hidden_dropout=rate)


class WindowLayer(nn.Module):
    """Windows of K vectors and a layer of hard tanh; a trained vector stands for words beyond both ends of a text."""

    def __init__(self, size: int, reach: int, hidden_size: int) -> None:
        super().__init__()
        self.reach = reach
        self.padding = nn.Parameter(torch.zeros(size))
        self.dense = Linear((2 * reach + 1) * size, hidden_size)

    def forward(self, words: Tensor, text: Tensor, drop: Dropout | None) -> Tensor:
        """Compute the states, N × D → N × H; `text` (N): the number of each word's text."""
        padded = torch.cat([words, self.padding[None]])
        columns = []
        for offset in range(-self.reach, self.reach + 1):
            places = torch.arange(len(words), device=words.device) + offset
            inside = (places >= 0) & (places < len(words))
            inside &= text[places.clamp(0, len(words) - 1)] == text
            columns.append(padded[torch.where(inside, places, len(words))])
        return F.hardtanh(self.dense(dropout(torch.cat(columns, 1), drop, 1)))


class WindowEncoder(TextEncoder):
    """Words with characters, read through windows, text by text; the states of special tokens are 0."""

    model_type: ClassVar[str] = "window"
    config: WindowConfig

    def __init__(self, config: WindowConfig, compute_dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        super().__init__(config, compute_dtype)
        self.embeddings = WordEmbeddings(config.parts)
        self.layers = nn.ModuleList([WindowLayer(config.parts.input_size, config.reach, config.hidden_size)])
        self.initialize(seed)

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Draw weights uniformly in ±√(3 / size) for embeddings and ±√(6 / (rows + columns)) for matrices.

        Biases and padding are 0. Every parameter is a function of (seed, name).
        """
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1 or parameter.is_meta:
                parameter.zero_()
                continue
            rows, columns = parameter.shape
            bound = (3 / columns) ** 0.5 if name.startswith("embeddings.") else (6 / (rows + columns)) ** 0.5
            parameter.uniform_(-bound, bound, generator=parameter_rng(seed, f"encoder.{name}"))

    @property
    def num_dropout_sites(self) -> int:
        """One for the characters, one for the windows."""
        return 2

    def make_head(self, spec: HeadSpec) -> TaskHead | None:
        """Return the head of sentence-level tasks; others have a linear layer."""
        return SentenceHead(spec, self.config.parts) if spec.reads_sequence_state else None

    def forward(self, batch: WordBatch, positions: Tensor | None = None) -> Tensor:
        """Compute the states, T × H or, with `positions`, R × H."""
        return self.hidden_states(batch, [1], positions)[0]

    def hidden_states(
        self, batch: WordBatch, layers: Sequence[int] | None = None, positions: Tensor | None = None
    ) -> list[Tensor]:
        """Compute the states after each of `layers`; layer 0 is the vectors of the words."""
        texts = Texts.of(batch)
        drop = make_dropout(self, self.config.hidden_dropout, batch.packing)
        words = self.embeddings(batch.rows[texts.words], drop, self.sparse_gradients)  # N D
        results = []
        for number in (0, 1) if layers is None else layers:
            values = words
            if number:
                text = torch.repeat_interleave(torch.from_numpy(texts.lengths)).to(words.device)  # N
                values = self.layers[0](words, text, drop and drop.select(texts.words))  # N H
            states = values.new_zeros(len(batch.rows), values.shape[1]).index_copy(0, texts.words, values)
            results.append(states if positions is None else states[positions])
        return results
