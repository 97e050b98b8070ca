"""Skip-gram with negative sampling (Mikolov et al. 2013, arXiv 1310.4546), and its form with subwords: fastText.

For every word c and every word o in a window around it: log σ(u_o·v_c) + Σ_k log σ(-u_n·v_c) rises, for noise words n
drawn by count^0.75 (fastText: count^0.5). The window's size is uniform from 1 to its limit. Occurrences of frequent
words are skipped: a word with share f of the text is used with probability √(t/f) + t/f (word2vec.c; the paper has
√(t/f)). In fastText (Bojanowski et al. 2017, arXiv 1607.04606), v_c is the mean of the rows of the word and of its
n-grams.
"""

from __future__ import annotations

import numpy as np
import torch

from bertwright.base.ragged import flat_ranges
from bertwright.base.reporter import ProgressCallback
from bertwright.base.seeding import derive_key, make_rng
from bertwright.kernels.word_vectors import SkipGramArgs, make_alias_table, padded_table, skip_gram
from bertwright.systems.word_vectors.vector_settings import WordVectorSettings
from bertwright.systems.word_vectors.word_stream import WordStream
from bertwright.vocabulary.fasttext_file import FastTextFile, hash_subwords
from bertwright.vocabulary.vector_formats import Vectors

LEAST_RATE = 1e-4  # share of the first rate, below which it does not fall (word2vec.c); fastText's falls to 0
WORDS_PER_CALL = 1 << 16
KEY_MASK = (1 << 63) - 1


def keep_probabilities(stream: WordStream, sample: float) -> torch.Tensor:
    """Return for each word the probability that an occurrence is used; `sample` is t, 0 keeps all."""
    share = stream.counts / stream.counts.sum()
    probabilities = np.sqrt(sample / share) + sample / share if sample else np.ones(len(share))
    return torch.from_numpy(np.minimum(probabilities, 1).astype(np.float32))


def noise_weights(stream: WordStream, has_subwords: bool) -> np.ndarray:
    """Return for each word a number to which its probability as a noise word is proportional.

    word2vec.c: count^0.75; fastText (Bojanowski et al. 2017, section 3.1, and its loss.cc): count^0.5.
    """
    weights: np.ndarray = np.power(stream.counts, 0.5 if has_subwords else 0.75, dtype=np.float64)
    return weights


def train_skip_gram(
    stream: WordStream, settings: WordVectorSettings, advance: ProgressCallback, rows: SubwordRows | None = None
) -> tuple[Vectors, Vectors]:
    """Return input vectors and output vectors; with `rows`, the former are rows of words, then of n-grams.

    `advance` gets the words of the text that have been used.
    """
    recipe, size = settings.recipe, settings.size
    vocabulary = len(stream.words)
    inputs = vocabulary if rows is None else vocabulary + settings.subwords.buckets
    table, output = padded_table(inputs, size), padded_table(vocabulary, size)
    limit = 0.5 / size if rows is None else 1 / size  # word2vec.c; fastText's dense matrix
    rng = make_rng(settings.seed)
    for start in range(0, inputs, WORDS_PER_CALL):
        block = table[start : start + WORDS_PER_CALL, :size]
        block.copy_(torch.from_numpy(rng.uniform(-limit, limit, block.shape)))
    shares, alias = make_alias_table(noise_weights(stream, has_subwords=rows is not None))
    keep = keep_probabilities(stream, recipe.sample)
    total, done = stream.length * recipe.epochs, 0

    def rate() -> float:
        return recipe.learning_rate * max(LEAST_RATE if rows is None else 0.0, 1 - done / total)

    for epoch in range(recipe.epochs):
        for number, ids in enumerate(stream.stretches(WORDS_PER_CALL)):
            length = min(WORDS_PER_CALL, stream.length - number * WORDS_PER_CALL)
            first_rate, done = rate(), done + length
            skip_gram(
                SkipGramArgs(
                    table,
                    output,
                    table.shape[1],
                    torch.from_numpy(ids),
                    len(ids),
                    keep,
                    shares,
                    alias,
                    vocabulary,
                    rows.rows if rows else None,
                    rows.offsets if rows else None,
                    recipe.window,
                    settings.negatives,
                    first_rate,
                    rate(),
                    derive_key(settings.seed, 1 + epoch, number) & KEY_MASK,
                )
            )
            advance(length)
    return table.numpy()[:, :size], output.numpy()[:, :size]


class SubwordRows:
    """The input rows of every word: its own, then those of its n-grams, which follow the rows of the words."""

    def __init__(self, stream: WordStream, settings: WordVectorSettings) -> None:
        grams = hash_subwords(stream.words, settings.subwords)
        own = np.arange(len(stream.words))
        offsets = grams.offsets + np.arange(len(stream.words) + 1)
        rows = np.empty(offsets[-1], dtype=np.int32)
        rows[offsets[:-1]] = own
        rows[flat_ranges(offsets[:-1] + 1, np.diff(grams.offsets))] = grams.ids.astype(np.int64) + len(own)
        self.rows, self.offsets = torch.from_numpy(rows), torch.from_numpy(offsets)


def train_fasttext(stream: WordStream, settings: WordVectorSettings, advance: ProgressCallback) -> FastTextFile:
    """Train skip-gram with subwords; return the content of the .bin file."""
    recipe = settings.recipe
    table, output = train_skip_gram(stream, settings, advance, SubwordRows(stream, settings))
    return FastTextFile(
        stream.words,
        stream.counts,
        settings.subwords,
        table,
        output,
        recipe.window,
        recipe.epochs,
        settings.words.min_count,
        settings.negatives,
        recipe.sample,
    )
