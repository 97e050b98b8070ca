"""Settings of a run follow from its size and its tokens."""

from __future__ import annotations

import pytest

from bertwright.planning.recipe_choice import LEARNING_RATES, choose_settings
from bertwright.pretraining.settings import LongPhase
from bertwright.systems.bert.defaults import SIZES


def test_recipe_of_the_papers_tokens_is_the_papers() -> None:
    # 900,000 steps of 256 × 128 tokens and 100,000 of 256 × 512.
    chosen = choose_settings("base", tokens=42.6e9, epochs=10)
    assert chosen.steps == pytest.approx(1e6, rel=0.001)
    assert (chosen.data.batch_size, chosen.data.max_length) == (256, 128)
    assert chosen.long == LongPhase(long_ratio=0.1, long_length=512)
    assert (chosen.optimizer.learning_rate, chosen.optimizer.warmup_ratio) == (1e-4, 0.01)
    assert chosen.model.config(30_000, causal=False).hidden_dropout == 0.1


@pytest.mark.parametrize(
    ("tokens", "batch_size", "length"), [(1e6, 16, 64), (30e6, 16, 64), (120e6, 32, 64), (480e6, 32, 128)]
)
def test_tokens_per_step_grow_with_the_root_of_the_tokens(tokens: float, batch_size: int, length: int) -> None:
    chosen = choose_settings("mini", tokens, epochs=1)
    assert (chosen.data.batch_size, chosen.data.max_length) == (batch_size, length)
    assert chosen.steps * batch_size * length == pytest.approx(tokens, rel=0.01)
    assert chosen.long.long_ratio == (0.1 if length == 64 else 0.0)
    assert chosen.model.dropouts == {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def test_text_that_is_read_often_is_trained_with_dropout() -> None:
    assert choose_settings("tiny", tokens=20e6, epochs=20).model.dropouts == {}


def test_every_size_has_a_learning_rate() -> None:
    assert LEARNING_RATES.keys() == SIZES.keys()
