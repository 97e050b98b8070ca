"""Batch normalization, whose statistics are saved with the weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MOMENTUM, EPS = 0.1, 1e-5  # the defaults of torch.nn.BatchNorm1d


class BatchNorm(nn.Module):
    """`nn.BatchNorm1d` with running statistics that are fixed parameters, because model files have parameters only.

    A batch of one row, which has no variance, is normalized by the running statistics in training as well.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.mean = nn.Parameter(torch.zeros(size), requires_grad=False)
        self.log_variance = nn.Parameter(torch.zeros(size), requires_grad=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Normalize B × H float32; in training, update the running mean and variance."""
        mean, variance = self.mean, self.log_variance.exp()
        uses_batch = self.training and len(rows) > 1
        normalized = F.batch_norm(rows, mean, variance, self.weight, self.bias, uses_batch, MOMENTUM, EPS)
        if uses_batch:  # `batch_norm` has updated both
            with torch.no_grad():
                self.log_variance.copy_(variance.clamp_min(1e-30).log())
        return normalized
