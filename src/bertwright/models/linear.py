"""A dense layer in the dtype of its input, and the dropout of a module."""

from __future__ import annotations

from torch import Tensor, nn

from bertwright.kernels.dropout import Dropout
from bertwright.kernels.fused_ops import linear
from bertwright.models.packing import Packing


class Linear(nn.Linear):
    """A dense layer that computes in the dtype of its input; its weights stay float32 for the optimizer."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def matmul(self, x: Tensor) -> Tensor:
        """Compute x Wᵀ, for callers whose next kernel adds the bias."""
        return linear(x, self.weight)


def make_dropout(module: nn.Module, rate: float, packing: Packing, positions: Tensor | None = None) -> Dropout | None:
    """Return the dropout of a batch, or of its tokens at `positions`; None outside training, and for a rate of 0."""
    if not module.training or rate == 0:
        return None
    return Dropout(rate, packing.dropout_seed, packing.first_token, positions)
