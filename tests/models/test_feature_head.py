"""Heads on frozen states: against naive code, alone and in company, and by their seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bertwright.kernels.dropout import Dropout
from bertwright.models.feature_head import REPRESENTATIONS, BiLSTM, FeatureHead, FeatureHeadConfig, ScalarMix, layers_of

SHAPE = FeatureHeadConfig(layers=3, weighted=True, hidden_size=6, outputs=5, lstm_size=8, lstm_layers=2)
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def random_states(rows: int, layers: int = 3, size: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(rows, layers, size, generator=torch.Generator().manual_seed(seed))


def test_layers_of_base_are_those_of_table_7():
    assert {name: layers_of(name, 12) for name in REPRESENTATIONS} == {
        "embeddings": (0,),
        "second-to-last": (11,),
        "last": (12,),
        "sum-last-four": (9, 10, 11, 12),
        "concat-last-four": (9, 10, 11, 12),
        "sum-all": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12),
    }
    assert [name for name, way in REPRESENTATIONS.items() if way.weighted] == ["sum-last-four", "sum-all"]


def test_the_embeddings_are_no_hidden_layer():
    assert layers_of("sum-last-four", 4) == (1, 2, 3, 4)
    with pytest.raises(ValueError, match=r'"concat-last-four" needs 4 layers, this model has 3; leave it out'):
        layers_of("concat-last-four", 3)
    with pytest.raises(ValueError, match=r'"second-to-last" needs 2 layers, this model has 1'):
        layers_of("second-to-last", 1)
    assert layers_of("sum-all", 1) == layers_of("last", 1) == (1,)


def test_scalar_mix_is_elmos_formula():
    mix, states = ScalarMix(3), random_states(4)
    torch.testing.assert_close(mix(states), states.mean(1))
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.5, -1.0, 2.0]))
        mix.scale.fill_(1.5)
    shares = np.exp([0.5, -1.0, 2.0]) / np.exp([0.5, -1.0, 2.0]).sum()
    expected = 1.5 * sum(share * states[:, layer] for layer, share in enumerate(shares))
    torch.testing.assert_close(mix(states), expected.float())


def test_both_parts_of_the_mix_are_learned():
    probe = FeatureHead(SHAPE)
    probe(random_states(4), [4]).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in probe.named_parameters()}
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients.values())
    assert {"mix.weights", "mix.scale"} <= gradients.keys()


def test_unweighted_layers_lie_side_by_side():
    probe, states = FeatureHead(SHAPE._replace(weighted=False, lstm_layers=0)), random_states(4)
    by_hand = torch.cat([states[:, 0], states[:, 1], states[:, 2]], dim=1) @ probe.classifier.weight.T
    torch.testing.assert_close(probe(states, [4]), by_hand + probe.classifier.bias)


def one_direction(lstm: torch.nn.LSTM, words: Tensor, suffix: str) -> list[Tensor]:
    """One word after another (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000)."""
    weights = {name.removesuffix(suffix): parameter for name, parameter in lstm.named_parameters()}
    kept = memory = torch.zeros(lstm.hidden_size)
    found = []
    for word in words:
        gates = weights["weight_ih_l0"] @ word + weights["bias_ih_l0"]
        gates = gates + weights["weight_hh_l0"] @ kept + weights["bias_hh_l0"]
        entering, forgetting, candidate, leaving = gates.chunk(4)
        memory = forgetting.sigmoid() * memory + entering.sigmoid() * candidate.tanh()
        kept = leaving.sigmoid() * memory.tanh()
        found.append(kept)
    return found


@given(LENGTHS)
def test_each_run_is_read_word_by_word_in_both_directions(lengths: list[int]):
    probe, states = FeatureHead(SHAPE, seed=3), random_states(sum(lengths))
    lstm = probe.lstm
    assert isinstance(lstm, BiLSTM)
    runs = []
    for words in states.mean(1).split(lengths):
        for layer in lstm.layers:
            forth = one_direction(layer, words, "")
            named = torch.nn.LSTM(layer.input_size, layer.hidden_size)
            named.load_state_dict({name: getattr(layer, f"{name}_reverse") for name in named.state_dict()})
            back = one_direction(named, words.flip(0), "")[::-1]
            words = torch.stack([torch.cat(pair) for pair in zip(forth, back, strict=True)])
        runs.append(words)
    torch.testing.assert_close(lstm(states.mean(1), lengths, None), torch.cat(runs), atol=1e-6, rtol=1e-5)


@given(LENGTHS, st.integers(0, 5))
def test_a_run_does_not_know_its_companions(lengths: list[int], chosen: int):
    probe, states = FeatureHead(SHAPE), random_states(sum(lengths))
    chosen %= len(lengths)
    alone = states.split(lengths)[chosen]
    together = probe(states, lengths).split(lengths)[chosen]
    torch.testing.assert_close(together, probe(alone, [lengths[chosen]]), atol=1e-6, rtol=1e-5)


def test_a_seed_is_a_head():
    first, again, other = FeatureHead(SHAPE, 1), FeatureHead(SHAPE, 1), FeatureHead(SHAPE, 2)
    states = random_states(7)
    assert torch.equal(first(states, [3, 4]), again(states, [3, 4]))
    assert not torch.allclose(first(states, [3, 4]), other(states, [3, 4]))
    drawn = [parameter for name, parameter in first.named_parameters() if not name.startswith("mix.")]
    assert all(0.5 < parameter.abs().max() / bound <= 1 for parameter in drawn for bound in [start(first, parameter)])
    assert len({parameter.flatten()[0].item() for parameter in drawn}) == len(drawn)


def start(probe: FeatureHead, parameter: Tensor) -> float:
    """The largest number that PyTorch's documentation has these layers start with: LSTMs of 4, a linear layer of 8."""
    return (8 if any(parameter is one for one in probe.classifier.parameters()) else 4) ** -0.5


def test_dropout_belongs_to_its_seed_and_leaves_the_mean():
    probe, states = FeatureHead(SHAPE), random_states(5)
    assert probe.lstm is not None
    words = states.mean(1)
    dropped = [probe.lstm(words, [2, 3], Dropout(0.5, seed)) for seed in range(2)]
    assert torch.equal(dropped[0], probe.lstm(words, [2, 3], Dropout(0.5, 0)))
    assert (dropped[0] == 0).any()
    assert not torch.equal(dropped[0] == 0, dropped[1] == 0)
    linear = FeatureHead(SHAPE._replace(lstm_layers=0))
    mean = torch.stack([linear(states, [5], Dropout(0.5, seed)) for seed in range(4000)]).mean(0)
    torch.testing.assert_close(mean, linear(states, [5]), atol=0.03, rtol=0)


def test_an_odd_size_has_no_half():
    with pytest.raises(ValueError, match=r"BiLSTM size: .*got 7"):
        BiLSTM(4, 7, 1)
