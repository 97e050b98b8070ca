"""The window network: against a loop over words, in batches, and as a tagger that is trained and read back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bertwright
from bertwright.cli.main import run
from bertwright.models.packing import Packing, WordBatch
from bertwright.systems.window.window import WindowConfig, WindowEncoder
from bertwright.vocabulary.word_tokenizer import WordRules, WordTokenizer
from helpers import write_file

TEXTS = ["The cat saw Rome", "a", "the dog saw a cat , and a cat saw the dog", "", "Rome saw the unfathomable cat"]
TOKENIZER = WordTokenizer.learn(TEXTS, WordRules(max_characters=8))
CONFIG = WindowConfig(
    TOKENIZER.vocab_size, TOKENIZER.num_characters, word_size=6, char_size=4, char_features=4, hidden_size=8
)


def batch_of(texts: list[str]) -> WordBatch:
    encoded = TOKENIZER.encode_ids(texts)
    return WordBatch(Packing.of(np.diff(encoded.offsets)), torch.from_numpy(encoded.ids.astype(np.int64)))


def make_encoder(**changes: object) -> WindowEncoder:
    encoder = WindowEncoder(replace(CONFIG, **changes), seed=1).eval()  # type: ignore[arg-type]
    torch.nn.init.normal_(encoder.get_parameter("layers.0.padding"))  # as after training
    return encoder


@pytest.mark.parametrize("reach", [1, 2])
def test_states_equal_a_loop_over_words(reach: int) -> None:
    encoder = make_encoder(reach=reach)
    padding, dense = encoder.get_parameter("layers.0.padding"), encoder.get_submodule("layers.0.dense")
    states = iter(encoder(batch_of(TEXTS)))
    vectors = encoder.hidden_states(batch_of(TEXTS), [0])[0].split(batch_of(TEXTS).packing.lengths.tolist())
    for text in vectors:
        assert not next(states).any()  # begin of the text
        padded = [padding] * reach + list(text[1:-1]) + [padding] * reach
        for position in range(len(text) - 2):
            window = torch.cat(padded[position : position + 2 * reach + 1])
            torch.testing.assert_close(next(states), dense(window).clamp(-1, 1))
        assert not next(states).any()


@pytest.mark.parametrize("char_model", ["cnn", "lstm", "none"])
def test_states_do_not_depend_on_the_batch(char_model: str) -> None:
    encoder = make_encoder(char_model=char_model)
    states = encoder(batch_of(TEXTS)).split(batch_of(TEXTS).packing.lengths.tolist())
    for text, together in zip(TEXTS, states, strict=True):
        torch.testing.assert_close(encoder(batch_of([text])), together)
    positions = torch.tensor([1, 4, 7])
    torch.testing.assert_close(encoder(batch_of(TEXTS), positions), encoder(batch_of(TEXTS))[positions])


def test_first_weights_are_functions_of_seed_and_name() -> None:
    one, again, two = (WindowEncoder(CONFIG, seed=seed) for seed in (1, 1, 2))
    for name, weights in one.named_parameters():
        assert torch.equal(weights, again.get_parameter(name))
        assert weights.ndim == 1 or not torch.equal(weights, two.get_parameter(name))
    with pytest.raises(ValueError, match="hidden_size = 7: expected an even number"):
        replace(CONFIG, hidden_size=7)


def sentences(number: int, seed: int) -> str:
    """Return sentences in CoNLL columns; a word is a name only after a title."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(number):
        for _ in range(int(rng.integers(1, 5))):
            titled, word = bool(rng.integers(2)), rng.choice(["Rose", "Grace", "Hunter"])
            lines += ["dear O" if titled else "the O", f"{word} {'B-PER' if titled else 'O'}", "came O"]
        lines.append("")
    return "\n".join(lines) + "\n"


def test_a_tagger_learns_from_the_words_around_and_is_read_back(tmp_path: Path) -> None:
    train, dev = (write_file(tmp_path, sentences(60, seed), f"{seed}.conll") for seed in (0, 1))
    folder = str(tmp_path / "run")
    arguments = ["finetune", "--task", "tagging", "--train", train, "--dev", dev, "--run", folder]
    arguments += ["--architecture", "window", "--epochs", "8", "--learning-rate", "0.02", "--threads", "1"]
    assert run(arguments) == 0
    assert json.loads((tmp_path / "run" / "report.json").read_text())["scores"]["dev"]["f1"] > 0.95
    settings = (tmp_path / "run" / "settings.toml").read_text()
    assert "word_size = 50" in settings
    assert 'tag_head = "crf"' in settings
    assert bertwright.load(tmp_path / "run").tag("the Rose came dear Grace").tags == ("O", "O", "O", "O", "B-PER")
