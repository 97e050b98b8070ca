"""The packed bidirectional LSTM against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from bertwright.models.packed_lstm import run_bilstm, run_directions
from bertwright.models.rnn import TimeMajor


@pytest.mark.parametrize("lengths", [[3, 7, 1, 7, 2], [1], [4, 4]])
def test_states_and_gradients_equal_those_of_nn_lstm(lengths: list[int]) -> None:
    torch.manual_seed(0)
    layer = nn.LSTM(5, 4, bidirectional=True, dtype=torch.float64)
    words = torch.randn(sum(lengths), 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(sum(lengths), 8, dtype=torch.float64)
    order = TimeMajor.of(np.array(lengths))
    own = order.unpack(run_bilstm(layer, order.pack(words), order))
    packed, _ = layer(pack_sequence([*torch.split(words, lengths)], enforce_sorted=False))
    reference = torch.cat(unpack_sequence(packed))
    torch.testing.assert_close(own, reference)
    wanted = [words, *layer.parameters()]
    gradients = [torch.autograd.grad((states * weights).sum(), wanted) for states in (own, reference)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_last_states_and_cells_and_their_gradients_equal_those_of_nn_lstm() -> None:
    torch.manual_seed(0)
    lengths = [3, 7, 1]
    layer = nn.LSTM(5, 4, bidirectional=True, dtype=torch.float64)
    words = torch.randn(sum(lengths), 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 2, len(lengths), 4, dtype=torch.float64)
    order = TimeMajor.of(np.array(lengths))
    last = order.inverse[torch.tensor(lengths).cumsum(0) - 1]
    own = torch.stack([values[:, last] for values in run_directions(layer, order.pack(words), order)])
    reference = torch.stack(layer(pack_sequence([*torch.split(words, lengths)], enforce_sorted=False))[1])
    torch.testing.assert_close(own, reference)
    # The first ones have gradients of states and cells, the last ones of cells alone.
    for part in (slice(0, 2), slice(1, 2)):
        gradients = [
            torch.autograd.grad((values * weights)[part].sum(), [words, *layer.parameters()], retain_graph=True)
            for values in (own, reference)
        ]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other)


def test_time_major_order_by_hand() -> None:
    """Sequences a0 a1, b0 b1 b2, c0: longest first, step by step."""
    order = TimeMajor.of(np.array([2, 3, 1]))
    assert order.order.tolist() == [2, 0, 5, 3, 1, 4]  # b0 a0 c0, b1 a1, b2
    assert order.batch_sizes.tolist() == [3, 2, 1]
    assert order.sequences.tolist() == [1, 0, 2]
    assert order.mirror.tolist() == [5, 4, 2, 3, 1, 0]
    words = torch.arange(6)
    assert order.unpack(order.pack(words)).tolist() == words.tolist()
