"""Initial weights: independent draws, each a function of the seed and of its parameter's name."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertwright.base import seeding
from bertwright.models.batch_norm import BatchNorm


class Weight(NamedTuple):
    """A parameter that is to get its first numbers."""

    name: str
    """Its name in the model that is initialized."""
    owner: nn.Module
    """The module that has it."""
    values: nn.Parameter
    rng: torch.Generator

    def draw_uniform(self, bound: float) -> None:
        """Draw numbers from -bound to bound."""
        self.values.uniform_(-bound, bound, generator=self.rng)

    def draw_normal(self, std: float) -> None:
        """Draw numbers with a mean of 0."""
        self.values.normal_(0.0, std, generator=self.rng)


Rule = Callable[[Weight], None]
"""A function that gives a parameter its first numbers, by its name, its owner or its shape."""


@torch.no_grad()
def initialize(model: nn.Module, rule: Rule, seed: int, only: tuple[str, ...] = ("",), prefix: str = "") -> None:
    """Give parameters their first numbers by a rule; parameters on the meta device are skipped.

    Every parameter's numbers are a function of (seed, prefix + name), whatever other parameters the model has.
    `only`: prefixes of the names to initialize.
    """
    for name, values in model.named_parameters():
        if not values.is_meta and name.startswith(only):
            owner = model.get_submodule(name.rpartition(".")[0])
            rule(Weight(name, owner, values, parameter_rng(seed, prefix + name)))


def truncated_normal(std: float) -> Rule:
    """Return Google's rule for BERT: normal numbers truncated at 2 σ; biases are 0, norms 1 and 0.

    Batch normalization has seen no batch. Fixed parameters are skipped.
    """

    def draw(weight: Weight) -> None:
        owner, values = weight.owner, weight.values
        if not values.requires_grad:
            return
        if values.ndim > 1:
            drawn = torch.empty(values.shape)
            values.copy_(nn.init.trunc_normal_(drawn, std=std, a=-2 * std, b=2 * std, generator=weight.rng))
        else:
            values.fill_(1.0 if isinstance(owner, nn.LayerNorm | BatchNorm) and values is owner.weight else 0.0)
        if isinstance(owner, BatchNorm):
            owner.reset_statistics()

    return draw


def uniform_by_size(weight: Weight) -> None:
    """Draw LSTM and linear weights by PyTorch's rule: uniform in ±1/√n.

    n is the hidden size of an LSTM, or the input size of a linear layer; parameters of other modules are skipped.
    """
    if isinstance(weight.owner, nn.LSTM):
        weight.draw_uniform(weight.owner.hidden_size**-0.5)
    elif isinstance(weight.owner, nn.Linear):
        weight.draw_uniform(weight.owner.in_features**-0.5)


def glorot_bound(rows: int, columns: int) -> float:
    """Return the bound of uniform numbers for a matrix by Glorot & Bengio 2010: √(6 / (rows + columns))."""
    return float((6 / (rows + columns)) ** 0.5)


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
