"""What the configurations of all models that read whole words have in common."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from bertwright.base.settings import check_choice, check_limit, check_minimum

CharacterModel = Literal["cnn", "lstm", "none"]


@dataclass(frozen=True)
class WordConfig:
    """Sizes of the vectors of words, and of the head of sentence-level tasks."""

    type_vocab_size: ClassVar[int] = 2
    is_causal: ClassVar[bool] = False

    vocab_size: int
    """Rows of the table of word vectors."""
    num_characters: int
    """Rows of the table of character vectors."""
    word_size: int = 100
    """Numbers per word vector."""
    char_model: CharacterModel = "cnn"
    """cnn: filters over three characters, then their maximum; lstm: the last states of both directions (Lample et al.
    2016)."""
    char_size: int = 30
    """Numbers per character vector (Lample: 25)."""
    char_features: int = 30
    """Numbers that the character model gives a word: filters, or the states of both directions (Lample: 50)."""
    hidden_dropout: float = 0.5
    """Dropout of character vectors, and of the input of each layer."""
    freeze_words: bool = False
    """True if the word vectors keep their first values."""
    texts: int = 1
    """Texts per sequence in sentence-level tasks: 2 for pairs."""
    classifier_size: int = 512
    """Size of the hidden layer in sentence-level heads (GLUE's baseline)."""
    initializer_range: float = 0.07
    """σ of the head's initial weights; about Glorot's for 400 states and 17 tags."""
    max_positions: int = 100_000
    """Longest sequence; the model has no positions, so that this bounds memory only."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "vocab_size", "word_size", "texts", "classifier_size")
        check_minimum(self, 1, "char_size", "char_features", "max_positions")
        check_minimum(self, 0, "num_characters")
        check_choice(self, "char_model")
        check_limit(self, "from 0 to below 1", "hidden_dropout")
        check_limit(self, "above 0", "initializer_range")
        if self.char_model == "lstm" and self.char_features % 2:
            raise ValueError(f"char_features = {self.char_features}: expected an even number, half for each direction")

    def describe_words(self) -> str:
        """Describe the vectors of a word."""
        characters = "no characters" if self.char_model == "none" else f"characters by {self.char_model.upper()}"
        return f"words {self.word_size}, {characters}"

    @property
    def input_size(self) -> int:
        """D, size of a word's own vectors together."""
        return self.word_size + (0 if self.char_model == "none" else self.char_features)

    def with_dropout(self, rate: float) -> Self:
        return replace(self, hidden_dropout=rate)
