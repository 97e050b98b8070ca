"""The encoder against naive code; dropout, initial weights, and the fused encoder against its layers."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_encoder import fused_encoder
from bertwright.models.initialization import initialize, truncated_normal
from bertwright.models.packing import pack
from bertwright.systems.bert import bert_encoder as encoder_module
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder, Layer

CONFIG = BertConfig(
    vocab_size=50, hidden_size=24, num_layers=2, num_heads=3, intermediate_size=40, max_positions=32,
    hidden_dropout=0.3, attention_dropout=0.3,
)  # fmt: skip
LENGTHS = st.lists(st.integers(1, 32), min_size=1, max_size=6)


def encoder(config: BertConfig = CONFIG) -> BertEncoder:
    """Return an encoder whose weights are so large that attention is far from uniform."""
    model = BertEncoder(config)
    initialize(model, truncated_normal(0.3), seed=1)
    return model.eval()


def texts(lengths: list[int], seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 50, n) for n in lengths], [rng.integers(0, 2, n) for n in lengths]


def norm(x: Tensor, module: torch.nn.LayerNorm) -> Tensor:
    variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
    return (x - mean) / (variance + module.eps).sqrt() * module.weight + module.bias


def naive_layer(layer: Layer, x: Tensor, causal: bool) -> Tensor:
    """Compute a layer of one sequence, one head at a time, as the papers write it."""
    heads = []
    query, key, value = (x @ layer.qkv.weight.T + layer.qkv.bias).split(x.shape[1], dim=1)
    for head in range(CONFIG.num_heads):
        columns = slice(head * CONFIG.head_size, (head + 1) * CONFIG.head_size)
        scores = query[:, columns] @ key[:, columns].T / math.sqrt(CONFIG.head_size)
        if causal:
            scores = scores + torch.full_like(scores, -math.inf).triu(1)
        heads.append(scores.softmax(-1) @ value[:, columns])
    mixed = torch.cat(heads, dim=1) @ layer.attention_output.weight.T + layer.attention_output.bias
    x = norm(x + mixed, layer.attention_norm)
    intermediate = x @ layer.intermediate.weight.T + layer.intermediate.bias
    intermediate = intermediate * (1 + torch.erf(intermediate / math.sqrt(2))) / 2
    return norm(x + intermediate @ layer.output.weight.T + layer.output.bias, layer.output_norm)


def naive(model: BertEncoder, ids: np.ndarray, types: np.ndarray) -> Tensor:
    tables = model.embeddings
    rows = [
        tables.word.weight[i] + tables.token_type.weight[t] + tables.position.weight[position]
        for position, (i, t) in enumerate(zip(ids, types, strict=True))
    ]
    x = norm(torch.stack(rows), tables.norm)
    for layer in model.layers:
        x = naive_layer(layer, x, model.config.is_causal)
    return x


@settings(max_examples=10)
@given(lengths=LENGTHS, causal=st.booleans())
@torch.no_grad()
def test_packed_sequences_give_the_states_of_the_naive_encoder(lengths, causal):
    model = encoder(BertConfig(**(vars(CONFIG) | {"is_causal": causal})))
    ids, types = texts(lengths)
    expected = torch.cat([naive(model, i, t) for i, t in zip(ids, types, strict=True)])
    torch.testing.assert_close(model(pack(ids, types)), expected, rtol=1e-4, atol=2e-5)


@settings(max_examples=10)
@given(before=LENGTHS, own=st.integers(1, 32), after=LENGTHS)
@torch.no_grad()
def test_a_sequence_does_not_depend_on_the_others_in_its_batch(before, own, after):
    model = encoder()
    ids, types = texts([*before, own, *after], seed=own)
    alone = model(pack([ids[len(before)]], [types[len(before)]]))
    together = model(pack(ids, types))[sum(before) : sum(before) + own]
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=2e-5)


@torch.no_grad()
def test_causal_states_do_not_depend_on_later_tokens():
    model = encoder(BertConfig(**(vars(CONFIG) | {"is_causal": True})))
    ids, _ = texts([12])
    changed = [ids[0].copy()]
    changed[0][7:] = (changed[0][7:] + 1) % 50
    first, second = model(pack(ids)), model(pack(changed))
    torch.testing.assert_close(first[:7], second[:7], rtol=1e-5, atol=1e-6)
    assert (first[7:] - second[7:]).abs().max() > 0.1


@torch.no_grad()
def test_the_last_hidden_state_is_the_output():
    model, batch = encoder(), pack(*texts([5, 9]))
    states = model.hidden_states(batch)
    assert [tuple(state.shape) for state in states] == [(14, 24)] * 3
    assert torch.equal(states[-1], model(batch))


@torch.no_grad()
def test_an_integer_eps_in_a_configuration_equals_the_float():
    batch = pack(*texts([5, 9]))
    for eps in (1, 1.0):
        model = encoder(replace(CONFIG, layer_norm_eps=eps, hidden_dropout=0))
        assert type(model.config.layer_norm_eps) is float
        torch.testing.assert_close(model(batch), encoder(replace(CONFIG, layer_norm_eps=1.0))(batch))


@torch.no_grad()
def test_dropout_depends_on_seed_and_token_and_acts_in_training_only():
    model = encoder()
    ids, types = texts([6, 11, 4])
    batch = pack(ids, types)
    assert torch.equal(model(batch.with_dropout(1)), model(batch.with_dropout(2)))
    model.train()
    whole = model(batch.with_dropout(1))
    assert torch.equal(whole, model(batch.with_dropout(1)))
    assert (whole - model(batch.with_dropout(2))).abs().max() > 0.1
    second_half = model(pack(ids[1:], types[1:]).with_dropout(1, first_token=6))  # the same tokens, as a micro-batch
    torch.testing.assert_close(second_half, whole[6:], rtol=1e-4, atol=2e-5)


def test_every_dropout_site_of_a_forward_pass_has_its_own_number(monkeypatch):
    sites = []

    def record_site(kernel):
        def call(*args, **kwargs):
            bound = inspect.signature(kernel).bind(*args, **kwargs).arguments
            sites.append(bound["site"])
            assert bound["dropout"] == Dropout(0.3, seed=5, first_token=0)
            return kernel(*args, **kwargs)

        return call

    for name in ("embed_norm", "attention", "add_dropout_norm"):
        monkeypatch.setattr(encoder_module, name, record_site(getattr(encoder_module, name)))
    encoder().train()(pack(texts([4, 3])[0]).with_dropout(5))
    assert len(sites) == len(set(sites)) == 1 + 3 * CONFIG.num_layers  # the sites that the paper lists (appendix A.2)


def test_initial_weights_depend_on_seed_and_name_only():
    first, again, other = BertEncoder(CONFIG), BertEncoder(CONFIG), BertEncoder(CONFIG)
    deeper = BertEncoder(BertConfig(**(vars(CONFIG) | {"num_layers": 3})))
    for model, seed in ((first, 7), (again, 7), (other, 8), (deeper, 7)):
        initialize(model, truncated_normal(0.02), seed=seed)
    theirs = dict(deeper.named_parameters())
    for (name, ours), same, different in zip(
        first.named_parameters(), again.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(ours, same)
        assert torch.equal(ours, theirs[name])
        if ours.ndim > 1:
            assert not torch.equal(ours, different)
    assert not torch.equal(first.layers[0].qkv.weight, first.layers[1].qkv.weight)


def test_initial_weights_are_a_normal_distribution_truncated_at_two_sigma():
    model = BertEncoder(BertConfig.from_size("tiny", vocab_size=5000))
    initialize(model, truncated_normal(0.02), seed=0)
    words = model.embeddings.word.weight.detach()
    assert words.abs().max() <= 0.04
    # a standard normal distribution truncated at ±2 has variance 1 − 2·2·φ(2) / (2Φ(2) − 1) = 0.7737
    assert words.std().item() == pytest.approx(0.02 * math.sqrt(0.7737), rel=0.01)
    assert words.mean().abs() < 1e-4
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            assert (parameter == (1.0 if "norm.weight" in name else 0.0)).all(), name


def test_a_sequence_longer_than_the_positions_raises():
    with pytest.raises(ValueError, match=r"32 tokens .*max_positions\), got 33"):
        encoder()(pack(texts([33])[0]))


@pytest.mark.parametrize("native", [True, False])
def test_states_at_positions_equal_those_of_all_tokens_with_dropout(native, monkeypatch):
    if not native:
        monkeypatch.setattr("bertwright.kernels.native_library.load_library", lambda name: None)
    batch = pack(texts([7, 1, 12])[0]).with_dropout(9, 100)
    positions = torch.tensor([0, 7, 8, 3, 15, 19])
    model = encoder().train()
    upstream = torch.randn(len(positions), 24, generator=torch.Generator().manual_seed(1))
    found = []
    for states in (lambda: model(batch)[positions], lambda: model(batch, positions)):
        model.zero_grad()
        (states() * upstream).sum().backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        found.append((states().detach(), gradients))
    (all_states, all_gradients), (some_states, some_gradients) = found
    torch.testing.assert_close(some_states, all_states, rtol=1e-5, atol=1e-6)
    for name, gradient in all_gradients.items():
        torch.testing.assert_close(some_gradients[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


POSITIONS = (None, [0, 7, 8, 3, 19, 15, 60], [*range(63, -1, -1)], [])


@pytest.mark.bfloat16
@pytest.mark.parametrize("frozen", [(), ("embeddings", "layers.0", "layers.1"), ("layers.1",)], ids=str)
@pytest.mark.parametrize("positions", POSITIONS, ids=["all", "some", "reversed", "none"])
@pytest.mark.parametrize(
    ("causal", "activation", "rate"), [(False, "gelu", 0.3), (True, "gelu_tanh", 0.3), (False, "gelu", 0.0)]
)
def test_fused_encoder_equals_its_layers_to_the_bit(causal, activation, rate, positions, frozen, monkeypatch):
    config = replace(
        CONFIG, hidden_size=96, num_layers=3, intermediate_size=160, max_positions=40, is_causal=causal,
        activation=activation, hidden_dropout=rate, attention_dropout=rate,
    )  # fmt: skip
    model = BertEncoder(config, torch.bfloat16).train()
    initialize(model, truncated_normal(0.1), seed=1)
    for number, (name, parameter) in enumerate(model.named_parameters()):
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        parameter.requires_grad_(not name.startswith(frozen) if frozen else True)
    batch = pack(texts([7, 1, 16, 40])[0]).with_dropout(5, 77)
    selected = None if positions is None else torch.tensor(positions, dtype=torch.int64)
    calls = []
    monkeypatch.setattr(encoder_module, "fused_encoder", lambda *given: calls.append(given) or fused_encoder(*given))
    found = []
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr(encoder_module, "can_fuse", lambda *_: False)
        model.zero_grad()
        states = model(batch, selected)
        (states * torch.randn(states.shape, generator=torch.Generator().manual_seed(3))).sum().backward()
        with torch.no_grad():
            assert torch.equal(model(batch, selected), states)
        found.append((states, {name: parameter.grad for name, parameter in model.named_parameters()}))
    assert len(calls) == 2
    (states, gradients), (expected_states, expected_gradients) = found
    assert torch.equal(states, expected_states)
    for name, expected in expected_gradients.items():
        gradient = gradients[name]
        if expected is None:
            assert gradient is None, name
        else:
            assert torch.equal(gradient, expected), name


@pytest.mark.bfloat16
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_fused_encoder_gives_the_same_bits_with_any_number_of_threads(threads):
    model = BertEncoder(replace(CONFIG, hidden_size=96, intermediate_size=160), torch.bfloat16).train()
    initialize(model, truncated_normal(0.1), seed=1)
    batch = pack(texts([7, 32, 16, 30])[0]).with_dropout(5)
    found = []
    before = torch.get_num_threads()
    for count in (before, threads):
        torch.set_num_threads(count)
        try:
            model.zero_grad()
            states = model(batch)
            states.square().sum().backward()
        finally:
            torch.set_num_threads(before)
        found.append([states, *(parameter.grad.clone() for parameter in model.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.bfloat16
def test_what_cannot_be_fused_runs_layer_by_layer(monkeypatch):
    monkeypatch.setattr("bertwright.kernels.fused_encoder.FusedEncoder", None)  # not called
    batch = pack(texts([7, 12])[0])
    aligned = replace(CONFIG, hidden_size=96, intermediate_size=160)
    for config, dtype in (
        (CONFIG, torch.bfloat16),
        (aligned, torch.float32),
        (replace(aligned, num_heads=8), torch.bfloat16),
    ):
        model = BertEncoder(config, dtype)
        assert model(batch).dtype == dtype
    partly_frozen = BertEncoder(aligned, torch.bfloat16)
    cast(Layer, partly_frozen.layers[0]).qkv.bias.requires_grad_(False)
    partly_frozen(batch).sum().backward()
    assert cast(Layer, partly_frozen.layers[0]).qkv.weight.grad is not None
