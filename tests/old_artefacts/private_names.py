"""All names that are no part of bertwright's public interface: when a module moves, only this file changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bertwright.corpus import documents
from bertwright.corpus.documents import CorpusSettings
from bertwright.corpus.sentences import make_document_splitter
from bertwright.kernels.cpu import processor_name
from bertwright.kernels.instruction_sets import find_levels
from bertwright.models.encoder import EncoderModel
from bertwright.models.feature_head import FeatureHead, FeatureHeadConfig
from bertwright.models.task_model import EncoderForTask
from bertwright.pretraining.settings import ModelSettings
from bertwright.systems.bcn.bcn import BcnConfig, BcnEncoder
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bilstm.bilstm import BiLSTMConfig, BiLSTMEncoder
from bertwright.systems.cove import mt_lstm, mt_lstm_folder
from bertwright.systems.elmo import elmo
from bertwright.systems.elmo.defaults import SIZES as ELMO_SIZES
from bertwright.systems.gpt.gpt import GptConfig, GptEncoder
from bertwright.systems.language_model_states import NUM_LETTERS
from bertwright.systems.registry import architecture_of_objective, objectives_of, pretrained
from bertwright.systems.transformer import transformer
from bertwright.systems.ulmfit import awd_lstm
from bertwright.systems.ulmfit.defaults import SIZES as ULMFIT_SIZES
from bertwright.systems.window import window
from bertwright.systems.window.window import WindowConfig, WindowEncoder
from bertwright.systems.word_config import WordConfig
from bertwright.systems.word_vectors import vector_evaluation
from bertwright.tasks.classification import Classification
from bertwright.tasks.presets import PRESETS, TaskSettings
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task_types import TASK_TYPES, TaskOptions
from bertwright.translation.parallel_text import read_parallel
from bertwright.trials.composed_model import CompositeConfig, CompositeEncoder
from bertwright.vocabulary.open_tokenizer import open_tokenizer


def read_environment() -> dict[str, Any]:
    """Return what decides the bits of a training step, besides the code.

    The matrix products of torch differ between the makers of processors, even with the same instruction set.
    """
    return {
        "instruction_set": next((level.name for level in find_levels()), "none"),
        "maker": processor_name().split(" ")[0],
        "torch": torch.__version__,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }


@dataclass(frozen=True)
class SmallWindow(WindowConfig):
    hidden_size: int = 16


@contextmanager
def small_sizes() -> Iterator[None]:
    """Make the size "tiny" of all architectures so small that a checkpoint takes some tens of kilobytes.

    Only new models have these sizes. A resumed run reads the sizes from its checkpoint's config.json.
    """
    tiny: dict[Any, Any] = {
        "elmo": {"filters": ((1, 4), (2, 6)), "num_highway": 1, "projection_size": 8, "cell_size": 12},
        "ulmfit": {"embedding_size": 8, "lstm_size": 12, "num_layers": 2},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ELMO_SIZES, "tiny", tiny["elmo"])
        patch.setitem(ULMFIT_SIZES, "tiny", tiny["ulmfit"])
        patch.setitem(mt_lstm_folder.SIZES, "tiny", {"word_size": 8, "hidden_size": 12})
        small = {"num_layers": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 32, "dropout": 0.1}
        patch.setitem(transformer.SIZES, "tiny", small)
        patch.setattr(window, "FOLDER", replace(window.FOLDER, config=SmallWindow))
        yield


def token_ids(vocabulary: Path, texts: Sequence[str]) -> list[Any]:
    """Return the ids of the tokens of texts, in a vocabulary of words with the bytes of each word."""
    return [encoding.ids.tolist() for encoding in open_tokenizer(vocabulary).encode_batch(texts)]


def read_corpus(path: str) -> Iterator[Any]:
    """Yield the sentences of each document of a corpus file."""
    split = make_document_splitter("rules")
    return (split(document) for document in documents.read(CorpusSettings((path,))))


def read_task_file(task: str, options: Mapping[str, Any], max_examples: int, path: str) -> Iterator[Any]:
    """Yield the labeled examples of a file of a task, at most so many, and then the task's labels."""
    opened = TaskSettings(task, overrides=TaskOptions(**options)).build_task()
    examples = list(islice(opened.read(path), max_examples))
    yield from examples
    try:
        yield opened.with_labels_of(examples).label_names
    except ValueError:
        yield "no labels"


def read_translations(path: str) -> Iterator[Any]:
    """Yield the pairs of an English and a German file."""
    text = read_parallel([path], [path.removesuffix(".en") + ".de"])
    return iter(zip(text.source, text.target, strict=True))


def read_similarities(path: str) -> Iterator[Any]:
    """Yield the rows of a file of word similarities or analogies."""
    return vector_evaluation.read_examples(path)


def read_tokens(path: str) -> Iterator[Any]:
    """Yield the tokens of a vocabulary file."""
    return iter(open_tokenizer(path).tokens)


PUBLISHED_TASKS = tuple(PRESETS)
TASK_NAMES = tuple(TASK_TYPES)


VOCAB_SIZE = 30


def pretrained_models() -> Iterator[tuple[str, nn.Module]]:
    """Yield each new model of pre-training and translation before its first step, at seed 0."""
    objectives = [objective for architecture in pretrained() for objective in objectives_of(architecture)]
    for name, objective in ((objective.name, objective) for objective in objectives):
        architecture = architecture_of_objective(name)
        sizes: dict[str, Any] = {"size": "tiny", "architecture": architecture}
        choices: tuple[dict[str, Any], ...] = ({},)
        if architecture in ("bert", "gpt"):
            sizes |= {"hidden_size": 16, "num_heads": 2, "max_positions": 24}
            choices = ({"init_scheme": "normal"}, {"init_scheme": "mimetic"}, {"sinusoidal_positions": True})
        for chosen in choices[: 3 if architecture == "bert" else 2]:
            settings = ModelSettings(**sizes, **chosen)
            title = " ".join([name, *map(str, chosen.values())])
            yield title, objective.new_model(settings, VOCAB_SIZE, 0)
    yield "transformer", transformer.Transformer(transformer.TransformerConfig.from_size("tiny", VOCAB_SIZE), seed=0)
    words = mt_lstm.CoveConfig(VOCAB_SIZE, 8, 12)
    yield "mt-lstm", mt_lstm.MtLstm(mt_lstm.MtLstmConfig(words, VOCAB_SIZE), 0)
    features = FeatureHeadConfig(hidden_size=6, num_layers=3, outputs=3, lstm_size=4, lstm_layers=2, weighted=True)
    yield "head of a probe", FeatureHead(features, seed=0)


def encoders() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield a function that makes each system's encoder at seed 0."""
    sizes: dict[str, Any] = {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "intermediate_size": 16}
    bert = BertConfig(VOCAB_SIZE, **sizes, max_positions=12)
    causal = replace(bert, is_causal=True)
    yield "bert", lambda: BertEncoder(bert, seed=0)
    yield "bert from left to right", lambda: BertEncoder(causal, seed=0)
    both = (causal, replace(causal, is_reversed=True))
    yield "two berts", lambda: CompositeEncoder(CompositeConfig(both, lstm_layers=2), seed=0)
    yield "gpt", lambda: GptEncoder(GptConfig(VOCAB_SIZE, **sizes, max_positions=12), seed=0)
    lstm = awd_lstm.AwdLstmConfig(VOCAB_SIZE, **ULMFIT_SIZES["tiny"])
    yield "ulmfit", lambda: awd_lstm.AwdLstmEncoder(lstm, seed=0)
    language_model = elmo.ElmoConfig(VOCAB_SIZE, **ELMO_SIZES["tiny"])
    yield "elmo", lambda: elmo.ElmoEncoder(language_model, seed=0)
    words: dict[str, Any] = {"word_size": 6, "char_size": 4, "char_features": 4, "classifier_size": 8}
    for characters in ("cnn", "lstm", "none"):
        alone = BiLSTMConfig(VOCAB_SIZE, 20, **words, char_model=characters, lstm_size=5)
        yield f"bilstm with characters by {characters}", partial(BiLSTMEncoder, alone, seed=0)
    yield "window", lambda: WindowEncoder(WindowConfig(VOCAB_SIZE, 20, **words, hidden_size=10), seed=0)
    yield "bcn", lambda: BcnEncoder(BcnConfig(VOCAB_SIZE, 20, **words, lstm_size=8), seed=0)
    cove = mt_lstm.CoveConfig(VOCAB_SIZE, 6, 8)
    for name, context, layers in (("elmo", language_model, "mix"), ("cove", cove, "top")):
        joined = {"language_model": context, "lm_layers": layers, "lstm_size": 8}
        pair = BiLSTMConfig(VOCAB_SIZE, NUM_LETTERS, **words, num_layers=2, lm_places=(0, 1), **joined)
        yield f"bilstm on {name}", partial(BiLSTMEncoder, pair, seed=0)
        yield f"bcn on {name}", partial(BcnEncoder, BcnConfig(VOCAB_SIZE, NUM_LETTERS, **words, **joined), seed=0)


def task_models() -> Iterator[tuple[str, str, nn.Module]]:
    """Yield each system alone and with a new head of each task, at seed 0: system, task, model."""
    labels = ("a", "b", "c")
    tasks = {
        "classification": Classification(labels=labels),
        "pooled classification": Classification(labels=labels, pooling=("cls", "max", "mean")),
        "classification in both orders": Classification(labels=labels, text_pair="pair", both_orders=True),
        "regression": TASK_TYPES["regression"](),
        "multi-label": TASK_TYPES["multi-label"](labels=labels),
        "multiple choice": TASK_TYPES["multiple-choice"](),
        "tagging": Tagging(labels=("O", "B-X", "I-X"), scheme="iob2"),
        "tagging by a CRF": Tagging(labels=("O", "B-X", "I-X"), scheme="iob2", tag_head="crf"),
        "question answering": TASK_TYPES["question-answering"](),
    }
    for name, make in encoders():
        yield name, "", EncoderModel(make())
        for title, task in tasks.items():
            yield name, title, _add_head(make(), task)


def _add_head(encoder: Any, task: Any) -> nn.Module:
    """Return a new model for a task, as `finetune` makes it."""
    model = EncoderForTask(encoder, task.head_builder(encoder) if task.head_builder else task.head, 0)
    if not isinstance(encoder.config, WordConfig):
        task.initialize_head(model.head)
    return model
