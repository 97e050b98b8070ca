"""Settings of models that read whole words, trained from a task's data alone. The module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bertwright.base.settings import check_choice, check_limit, check_minimum
from bertwright.systems import registry
from bertwright.vocabulary.unknown_words import UnknownWords

if TYPE_CHECKING:
    from bertwright.finetuning.settings import FinetuneSettings
    from bertwright.systems.word_models import NewModel
    from bertwright.tasks.task import AnyTask

LmLayers = Literal["mix", "top"]
LmDirections = Literal["both", "forward", "backward"]
MAKE = "bertwright.systems.word_models:make_word_model"  # imports torch


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
    """Model folder or run of pretrain --architecture elmo; its states are joined to the words'. Required for
    --architecture taglm and elmo; for bcn, in place of a translation model."""
    translation_model: str | None = None
    """Model folder or run of train-translation --architecture mt-lstm; the last states of its encoder (CoVe) are joined
    to the words'. Required for --architecture cove; for bcn, unset: word vectors alone."""
    lm_layers: LmLayers = "mix"
    """mix: a learned mean of the language model's layers (ELMo); top: its last layer (TagLM, CoVe)."""
    lm_places: tuple[int, ...] = (0,)
    """Where its states are joined. 0: to the word vectors (ELMo, CoVe); n: to the states of LSTM layer n (TagLM: 1)."""
    lm_directions: LmDirections = "both"
    """The directions of the language model whose states are joined."""
    lm_layer_norm: bool = False
    """Normalize the states of each layer before they are mixed, which sometimes helped ELMo (section 3.2)."""
    lm_mix_penalty: float = 0.0
    """λ; adds λ‖w‖² to the loss, where w are the weights of the mix (ELMo, section 3.2: 0.001 leaves them free, 1 keeps
    them near the mean)."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "word_size", "lstm_size", "lstm_layers", "min_word_count")
        check_choice(self, "char_model", "unknown_words", "lm_layers", "lm_directions")
        check_limit(self, "from 0", "lm_mix_penalty")
        if self.unknown_words == "pretrained" and self.vectors is None:
            raise ValueError("unknown_words = 'pretrained': expected a file of word vectors, got none; name vectors")
        if self.unknown_words == "char" and self.char_model == "none":
            raise ValueError("unknown_words = 'char': expected char_model = cnn or lstm, got none; choose one")


class FrozenModel(NamedTuple):
    """A pre-trained model whose states a new model of words may join to its own, without training it."""

    setting: str
    """Field of `WordModelSettings` that names its folder."""
    load: str
    """Function from the name of a folder and the tokenizer of a task's words to an encoder of them, which has a field
    `config`, as "module:NAME"."""
    command: str
    """Command that trains such a model."""
    reads_bytes: bool = False
    """Whether it reads the bytes of words, so that the task's words have 0 for each digit; else their ids."""


@dataclass(frozen=True)
class WordModel:
    """A value of `finetune --architecture`: a model of whole words, trained from a task's examples alone."""

    summary: str
    model_type: str
    """Of its model folders, whose record has the encoder and its configuration."""
    words: Mapping[str, Any] = field(default_factory=dict)
    """Its defaults of `WordModelSettings`."""
    words_with: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Setting of `WordModelSettings` that names a file or folder → further defaults if it is given."""
    tag_head: str | None = "crf"
    """Head in tagging that is set by default; None: the task's."""
    frozen: tuple[FrozenModel, ...] = ()
    """The kinds of pre-trained models that it can read, one at a time; others are refused."""
    needs_frozen: bool = True
    """Whether one must be given, if there are any."""
    scores_paths: bool = False
    """Whether it is only for tagging with a CRF."""
    answers_questions: bool = False
    """Whether its words depend on both texts of a pair."""

    def accepts(self, name: str, task: AnyTask, words: WordModelSettings) -> None:
        """Raise ValueError for a task or settings that do not go together with the model; `name`: its architecture."""
        known = registry.word_models()
        given = self.given_frozen(words)
        if len(given) > 1:
            names = " and ".join(frozen.setting for frozen in given)
            raise ValueError(f"{names}: architecture = {name!r} reads one of them; omit the other")
        for frozen in {frozen: None for model in known.values() for frozen in model.frozen}:
            value = getattr(words, frozen.setting)
            is_missing = self.needs_frozen and frozen in self.frozen and not given
            if is_missing or (value is not None and frozen not in self.frozen):
                readers = [other for other, model in known.items() if frozen in model.frozen]
                raise ValueError(
                    f"architecture = {name!r}, {frozen.setting} = {value!r}: expected a "
                    f"{frozen.setting.replace('_', ' ')} with {' or '.join(readers)}, and only there; see "
                    f"{frozen.command}"
                )
        if self.scores_paths and not task.scores_paths:
            raise ValueError(
                f"architecture = {name!r}: expected tagging with tag_head = 'crf', got {task.kind} without; set "
                "another architecture"
            )

    def given_frozen(self, words: WordModelSettings) -> list[FrozenModel]:
        """Return the pre-trained models that it reads and that the settings name."""
        return [frozen for frozen in self.frozen if getattr(words, frozen.setting) is not None]

    def defaults(self, request: registry.FinetuneRequest) -> dict[str, Any]:
        """Return the settings with which the model is trained, as a TOML table of fine-tuning.

        Adam without decay, at a constant rate and with gradients up to norm 5; tagging reads sentence by sentence, even
        if the preset of the task has context. docs/systems.md has what they reach.
        """
        optimizer = {
            "learning_rate": 2e-3 if request.is_tagging else 1e-3,
            "schedule": "constant",
            "warmup_ratio": 0.0,
            "weight_decay": 0.0,
            "max_grad_norm": 5.0,
        }
        words = dict(self.words)
        for name in request.given_words:
            words |= self.words_with.get(name, {})
        table: dict[str, Any] = {"batch_size": 32, "optimizer": optimizer, "words": words}
        if not request.is_tagging:
            return {"epochs": 10.0} | table
        overrides: dict[str, Any] = {"context": False} if request.has_context else {}
        overrides |= {} if self.tag_head is None else {"tag_head": self.tag_head}
        return {"epochs": 20.0, "task": {"overrides": overrides}} | table

    def build(self, settings: FinetuneSettings, task: AnyTask, examples: Sequence[Any]) -> NewModel:
        """Build the model and learn its vocabulary from the training examples; see `word_models.make_word_model`."""
        model: NewModel = resolve_name(MAKE)(self, settings, task, examples)
        return model
