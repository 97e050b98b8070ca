"""Attention weights: how much each token of a text attends to each other token, in every layer and head."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from bertwright.kernels.reference import spread_bias
from bertwright.models.packing import TokenBatch, from_flat
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.tasks.truncation import NO_LABELS, SegmentTokens, encode_segments
from bertwright.training.loop import check_finite_outputs
from bertwright.vocabulary.tokenizer import TextTokenizer


class Attention(NamedTuple):
    """The attention weights of one text, or of a pair of texts."""

    tokens: tuple[str, ...]
    """The T tokens that the model reads, [CLS] and [SEP] included."""
    weights: npt.NDArray[np.float32]
    """L × A × T × T, by layer, head, attending token and attended token; each row sums to 1."""


def pack_segments(texts: Sequence[str], tokenizer: TextTokenizer) -> TokenBatch:
    """Pack one text, or a pair of texts, into one sequence of any length."""
    segments = [SegmentTokens.of_typed([text], tokenizer, lowercase=False) for text in texts]
    encoded = encode_segments(segments, NO_LABELS, tokenizer, sys.maxsize)
    return from_flat(encoded.input_ids, encoded.token_type_ids, encoded.lengths)


def compute_attention_weights(encoder: BertEncoder, batch: TokenBatch) -> npt.NDArray[np.float32]:
    """Compute the attention weights of a batch with one sequence, L A T T; the tokens are in the order of the text."""
    config = encoder.config
    batch, _ = encoder.to_reading_order(batch, None)
    hidden = encoder.embed(batch)  # T H
    weights = []
    for layer in encoder.stack():
        query, key, _ = layer.project(hidden, batch.packing).float().unbind(1)
        scores = torch.einsum("iad,jad->aij", query, key) / math.sqrt(config.head_size)  # A T T
        if (bias := layer.position_bias(len(hidden))) is not None:
            scores = scores + spread_bias(bias, len(hidden), len(hidden))
        if layer.window is not None:
            positions = batch.packing.position_ids
            scores = scores.masked_fill((positions[:, None] - positions).abs() > layer.window, -math.inf)
        if config.is_causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
        weights.append(scores.softmax(-1))
        hidden = layer(hidden, batch.packing)
    stacked = torch.stack(weights)
    if config.is_reversed:
        stacked = stacked.flip(2, 3)
    check_finite_outputs(bool(stacked.isfinite().all()))
    weights_of_layers: npt.NDArray[np.float32] = stacked.cpu().numpy()
    return weights_of_layers
