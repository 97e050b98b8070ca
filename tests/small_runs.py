"""A small store, a small task, and settings of runs that take about a second."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bertwright.base.files import write_text
from bertwright.base.reporter import MUTE
from bertwright.corpus.documents import CorpusSettings
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings
from bertwright.inference.bert import Bert
from bertwright.interop.huggingface import save_model, write_model
from bertwright.models.task_model import EncoderForTask
from bertwright.objectives.data_settings import DataSettings
from bertwright.pretraining.settings import LongPhase, ModelSettings, PretrainSettings
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_folder import TaskModel
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.training import checkpoint
from bertwright.training.optimizer import OptimizerSettings
from bertwright.vocabulary.learn.learn_vocabulary import LearnSettings, learn_vocabulary
from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from helpers import CPU

NOUNS = "bear deer fish wolf crow hare duck seal lynx mole".split()
VERBS = "sees hears fears finds meets".split()
LOCATIONS = "forest river mountain valley meadow".split()


def grammar(documents: int, seed: int = 0) -> str:
    """Return documents in which the location determines the nouns, so that there is context to learn from."""
    rng = np.random.default_rng(seed)
    texts = []
    for _ in range(documents):
        location = int(rng.integers(len(LOCATIONS)))
        sentences = []
        for _ in range(int(rng.integers(6, 14))):
            first, second = NOUNS[2 * location], NOUNS[2 * location + 1]
            sentences.append(
                f"The {first} {VERBS[rng.integers(5)]} the {second} in the {LOCATIONS[location]} .".capitalize()
            )
        texts.append("\n".join(sentences))
    return "\n\n".join(texts) + "\n"


def make_word_store(folder: Path, text: str, algorithm: str, size: int = 30_000) -> Path:
    """Learn a vocabulary of words from a text by an algorithm of `vocabulary`, and prepare a store of the text."""
    (folder / "text.txt").write_text(text, encoding="utf-8")
    corpus = CorpusSettings((str(folder / "text.txt"),))
    vocabulary = VocabularySettings(size=size, algorithm=algorithm, min_frequency=2)  # type: ignore[arg-type]
    learn_vocabulary(LearnSettings(corpus, folder / "vocabulary", vocabulary), MUTE)
    build(folder / "store", corpus, open_tokenizer(folder / "vocabulary"), BuildSettings(held_out=0.1, workers=1))
    return folder / "store"


def save_random_bert(folder: Path, words: Iterable[str], **sizes: Any) -> None:
    """Save a BERT with random weights and the special tokens and some words as vocabulary."""
    tokenizer = Tokenizer.from_tokens([*SPECIAL_TOKENS, *words], lowercase=True)
    save_model(folder, BertForPretraining(BertConfig(tokenizer.vocab_size, **sizes)), tokenizer)


@pytest.fixture(scope="session")
def vocabulary_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vocabulary")
    words = [*SPECIAL_TOKENS, "the", "in", ".", *NOUNS, *VERBS, *LOCATIONS]
    Tokenizer.from_tokens(words, lowercase=True).save(folder)
    return folder


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory, vocabulary_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("store")
    (folder / "text.txt").write_text(grammar(300), encoding="utf-8")
    corpus = CorpusSettings((str(folder / "text.txt"),))
    build(folder / "store", corpus, Tokenizer.load(vocabulary_folder), BuildSettings(held_out=0.1, workers=1))
    return folder / "store"


@pytest.fixture(scope="session")
def make_settings(store: Path) -> Callable[..., PretrainSettings]:
    """Return a function from changed fields to the settings of a run on `store`."""

    def make(run: Path, **changes: Any) -> PretrainSettings:
        fields: dict[str, Any] = {
            "run": run,
            "store": store,
            "steps": 12,
            "log_every": 3,
            "eval_every": 6,
            "eval_sequences": 32,
            "save_every": 4,
            "model": ModelSettings(size="tiny", hidden_size=32, num_heads=2, num_layers=2, max_positions=64),
            "data": DataSettings(max_length=32, batch_size=8),
            "long": LongPhase(long_ratio=0.25, long_length=64),
            "optimizer": OptimizerSettings(learning_rate=3e-3, warmup_ratio=0.1),
            "device": CPU,
        }
        return PretrainSettings(**(fields | changes))

    return make


FILLERS = "the in sees hears fears finds meets forest river mountain".split()


def reviews(number: int, seed: int) -> str:
    """Return a table of texts with one word that decides the label, among others."""
    rng = np.random.default_rng(seed)
    lines = ["text\tlabel"]
    for _ in range(number):
        label = int(rng.integers(2))
        words = [*rng.choice(FILLERS, int(rng.integers(2, 9))), rng.choice(NOUNS[5 * label : 5 * label + 5])]
        lines.append(f"{' '.join(rng.permutation(words))}\t{('bad', 'good')[label]}")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory, vocabulary_folder: Path) -> Path:
    """A model folder with random weights, over the vocabulary of `grammar`."""
    tokenizer = Tokenizer.load(vocabulary_folder)
    config = BertConfig.from_size(
        "tiny", tokenizer.vocab_size, hidden_size=32, num_heads=2, intermediate_size=64, max_positions=64
    )
    folder = tmp_path_factory.mktemp("tiny") / "model"
    model = BertForPretraining(config)
    torch.nn.init.constant_(model.pooler.dense.bias, 1e-3)  # as if it was trained: heads of texts read it by default
    save_model(folder, model, tokenizer)
    return folder


@pytest.fixture(scope="session")
def review_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.tsv, dev.tsv and test.tsv."""
    folder = tmp_path_factory.mktemp("reviews")
    for seed, (split, number) in enumerate({"train": 320, "dev": 100, "test": 60}.items()):
        (folder / f"{split}.tsv").write_text(reviews(number, seed), encoding="utf-8")
    return folder


TUNING = {field.name for field in fields(TuningSettings)}


@pytest.fixture(scope="session")
def make_tuning(tiny_bert: Path, review_files: Path) -> Callable[..., FinetuneSettings]:
    """Return a function from changed fields to the settings of a fine-tuning run on the reviews."""

    def make(run: Path, **changes: Any) -> FinetuneSettings:
        files = {split: (str(review_files / f"{split}.tsv"),) for split in ("train", "dev", "test")}
        defaults: dict[str, Any] = {
            "run": run,
            "task": TaskSettings("classification", **files),
            "model": str(tiny_bert),
            "epochs": 4.0,
            "batch_size": 16,
            "log_every": 4,
            "linear_floor": False,
            "optimizer": OptimizerSettings(learning_rate=3e-3, warmup_ratio=0.1, bias_correction=True),
            "device": CPU,
        }
        shared = {"head_init": "random"} | {name: changes.pop(name) for name in TUNING if name in changes}
        return FinetuneSettings(**(defaults | {"tuning": TuningSettings(**shared)} | changes))

    return make


@pytest.fixture
def small_corpus(tmp_path: Path) -> CorpusSettings:
    """Fifty documents of two sentences."""
    path = tmp_path / "text.txt"
    documents = (
        f"The {NOUNS[n % 10]} sees the {NOUNS[n % 7]} .\nThe {NOUNS[n % 3]} hears the {NOUNS[n % 9]} ."
        for n in range(50)
    )
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return CorpusSettings((str(path),))


@pytest.fixture(scope="session")
def one_layer_model(vocabulary_folder: Path) -> BertForPretraining:
    """A model with random weights over the vocabulary of `grammar`."""
    vocab_size = Tokenizer.load(vocabulary_folder).vocab_size
    config = BertConfig(vocab_size, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
    return BertForPretraining(config, seed=1).eval()


@pytest.fixture
def one_layer_folder(tmp_path: Path, one_layer_model: BertForPretraining, vocabulary_folder: Path) -> Path:
    """The folder of that model."""
    save_model(tmp_path / "model", one_layer_model, Tokenizer.load(vocabulary_folder))
    return tmp_path / "model"


@pytest.fixture
def unfinished_run(tmp_path: Path, one_layer_model: BertForPretraining, vocabulary_folder: Path) -> Path:
    """A pre-training run that was stopped after step 7."""
    run = tmp_path / "run"
    write_text(run / "settings.toml", "")
    write = partial(write_model, model=one_layer_model, tokenizer=Tokenizer.load(vocabulary_folder))
    checkpoint.save(run / "checkpoints", 7, write, {"moment": torch.zeros(3)})
    return run


@pytest.fixture
def make_task_model(vocabulary_folder: Path) -> Callable[[AnyTask], Bert]:
    """Build a model with random weights for a task."""

    def make(task: AnyTask) -> Bert:
        tokenizer = Tokenizer.load(vocabulary_folder)
        config = BertConfig(tokenizer.vocab_size, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
        return Bert(TaskModel(EncoderForTask(BertEncoder(config, seed=1), task.head, seed=1), task), tokenizer)

    return make
