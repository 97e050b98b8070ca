"""Heads on frozen states: against naive code, independence of the batch, and seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bertwright.kernels.dropout import Dropout
from bertwright.models.feature_head import FeatureHead, FeatureHeadConfig
from bertwright.models.layer_mix import LayerMix
from bertwright.models.packed_lstm import BiLSTM
from bertwright.models.representations import REPRESENTATIONS, expand_representations, select_layers
from bertwright.trials.paper.table7 import PAPER_F1

SHAPE = FeatureHeadConfig(num_layers=3, weighted=True, hidden_size=6, outputs=5, lstm_size=8, lstm_layers=2)
LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def random_states(rows: int, layers: int = 3, size: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(rows, layers, size, generator=torch.Generator().manual_seed(seed))


def test_representations_of_base_are_the_layers_of_table_7():
    assert {name: select_layers(one, 12) for name, one in REPRESENTATIONS.items()} == {
        "embeddings": (0,),
        "second-to-last": (11,),
        "last": (12,),
        "sum-last-four": (9, 10, 11, 12),
        "concat-last-four": (9, 10, 11, 12),
        "sum-all": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12),
    }
    assert [name for name, how in REPRESENTATIONS.items() if how.weighted] == [
        "sum-last-four",
        "sum-all",
    ]
    assert REPRESENTATIONS.keys() == PAPER_F1.keys()


def test_the_embeddings_do_not_count_as_a_layer():
    def layers_of(name, num_layers):
        return select_layers(expand_representations([name], num_layers)[name], num_layers)

    assert layers_of("sum-last-four", 4) == (1, 2, 3, 4)
    with pytest.raises(ValueError, match=r"concat-last-four .*4 layers, got .*3"):
        layers_of("concat-last-four", 3)
    with pytest.raises(ValueError, match=r"second-to-last needs 2 layers, got a model with 1"):
        layers_of("second-to-last", 1)
    assert layers_of("sum-all", 1) == layers_of("last", 1) == (1,)


def test_each_layer_is_every_single_one_and_no_name_occurs_twice():
    found = expand_representations(["last", "embeddings", "each-layer"], 3)
    assert {name: select_layers(one, 3) for name, one in found.items()} == {
        "last": (3,),
        "embeddings": (0,),
        "layer-1": (1,),
        "layer-2": (2,),
        "layer-3": (3,),
    }
    assert not any(one.weighted for one in found.values())


def test_scalar_mix_is_the_formula_of_elmo():
    mix, states = LayerMix(3), random_states(4)
    torch.testing.assert_close(mix(states.unbind(1)), states.mean(1))
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.5, -1.0, 2.0]))
        mix.gamma.fill_(1.5)
    shares = np.exp([0.5, -1.0, 2.0]) / np.exp([0.5, -1.0, 2.0]).sum()
    expected = 1.5 * sum(share * states[:, layer] for layer, share in enumerate(shares))
    torch.testing.assert_close(mix(states.unbind(1)), expected.float())


def test_weights_and_scale_of_the_mix_get_gradients():
    head = FeatureHead(SHAPE)
    head(random_states(4), [4]).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in head.named_parameters()}
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients.values())
    assert {"mix.weights", "mix.gamma"} <= gradients.keys()


def test_unweighted_layers_are_concatenated():
    head, states = FeatureHead(SHAPE._replace(weighted=False, lstm_layers=0)), random_states(4)
    by_hand = torch.cat([states[:, 0], states[:, 1], states[:, 2]], dim=1) @ head.classifier.weight.T
    torch.testing.assert_close(head(states, [4]), by_hand + head.classifier.bias)


def one_direction(lstm: torch.nn.LSTM, words: Tensor, suffix: str) -> list[Tensor]:
    """Run an LSTM word by word (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000)."""
    weights = {name.removesuffix(suffix): parameter for name, parameter in lstm.named_parameters()}
    state = memory = torch.zeros(lstm.hidden_size)
    found = []
    for word in words:
        gates = weights["weight_ih_l0"] @ word + weights["bias_ih_l0"]
        gates = gates + weights["weight_hh_l0"] @ state + weights["bias_hh_l0"]
        enter, forget, candidate, leave = gates.chunk(4)
        memory = forget.sigmoid() * memory + enter.sigmoid() * candidate.tanh()
        state = leave.sigmoid() * memory.tanh()
        found.append(state)
    return found


@given(LENGTHS)
def test_bilstm_reads_each_sequence_in_both_directions(lengths: list[int]):
    head, states = FeatureHead(SHAPE, seed=3), random_states(sum(lengths))
    lstm = head.lstm
    assert isinstance(lstm, BiLSTM)
    expected = []
    for words in states.mean(1).split(lengths):
        for layer in lstm.layers:
            forward = one_direction(layer, words, "")
            reverse = torch.nn.LSTM(layer.input_size, layer.hidden_size)
            reverse.load_state_dict({name: getattr(layer, f"{name}_reverse") for name in reverse.state_dict()})
            backward = one_direction(reverse, words.flip(0), "")[::-1]
            words = torch.stack([torch.cat(pair) for pair in zip(forward, backward, strict=True)])
        expected.append(words)
    torch.testing.assert_close(lstm(states.mean(1), lengths, None), torch.cat(expected), atol=1e-6, rtol=1e-5)


@given(LENGTHS, st.integers(0, 5))
def test_a_sequence_does_not_depend_on_the_others(lengths: list[int], chosen: int):
    head, states = FeatureHead(SHAPE), random_states(sum(lengths))
    chosen %= len(lengths)
    alone = states.split(lengths)[chosen]
    together = head(states, lengths).split(lengths)[chosen]
    torch.testing.assert_close(together, head(alone, [lengths[chosen]]), atol=1e-6, rtol=1e-5)


def test_initial_weights_depend_on_the_seed():
    first, again, other = FeatureHead(SHAPE, 1), FeatureHead(SHAPE, 1), FeatureHead(SHAPE, 2)
    states = random_states(7)
    assert torch.equal(first(states, [3, 4]), again(states, [3, 4]))
    assert not torch.allclose(first(states, [3, 4]), other(states, [3, 4]))
    random = [parameter for name, parameter in first.named_parameters() if not name.startswith("mix.")]
    assert all(
        0.5 < parameter.abs().max() / bound <= 1 for parameter in random for bound in [initial_bound(first, parameter)]
    )
    assert len({parameter.flatten()[0].item() for parameter in random}) == len(random)


def initial_bound(head: FeatureHead, parameter: Tensor) -> float:
    """Return the bound of the initial weights in PyTorch's documentation: LSTMs of size 4, a linear layer of 8."""
    return (8 if any(parameter is one for one in head.classifier.parameters()) else 4) ** -0.5


def test_dropout_depends_on_its_seed_and_preserves_the_mean():
    head, states = FeatureHead(SHAPE), random_states(5)
    assert head.lstm is not None
    words = states.mean(1)
    dropped = [head.lstm(words, [2, 3], Dropout(0.5, seed)) for seed in range(2)]
    assert torch.equal(dropped[0], head.lstm(words, [2, 3], Dropout(0.5, 0)))
    assert (dropped[0] == 0).any()
    assert not torch.equal(dropped[0] == 0, dropped[1] == 0)
    linear = FeatureHead(SHAPE._replace(lstm_layers=0))
    mean = torch.stack([linear(states, [5], Dropout(0.5, seed)) for seed in range(4000)]).mean(0)
    torch.testing.assert_close(mean, linear(states, [5]), atol=0.03, rtol=0)


def test_an_odd_lstm_size_raises():
    with pytest.raises(ValueError, match=r"BiLSTM size: .*got 7"):
        BiLSTM(4, 7, 1)
