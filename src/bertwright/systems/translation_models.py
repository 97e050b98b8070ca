"""Folders of translation models of either architecture.

A Transformer's folder is a MarianMTModel's (`systems/transformer/marian.py`). An MT-LSTM's has config.json, its weights
under their own names, the tokenizer of the targets, and source_words.txt with the source's words.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch

from bertwright.base.files import read_json, write_json, write_text
from bertwright.base.settings import from_table
from bertwright.interop.checksums import check_other_files, check_weights, write_checksums
from bertwright.interop.model_files import CONFIG, SOURCE_WORDS, WEIGHTS, locate_config
from bertwright.interop.weights import check_shapes, raise_if_any, read_weights, write_weights
from bertwright.systems.cove.mt_lstm import MtLstm, MtLstmConfig
from bertwright.systems.transformer.marian import FIXED, load_translation_model, write_translation_model
from bertwright.systems.transformer.transformer import Transformer
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer
from bertwright.vocabulary.word_tokenizer import SPECIAL_TOKENS, WordRules, WordTokenizer

MODEL_TYPE = "mt-lstm"
SOURCE_RULES = WordRules(zero_digits=False, split_punctuation=True, max_characters=0)


class TranslationSystem(NamedTuple):
    """A translation model and the tokenizers of both sides, which are one for a Transformer."""

    model: Transformer | MtLstm
    source: TextTokenizer
    target: TextTokenizer


def is_translation_model(folder: Path) -> bool:
    """Return whether the config.json of a folder is a translation model's."""
    try:
        values = read_json(folder / CONFIG)
    except (ValueError, OSError):  # reported when the model is loaded
        return False
    return isinstance(values, dict) and values.get("model_type") in (MODEL_TYPE, FIXED["model_type"])


def write_translation_system(folder: Path, system: TranslationSystem) -> None:
    """Write a model's files and their checksums into an existing folder; each file is whole or absent."""
    model = system.model
    if isinstance(model, Transformer):
        write_translation_model(folder, model, system.target)
        return
    write_json(folder / CONFIG, {"model_type": MODEL_TYPE, "dtype": "float32"} | asdict(model.config))
    system.target.save(folder)
    write_text(folder / SOURCE_WORDS, "".join(f"{word}\n" for word in system.source.tokens))
    write_weights(folder / WEIGHTS, {name: tensor.float().cpu() for name, tensor in model.state_dict().items()})
    write_checksums(folder)


def load_translation_system(folder: Path) -> TranslationSystem:
    """Read a folder that `write_translation_system` wrote, in float32, ready for inference (dropout off).

    Raises ValueError, naming the file, for another kind of model and for damaged, missing or unexpected weights.
    """
    path = locate_config(folder)
    values = read_json(path)
    if not isinstance(values, dict) or values.get("model_type") != MODEL_TYPE:
        transformer, tokenizer = load_translation_model(folder)
        return TranslationSystem(transformer, tokenizer, tokenizer)
    check_other_files(folder)
    sizes = {name: value for name, value in values.items() if name not in ("model_type", "dtype")}
    config = from_table(MtLstmConfig, sizes, str(path))
    check_weights(folder)
    words = (folder / SOURCE_WORDS).read_text(encoding="utf-8").split("\n")[len(SPECIAL_TOKENS) : -1]
    source = WordTokenizer(words, "", SOURCE_RULES)
    if source.vocab_size != config.encoder.vocab_size:
        raise ValueError(
            f"{folder / SOURCE_WORDS}: expected {config.encoder.vocab_size:,} words, got {source.vocab_size:,}; copy "
            "the folder again"
        )
    path, tensors = read_weights(folder)
    with torch.device("meta"):
        model = MtLstm(config)
    parameters = dict(model.named_parameters())
    raise_if_any(path, "missing", sorted(parameters.keys() - tensors.keys()))
    raise_if_any(path, "unexpected", sorted(tensors.keys() - parameters.keys()))
    check_shapes({name: (tensor, parameters[name], 1) for name, tensor in tensors.items()}, path)
    # Copied, because tensors in a file may be unaligned, and products of these round differently.
    model.load_state_dict({name: tensor.float().clone() for name, tensor in tensors.items()}, assign=True)
    return TranslationSystem(model.eval(), source, open_tokenizer(folder))
