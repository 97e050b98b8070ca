"""A word in several contexts: neighbours by the states of the last layer, and by the static vector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertwright.inference.embed import EmbedSettings, embed
from bertwright.inference.model import Bert, load
from bertwright.inference.word_neighbours import find_neighbours
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
    assert found.cosines[0, 1] == pytest.approx(float(states[places[0]] @ states[places[1]]), abs=1e-5)
    assert found.cosines.diagonal() == pytest.approx(1.0, abs=1e-5)


def test_static_neighbours_are_tokens_of_the_vocabulary_whatever_the_text(bert: Bert) -> None:
    one, other = (find_neighbours(bert, "bear", [text]) for text in TEXTS[:2])
    assert one.static == other.static
    assert len(one.static) == 5
    assert "bear" not in [near.word for near in one.static]
    assert not any(near.word.startswith("[") for near in one.static)


def test_the_command_prints_a_row_per_context(tiny_bert: Path) -> None:
    printed = run_and_capture(embed, EmbedSettings(str(tiny_bert), tuple(TEXTS), word="bear"), columns=140)
    assert "Nearest to 'bear'" in printed
    assert printed.count("bear") >= 3
    assert "static vector, in the vocabulary" in printed
    assert "1.000" in printed


def test_a_word_that_is_in_no_text_and_wrong_options_are_named(bert: Bert, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--word 'zebra'"):
        find_neighbours(bert, "zebra", TEXTS)
    with pytest.raises(ValueError, match=r"--word compares a word .* omit --inputs and --output"):
        EmbedSettings("model", ("a", "b"), word="a", output=tmp_path / "vectors.npy")
    with pytest.raises(ValueError, match="--word: expected a word"):
        EmbedSettings("model", ("a", "b"), word=" ")
