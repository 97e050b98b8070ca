"""Training steps of word vectors: skip-gram with negative sampling, with or without subwords, and GloVe.

Each has a native kernel (`word_vectors.h`) and a Python implementation that draws the same random numbers. The kernels
share their tables among threads without locks (Hogwild); with one thread, the same arguments give the same bits.

V words, D columns. Tables are float32 with a stride that is a multiple of 16; the numbers after the last column are 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bertwright.kernels import ffi

STRIDE_UNIT = 16  # numbers in the widest vector
MAX_SENTENCE = 10_000  # words; a longer sentence is cut
MAX_WINDOW, MAX_NEGATIVES = 128, 31
GOLDEN = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1

Floats = npt.NDArray[np.float32]


class SkipGramArgs(NamedTuple):
    """Arguments of one stretch of skip-gram: the fields of the structure in word_vectors.h, in order."""

    input: Tensor  # input rows × stride
    output: Tensor  # V × stride
    stride: int
    words: Tensor  # int32: ids of consecutive words; -1 ends a sentence
    num_words: int
    keep: Tensor  # V: probability that an occurrence of the word is used
    alias_share: Tensor  # V: alias table of the noise distribution (`make_alias_table`)
    alias: Tensor  # V, int32
    vocabulary: int
    rows: Tensor | None  # int32: the input rows of word w are rows[row_offsets[w]:row_offsets[w + 1]]; None: row w
    row_offsets: Tensor | None  # V + 1, int64
    window: int
    negatives: int
    first_rate: float
    last_rate: float
    seed: int  # int64


class GloveArgs(NamedTuple):
    """Arguments of one pass of GloVe over some pairs: the fields of the structure in word_vectors.h, in order."""

    words: Tensor  # V × stride: D columns, then the bias
    contexts: Tensor
    word_squares: Tensor  # sums of squared steps
    context_squares: Tensor
    stride: int
    columns: int
    first: Tensor  # int32: word of each pair
    second: Tensor  # int32: its context word
    counts: Tensor  # float32
    pairs: int
    rate: float
    max_count: float
    exponent: float


def padded_table(rows: int, columns: int) -> Tensor:
    """Return a table of zeros with the stride that the kernels need."""
    return torch.zeros(rows, -(-columns // STRIDE_UNIT) * STRIDE_UNIT)


def make_alias_table(weights: npt.NDArray[np.float64]) -> tuple[Tensor, Tensor]:
    """Return shares and aliases: drawing column i, then i with probability share[i], else alias[i], follows `weights`.

    Walker's method in Vose's form (1991).
    """
    scaled = (weights * (len(weights) / weights.sum())).tolist()
    share, alias = [1.0] * len(scaled), list(range(len(scaled)))
    small = [index for index, value in enumerate(scaled) if value < 1]
    large = [index for index, value in enumerate(scaled) if value >= 1]
    while small and large:
        low, high = small.pop(), large[-1]
        share[low], alias[low] = scaled[low], high
        scaled[high] += scaled[low] - 1
        if scaled[high] < 1:
            small.append(large.pop())
    return torch.tensor(share, dtype=torch.float32), torch.tensor(alias, dtype=torch.int32)


def skip_gram(args: SkipGramArgs) -> None:
    """Train on consecutive words, in place; the rate falls linearly from `first_rate` to `last_rate`.

    Every pair of a centre word and a context word within a window of random size is one step of stochastic gradient
    ascent on log σ(u·v) + Σ log σ(-u_noise·v) (Mikolov et al. 2013, section 2.2). With subwords, v is the mean of the
    word's input rows, which change together after all pairs of the centre word.
    """
    if ffi.use_native(args.input, args.output):
        ffi.call("skip_gram", args)
    else:
        skip_gram_reference(args)


def glove(args: GloveArgs) -> float:
    """Take one AdaGrad step for each pair, in order and in place; return the sum of the losses before the steps."""
    if ffi.use_native(args.words, args.contexts):
        losses = torch.zeros(torch.get_num_threads(), dtype=torch.float64)
        ffi.call("glove", args, losses)
        return float(losses.sum())
    return glove_reference(args)


class WordRandom:
    """The random numbers of one sentence: splitmix64 (Steele et al. 2014)."""

    def __init__(self, seed: int, position: int) -> None:
        """Start the stream of the sentence that begins at a position of the stretch."""
        self._state = (seed + GOLDEN * position) & WORD

    def next(self) -> int:
        """Return 64 random bits."""
        self._state = (self._state + GOLDEN) & WORD
        bits = ((self._state ^ (self._state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & WORD
        return bits ^ (bits >> 31)

    def uniform(self) -> float:
        """Return a number from 0 to below 1."""
        return (self.next() >> 40) / (1 << 24)

    def below(self, limit: int) -> int:
        """Return an integer from 0 to below the limit."""
        return ((self.next() >> 32) * limit) >> 32


def skip_gram_reference(args: SkipGramArgs) -> None:
    """Do the same as the kernel, in NumPy."""
    words, keep = args.words.tolist(), args.keep.tolist()
    first = 0
    while first < args.num_words:
        random = WordRandom(args.seed, first)
        rate = args.first_rate + first / args.num_words * (args.last_rate - args.first_rate)
        sentence, end = [], first
        while end < args.num_words and end - first < MAX_SENTENCE and words[end] >= 0:
            if random.uniform() < keep[words[end]]:
                sentence.append(words[end])
            end += 1
        for position, centre in enumerate(sentence):
            reach = 1 + random.below(args.window)
            context = sentence[max(0, position - reach) : position] + sentence[position + 1 : position + reach + 1]
            if context:
                _update_centre(args, centre, context, np.float32(rate), random)
        first = end + 1 if end < args.num_words and words[end] < 0 else end


def _update_centre(args: SkipGramArgs, centre: int, context: list[int], rate: np.float32, random: WordRandom) -> None:
    """Train one centre word on all its context words."""
    table: Floats = args.input.numpy()
    output: Floats = args.output.numpy()
    rows = np.array([centre])
    if args.rows is not None and args.row_offsets is not None:
        rows = args.rows[args.row_offsets[centre] : args.row_offsets[centre + 1]].numpy()
    v = table[rows].mean(axis=0)
    total = np.zeros_like(v)
    for word in context:
        noise = [_draw_noise(args, random) for _ in range(args.negatives)]
        targets = np.array([word, *(other for other in noise if other != word)])
        labels = np.zeros(len(targets), dtype=np.float32)
        labels[0] = 1
        steps = (labels - 1 / (1 + np.exp(-(output[targets] @ v)))) * rate
        change = np.zeros_like(v)
        for step, target in zip(steps, targets, strict=True):  # a noise word may occur twice
            change += step * output[target]
            output[target] += step * v
        v = v + change
        total += change
    np.add.at(table, rows, total)


def _draw_noise(args: SkipGramArgs, random: WordRandom) -> int:
    bits = random.next()
    column = ((bits >> 32) * args.vocabulary) >> 32
    share = ((bits & 0xFFFFFFFF) >> 8) / (1 << 24)
    return column if share < float(args.alias_share[column]) else int(args.alias[column])


def glove_reference(args: GloveArgs) -> float:
    """Do the same as the kernel, in NumPy."""
    tables = [table.numpy() for table in (args.words, args.contexts, args.word_squares, args.context_squares)]
    columns, loss = slice(args.columns + 1), 0.0
    for first, second, count in zip(args.first.tolist(), args.second.tolist(), args.counts.tolist(), strict=True):
        w, c, w2, c2 = (table[row, columns] for table, row in zip(tables, (first, second) * 2, strict=True))
        error = w[:-1] @ c[:-1] + w[-1] + c[-1] - np.log(count)
        weight = min(1.0, count / args.max_count) ** args.exponent
        loss += 0.5 * weight * error**2
        step = args.rate * weight * error
        dw, dc = step * np.append(c[:-1], 1), step * np.append(w[:-1], 1)
        w -= dw / np.sqrt(w2)
        c -= dc / np.sqrt(c2)
        w2 += dw**2
        c2 += dc**2
    return float(loss)
