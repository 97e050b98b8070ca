from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from bertwright.batching.batch import pack
from bertwright.models.config import BertConfig
from bertwright.models.encoder import BertEncoder
from bertwright.models.initialization import initialize
from bertwright.models.mimetic_init import mimetic_init_

MINI = BertConfig.from_size("mini", vocab_size=1_000, max_positions=128, initializer_range=0.02 * 3**0.5)


def drawn(config: BertConfig, seed: int = 0) -> BertEncoder:
    model = BertEncoder(config).eval()
    initialize(model, config.initializer_range, seed)
    return model


def started(config: BertConfig, seed: int = 0) -> BertEncoder:
    model = drawn(config, seed)
    mimetic_init_(model)
    return model


@torch.no_grad()
def weights(model: BertEncoder, layer: int, length: int = 60) -> Tensor:
    """Attention on one text of distinct random tokens: A × length × length."""
    config = model.config
    ids = np.random.default_rng(0).permutation(config.vocab_size)[:length]
    states = model.hidden_states(pack([ids]))[layer]
    query, key, _ = model.layers[layer].qkv(states).unflatten(-1, (3, config.num_heads, config.head_size)).unbind(1)
    return (torch.einsum("iad,jad->aij", query, key) / config.head_size**0.5).softmax(-1)


def steps(found: Tensor) -> Tensor:
    """Where a token looks within three tokens of itself, on average, for each head: below 0 is to the left."""
    near = [found.diagonal(step, 1, 2)[:, 5:-5].mean(-1) * step for step in (-3, -2, -1, 1, 2, 3)]
    return torch.stack(near).sum(0)


@pytest.mark.parametrize("size", ["tiny", "mini", "small", "base"])
def test_heads_look_around_themselves_and_to_the_left_and_right_in_turn(size: str) -> None:
    width = BertConfig.from_size(size, 10).hidden_size
    wide = 0.02 * (768 / width) ** 0.5
    config = BertConfig.from_size(size, 1_000, num_layers=2, max_positions=64, initializer_range=wide)
    model = started(config)
    for layer in (0, 1):
        found = weights(model, layer)
        near = torch.stack([found.diagonal(step, 1, 2)[:, 5:-5].mean(-1) for step in range(-3, 4)]).sum(0)
        assert (near > 0.35).all(), near  # 7 of 60 tokens
        assert (steps(found)[::2] < -0.1).all()
        assert (steps(found)[1::2] > 0.1).all()
    assert weights(drawn(config), 0).diagonal(0, 1, 2).mean() < 0.05  # what it is without


def test_how_alike_two_positions_are_depends_on_their_distance_alone() -> None:
    table = started(MINI).embeddings.position.weight.detach().double()
    alike = table @ table.T
    for distance in (0, 1, 2, 30, 127):
        along = alike.diagonal(distance)
        assert (along - along.mean()).abs().max() < 1e-5 * alike[0, 0]
    words = drawn(MINI).embeddings.word.weight
    assert table.std() == pytest.approx(2 * words.std().item(), rel=0.05)


def test_the_rest_is_as_it_was_drawn() -> None:
    before, after = drawn(MINI).state_dict(), started(MINI).state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    layers = {f"layers.{n}.{name}.weight" for n in range(4) for name in ("qkv", "attention_output")}
    assert changed == layers | {"embeddings.position.weight"}
    width = MINI.hidden_size
    was, now = before["layers.1.qkv.weight"], after["layers.1.qkv.weight"]
    assert torch.equal(now[:width], 1.5 * was[:width])
    assert torch.equal(now[2 * width :], was[2 * width :])
    assert torch.equal(after["layers.1.attention_output.weight"], -was[2 * width :].T)
    # a rotation: every head's keys are as large as its queries
    assert torch.allclose(now[width : 2 * width].norm(), now[:width].norm())


def test_one_head_and_an_odd_width() -> None:
    config = BertConfig(100, hidden_size=33, num_layers=1, num_heads=1, intermediate_size=40, max_positions=16)
    model, before = started(config), drawn(config)
    last = model.embeddings.position.weight[:, -1]
    assert torch.equal(last, before.embeddings.position.weight[:, -1])
    assert torch.isfinite(weights(model, 0, 16)).all()
