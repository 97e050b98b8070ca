"""Every position that a model claims is trained, or a notice says which ones are not."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import bertwright
from bertwright.base.settings import from_table, merge
from bertwright.models.encoder import EncoderModel
from bertwright.planning.recipe_choice import choose_settings
from bertwright.pretraining.initial_model import check_lengths, describe_untrained_positions
from bertwright.pretraining.settings import LongPhase, ModelSettings, PretrainSettings
from bertwright.systems.bert.bert_encoder import BertEncoder

RECIPES = sorted((Path(bertwright.__file__).parent / "recipes").rglob("*.toml"))


def longest(settings: PretrainSettings) -> int:
    return max(phase.data.max_length for phase in settings.phases)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains_every_position(path: Path) -> None:
    table = merge({"run": "run", "store": "store"}, tomllib.loads(path.read_text()))
    settings = from_table(PretrainSettings, table, "")
    if path.stem != "adapt":  # it starts from a model whose positions have been trained
        assert longest(settings) == (settings.model.max_positions or 512)


@pytest.mark.parametrize("tokens", [1e6, 30e6, 1e8, 5e8, 2e9])
def test_a_plan_trains_every_position(tokens: float) -> None:
    settings = choose_settings("mini", tokens, epochs=1.0)
    assert longest(settings) == (settings.model.max_positions or 512)


def test_the_long_phase_of_a_short_plan_has_as_many_tokens_per_step() -> None:
    settings = choose_settings("mini", 30e6, epochs=1.0)
    assert [phase.data.max_length * phase.data.batch_size for phase in settings.phases] == [1024, 1024]
    assert [phase.end - phase.first for phase in settings.phases] == [settings.steps - 2930, 2930]


def untrained(long: LongPhase, **model: object) -> str | None:
    shape = ModelSettings(size="tiny", num_layers=1, max_positions=64, **model)  # type: ignore[arg-type]
    settings = PretrainSettings(run=Path("run"), store=Path("store"), model=shape, long=long)
    settings = merge_length(settings, 32)
    return describe_untrained_positions(settings, EncoderModel(BertEncoder(shape.config(50, causal=False))))


def merge_length(settings: PretrainSettings, length: int) -> PretrainSettings:
    return replace(settings, data=replace(settings.data, max_length=length))


def test_a_notice_names_positions_that_no_step_reads() -> None:
    text = untrained(LongPhase(long_ratio=0.0))
    assert text is not None
    assert "64 positions" in text
    assert "32 to 63" in text
    assert "--max-positions 32" in text
    assert untrained(LongPhase(0.5, 64)) is None
    assert untrained(LongPhase(long_ratio=0.0), sinusoidal_positions=True) is None


def test_pairs_need_a_second_segment_type() -> None:
    shape = ModelSettings(size="tiny", num_layers=1)
    settings = PretrainSettings(run=Path("run"), store=Path("store"), model=shape)
    settings = replace(settings, data=replace(settings.data, objective="mlm", segments="pair"))
    config = replace(shape.config(50, causal=False), type_vocab_size=1)
    with pytest.raises(ValueError, match=r"segments = pair: .*type_vocab_size = 1; use --segments single"):
        check_lengths(settings, EncoderModel(BertEncoder(config)))
