"""Batch normalization that also reads a single row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MOMENTUM, EPS = 0.1, 1e-5  # the defaults of torch.nn.BatchNorm1d


class BatchNorm(nn.Module):
    """`nn.BatchNorm1d`, except that in training, too, the running statistics normalize a batch of one row.

    One row has no variance.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))

    def reset_statistics(self) -> None:
        """Set the running mean and variance to those before the first batch."""
        self.mean.zero_()
        self.variance.fill_(1.0)

    def forward(self, rows: Tensor) -> Tensor:
        """Normalize B × H float32; in training, update the running mean and variance."""
        uses_batch = self.training and len(rows) > 1
        return F.batch_norm(rows, self.mean, self.variance, self.weight, self.bias, uses_batch, MOMENTUM, EPS)
