"""CoVe and BCN: from the folder of a translation model to predictions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertwright
from bertwright.base.seeding import make_rng
from bertwright.base.settings import from_table
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.huggingface import load_model
from bertwright.models.packing import make_input
from bertwright.systems.bcn.bcn import BcnEncoder
from bertwright.systems.cove.mt_lstm import CoveConfig, MtLstm, MtLstmConfig
from bertwright.systems.cove.mt_lstm_folder import SOURCE_RULES
from bertwright.systems.transformer.transformer import Transformer, TransformerConfig
from bertwright.systems.translation_models import (
    TranslationSystem,
    load_translation_system,
    write_translation_system,
)
from bertwright.systems.word_settings import WordModelSettings
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_types import TaskOptions
from bertwright.training.optimizer_settings import OptimizerSettings
from bertwright.vocabulary.learn.joint_vocabulary import learn_joint_vocabulary
from bertwright.vocabulary.word_tokenizer import WordTokenizer
from harness import load_weights, run_and_capture
from helpers import CPU

GOOD, BAD, FILLERS = "fine great good".split(), "bad poor dull".split(), "the film was a 2nd".split()
run_finetune = partial(run_and_capture, finetune)


def write_vectors(folder: Path) -> Path:
    """Write vectors of all words, and of "superb", which has the vector of "great" and is in no example."""
    words = [*GOOD, *BAD, *FILLERS, "superb"]
    vectors = make_rng(0, 1).normal(size=(len(words), 6))
    vectors[-1] = vectors[words.index("great")]
    lines = [" ".join([word, *map(str, row.round(4))]) for word, row in zip(words, vectors, strict=True)]
    (folder / "vectors.txt").write_text("\n".join(lines) + "\n")
    return folder / "vectors.txt"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors, examples, and a translation model that knows these words by the same vectors."""
    folder = tmp_path_factory.mktemp("cove")
    table = np.loadtxt(write_vectors(folder), dtype=str)
    rng = make_rng(0, 2)
    for split, number in {"train": 60, "dev": 20}.items():
        lines = ["label\ttext\tother"]
        for _ in range(number):
            label = int(rng.integers(2))
            words = [*rng.choice(FILLERS, rng.integers(1, 4)), rng.choice((BAD, GOOD)[label])]
            lines.append(f"{('no', 'yes')[label]}\t{' '.join(words)}\t{rng.choice(FILLERS)}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    source = WordTokenizer.learn([" ".join(table[:, 0])], SOURCE_RULES)
    target = learn_joint_vocabulary(["der hund"], 40)
    model = MtLstm(MtLstmConfig(CoveConfig(source.vocab_size, 6, 8), target.vocab_size, freeze_words=True), seed=1)
    vectors = dict(zip(table[:, 0], table[:, 1:].astype(np.float32), strict=True))
    with torch.no_grad():
        for row, word in enumerate(source.tokens):
            model.encoder.words.weight[row] = torch.from_numpy(vectors[word]) if word in vectors else 0.0
    (folder / "mt").mkdir()
    write_translation_system(folder / "mt", TranslationSystem(model, source, target))
    return folder


def make_settings(run: Path, folder: Path, with_cove: bool, pairs: bool = False, **changes: Any) -> FinetuneSettings:
    files = {split: (str(folder / f"{split}.tsv"),) for split in ("train", "dev")}
    words = WordModelSettings(
        lstm_size=8, char_model="none", vectors=folder / "vectors.txt", freeze_vectors=True,
        unknown_words="pretrained", lm_layers="top", translation_model=str(folder / "mt") if with_cove else None,
    )  # fmt: skip
    given: dict[str, Any] = {
        "architecture": "bcn",
        "epochs": 4.0,
        "batch_size": 10,
        "optimizer": OptimizerSettings(learning_rate=0.01, schedule="constant", warmup_ratio=0.0),
        "device": CPU,
    }
    task = TaskSettings("classification", **files, overrides=TaskOptions(text_pair="other" if pairs else None))
    return FinetuneSettings(run, task, words=words, **given | changes)


@pytest.mark.parametrize(("with_cove", "pairs"), [(True, False), (False, True), (True, True)])
def test_a_bcn_is_trained_beside_fixed_vectors_and_a_fixed_context(
    with_cove: bool, pairs: bool, folder: Path, tmp_path: Path
) -> None:
    printed = run_finetune(make_settings(tmp_path / "run", folder, with_cove, pairs, epochs=10.0))
    assert "BCN H8+8, words 6, no characters" in printed
    assert ("MT-LSTM L2 H8 (top)" in printed) == with_cove
    weights, translation = load_weights(tmp_path / "run" / "model"), load_weights(folder / "mt")
    prefix = "encoder.language_model.model.layers."
    frozen = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    assert len(frozen) == (16 if with_cove else 0)
    assert all(torch.equal(translation[f"encoder.layers.{name}"], tensor) for name, tensor in frozen.items())
    assert any(name.endswith(".variance") and (tensor != 1).any() for name, tensor in weights.items())
    model = bertwright.load(tmp_path / "run")
    text = "the film was superb"  # a word that no example has, but the vectors have it
    [prediction] = model.classify([(text, "was")] if pairs else [text])
    assert prediction.label == "yes"


def test_the_context_in_a_task_is_the_translation_models(folder: Path, tmp_path: Path) -> None:
    finetune(make_settings(tmp_path / "run", folder, True, epochs=0.2))
    loaded = load_model(tmp_path / "run" / "model", heads="optional")
    encoder = loaded.model.encoder
    assert isinstance(encoder, BcnEncoder)
    task = bertwright.load(tmp_path / "run")
    text = "superb film xyzzy"  # xyzzy has no vector
    [ids] = [*task.tokenizer.encode_ids([text])]
    states = encoder.hidden_states(make_input(ids.astype(np.int64), None, np.array([len(ids)])), [0])[0]
    system = load_translation_system(folder / "mt")
    assert isinstance(system.model, MtLstm)
    numbers = system.source.encode_numbers([text])
    expected = system.model.encoder(torch.from_numpy(numbers.ids.astype(np.int64)), np.array([3])).layers[-1]
    torch.testing.assert_close(states[1:-1, 6:].detach(), expected.detach())


def test_defaults_of_the_paper(folder: Path) -> None:
    task = {"task": "classification", "train": ["t.tsv"]}
    given = {"translation_model": "mt", "vectors": "v.txt"}
    settings = from_table(FinetuneSettings, {"run": "r", "task": task, "architecture": "bcn", "words": given}, "")
    words = settings.words
    assert (words.lm_layers, words.lstm_size, words.char_model) == ("top", 300, "none")
    assert (words.unknown_words, words.freeze_vectors) == ("pretrained", True)
    settings = from_table(
        FinetuneSettings, {"run": "r", "task": task, "architecture": "cove", "words": {"translation_model": "mt"}}, ""
    )
    assert (settings.words.lstm_layers, settings.words.lm_layers, settings.words.unknown_words) == (2, "top", "unk")


@pytest.mark.parametrize(
    ("architecture", "words"),
    [("cove", {}), ("bilstm", {"translation_model": "mt"}), ("window", {"translation_model": "mt"})],
)
def test_a_translation_model_goes_with_its_architectures(architecture: str, words: dict[str, str]) -> None:
    table = {"run": "r", "task": {"task": "classification", "train": ["t.tsv"]}, "architecture": architecture}
    with pytest.raises(ValueError, match="expected a translation model") as error:
        from_table(FinetuneSettings, table | {"words": words}, "")
    assert f"'{architecture}'" in str(error.value)
    assert str(words.get("translation_model")) in str(error.value)


def test_a_transformer_has_no_context_vectors(folder: Path, tmp_path: Path) -> None:
    tokenizer = learn_joint_vocabulary(["der hund"], 40)
    (tmp_path / "mt").mkdir()
    model = Transformer(TransformerConfig.from_size("tiny", tokenizer.vocab_size, num_layers=1))
    write_translation_system(tmp_path / "mt", TranslationSystem(model, tokenizer, tokenizer))
    settings = make_settings(tmp_path / "run", folder, True)
    changed = replace(settings, words=replace(settings.words, translation_model=str(tmp_path / "mt")))
    with pytest.raises(ValueError, match="train-translation --architecture mt-lstm, got a transformer"):
        finetune(changed)
    assert not (tmp_path / "run").exists()
