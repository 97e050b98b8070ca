"""GloVe (Pennington et al. 2014): least squares on the logarithms of co-occurrence counts.

X_ij: the sum of 1/distance over the occurrences of word j within a window around word i, in one sentence. Minimized is
Σ f(X_ij) (w_i·w̃_j + b_i + b̃_j - log X_ij)², f(x) = min(1, (x/x_max)^0.75), over the pairs in random order, by AdaGrad.
The vectors are w + w̃.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from bertwright.base.reporter import ProgressCallback
from bertwright.base.seeding import make_rng
from bertwright.kernels.word_vectors import GloveArgs, glove, padded_table
from bertwright.systems.word_vectors.vector_settings import WordVectorSettings
from bertwright.systems.word_vectors.word_stream import END, Ids, WordStream
from bertwright.vocabulary.vector_formats import Vectors

EXPONENT = 0.75
WORDS_PER_COUNT = 1 << 20
PAIRS_PER_CALL = 1 << 20


class Cooccurrences(NamedTuple):
    """The pairs of words that occur together, each with i ≤ j once."""

    keys: npt.NDArray[np.int64]  # i · V + j, ascending
    counts: npt.NDArray[np.float64]


def count_cooccurrences(stream: WordStream, window: int, advance: ProgressCallback) -> Cooccurrences:
    """Count the pairs within a window; `advance` gets the numbers of the text that have been read."""
    vocabulary = len(stream.words)
    parts: list[Cooccurrences] = []
    for ids in stream.stretches(WORDS_PER_COUNT):
        parts.append(_count_stretch(ids, window, vocabulary))
        while len(parts) > 1 and len(parts[-2].keys) < 2 * len(parts[-1].keys):  # every pair is merged a few times
            parts.append(_sum_by_key(parts.pop(), parts.pop()))
        advance(WORDS_PER_COUNT)
    return _sum_by_key(*parts)


def _count_stretch(ids: Ids, window: int, vocabulary: int) -> Cooccurrences:
    sentence = np.where(ids == END, -1, np.cumsum(ids == END))
    parts = []
    for distance in range(1, window + 1):
        together = (sentence[distance:] == sentence[:-distance]) & (ids[distance:] != END)
        left, right = ids[:-distance][together].astype(np.int64), ids[distance:][together].astype(np.int64)
        keys = np.minimum(left, right) * vocabulary + np.maximum(left, right)
        parts.append(Cooccurrences(keys, np.full(len(keys), 1 / distance)))
    return _sum_by_key(*parts)


def _sum_by_key(*parts: Cooccurrences) -> Cooccurrences:
    keys = np.concatenate([part.keys for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return Cooccurrences(keys[starts], np.add.reduceat(counts[order], starts) if len(starts) else counts)


def train_glove(
    stream: WordStream, pairs: Cooccurrences, settings: WordVectorSettings, advance: ProgressCallback
) -> tuple[Vectors, list[float]]:
    """Return w + w̃ for each word, and the mean loss of each epoch; `advance` gets the steps taken.

    A pair i ≠ j gives two steps: word i with context j, and word j with context i.
    """
    recipe, size, vocabulary = settings.recipe, settings.size, len(stream.words)
    rng = make_rng(settings.seed)
    words, contexts = padded_table(vocabulary, size + 1), padded_table(vocabulary, size + 1)
    for table in (words, contexts):
        table[:, : size + 1] = torch.from_numpy(rng.uniform(-0.5 / size, 0.5 / size, (vocabulary, size + 1)))
    word_squares, context_squares = torch.ones_like(words), torch.ones_like(contexts)
    low, high = np.divmod(pairs.keys, vocabulary)
    mirrored = low != high
    first = np.concatenate([low, high[mirrored]]).astype(np.int32)
    second = np.concatenate([high, low[mirrored]]).astype(np.int32)
    counts = np.concatenate([pairs.counts, pairs.counts[mirrored]]).astype(np.float32)
    counts[first == second] *= 2  # a word within its own window counts for both
    order = rng.permutation(len(first))
    columns = [torch.from_numpy(array[order]) for array in (first, second, counts)]
    losses = []
    for _ in range(recipe.epochs):
        loss = 0.0
        for start in range(0, len(order), PAIRS_PER_CALL):
            i, j, x = (column[start : start + PAIRS_PER_CALL] for column in columns)
            args = GloveArgs(
                words,
                contexts,
                word_squares,
                context_squares,
                words.shape[1],
                size,
                i,
                j,
                x,
                len(i),
                recipe.learning_rate,
                settings.max_count,
                EXPONENT,
            )
            loss += glove(args)
            advance(len(i))
        losses.append(loss / len(order))
    return (words + contexts).numpy()[:, :size], losses
