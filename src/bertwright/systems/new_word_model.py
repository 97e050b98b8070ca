"""A new word-level model for a task: its vocabulary from the training examples, its weights random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.huggingface import load_model
from bertwright.interop.model_files import model_folder
from bertwright.models.heads import EncoderForTask
from bertwright.systems.bcn.bcn import BcnConfig, BcnEncoder
from bertwright.systems.bilstm.bilstm import BiLSTMConfig, BiLSTMEncoder
from bertwright.systems.cove.mt_lstm import CoveEncoder, MtLstm
from bertwright.systems.elmo.elmo import ElmoEncoder
from bertwright.systems.language_model_states import NUM_LETTERS
from bertwright.systems.translation_models import load_translation_system
from bertwright.systems.window.window import WindowConfig, WindowEncoder
from bertwright.tasks.task import AnyTask
from bertwright.vocabulary.tokenizer import TextTokenizer
from bertwright.vocabulary.vector_file import load_vectors
from bertwright.vocabulary.word_tokenizer import WordRules, WordTokenizer

CHARACTER_SIZES = {"cnn": (30, 30), "lstm": (25, 50), "none": (1, 1)}  # numbers per character, and for a word


class NewModel(NamedTuple):
    """A task's model before its first step, and its tokenizer."""

    model: EncoderForTask
    tokenizer: TextTokenizer


def make_word_model(settings: FinetuneSettings, task: AnyTask, examples: Sequence[Any]) -> NewModel:
    """Build the model; `examples`: the training examples. Raises ValueError for a task type without such a model."""
    words = settings.words
    if task.head.kind == "span" and settings.architecture != "bcn":
        raise ValueError(
            f"--architecture: expected bcn for {task.kind}, got {settings.architecture}, which reads each text alone, "
            "so that no answer depends on the question; use --architecture bcn, or name a --model"
        )
    language_model = None if words.language_model is None else load_language_model(words.language_model)
    translation = None if words.translation_model is None else load_translation_encoder(words.translation_model)
    vectors = None if words.vectors is None else load_vectors(words.vectors)
    rules = WordRules(
        lowercase=words.lowercase_words,
        zero_digits=vectors is None and translation is None,
        split_punctuation=not task.reads_words,
        max_characters=0 if words.char_model == "none" else WordRules.max_characters,
        unknown_words=words.unknown_words,
        bytes=language_model is not None,
    )
    known = vectors.words if vectors is not None and words.unknown_words in ("pretrained", "random") else ()
    tokenizer = WordTokenizer.learn(task.texts(examples), rules, words.min_word_count, known)
    char_size, char_features = CHARACTER_SIZES[words.char_model]
    shared: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "num_characters": NUM_LETTERS if language_model else tokenizer.num_characters,
        "word_size": words.word_size if vectors is None else vectors.width,
        "char_model": words.char_model,
        "char_size": char_size,
        "char_features": char_features,
        "freeze_words": words.freeze_vectors,
        "texts": task.num_segments,
    }
    if settings.tuning.dropout is not None:
        shared["hidden_dropout"] = settings.tuning.dropout
    context = translation.encoder_of(tokenizer) if translation else language_model
    of_context: dict[str, Any] = {"language_model": context.config if context else None, "lm_layers": words.lm_layers}
    encoder: WindowEncoder | BiLSTMEncoder | BcnEncoder
    if settings.architecture == "window":
        encoder = WindowEncoder(WindowConfig(**shared), seed=settings.seed)
    elif settings.architecture == "bcn":
        encoder = BcnEncoder(BcnConfig(**shared, **of_context, lstm_size=words.lstm_size), seed=settings.seed)
    else:
        config = BiLSTMConfig(
            **shared,
            **of_context,
            lm_places=words.lm_places,
            lm_directions=words.lm_directions,
            lstm_size=words.lstm_size,
            num_layers=words.lstm_layers,
        )
        encoder = BiLSTMEncoder(config, seed=settings.seed)
    if context is not None and not isinstance(encoder, WindowEncoder) and encoder.language_model is not None:
        encoder.language_model.model.load_state_dict(context.state_dict())
    if vectors is not None:
        found = vectors.lookup(tokenizer.tokens[tokenizer.num_special :])
        rows = tokenizer.num_special + np.flatnonzero(found.has_vector)
        with torch.no_grad():
            encoder.embeddings.word.weight[rows] = torch.from_numpy(found.vectors[found.has_vector])
    head = task.head_builder(encoder) if task.head_builder else task.head
    return NewModel(EncoderForTask(encoder, head, settings.seed), tokenizer)


class TranslationEncoder(NamedTuple):
    """The encoder of a translation model, and the words that it knows."""

    encoder: CoveEncoder
    tokenizer: TextTokenizer

    def encoder_of(self, tokenizer: TextTokenizer) -> CoveEncoder:
        """Return the encoder with vectors for the words of another vocabulary, unknown ones included."""
        unknown = self.tokenizer.unk_id
        rows = [unknown if (row := self.tokenizer.id(word)) is None else row for word in tokenizer.tokens]
        encoder = CoveEncoder(replace(self.encoder.config, vocab_size=len(rows)))
        words = {"words.weight": self.encoder.words.weight[rows]}
        encoder.load_state_dict(self.encoder.state_dict() | words)
        return encoder


def load_translation_encoder(name: str) -> TranslationEncoder:
    """Load the encoder of an MT-LSTM. Raises ValueError for a folder with another model."""
    system = load_translation_system(model_folder(name))
    if not isinstance(system.model, MtLstm):
        raise ValueError(
            f"{name}: expected a model of train-translation --architecture mt-lstm, got a Transformer; name another as "
            "translation_model"
        )
    return TranslationEncoder(system.model.encoder, system.source)


def load_language_model(name: str) -> ElmoEncoder:
    """Load the encoder of an ELMo. Raises ValueError for a folder with another model."""
    encoder = load_model(model_folder(name), heads="optional").model.encoder
    if not isinstance(encoder, ElmoEncoder):
        raise ValueError(
            f"{name}: expected a model of pretrain --architecture elmo, got {encoder.model_type}; name another as "
            "language_model"
        )
    return encoder
