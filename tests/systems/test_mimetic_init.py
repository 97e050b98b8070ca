"""Mimetic initialization: where heads attend to, and what it leaves unchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from bertwright.models.initialization import initialize, truncated_normal
from bertwright.models.packing import pack
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.mimetic_init import mimetic_init_

MINI = BertConfig.from_size("mini", vocab_size=1_000, max_positions=128, initializer_range=0.02 * 3**0.5)


def normal_encoder(config: BertConfig, seed: int = 0) -> BertEncoder:
    model = BertEncoder(config).eval()
    initialize(model, truncated_normal(config.initializer_range), seed)
    return model


def mimetic_encoder(config: BertConfig, seed: int = 0) -> BertEncoder:
    model = normal_encoder(config, seed)
    mimetic_init_(model)
    return model


@torch.no_grad()
def weights(model: BertEncoder, layer: int, length: int = 60) -> Tensor:
    """Return attention on one text of distinct random tokens: A × length × length."""
    config = model.config
    ids = np.random.default_rng(0).permutation(config.vocab_size)[:length]
    states = model.hidden_states(pack([ids]))[layer]
    query, key, _ = model.layers[layer].qkv(states).unflatten(-1, (3, config.num_heads, config.head_size)).unbind(1)
    return (torch.einsum("iad,jad->aij", query, key) / config.head_size**0.5).softmax(-1)


def mean_offsets(found: Tensor) -> Tensor:
    """Return the mean offset of attention within three tokens, for each head; below 0 is to the left."""
    near = [found.diagonal(offset, 1, 2)[:, 5:-5].mean(-1) * offset for offset in (-3, -2, -1, 1, 2, 3)]
    return torch.stack(near).sum(0)


@pytest.mark.parametrize("size", ["tiny", "mini", "small", "base"])
def test_heads_attend_to_nearby_tokens_left_and_right_alternately(size: str) -> None:
    hidden_size = BertConfig.from_size(size, 10).hidden_size
    std = 0.02 * (768 / hidden_size) ** 0.5
    config = BertConfig.from_size(size, 1_000, num_layers=2, max_positions=64, initializer_range=std)
    model = mimetic_encoder(config)
    for layer in (0, 1):
        found = weights(model, layer)
        near = torch.stack([found.diagonal(offset, 1, 2)[:, 5:-5].mean(-1) for offset in range(-3, 4)]).sum(0)
        assert (near > 0.35).all(), near  # 7 of 60 tokens
        assert (mean_offsets(found)[::2] < -0.1).all()
        assert (mean_offsets(found)[1::2] > 0.1).all()
    assert weights(normal_encoder(config), 0).diagonal(0, 1, 2).mean() < 0.05  # without mimetic initialization


def test_similarity_of_positions_depends_on_their_distance_only() -> None:
    table = mimetic_encoder(MINI).embeddings.position.weight.detach().double()
    similarity = table @ table.T
    for distance in (0, 1, 2, 30, 127):
        diagonal = similarity.diagonal(distance)
        assert (diagonal - diagonal.mean()).abs().max() < 1e-5 * similarity[0, 0]
    words = normal_encoder(MINI).embeddings.word.weight
    assert table.std() == pytest.approx(2 * words.std().item(), rel=0.05)


def test_all_other_weights_stay_unchanged() -> None:
    before, after = normal_encoder(MINI).state_dict(), mimetic_encoder(MINI).state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    layers = {f"layers.{n}.{name}.weight" for n in range(4) for name in ("qkv", "attention_output")}
    assert changed == layers | {"embeddings.position.weight"}
    hidden_size = MINI.hidden_size
    old, new = before["layers.1.qkv.weight"], after["layers.1.qkv.weight"]
    assert torch.equal(new[:hidden_size], 1.5 * old[:hidden_size])
    assert torch.equal(new[2 * hidden_size :], old[2 * hidden_size :])
    assert torch.equal(after["layers.1.attention_output.weight"], -old[2 * hidden_size :].T)
    # a rotation preserves the norm: keys are as large as queries
    assert torch.allclose(new[hidden_size : 2 * hidden_size].norm(), new[:hidden_size].norm())


def test_one_head_and_an_odd_hidden_size_work() -> None:
    config = BertConfig(100, hidden_size=33, num_layers=1, num_heads=1, intermediate_size=40, max_positions=16)
    model, before = mimetic_encoder(config), normal_encoder(config)
    last = model.embeddings.position.weight[:, -1]
    assert torch.equal(last, before.embeddings.position.weight[:, -1])
    assert torch.isfinite(weights(model, 0, 16)).all()
