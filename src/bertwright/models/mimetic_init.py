"""First weights with which every attention head looks at the tokens around its own.

A new model learns how often each token occurs, and then, for long, nothing more: before a neighbour can tell anything
about a word, some head has to find it, with positions and weights that mean nothing yet. These weights spare it that
search. All of it stays an ordinary BERT, free to learn anything else; only the numbers that it starts from differ.
After Trockman & Kolter 2023 (arXiv 2305.09828); the step to either side is ours (docs/decisions/11).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bertwright.models.encoder import Encoder, Layer

CUT = 0.88  # standard deviation of a normal distribution of deviation 1, cut at ±2: that of `initialize`
LONGEST = 100.0  # wavelengths go from 2π tokens to this many times as much (Vaswani et al. 2017: 10,000)
POSITION_SHARE = 2.0  # how much larger position embeddings are than word embeddings
SHARPNESS = 1.5  # queries and keys are scaled by this: neighbours then weigh some e² times what distant tokens do


@torch.no_grad()
def mimetic_init_(encoder: Encoder) -> None:
    """Change an encoder's freshly drawn weights, in place and without a draw of its own.

    Positions become sinusoids, so that to step aside is to rotate, one rotation for all positions. The keys of each
    head become its queries, rotated by one token: even heads look a little to the left of where they stand, odd heads
    to the right. What a head brings home counts against itself, for a word is seldom its neighbour's: the output
    weights become the negative transpose of the value weights.
    """
    config = encoder.config
    pairs = config.hidden_size // 2  # of an odd width, the last entry stays as it was drawn
    frequencies = LONGEST ** (-torch.arange(pairs) / pairs)
    encoder.embeddings.position.weight[:, : 2 * pairs] = (
        sinusoids(frequencies, config.max_positions)
        * config.initializer_range * math.sqrt(2.0) * CUT * POSITION_SHARE
    )  # fmt: skip
    for layer in encoder.layers:
        assert isinstance(layer, Layer)
        queries, keys, values = layer.qkv.weight.view(3, config.num_heads, config.head_size, config.hidden_size)
        queries *= SHARPNESS
        for head in range(config.num_heads):
            step = 1 if head % 2 else -1
            keys[head] = queries[head]
            keys[head, :, : 2 * pairs] = rotate(queries[head, :, : 2 * pairs], step * frequencies)
        layer.attention_output.weight.copy_(-values.flatten(0, 1).T)


def sinusoids(frequencies: Tensor, positions: int) -> Tensor:
    """Positions × 2 · frequencies: sine and cosine of each, in turn."""
    angles = torch.arange(positions)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def rotate(queries: Tensor, angles: Tensor) -> Tensor:
    """The weights that make of position i + d what `queries` make of position i, where angle = d · frequency."""
    sine, cosine = queries[..., 0::2], queries[..., 1::2]
    turned = sine * angles.cos() + cosine * angles.sin(), cosine * angles.cos() - sine * angles.sin()
    return torch.stack(turned, dim=-1).flatten(-2)
