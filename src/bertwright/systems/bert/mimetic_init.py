"""Initial weights with which every attention head attends to nearby tokens, after Trockman & Kolter 2023.

A new model first learns how frequent each token is. To learn more, it needs heads that find the neighboring tokens,
which takes long from random weights. Mimetic weights (arXiv 2305.09828) start with such heads; the model stays an
ordinary BERT. The offset by one token to the left or right is our addition (docs/decisions/11).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bertwright.models.initialization import sinusoids
from bertwright.systems.bert.bert_encoder import BertEncoder, Layer

TRUNCATED_STD = 0.88  # standard deviation of a standard normal truncated at ±2, as `initialize` draws it
MAX_WAVELENGTH = 100.0  # wavelengths range from 2π to 2π times this many tokens (Vaswani et al. 2017: 10,000)
POSITION_SCALE = 2.0  # standard deviation of position embeddings, relative to word embeddings
SHARPNESS = 1.5  # factor of queries and keys; nearby tokens then get about e² times the weight of distant ones


@torch.no_grad()
def mimetic_init_(encoder: BertEncoder) -> None:
    """Rewrite an encoder's random initial weights in place, without drawing new numbers.

    Position embeddings become sinusoids: adding an offset to a position is then the same rotation at all positions. The
    keys of each head become its queries rotated by one token: even heads attend to the left, odd heads to the right.
    The output weights become the negative transpose of the value weights, so that a head lowers the score of the token
    that it attends to: adjacent words are rarely equal (docs/decisions/11).
    """
    config = encoder.config
    pairs = config.hidden_size // 2  # with an odd hidden size, the last dimension keeps its random numbers
    frequencies = MAX_WAVELENGTH ** (-torch.arange(pairs) / pairs)
    encoder.embeddings.position.weight[:, : 2 * pairs] = (
        sinusoids(frequencies, len(encoder.embeddings.position.weight))
        * config.initializer_range * math.sqrt(2.0) * TRUNCATED_STD * POSITION_SCALE
    )  # fmt: skip
    for layer in encoder.layers:
        assert isinstance(layer, Layer)
        queries, keys, values = layer.qkv.weight.view(3, config.num_heads, config.head_size, config.hidden_size)
        queries *= SHARPNESS
        for head in range(config.num_heads):
            offset = 1 if head % 2 else -1
            keys[head] = queries[head]
            keys[head, :, : 2 * pairs] = rotate(queries[head, :, : 2 * pairs], offset * frequencies)
        layer.attention_output.weight.copy_(-values.flatten(0, 1).T)


def rotate(queries: Tensor, angles: Tensor) -> Tensor:
    """Rotate weights of sinusoids by `angles`, d · frequencies.

    result · sinusoids(position i + d) = queries · sinusoids(position i).
    """
    sine, cosine = queries[..., 0::2], queries[..., 1::2]
    rotated = sine * angles.cos() + cosine * angles.sin(), cosine * angles.cos() - sine * angles.sin()
    return torch.stack(rotated, dim=-1).flatten(-2)
