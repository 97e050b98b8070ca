"""The kernels in int8 beside exact arithmetic in PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bertwright.kernels import reference
from bertwright.kernels.ffi import int8_isa
from bertwright.kernels.int8_linear import int8_linear, quantize_weight
from bertwright.kernels.reference import ACTIVATIONS

needs_kernel = pytest.mark.skipif(int8_isa() is None, reason="no units for int8")
SHAPES = [(0, 8, 8), (1, 3, 5), (7, 16, 16), (13, 33, 70), (100, 128, 40), (193, 384, 64)]


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def plain_values(weight: Tensor) -> tuple[Tensor, Tensor]:
    scales = weight.abs().amax(1) / reference.WEIGHT_LEVELS
    return (weight / scales[:, None]).round().to(torch.int8), scales


@needs_kernel
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_product_equals_exact_arithmetic(shape: tuple[int, int, int], activation: str) -> None:
    rows, depth, outputs = shape
    x, weight, bias = draw(rows, depth), draw(outputs, depth), draw(outputs)
    expected = reference.int8_linear(x, *plain_values(weight), bias, activation)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        torch.testing.assert_close(
            int8_linear(x, quantize_weight(weight), bias, activation), expected, rtol=2e-6, atol=2e-6
        )


@needs_kernel
def test_largest_numbers_do_not_saturate() -> None:
    """The whole numbers 255 · ±64 in all places: each 16-bit sum of two products must fit."""
    weight = torch.tensor([[64.0], [-64.0]]).expand(2, 1024).contiguous()
    x = torch.full((3, 1024), 255.0)
    expected = torch.tensor([255.0 * 64 * 1024, -255.0 * 64 * 1024]).expand(3, 2)
    torch.testing.assert_close(int8_linear(x, quantize_weight(weight)), expected, rtol=1e-6, atol=0)


@needs_kernel
def test_row_alone_and_among_others_has_the_same_bits() -> None:
    x, weight = draw(101, 96), quantize_weight(draw(50, 96))
    together = int8_linear(x, weight, activation="gelu")
    for row in (0, 5, 6, 97, 100):
        assert torch.equal(int8_linear(x[row : row + 1], weight, activation="gelu")[0], together[row])


@needs_kernel
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_row_with_a_number_that_is_not_finite_becomes_nan(number: float) -> None:
    x, weight = draw(3, 40), quantize_weight(draw(9, 40))
    x[1, 7] = number
    y = int8_linear(x, weight)
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()


@needs_kernel
def test_zeros_stay_zero() -> None:
    y = int8_linear(torch.zeros(2, 12), quantize_weight(torch.zeros(4, 12)), torch.arange(4.0))
    assert torch.equal(y, torch.arange(4.0).expand(2, 4))


def test_weight_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        quantize_weight(torch.tensor([[1.0, float("nan")]]))


def test_wrong_shapes_are_refused() -> None:
    weight = quantize_weight(draw(8, 16))
    for x, bias, activation in [
        (draw(2, 15), None, ""), (draw(2, 16).double(), None, ""), (draw(2, 16), draw(7), ""), (draw(2, 16), None, "x")
    ]:  # fmt: skip
        with pytest.raises(ValueError, match="int8_linear"):
            int8_linear(x, weight, bias, activation)
