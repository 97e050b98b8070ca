"""The packed bidirectional LSTM against PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from bertwright.kernels.ffi import bf16_isa
from bertwright.kernels.lstm_bf16 import NativeLstmSteps
from bertwright.models import packed_lstm
from bertwright.models.packed_lstm import (
    NO_CLIPS,
    Clips,
    LstmValues,
    LstmWeights,
    run_bilstm,
    run_directions,
    run_layer,
)
from bertwright.models.packing import TimeMajor

needs_bf16_units = pytest.mark.skipif(bf16_isa() is None, reason="no native bfloat16 kernels on this machine")
NATIVE = [pytest.param(True, marks=needs_bf16_units, id="native"), pytest.param(False, id="reference")]
STEPS = [40, 40, 33, 3]  # words per step: whole and partial blocks of 32


@contextmanager
def native_lstm(is_native: bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if not is_native:
            patch.setattr(packed_lstm, "uses_native_lstm", lambda gates, hidden: False)
        yield


def relative_error(value: torch.Tensor, expected: torch.Tensor) -> float:
    assert value.dtype == expected.dtype == torch.float32
    return float((value - expected).detach().norm() / expected.detach().norm())


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


def test_states_without_a_graph_equal_those_with_one() -> None:
    torch.manual_seed(0)
    layer, words = nn.LSTM(5, 4, bidirectional=True), torch.randn(11, 5)
    order = TimeMajor.of(np.array([3, 7, 1]))
    with torch.no_grad():
        states = run_bilstm(layer, words, order)
    torch.testing.assert_close(states, run_bilstm(layer, words, order).detach())


@pytest.mark.parametrize("inputs", [packed_lstm.MANY_INPUTS - 1, packed_lstm.MANY_INPUTS])
def test_few_and_many_inputs_have_the_gradients_of_nn_lstm(inputs: int) -> None:
    torch.manual_seed(0)
    layer, words = nn.LSTM(inputs, 4, bidirectional=True), torch.randn(5, inputs, requires_grad=True)
    order = TimeMajor.of(np.array([5]))
    wanted = [words, *layer.parameters()]
    own = torch.autograd.grad(run_bilstm(layer, words, order).square().sum(), wanted)
    for one, other in zip(own, torch.autograd.grad(layer(words)[0].square().sum(), wanted), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


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


@pytest.mark.parametrize("is_native", NATIVE)
def test_bfloat16_states_and_gradients_are_near_those_of_nn_lstm(is_native: bool) -> None:
    torch.manual_seed(0)
    lengths, layer = [3, 7, 1, 7, 2] * 8, nn.LSTM(37, 40, bidirectional=True)
    words = torch.randn(sum(lengths), 37, requires_grad=True)
    weights = torch.randn(sum(lengths), 80)
    order = TimeMajor.of(np.array(lengths))
    with native_lstm(is_native):
        own = order.unpack(run_bilstm(layer, order.pack(words).bfloat16(), order))
    packed, _ = layer(pack_sequence([*torch.split(words, lengths)], enforce_sorted=False))
    reference = torch.cat(unpack_sequence(packed))
    assert relative_error(own, reference) < 0.01
    wanted = [words, *layer.parameters()]
    gradients = [torch.autograd.grad((states * weights).sum(), wanted) for states in (own, reference)]
    assert max(map(relative_error, *gradients)) < 0.02


@pytest.mark.parametrize("is_native", NATIVE)
@pytest.mark.parametrize("is_projected", [True, False])
def test_bfloat16_layers_with_first_values_are_near_those_in_float32(is_native: bool, is_projected: bool) -> None:
    torch.manual_seed(0)
    cells, size = (72, 24) if is_projected else (24, 24)
    shapes: list[tuple[int, ...]] = [(2, 4 * cells, 20), (2, 4 * cells), (2, 4 * cells, size)]
    shapes += [(2, size, cells)] * is_projected
    weights = [(0.2 * torch.randn(shape)).requires_grad_() for shape in shapes]
    words = torch.randn(2, sum(STEPS), 20, requires_grad=True)
    first = LstmValues(torch.randn(2, 45, size), torch.randn(2, 45, cells))
    factors = torch.randn(2, sum(STEPS), size), torch.randn(2, sum(STEPS), cells)

    def run(dtype: torch.dtype) -> tuple[LstmValues, tuple[torch.Tensor, ...]]:
        values = run_layer(
            words.to(dtype), LstmWeights(weights[0].unbind(), *weights[1:]), STEPS, NO_CLIPS, first, max_steps=3
        )
        total = (values.states * factors[0]).sum() + (values.cells * factors[1]).sum()
        return values, torch.autograd.grad(total, [words, *weights])

    with native_lstm(is_native):
        (values, gradients), (expected, of_expected) = run(torch.bfloat16), run(torch.float32)
    assert max(map(relative_error, values, expected)) < 0.01
    assert max(map(relative_error, gradients, of_expected)) < 0.02


@pytest.mark.parametrize("is_native", NATIVE)
def test_bfloat16_values_at_a_limit_have_no_gradients(is_native: bool) -> None:
    """A large input takes the first word's cells and states to their limits; the second word's stay far from them."""
    by_inputs = torch.zeros(128, 32)
    by_inputs[:, 0] = 1.0
    by_inputs.requires_grad_()
    weights = LstmWeights([by_inputs], torch.zeros(1, 128), torch.zeros(1, 128, 32), torch.eye(32)[None])
    words = torch.zeros(1, 2, 32)
    words[0, :, 0] = torch.tensor([8.0, 0.25])
    gradients = list[torch.Tensor]()
    for dtype in (torch.float32, torch.bfloat16):
        with native_lstm(is_native):
            states = run_layer(words.to(dtype), weights, [2], Clips(0.5, 0.4)).states
        gradients += (torch.autograd.grad(row.sum(), by_inputs, retain_graph=True)[0] for row in states[0])
    assert not gradients[0].any()
    assert not gradients[2].any()
    assert gradients[1].any()
    torch.testing.assert_close(gradients[3], gradients[1], atol=1e-3, rtol=0.02)


@needs_bf16_units
def test_bfloat16_bits_depend_neither_on_other_sequences_nor_on_threads() -> None:
    torch.manual_seed(0)
    layer, words = nn.LSTM(32, 64, bidirectional=True), torch.randn(6 * 50, 32).bfloat16()
    threads, results = torch.get_num_threads(), []
    try:
        for sequences, torch_threads in ((50, 1), (50, 3), (2, 1)):
            torch.set_num_threads(torch_threads)
            order = TimeMajor.of(np.full(sequences, 6))
            results.append(order.unpack(run_bilstm(layer, order.pack(words[: 6 * sequences]), order)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0][:12], results[2])


@needs_bf16_units
@pytest.mark.parametrize(
    ("cells", "steps", "message"),
    [
        (24, [2, 1], "lstm: expected multiples of 32 as cells and states, got (24, 24)"),
        (32, [1, 2], "lstm: got growing steps [1, 2]"),
        (32, [2, 2], "lstm: got steps [2, 2] for 3 words"),
    ],
)
def test_native_steps_reject_sizes_beyond_their_tensors(cells: int, steps: list[int], message: str) -> None:
    gates, hidden = torch.zeros(1, 3, 4 * cells).bfloat16(), torch.zeros(1, 4 * cells, cells)
    with pytest.raises(ValueError, match="lstm") as caught:
        NativeLstmSteps.apply(gates, hidden, None, steps, NO_CLIPS, None)  # type: ignore[no-untyped-call]
    assert str(caught.value) == message
