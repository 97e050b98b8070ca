"""Folders of MT-LSTMs: config.json, the weights under their own names, the tokenizer of the targets, source words.

Their encoder is the context of a task's words (CoVe).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from bertwright.base.files import read_json, read_utf8, write_json, write_text
from bertwright.base.settings import from_table
from bertwright.interop.checksums import check_other_files, write_checksums
from bertwright.interop.model_files import CONFIG, SOURCE_WORDS, WEIGHTS, locate_config, model_folder
from bertwright.interop.weights import write_weights
from bertwright.systems.cove.defaults import SIZES
from bertwright.systems.cove.mt_lstm import CoveConfig, CoveEncoder, MtLstm, MtLstmConfig
from bertwright.systems.translation_models import TranslationSystem, build_with_weights, load_translation_system
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer
from bertwright.vocabulary.vector_file import load_vectors
from bertwright.vocabulary.word_tokenizer import SPECIAL_TOKENS, WordRules, WordTokenizer

if TYPE_CHECKING:
    from bertwright.translation.settings import TrainTranslationSettings

SOURCE_RULES = WordRules(zero_digits=False, split_punctuation=True, max_characters=0)
MIN_WORD_COUNT = 2  # of a source word with a vector of its own: rarer words train the vector of unknown ones


def new_system(settings: TrainTranslationSettings, sources: Sequence[str], target: TextTokenizer) -> TranslationSystem:
    """Return a new MT-LSTM and its vocabularies; the words of the source are learned from the training text."""
    changes = {} if settings.dropout is None else {"dropout": settings.dropout}
    vectors = None if settings.vectors is None else load_vectors(settings.vectors)
    known = () if vectors is None else vectors.words
    source = WordTokenizer.learn(sources, SOURCE_RULES, MIN_WORD_COUNT, known)
    sizes = SIZES[settings.size] | ({"word_size": vectors.width} if vectors else {})
    encoder, fixed = CoveConfig(source.vocab_size, **sizes), vectors is not None
    model = MtLstm(MtLstmConfig(encoder, target.vocab_size, freeze_words=fixed, **changes), settings.seed)
    if vectors is not None:
        model.encoder.words.weight.data = torch.from_numpy(vectors.lookup(source.tokens).vectors.copy())
    return TranslationSystem(model, source, target)


def write_system(folder: Path, system: TranslationSystem) -> None:
    model = cast(MtLstm, system.model)
    write_json(folder / CONFIG, {"model_type": model.architecture, "dtype": "float32"} | asdict(model.config))
    system.target.save(folder)
    write_text(folder / SOURCE_WORDS, "".join(f"{word}\n" for word in system.source.tokens))
    write_weights(folder / WEIGHTS, {name: tensor.float().cpu() for name, tensor in model.state_dict().items()})
    write_checksums(folder)


def load_system(folder: Path) -> TranslationSystem:
    """Read a folder that `write_system` wrote, in float32, ready for inference (dropout off).

    Raises ValueError, naming the file, for damaged, missing or unexpected weights and other vocabularies.
    """
    path = locate_config(folder)
    values = read_json(path)
    check_other_files(folder)
    sizes = {name: value for name, value in values.items() if name not in ("model_type", "dtype")}
    config = from_table(MtLstmConfig, sizes, str(path))
    words = read_utf8(folder / SOURCE_WORDS).split("\n")[len(SPECIAL_TOKENS) : -1]
    source = WordTokenizer(words, "", SOURCE_RULES)
    if source.vocab_size != config.encoder.vocab_size:
        raise ValueError(
            f"{folder / SOURCE_WORDS}: expected {config.encoder.vocab_size:,} words, got {source.vocab_size:,}; copy "
            "the folder again"
        )
    model = build_with_weights(lambda: MtLstm(config), folder, lambda name: (name,))
    return TranslationSystem(model, source, open_tokenizer(folder))


def load_translation_encoder(name: str, tokenizer: TextTokenizer) -> CoveEncoder:
    """Load the encoder of an MT-LSTM, with vectors for the words of another vocabulary, unknown ones included (CoVe).

    Raises ValueError for a folder with another model.
    """
    system = load_translation_system(model_folder(name))
    if not isinstance(system.model, MtLstm):
        raise ValueError(
            f"{name}: expected a model of train-translation --architecture mt-lstm, got a {system.model.architecture}; "
            "name another as translation_model"
        )
    trained, unknown = system.model.encoder, system.source.unk_id
    rows = [unknown if (row := system.source.id(word)) is None else row for word in tokenizer.tokens]
    encoder = CoveEncoder(replace(trained.config, vocab_size=len(rows)))
    encoder.load_state_dict(trained.state_dict() | {"words.weight": trained.words.weight[rows]})
    return encoder
