"""A new word-level model for a task: its vocabulary from the training examples, its weights random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from bertwright.interop.model_format import find_architecture
from bertwright.models.encoder import TextEncoder
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.language_model_states import NUM_LETTERS
from bertwright.systems.registry import word_models
from bertwright.systems.word_settings import FrozenModel, WordModel, WordModelSettings
from bertwright.vocabulary.tokenizer import TextTokenizer
from bertwright.vocabulary.vector_file import VectorFile, load_vectors
from bertwright.vocabulary.word_tokenizer import WordRules, WordTokenizer

if TYPE_CHECKING:
    from bertwright.finetuning.settings import FinetuneSettings
    from bertwright.tasks.task import AnyTask

CONTEXT_SETTINGS = ("lm_places", "lm_directions", "lm_layers", "lm_layer_norm", "lm_mix_penalty")
CHARACTER_SIZES = {"cnn": (30, 30), "lstm": (25, 50), "none": (1, 1)}  # numbers per character, and for a word


class NewModel(NamedTuple):
    """A task's model before its first step, and its tokenizer."""

    model: EncoderForTask
    tokenizer: TextTokenizer


def make_word_model(
    word_model: WordModel, settings: FinetuneSettings, task: AnyTask, examples: Sequence[Any]
) -> NewModel:
    """Build the model; `examples`: the training examples. Raises ValueError for a task type without such a model."""
    words, frozen = settings.words, next(iter(word_model.given_frozen(settings.words)), None)
    if task.head.kind == "span" and not word_model.answers_questions:
        able = " or ".join(name for name, model in word_models().items() if model.answers_questions)
        raise ValueError(
            f"--architecture: expected {able} for {task.kind}, got {settings.architecture}, which reads each text "
            f"alone, so that no answer depends on the question; use --architecture {able}, or name a --model"
        )
    vectors = None if words.vectors is None else load_vectors(words.vectors)
    tokenizer = learn_words(words, vectors, frozen, task, examples)
    read: Any = None if frozen is None else resolve_name(frozen.load)(getattr(words, frozen.setting), tokenizer)
    char_size, char_features = CHARACTER_SIZES[words.char_model]
    values: dict[str, Any] = {
        "vocab_size": tokenizer.vocab_size,
        "num_characters": NUM_LETTERS if tokenizer.rules.bytes else tokenizer.num_characters,
        "word_size": words.word_size if vectors is None else vectors.width,
        "char_model": words.char_model,
        "char_size": char_size,
        "char_features": char_features,
        "freeze_words": words.freeze_vectors,
        "texts": task.num_segments,
        "lstm_size": words.lstm_size,
        "num_layers": words.lstm_layers,
        "language_model": read.config if read else None,
        **{name: getattr(words, name) for name in CONTEXT_SETTINGS},
    }
    if settings.tuning.dropout is not None:
        values["hidden_dropout"] = settings.tuning.dropout
    architecture: Any = find_architecture(word_model.model_type)
    known = [field.name for field in fields(architecture.config)]
    config = architecture.config(**{name: values[name] for name in known if name in values})
    encoder: TextEncoder = architecture.encoder(config, seed=settings.seed)
    if read is not None:
        encoder.get_submodule("language_model.model").load_state_dict(read.state_dict())
    if vectors is not None:
        set_vectors(encoder, tokenizer, vectors)
    head = task.head_builder(encoder) if task.head_builder else task.head
    return NewModel(EncoderForTask(encoder, head, settings.seed), tokenizer)


def learn_words(
    words: WordModelSettings,
    vectors: VectorFile | None,
    frozen: FrozenModel | None,
    task: AnyTask,
    examples: Sequence[Any],
) -> WordTokenizer:
    """Learn the vocabulary of the training examples, and what else of the word vectors is read."""
    reads_bytes = frozen is not None and frozen.reads_bytes
    rules = WordRules(
        lowercase=words.lowercase_words,
        zero_digits=vectors is None and (frozen is None or reads_bytes),
        split_punctuation=not task.reads_words,
        max_characters=0 if words.char_model == "none" else WordRules.max_characters,
        unknown_words=words.unknown_words,
        bytes=reads_bytes,
    )
    known = vectors.words if vectors is not None and words.unknown_words in ("pretrained", "random") else ()
    return WordTokenizer.learn(task.texts(examples), rules, words.min_word_count, known)


@torch.no_grad()
def set_vectors(encoder: TextEncoder, tokenizer: WordTokenizer, vectors: VectorFile) -> None:
    """Give the words of the vocabulary their vectors of a file."""
    found = vectors.lookup(tokenizer.tokens[tokenizer.num_special :])
    rows = tokenizer.num_special + np.flatnonzero(found.has_vector)
    encoder.get_parameter("embeddings.word.weight")[rows] = torch.from_numpy(found.vectors[found.has_vector])
