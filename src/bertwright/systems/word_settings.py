"""Settings of models that read whole words, trained from a task's data alone. The module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bertwright.base.settings import check_choice, check_minimum
from bertwright.vocabulary.unknown_words import UnknownWords

ArchitectureName = Literal["window", "bilstm", "bilstm-crf", "taglm", "elmo", "cove", "bcn"]
LmLayers = Literal["mix", "top"]
LmDirections = Literal["both", "forward", "backward"]
# Word-level settings of the architectures that read a frozen language model's states; of all architectures; and their
# further settings if word vectors are given.
WITH_LANGUAGE_MODEL: dict[str, dict[str, Any]] = {
    "taglm": {"lstm_layers": 2, "lm_layers": "top", "lm_places": [1]},
    "elmo": {"lstm_layers": 2, "lm_layers": "mix", "lm_places": [0]},
}
COVE = {"lm_layers": "top", "lm_places": [0]}
DEFAULTS: dict[str, dict[str, Any]] = WITH_LANGUAGE_MODEL | {
    "window": {"word_size": 50},
    "cove": COVE | {"lstm_layers": 2},
    "bcn": COVE | {"lstm_size": 300, "char_model": "none"},
}
WITH_VECTORS: dict[str, dict[str, Any]] = {
    "cove": {"unknown_words": "pretrained"},
    "bcn": {"unknown_words": "pretrained", "freeze_vectors": True},
}


@dataclass(frozen=True)
class WordModelSettings:
    """Sizes and vocabulary of a new word-level model (--architecture)."""

    word_size: int = 100
    """Numbers per word vector."""
    char_model: Literal["cnn", "lstm", "none"] = "cnn"
    """Vector of a word's characters. cnn: 30 filters over three characters (Ma & Hovy 2016); lstm: 25 states of each
    direction (Lample et al. 2016); none: the model reads no characters."""
    lstm_size: int = 200
    """Size of each direction's state."""
    lstm_layers: int = 1
    """Bidirectional LSTM layers."""
    min_word_count: int = 1
    """Occurrences in the training examples from which on a word has a vector of its own; rarer words share one."""
    lowercase_words: bool = True
    """Look word vectors up in lower case; the characters keep it."""
    unknown_words: UnknownWords = "unk"
    """Vector of a word that is too rare or new. unk: one for all of them; char: the same, with characters beside it;
    pretrained: as --vectors has it; random: as --vectors has it, else random numbers that the word determines; class:
    one for each class, such as capitalized words."""
    vectors: Path | None = None
    """File of word vectors to start from (text, word2vec or fastText format), or a run of word-vectors. Then word_size
    is the file's, and words are looked up with their digits; without a file, with 0 for each digit."""
    freeze_vectors: bool = False
    """Keep the word vectors as they are, and train everything else."""

    language_model: str | None = None
    """Model folder or run of pretrain --architecture elmo; its states are joined to the words'. For --architecture
    taglm and elmo."""
    translation_model: str | None = None
    """Model folder or run of train-translation --architecture mt-lstm; the last states of its encoder (CoVe) are joined
    to the words'. Required for --architecture cove; for bcn, unset: word vectors alone."""
    lm_layers: LmLayers = "mix"
    """mix: a learned mean of the language model's layers (ELMo); top: its last layer (TagLM, CoVe)."""
    lm_places: tuple[int, ...] = (0,)
    """Where its states are joined. 0: to the word vectors (ELMo, CoVe); n: to the states of LSTM layer n (TagLM: 1)."""
    lm_directions: LmDirections = "both"
    """The directions of the language model whose states are joined."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "word_size", "lstm_size", "lstm_layers", "min_word_count")
        check_choice(self, "char_model", "unknown_words", "lm_layers", "lm_directions")
        if self.unknown_words == "pretrained" and self.vectors is None:
            raise ValueError("unknown_words = 'pretrained': expected a file of word vectors, got none; name vectors")
        if self.unknown_words == "char" and self.char_model == "none":
            raise ValueError("unknown_words = 'char': expected char_model = cnn or lstm, got none; choose one")


def default_settings(architecture: str, is_tagging: bool, has_context: bool, has_vectors: bool) -> dict[str, Any]:
    """Return the settings with which a new word-level model is trained, as a TOML table of fine-tuning.

    `has_vectors`: whether a file of word vectors is given, which CoVe and BCN read as their paper does: also for words
    that only new texts have, and BCN without training them.
    Adam without decay, at a constant rate and with gradients up to norm 5; tagging reads sentence by sentence, even if
    the preset of the task `has_context`. docs/ladder.md has what they reach.
    """
    optimizer = {
        "learning_rate": 2e-3 if is_tagging else 1e-3,
        "schedule": "constant",
        "warmup_ratio": 0.0,
        "weight_decay": 0.0,
        "max_grad_norm": 5.0,
    }
    own = DEFAULTS.get(architecture, {}) | (WITH_VECTORS.get(architecture, {}) if has_vectors else {})
    words = {"optimizer": optimizer, "words": own}
    if not is_tagging:
        return {"epochs": 10.0, "batch_size": 32} | words
    overrides = ({"context": False} if has_context else {}) | ({"tag_head": "crf"} if architecture != "bilstm" else {})
    return {"epochs": 20.0, "batch_size": 32, "task": {"overrides": overrides}} | words
