"""A mix of the layers of a frozen model, with learned weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LayerMix(nn.Module):
    """γ Σ sⱼ hⱼ over layers, s = softmax(w) (Peters et al. 2018, equation 1); initially the mean of all layers.

    BERT's paper says only "weighted sum" (section 5.3) and compares itself with ELMo, whose sum this is.
    """

    def __init__(self, num_layers: int, layer_norm: bool = False) -> None:
        """Start at the mean; with `layer_norm`, states are normalized, without weights, before they are mixed."""
        super().__init__()
        self.layer_norm = layer_norm
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Mix states, each R × H."""
        if self.layer_norm:
            layers = [F.layer_norm(states, states.shape[-1:]) for states in layers]
        shares = torch.softmax(self.weights, 0)
        mixed: Tensor = self.gamma * sum(share * states for share, states in zip(shares, layers, strict=True))
        return mixed
