"""The window network of Collobert et al. 2011 ("Natural language processing (almost) from scratch", section 3.2.1).

The vectors of a word and of its neighbors on both sides, end to end, pass through one layer of hard tanh. The paper's
sentence-level likelihood is the CRF of a tagging task (`models/crf.py`); a text is represented by the maximum of its
words' states, as in the paper's sentence approach. The characters of words replace the paper's features of capitals.

N words of all texts, D size of a word's vectors, K words in a window, H size of a state; T rows of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.base.settings import check_minimum
from bertwright.interop.model_format import Architecture
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import dropout
from bertwright.models.encoder import count_parameters
from bertwright.models.initialization import Weight, glorot_bound
from bertwright.models.linear import Linear
from bertwright.models.packing import WordBatch
from bertwright.systems.word_config import WordConfig
from bertwright.systems.word_encoder import Texts, WordEncoder


@dataclass(frozen=True)
class WindowConfig(WordConfig):
    """Sizes of a `WindowEncoder`; the defaults are the paper's for tagging (table 5), which has no dropout."""

    num_layers: ClassVar[int] = 1

    word_size: int = 50
    hidden_dropout: float = 0.0
    reach: int = 2
    """Words on each side of a word in its window."""
    hidden_size: int = 300
    """H; an even number."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimum(self, 1, "reach", "hidden_size")
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size = {self.hidden_size}: expected an even number")

    def __str__(self) -> str:
        return f"window of {2 * self.reach + 1} words, H{self.hidden_size}, {self.describe_words()}"

    @property
    def num_parameters(self) -> int:
        return count_parameters(lambda: WindowEncoder(self))


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


class WindowEncoder(WordEncoder):
    """Words with characters, read through windows."""

    model_type: ClassVar[str] = "window"
    num_dropout_sites: ClassVar[int] = 2
    """One for the characters, one for the windows."""
    config: WindowConfig

    def __init__(self, config: WindowConfig, seed: int = 0) -> None:
        super().__init__(config)
        self.language_model = None
        self.layers = nn.ModuleList([WindowLayer(config.input_size, config.reach, config.hidden_size)])
        self.initialize(seed)

    def draw(self, weight: Weight) -> None:
        """Draw numbers in ±√(3 / size) for embeddings and by Glorot's bound for matrices; biases and padding are 0."""
        if weight.values.ndim == 1:
            weight.values.zero_()
            return
        rows, columns = weight.values.shape
        is_embedding = weight.name.startswith("embeddings.")
        weight.draw_uniform((3 / columns) ** 0.5 if is_embedding else glorot_bound(rows, columns))

    def read_words(
        self, words: Tensor, batch: WordBatch, texts: Texts, drop: Dropout | None, layers: Sequence[int]
    ) -> list[Tensor]:
        text = torch.repeat_interleave(torch.from_numpy(texts.lengths)).to(words.device)  # N
        drop = drop and drop.select(texts.words)
        return [self.layers[0](words, text, drop) if number else words for number in layers]


FOLDER = Architecture(WindowEncoder, WindowConfig, "Window")
