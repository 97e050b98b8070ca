"""Initial weights: independent draws, each a function of the seed and of its parameter's name."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor, nn

from bertwright.base import seeding
from bertwright.models.batch_norm import BatchNorm


@torch.no_grad()
def initialize(model: nn.Module, std: float, seed: int, only: tuple[str, ...] = ("",), prefix: str = "") -> None:
    """Draw weights from a normal distribution truncated at 2 σ; set biases to 0, norms to 1 and 0 (Google's code).

    Every parameter's numbers are a function of (seed, prefix + name), whatever other parameters the model has.
    `only`: prefixes of the names to initialize. Parameters on the meta device, and fixed ones, are skipped.
    """
    norms = {id(module.weight) for module in model.modules() if isinstance(module, nn.LayerNorm | BatchNorm)}
    for name, parameter in model.named_parameters():
        if parameter.is_meta or not parameter.requires_grad or not name.startswith(only):
            continue
        if parameter.ndim > 1:
            weights = torch.empty(parameter.shape)
            nn.init.trunc_normal_(weights, std=std, a=-2 * std, b=2 * std, generator=parameter_rng(seed, prefix + name))
            parameter.copy_(weights)
        else:
            parameter.fill_(1.0 if id(parameter) in norms else 0.0)


def sinusoidal_positions(positions: int, hidden_size: int) -> Tensor:
    """Return the position encodings of Vaswani et al. 2017, section 3.5, positions × hidden size."""
    exponents = torch.arange(0, hidden_size, 2, dtype=torch.float64) / hidden_size
    return sinusoids(10_000.0**-exponents, positions)[:, :hidden_size].float()


def sinusoids(frequencies: Tensor, positions: int) -> Tensor:
    """Return the sine and cosine of each of F frequencies, interleaved, at each of P positions: P × 2 F."""
    angles = torch.arange(positions)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def parameter_rng(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(seeding.derive_key(seed, zlib.crc32(name.encode())))
