"""`bertwright next-sentence` and `bertwright attention`: what they print and write, and what they refuse."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertwright
from bertwright.inference.attention_plot import AttentionSettings, attention
from bertwright.inference.attention_weights import Attention
from bertwright.inference.bert import Bert
from bertwright.inference.text_commands import score_next_sentences as next_sentence
from bertwright.inference.text_settings import NextSentenceSettings
from bertwright.objectives.data_settings import DataSettings
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import LongPhase
from bertwright.systems.bert.masked_lm_objective import MaskedLMWithNextSentence
from bertwright.training.metrics_log import read_metrics
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from harness import run_and_capture, run_with_output
from helpers import CPU

WITHOUT_MASKS = DataSettings(max_length=32, batch_size=8, mask_mix=(0.0, 1.0, 0.0))
TEXTS = ("The bear sees .", "The wolf fears the bear .", "The fish .")


@pytest.fixture
def run(make_settings: Callable[..., Any], tmp_path: Path) -> Path:
    """A run that predicts next sentences, without masks; large initial weights let the answers differ."""
    settings = make_settings(tmp_path / "run", long=LongPhase(long_ratio=0))
    model = replace(settings.model, init_scheme="normal", initializer_range=0.3)
    data = replace(WITHOUT_MASKS, seed=4)
    optimizer = replace(settings.optimizer, learning_rate=1e-4)
    run_and_capture(pretrain, replace(settings, model=model, data=data, optimizer=optimizer))
    return tmp_path / "run"


def test_next_sentence_prints_the_probability_that_each_text_follows_the_one_before(run: Path) -> None:
    settings = NextSentenceSettings(str(run), TEXTS, CPU)
    found, printed = run_with_output(next_sentence, settings)
    assert found == bertwright.load(run, "cpu").next_sentence(TEXTS[:-1], TEXTS[1:])
    for text, probability in zip(TEXTS[1:], found, strict=True):
        (line,) = (line for line in printed.splitlines() if text in line)
        assert line.rstrip().endswith(f"{probability:.1%}")


def test_next_sentence_has_the_accuracy_of_pre_training_on_the_same_pairs(run: Path, store: Path) -> None:
    tokenizer = Tokenizer.load(run / "model")
    (data,) = MaskedLMWithNextSentence().open_examples(store / "held_out", tokenizer, [WITHOUT_MASKS])
    texts: list[list[str]] = [[], []]
    is_random: list[int] = []
    for batch in data.validation_batches(sequences=32):
        is_random += batch.nsp_labels.tolist()
        for ids in batch.input.input_ids.split(batch.packing.lengths.tolist()):
            tokens = [tokenizer.token(token) for token in ids.tolist()]
            middle = tokens.index("[SEP]")
            texts[0].append(" ".join(tokens[1:middle]))
            texts[1].append(" ".join(tokens[middle + 1 : -1]))
    follows = np.array(bertwright.load(run, "cpu").next_sentence(*texts)) > 0.5
    assert 0 < follows.sum() < len(follows) == 32
    logged = [record for record in read_metrics(run) if record["kind"] == "held_out"][-1]
    assert np.mean(follows == (np.array(is_random) == 0)) == pytest.approx(logged["nsp_accuracy"], abs=1e-9)


@pytest.mark.parametrize("objective", ["mlm", "ltr", "rtl"])
def test_next_sentence_without_its_pre_training_is_an_error(
    objective: Any, make_settings: Callable[..., Any], tmp_path: Path
) -> None:
    data = DataSettings(max_length=32, batch_size=8, objective=objective)
    run_and_capture(pretrain, make_settings(tmp_path / "run", data=data, long=LongPhase(long_ratio=0), steps=2))
    with pytest.raises(ValueError, match="without next-sentence prediction"):
        next_sentence(NextSentenceSettings(str(tmp_path / "run"), TEXTS, CPU))


def test_one_text_is_refused_before_the_model_is_loaded() -> None:
    with pytest.raises(ValueError, match="expected at least two texts, got 1"):
        NextSentenceSettings("absent", ("alone",))


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_attention_draws_a_picture(one_layer_folder: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"attention{suffix}"
    attention(AttentionSettings(str(one_layer_folder), TEXTS[0], path, device=CPU))
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert path.read_bytes().startswith(starts[suffix])
    if suffix == ".svg":
        assert path.read_text().count("<image") == 2  # a panel for each head of the one layer
    with pytest.raises(ValueError, match="already exists"):
        attention(AttentionSettings(str(one_layer_folder), TEXTS[0], path, device=CPU))


def test_attention_writes_the_weights_of_the_chosen_head(one_layer_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "attention.npz"
    settings = AttentionSettings(str(one_layer_folder), "$ the $", path, text_pair="bear", head=2, device=CPU)
    _, printed = run_with_output(attention, settings)
    assert str(path) in printed.replace("\n", "")
    expected = bertwright.load(one_layer_folder, "cpu").attention("$ the $", "bear")
    with np.load(path) as written:
        assert tuple(written["tokens"]) == expected.tokens
        assert np.array_equal(written["weights"], expected.weights[:, 1:2])
    attention(AttentionSettings(str(one_layer_folder), "$ the $", tmp_path / "one.png", layer=1, head=1, device=CPU))


def test_characters_without_a_font_cause_one_notice(
    one_layer_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertwright.inference.pictures.CJK_FONTS", ())  # as if none were installed
    tokens = ("[CLS]", "한", "##강", "[SEP]")
    weights = np.zeros((1, 1, 4, 4), np.float32)
    monkeypatch.setattr(Bert, "attention", lambda *_: Attention(tokens, weights))
    settings = AttentionSettings(str(one_layer_folder), "the", tmp_path / "a.png", layer=1, head=1, device=CPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, printed = run_with_output(attention, settings)
    assert "no installed font has some characters of the tokens" in " ".join(printed.split())


def test_wrong_settings_of_attention_are_refused(one_layer_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.txt: expected one of the suffixes"):
        AttentionSettings("model", "text", tmp_path / "a.txt")
    with pytest.raises(ValueError, match="--head: expected 1 to 2, got 3"):
        attention(AttentionSettings(str(one_layer_folder), "The", tmp_path / "a.png", head=3, device=CPU))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
