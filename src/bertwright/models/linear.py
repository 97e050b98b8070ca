"""A dense layer in the dtype of its input, and the dropout of a module."""

from __future__ import annotations

from torch import Tensor, nn

from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import linear
from bertwright.kernels.int8_linear import Int8Weight, int8_linear, quantize_weight
from bertwright.models.packing import Packing


class Linear(nn.Linear):
    """A dense layer that computes in the dtype of its input; its weights stay float32 for the optimizer."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def matmul(self, x: Tensor) -> Tensor:
        """Compute x Wᵀ, for callers whose next kernel adds the bias."""
        return linear(x, self.weight)


class Int8Linear(nn.Module):
    """A dense layer for inference whose weight is int8, made of one in float32; states stay float32."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight: Int8Weight = quantize_weight(layer.weight.detach())
        self.bias = layer.bias
        self.eval()  # as the model that it becomes part of

    def forward(self, x: Tensor) -> Tensor:
        return int8_linear(x, self.weight, self.bias)

    def matmul(self, x: Tensor) -> Tensor:
        return int8_linear(x, self.weight)


def make_dropout(module: nn.Module, rate: float, packing: Packing, positions: Tensor | None = None) -> Dropout | None:
    """Return the dropout of a batch, or of its tokens at `positions`; None outside training, and for a rate of 0."""
    if not module.training or rate == 0:
        return None
    return Dropout(rate, packing.dropout_seed, packing.first_token, positions)
