"""One vector a text: texts of any length and in any order, in packed batches under a token budget.

A text longer than the model's positions is cut into equal windows, all of them are read, and pooling goes over the
tokens of all: no part of a text is dropped, and no order or neighbour changes a vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertwright.batching.batch import Batch, from_flat, offsets_from_lengths, positions_from_lengths
from bertwright.batching.permutation import token_budget_batches
from bertwright.models.text_encoder import TextEncoder
from bertwright.vocabulary.tokenizer import Ragged

Pooling = Literal["mean", "cls", "max"]
Ints = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

SPECIALS = 2  # [CLS] and [SEP] around every window


class Windows(NamedTuple):
    """P windows of N texts, the windows of one text side by side."""

    first: Ints  # P  where the window's content starts in the flat ids
    content: Ints  # P  how many tokens that is, [CLS] and [SEP] not counted
    of_text: Ints  # N  each text's first window


def windows(rows: Ragged, max_length: int) -> Windows:
    """Cut rows `[CLS] content [SEP]` into windows of at most `max_length` tokens, [CLS] and [SEP] included."""
    content = np.diff(rows.offsets) - SPECIALS
    number = np.maximum(-(-content // (max_length - SPECIALS)), 1)  # an empty text is one window of no content
    within = positions_from_lengths(number)
    share, left_over = np.repeat(content // number, number), np.repeat(content % number, number)
    first = np.repeat(rows.offsets[:-1] + 1, number) + within * share + np.minimum(within, left_over)
    return Windows(first, share + (within < left_over), offsets_from_lengths(number)[:-1])


def batches(ids: npt.NDArray[np.uint32], cut: Windows, batch_tokens: int) -> Iterator[tuple[Ints, Batch]]:
    """The windows in packed batches of at most `batch_tokens` tokens, or of one window; which, and the batch."""
    lengths = cut.content + SPECIALS
    for chosen in token_budget_batches(lengths, batch_tokens):
        yield chosen, window_batch(ids, cut.first[chosen], lengths[chosen])


def window_batch(ids: npt.NDArray[np.uint32], first: Ints, lengths: Ints) -> Batch:
    """Windows as a batch, each with its own [CLS] and [SEP]: those with which the flat ids begin and end."""
    flat = ids[np.repeat(first - 1, lengths) + positions_from_lengths(lengths)].astype(np.int64)
    bounds = offsets_from_lengths(lengths)
    flat[bounds[:-1]], flat[bounds[1:] - 1] = ids[0], ids[-1]
    return from_flat(flat, np.zeros_like(flat), lengths)


def pool(encoder: TextEncoder, batch: Batch, pooling: Pooling) -> Tensor:
    """Compute one vector per sequence, B × H float32: the mean or maximum over its tokens, or its [CLS] state.

    For a causal encoder "cls" is the last token's state, see `TextEncoder.sentence_positions`.
    """
    if pooling == "cls":
        cls: Tensor = encoder(batch, encoder.sentence_positions(batch))
        return cls.float()
    hidden: Tensor = encoder(batch)
    return torch.segment_reduce(hidden.float(), pooling, offsets=batch.cu_seqlens.long(), axis=0)


def join(pooled: Vectors, cut: Windows, pooling: Pooling) -> Vectors:
    """Windows' vectors P × H → texts' vectors N × H; the mean over windows weighs each by its number of tokens."""
    if pooling == "max":
        return np.maximum.reduceat(pooled, cut.of_text)
    tokens = cut.content + SPECIALS if pooling == "mean" else np.ones_like(cut.content)
    weights = tokens.astype(np.float32)[:, None]
    joined: Vectors = np.add.reduceat(pooled * weights, cut.of_text)
    joined /= np.add.reduceat(weights, cut.of_text)
    return joined


def normalized(vectors: Vectors) -> Vectors:
    """Each vector divided by its Euclidean length; a zero vector stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = np.divide(vectors, np.maximum(lengths, np.finfo(np.float32).tiny), dtype=np.float32)
    return scaled
