"""Taggers that read a frozen language model's states: TagLM and ELMo, from its folder to predictions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertwright
from bertwright.base.settings import from_table
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.huggingface import save_model
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import Packing, WordBatch
from bertwright.systems.bilstm.bilstm import BiLSTMConfig, BiLSTMEncoder
from bertwright.systems.elmo.elmo import BidirectionalLM, ElmoConfig
from bertwright.systems.word_settings import WordModelSettings
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_types import TaskOptions
from bertwright.training.optimizer_settings import OptimizerSettings
from bertwright.vocabulary.word_bytes import word_byte_rows
from bertwright.vocabulary.word_tokenizer import ELMO_RULES, WordTokenizer
from harness import load_weights, run_and_capture
from helpers import CPU

LM = ElmoConfig(vocab_size=5, filters=((1, 4), (2, 4)), num_highway=1, projection_size=6, cell_size=8)
run_finetune = partial(run_and_capture, finetune)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elmo") / "model"
    save_model(folder, BidirectionalLM(LM, seed=4), WordTokenizer(["the", "cat"], "", ELMO_RULES))
    return folder


@pytest.fixture(scope="module")
def tagging(tmp_path_factory: pytest.TempPathFactory) -> TaskSettings:
    folder = tmp_path_factory.mktemp("names")
    rng = np.random.default_rng(0)
    for split, number in {"train": 60, "dev": 20}.items():
        sentences = [["saw O", "Dr B-PER", f"Smith{rng.integers(9)} I-PER", "in O"] for _ in range(number)]
        text = "\n\n".join("\n".join(rng.permutation(sentence[:1]).tolist() + sentence[1:]) for sentence in sentences)
        (folder / f"{split}.conll").write_text(text + "\n", encoding="utf-8")
    files = {split: (str(folder / f"{split}.conll"),) for split in ("train", "dev")}
    return TaskSettings("tagging", **files, overrides=TaskOptions(tag_head="crf"))


def make_settings(run: Path, task: TaskSettings, architecture: str, model: Path, **changes: Any) -> FinetuneSettings:
    places = {"taglm": ("top", (1,)), "elmo": ("mix", (0,))}
    layers, where = places[architecture]
    words = WordModelSettings(
        word_size=8, lstm_size=6, lstm_layers=2, language_model=str(model), lm_layers=layers, lm_places=where
    )  # type: ignore[arg-type]
    given: dict[str, Any] = {
        "architecture": architecture,
        "epochs": 3.0,
        "batch_size": 10,
        "optimizer": OptimizerSettings(learning_rate=0.02, schedule="constant", warmup_ratio=0.0),
        "device": CPU,
    }
    return FinetuneSettings(run, task, words=words, **given | changes)


@pytest.mark.parametrize("architecture", ["taglm", "elmo"])
def test_a_tagger_is_trained_on_a_language_model_that_does_not_change(
    architecture: str, language_model: Path, tagging: TaskSettings, tmp_path: Path
) -> None:
    settings = make_settings(tmp_path / "run", tagging, architecture, language_model)
    printed = run_finetune(settings)
    assert "ELMo L2 P6 C8" in printed
    before, after = load_weights(language_model), load_weights(tmp_path / "run" / "model")
    prefix = "encoder.language_model.model."
    frozen = {name.removeprefix(prefix): tensor for name, tensor in after.items() if name.startswith(prefix)}
    assert {f"encoder.{name}" for name in frozen} == {name for name in before if name.startswith("encoder.")}
    assert all(torch.equal(before[f"encoder.{name}"], tensor) for name, tensor in frozen.items())
    mixes = [tensor for name, tensor in after.items() if ".mixes." in name]
    assert len(mixes) == (2 if architecture == "elmo" else 0)
    assert all(tensor.abs().sum() > 0 for tensor in mixes)
    model = bertwright.load(tmp_path / "run")
    assert model.tag(("saw", "Dr", "Smith3", "in")).tags == ("O", "B-PER", "I-PER", "O")


@torch.no_grad()
def test_states_are_joined_where_the_places_say() -> None:
    """With a language model of zeros, whose states are constant, each place widens its layer and no other."""
    config = BiLSTMConfig(5, 257, word_size=4, lstm_size=3, num_layers=2, language_model=LM, lm_places=(0, 2))
    encoder = BiLSTMEncoder(config).eval()
    rows = np.column_stack([[0, 3, 4, 1], word_byte_rows(["", "cat", "sat", ""])])
    batch = WordBatch(Packing.of(np.array([4])), torch.from_numpy(rows).long())
    states = encoder.hidden_states(batch)
    assert [layer.shape[1] for layer in states] == [4 + 30 + 12, 6, 6 + 12]
    assert encoder.language_model is not None
    expected = torch.stack(encoder.language_model.model.hidden_states(batch)).mean(0)[1:3]
    torch.testing.assert_close(states[0][1:3, -12:], expected)
    torch.testing.assert_close(states[2][1:3, -12:], expected)


@torch.no_grad()
def test_one_direction_is_its_half_of_each_state_and_does_not_see_the_words_on_the_other_side() -> None:
    sizes = {"word_size": 4, "lstm_size": 3, "char_model": "none", "language_model": LM}
    weights = BidirectionalLM(LM, seed=1).encoder.state_dict()

    def states(directions: str, words: list[str]) -> torch.Tensor:
        encoder = BiLSTMEncoder(BiLSTMConfig(9, 257, lm_directions=directions, **sizes)).eval()  # type: ignore[arg-type]
        assert encoder.language_model is not None
        encoder.language_model.model.load_state_dict(weights)
        ids = [0, *range(3, 3 + len(words) - 2), 1]
        rows = np.column_stack([ids, word_byte_rows(words)])
        batch = WordBatch(Packing.of(np.array([len(words)])), torch.from_numpy(rows).long())
        return encoder.hidden_states(batch, [0])[0][1:-1, 4:]

    both = states("both", ["", "cat", "sat", "on", ""])
    forward, backward = (states(directions, ["", "cat", "sat", "on", ""]) for directions in ("forward", "backward"))
    torch.testing.assert_close(torch.cat([forward, backward], 1), both, rtol=0, atol=0)
    assert torch.equal(states("forward", ["", "cat", "sat", "mat", ""])[:2], forward[:2])
    assert not torch.equal(states("backward", ["", "cat", "sat", "mat", ""])[:2], backward[:2])


def test_defaults_of_the_papers(tagging: TaskSettings) -> None:
    table = {"run": "run", "task": {"task": "tagging", "train": list(tagging.train)}}
    for architecture, layers, places in (("taglm", "top", (1,)), ("elmo", "mix", (0,))):
        settings = from_table(
            FinetuneSettings, table | {"architecture": architecture, "words": {"language_model": "lm"}}, ""
        )
        assert (settings.words.lstm_layers, settings.words.lm_layers, settings.words.lm_places) == (2, layers, places)
        assert settings.task.overrides.tag_head == "crf"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "elmo"}, ("architecture", "'elmo'", "language_model")),
        ({"architecture": "bilstm-crf", "words": {"language_model": "lm"}}, ("'bilstm-crf'", "'lm'", "taglm or elmo")),
    ],
)
def test_a_language_model_goes_with_its_architectures(
    tagging: TaskSettings, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    table = {"run": "run", "task": {"task": "tagging", "train": list(tagging.train)}}
    with pytest.raises(ValueError, match="expected a language model") as error:
        from_table(FinetuneSettings, table | changes, "")
    assert all(word in str(error.value) for word in words)


def test_another_model_is_no_language_model(tagging: TaskSettings, tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pretrain --architecture elmo, got bert"):
        finetune(make_settings(tmp_path / "run", tagging, "elmo", tiny_bert))
    assert not (tmp_path / "run").exists()


def test_the_penalty_of_a_mix_is_the_same_for_any_micro_batches(
    language_model: Path, tagging: TaskSettings, tmp_path: Path
) -> None:
    """The shares of all micro-batches add up to λ‖w‖² for each mix."""
    config = BiLSTMConfig(5, 257, word_size=4, lstm_size=3, language_model=LM, lm_places=(0, 1), lm_mix_penalty=0.1)
    encoder = BiLSTMEncoder(config)
    assert encoder.has_penalty
    assert encoder.language_model is not None
    with torch.no_grad():
        for mix in encoder.language_model.mixes.values():
            mix.get_parameter("weights").copy_(torch.tensor([1.0, 2.0, 0.0]))
    rows = torch.from_numpy(np.column_stack([[0, 3, 1], word_byte_rows(["", "cat", ""])])).long()
    parts = []
    for number in (1, 2):  # micro-batches of one and two sequences
        packed = WordBatch(Packing.of(np.full(number, 3)), rows.repeat(number, 1))
        parts.append(encoder.penalty(TaskBatch(packed, torch.zeros(0), num_sequences=3), torch.zeros(0)))
    torch.testing.assert_close(sum(parts), torch.tensor(2 * 0.1 * 5.0))


def test_bcn_reads_a_language_model_in_place_of_a_translation_model(
    language_model: Path, review_files: Path, tmp_path: Path
) -> None:
    """The defaults are the mix and penalty of ELMo's paper; both kinds of model together are refused."""
    table = {
        "run": str(tmp_path / "run"),
        "architecture": "bcn",
        "task": {"task": "classification", "train": [str(review_files / "train.tsv")]},
        "words": {"word_size": 6, "char_model": "none", "lstm_size": 4, "language_model": str(language_model)},
        "epochs": 1.0,
        "device": {"device": "cpu"},
    }
    settings = from_table(FinetuneSettings, table, "test")
    assert (settings.words.lm_layers, settings.words.lm_mix_penalty) == ("mix", 1e-3)
    assert "no characters, ELMo L2 P6 C8, 8 filters (mix)" in " ".join(run_finetune(settings).split())
    both = table | {"words": {**table["words"], "translation_model": "mt"}}  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="translation_model and language_model"):
        from_table(FinetuneSettings, both, "test")
