"""Muon: the update is the momentum with its singular values replaced by ones, so it is equal in all directions.

Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks". Updates are scaled to the size of AdamW's
as in Liu et al. 2025, "Muon is scalable for LLM training", so both share one learning rate.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bertwright.kernels.reference import AdamStep

MOMENTUM = 0.95
# Coefficients of x → a x + b x³ + c x⁵, one polynomial per iteration. Each is the nearest to 1 on the interval that the
# ones before it leave of [0.01, 1] (minimax, as in Amsel et al. 2025, "The Polar Express"). Three are as near as
# Jordan's five.
POLYNOMIALS = ((8.0934, -23.6205, 17.4462), (3.6366, -2.7219, 0.5365), (2.6613, -1.9772, 0.4526))
ADAMW_RMS = 0.2  # typical root mean square of AdamW's updates at rate 1 (Liu et al.)


def orthogonalize(matrix: Tensor) -> Tensor:
    """Return U Vᵀ of a matrix U S Vᵀ, approximately.

    Singular values above 0.01 of the Frobenius norm become 0.73 to 1.27, smaller ones are multiplied by up to 78.
    Computed in bfloat16 on a GPU, otherwise in float32.
    """
    is_wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix if is_wide else matrix.T
    x = (x / (x.norm() + 1e-7)).to(torch.bfloat16 if matrix.is_cuda else torch.float32)
    for a, b, c in POLYNOMIALS:
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x if is_wide else x.T).to(matrix.dtype)


@torch.no_grad()
def muon_(parameter: Tensor, gradient: Tensor, momentum: Tensor, stacked: int, update: AdamStep) -> None:
    """Update a weight, S = `stacked` matrices in S·M × N, and its momentum in place, with Nesterov's momentum."""
    clipped = gradient * update.clip_scale
    momentum.lerp_(clipped, 1 - MOMENTUM)
    nesterov = torch.lerp(clipped, momentum, MOMENTUM)
    parameter.mul_(1 - update.lr * update.weight_decay)
    for weight, direction in zip(parameter.chunk(stacked), nesterov.chunk(stacked), strict=True):
        scale = ADAMW_RMS * math.sqrt(max(weight.shape))
        weight.add_(orthogonalize(direction), alpha=-update.lr * scale)
