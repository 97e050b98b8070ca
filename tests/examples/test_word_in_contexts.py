"""The example that compares one word in several texts."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import bertwright

TEXTS = ["the bear in the forest", "the bear sees the deer", "the wolf sees the Bear!"]


def test_neighbours_are_the_nearest_words_of_other_places(example: ModuleType, tiny_bert: Path) -> None:
    bert = bertwright.load(tiny_bert, "cpu")
    contexts = example.compare_contexts(bert, "bear", TEXTS)
    assert [contexts.words[place] for place in contexts.places] == [("bear", 0), ("bear", 1), ("Bear", 2)]
    states = np.concatenate([vectors[:, 0] for vectors in bert.features([text.replace("!", " !") for text in TEXTS])])
    states = states / np.linalg.norm(states, axis=1, keepdims=True)
    assert contexts.cosines == pytest.approx(states[contexts.places] @ states.T, abs=1e-5)
    others = [index for index in range(len(states)) if index not in contexts.places]
    best = max(others, key=lambda index: states[index] @ states[contexts.places[0]])
    assert contexts.nearest(0)[0].startswith(f"{contexts.words[best][0]} ")
    with pytest.raises(ValueError, match="'zebra'"):
        example.compare_contexts(bert, "zebra", TEXTS)


def test_the_script_prints_each_place_and_draws_a_picture(
    example: ModuleType, tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example.main(str(tiny_bert), "bear", str(tmp_path / "bear.svg"), *TEXTS)
    printed = capsys.readouterr().out
    assert all(text in printed for text in TEXTS)
    assert (tmp_path / "bear.svg").read_text().startswith("<?xml")
