"""A word in several contexts: neighbours by the states of the last layer, and by the static vector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertwright.inference.bert import Bert, load
from bertwright.inference.embed import EmbedSettings, embed
from bertwright.inference.word_neighbours import find_neighbours
from bertwright.inference.word_plot import draw_contexts
from bertwright.systems.ulmfit.awd_lstm import AwdLstmConfig, AwdLstmLanguageModel
from bertwright.vocabulary.word_tokenizer import LOWERCASE_RULES, WordTokenizer
from harness import run_and_capture

TEXTS = ["the bear in the forest", "the bear sees the deer", "the wolf sees the Bear"]


@pytest.fixture(scope="module")
def bert(tiny_bert: Path) -> Bert:
    return load(tiny_bert, "cpu")


def test_neighbours_are_the_nearest_words_of_other_places(bert: Bert) -> None:
    found = find_neighbours(bert, "bear", TEXTS, top_k=3)
    assert [place.text for place in found.occurrences] == [0, 1, 2]
    vectors = [bert.features(text)[:, 0] for text in TEXTS]
    words = [(word, number) for number, text in enumerate(TEXTS) for word in text.split()]
    states = np.concatenate(vectors)
    states = states / np.linalg.norm(states, axis=1, keepdims=True)
    places = [index for index, (word, _) in enumerate(words) if word.lower() == "bear"]
    for place, index in zip(found.occurrences, places, strict=True):
        cosines = {n: float(states[n] @ states[index]) for n in range(len(words)) if n not in places}
        best = sorted(cosines, key=lambda n: -cosines[n])[:3]
        assert [(near.word, near.text) for near in place.neighbours] == [words[n] for n in best]
        assert [near.cosine for near in place.neighbours] == pytest.approx([cosines[n] for n in best], abs=1e-5)
    assert found.words == words
    assert [place.place for place in found.occurrences] == places
    assert found.cosines == pytest.approx(states[places] @ states.T, abs=1e-5)


def test_static_neighbours_are_tokens_of_the_vocabulary_whatever_the_text(bert: Bert) -> None:
    one, other = (find_neighbours(bert, "bear", [text]) for text in TEXTS[:2])
    assert one.static == other.static
    assert len(one.static) == 5
    assert "bear" not in [near.word for near in one.static]
    assert not any(near.word.startswith("[") for near in one.static)


def test_static_neighbours_of_a_model_of_whole_words_are_its_words() -> None:
    tokenizer = WordTokenizer.learn([" ".join(TEXTS), "a crow"], LOWERCASE_RULES)
    config = AwdLstmConfig(tokenizer.vocab_size, embedding_size=8, lstm_size=12)
    model = Bert(AwdLstmLanguageModel(config, seed=1), tokenizer)
    contexts = find_neighbours(model, "bear", TEXTS)
    assert len(contexts.occurrences) == 3
    assert len(contexts.static) == 5
    assert {near.word for near in contexts.static} <= {*tokenizer.tokens[3:]} - {"bear"}
    assert find_neighbours(model, "lynx", ["a lynx"]).static == []  # not the neighbours of <UNK>


def test_the_command_prints_a_row_per_context(tiny_bert: Path) -> None:
    printed = run_and_capture(embed, EmbedSettings(str(tiny_bert), tuple(TEXTS), word="bear"), columns=140)
    assert "Nearest to 'bear'" in printed
    assert printed.count("bear") >= 3
    assert "static vector, in the vocabulary" in printed
    assert "1.000" in printed


def test_the_picture_has_each_word_by_its_cosines_to_the_first_two_places(bert: Bert) -> None:
    texts = [f"{TEXTS[0]} !", *TEXTS[1:]]
    contexts = find_neighbours(bert, "bear", texts)
    figure = draw_contexts(contexts, "bear", texts)
    (panel,) = figure.axes
    drawn = {(note.get_text(), *np.round(np.float64(note.xy), 5)) for note in panel.texts}
    across, up = np.round(contexts.cosines[:2].astype(float), 5)
    assert drawn == {(word, across[n], up[n]) for n, (word, _) in enumerate(contexts.words) if word != "!"}
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("cosine to bear in text 1", "cosine to bear in text 2")
    (legend,) = figure.legends
    assert [entry.get_text() for entry in legend.get_texts()] == [f"{n}  {text}" for n, text in enumerate(texts, 1)]


def test_the_command_writes_the_picture(tiny_bert: Path, tmp_path: Path) -> None:
    settings = EmbedSettings(str(tiny_bert), tuple(TEXTS), word="bear", output=tmp_path / "bear.svg")
    assert "bear.svg" in run_and_capture(embed, settings, columns=140)
    assert (tmp_path / "bear.svg").read_text().startswith("<?xml")


def test_a_word_that_is_in_no_text_and_wrong_options_are_named(bert: Bert, tiny_bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--word 'zebra'"):
        find_neighbours(bert, "zebra", TEXTS)
    with pytest.raises(ValueError, match=r"vectors\.npy: with --word, expected a picture, \.png"):
        EmbedSettings("model", ("a", "b"), word="a", output=tmp_path / "vectors.npy")
    with pytest.raises(ValueError, match=r"--word compares a word .*; omit --inputs"):
        EmbedSettings("model", inputs=("a.txt",), word="a", output=tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"--word 'deer': expected it in two texts .* got one place"):
        embed(EmbedSettings(str(tiny_bert), tuple(TEXTS), word="deer", output=tmp_path / "a.png"))
    assert not any(tmp_path.iterdir())
    with pytest.raises(ValueError, match="--word: expected a word"):
        EmbedSettings("model", ("a", "b"), word=" ")
