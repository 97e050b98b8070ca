"""Settings of a new model: shapes, initial weights, and what only a new model has."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from bertwright.pretraining.settings import ModelSettings
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.bert.bert_objective import LeftToRightLM
from bertwright.systems.bert.defaults import SIZES
from bertwright.systems.bert.masked_lm_objective import MaskedLM


def test_unset_model_settings_are_those_of_the_paper() -> None:
    assert ModelSettings().config(30_000, causal=False) == BertConfig.from_size("base", 30_000)
    custom = ModelSettings("tiny", hidden_size=64, max_positions=32, hidden_dropout=0.2, activation="gelu_tanh")
    assert custom.config(30_000, causal=True) == BertConfig.from_size(
        "tiny", 30_000, is_causal=True, hidden_size=64, intermediate_size=256, max_positions=32, hidden_dropout=0.2,
        activation="gelu_tanh", initializer_range=0.02 * 12**0.5,
    )  # fmt: skip


@pytest.mark.slow
def test_initial_weights_of_small_models_have_a_larger_deviation() -> None:
    ranges = {size: ModelSettings(size).config(100, causal=False).initializer_range for size in SIZES}
    rounded = {size: round(value, 4) for size, value in ranges.items()}
    expected = {"tiny": 0.049, "mini": 0.0346, "small": 0.0245, "medium": 0.0245, "base": 0.02, "large": 0.02}
    assert rounded == expected
    config = ModelSettings("mini", initializer_range=0.02).config(1_000, causal=False)
    assert config.initializer_range == 0.02
    for size in ("mini", "base"):  # of the product with a normalized state; 0.88: truncated at two deviations
        config = ModelSettings(size).config(1_000, causal=False)
        weight = BertForPretraining(config).state_dict()["encoder.layers.0.qkv.weight"]
        state = torch.nn.functional.layer_norm(torch.randn(config.hidden_size), (config.hidden_size,))
        assert (weight @ state).std() == pytest.approx(0.02 * 768**0.5 * 0.88, rel=0.1)


def test_small_models_have_mimetic_initial_weights_and_those_of_the_paper_do_not() -> None:
    def is_mimetic(settings: ModelSettings, causal: bool = False) -> bool:
        objective = LeftToRightLM() if causal else MaskedLM()
        model = objective.new_model(replace(settings, num_layers=1), 100, 3)
        queries, keys, _ = model.encoder.layers[0].qkv.weight.chunk(3)
        return bool(torch.allclose(queries.norm(), keys.norm(), rtol=1e-5))  # keys are queries, rotated

    assert {size: is_mimetic(ModelSettings(size)) for size in SIZES} == {
        "tiny": True, "mini": True, "small": True, "medium": True, "base": False, "large": False
    }  # fmt: skip
    assert is_mimetic(ModelSettings("base", init_scheme="mimetic"))
    assert not is_mimetic(ModelSettings("tiny", init_scheme="normal"))
    assert is_mimetic(ModelSettings("tiny"), causal=True)  # objectives are compared from the same initial weights
    assert not is_mimetic(ModelSettings("tiny", sinusoidal_positions=True))
    with pytest.raises(ValueError, match="sinusoidal_positions, init_scheme mimetic"):
        ModelSettings("tiny", sinusoidal_positions=True, init_scheme="mimetic")


def test_shape_beside_init_is_rejected() -> None:
    message = r"^size = 'tiny', num_layers = 3: the model to start from, folder, has its own; omit it"
    with pytest.raises(ValueError, match=message):
        ModelSettings(size="tiny", init="folder", num_layers=3, hidden_dropout=0.0)
    for name, value in (
        ("hidden_size", 64),
        ("max_positions", 512),
        ("activation", "gelu"),
        ("initializer_range", 0.02),
        ("init_scheme", "normal"),
    ):
        with pytest.raises(ValueError, match=f"{name} = {value!r}: the model to start from"):
            ModelSettings(init="folder", **{name: value})  # type: ignore[arg-type]
