"""The example that shows how a bidirectional model of several layers sees the word that it predicts."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest


def test_only_two_layers_on_both_sides_see_the_word_that_they_predict(example: ModuleType) -> None:
    own = {title: example.measure(*model).diagonal() for title, model in example.MODELS.items()}
    before, one, two, again = own.values()
    assert not before.any()
    assert not one.any()
    assert (two > 1e-3).all()
    assert not again.any()


def test_a_state_of_one_layer_depends_on_the_places_that_it_may_read_and_on_no_other(example: ModuleType) -> None:
    assert ((example.measure(example.OTHERS, 1, False) > 0) == example.OTHERS).all()
    assert ((example.measure(example.BEFORE, 1, False) > 0) == example.BEFORE).all()


def test_the_script_prints_a_line_and_draws_a_square_per_model(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example.main(str(tmp_path / "crosstalk.png"))
    assert len(capsys.readouterr().out.splitlines()) == len(example.MODELS)
    assert (tmp_path / "crosstalk.png").stat().st_size > 1000
