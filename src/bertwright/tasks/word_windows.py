"""The words of sentences as tokens, and the windows in which a tagger reads them.

A window is one sentence between [CLS] and [SEP]. A sentence that is too long is split between words; each chunk takes
at most three quarters of its window, and the words before and after it fill the rest. With document context the
adjacent sentences fill every window, half of the free tokens on either side, or more if the other side has fewer ("the
maximal document context provided by the data"). Context follows without [SEP], in one segment, as running text: in
pre-training [SEP] separated the two segments, and sentences within a segment had none between them. Only the sentence's
own words are trained on and scored, each exactly once.

N examples, W words including context, S windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from bertwright.base.ragged import offsets_from_lengths
from bertwright.tables.tag_example import TagExample
from bertwright.tasks.encoded import Ints
from bertwright.vocabulary.tokenizer import TextTokenizer


class WordTokens(NamedTuple):
    """Words of all examples as tokens, each example's own words with its context's."""

    ids: np.ndarray[Any, np.dtype[np.int32]]
    """Tokens of the distinct words, end to end; last the [UNK] of words without tokens."""
    first: Ints
    """W, start of each word's tokens in `ids`."""
    lengths: Ints
    """W, tokens per word: at least one, at most `max_tokens`."""
    offsets: Ints
    """W + 1, number of tokens before each word, and in all."""
    bounds: Ints
    """N × 4 word indices: start of an example's context, start and end of its own words, end of its context."""
    truncated: int
    """Number of examples with a word of more than `max_tokens` tokens, which was truncated."""


def tokenize_words(examples: Sequence[TagExample], tokenizer: TextTokenizer, max_tokens: int) -> WordTokens:
    """Tokenize words one by one, each distinct word once; a word without tokens becomes [UNK]."""
    numbers: dict[str, int] = {}
    distinct = np.array(  # W, each word's number among the distinct words
        [
            numbers.setdefault(word, len(numbers))
            for example in examples
            for sentence in (*example.before, example.words, *example.after)
            for word in sentence
        ],
        dtype=np.int64,
    )
    sizes = [(sum(map(len, e.before)), len(e.words), sum(map(len, e.after))) for e in examples]
    flat = offsets_from_lengths(np.array(sizes, dtype=np.int64).reshape(-1))
    bounds = np.stack([flat[:-1:3], flat[1::3], flat[2::3], flat[3::3]], axis=1)

    encoded = tokenizer.encode_words(list(numbers))
    unknown = np.zeros((1, *encoded.ids.shape[1:]), dtype=np.uint32)
    unknown.flat[0] = tokenizer.unk_id
    tokens = np.diff(encoded.offsets)
    first = np.where(tokens > 0, encoded.offsets[:-1], len(encoded.ids))
    lengths = np.clip(tokens, 1, max_tokens)[distinct]

    too_long = np.flatnonzero((tokens > max_tokens)[distinct])
    owner = np.searchsorted(bounds[:, 0], too_long, side="right") - 1
    own = (bounds[owner, 1] <= too_long) & (too_long < bounds[owner, 2])
    return WordTokens(
        ids=np.concatenate([encoded.ids, unknown]).astype(np.int32),
        first=first[distinct],
        lengths=lengths,
        offsets=offsets_from_lengths(lengths),
        bounds=bounds,
        truncated=len(np.unique(owner[own])),
    )


class WordWindows(NamedTuple):
    """Per window, the words that it reads, [read_from, read_until), and the words that it tags, [tag_from, tag_until).

    S of each, as indices of words; `example`: index of the example.
    """

    example: Ints
    read_from: Ints
    tag_from: Ints
    tag_until: Ints
    read_until: Ints


def split_windows(words: WordTokens, max_tokens: int) -> WordWindows:
    """Split examples into windows of at most `max_tokens` tokens in which every word is tagged once, in order.

    An example without words has no window.
    """
    offsets, (context_begin, own_begin, own_end, context_end) = words.offsets, words.bounds.T
    fits = offsets[own_end] - offsets[own_begin] <= max_tokens
    whole = np.stack([np.arange(len(fits)), own_begin, own_end], axis=1)[fits & (own_begin < own_end)]
    chunks = [whole]  # example, first word, end
    for number in np.flatnonzero(~fits):
        ends = _chunk_ends(offsets, int(own_begin[number]), int(own_end[number]), max_tokens - max_tokens // 4)
        chunks.append(np.array([(number, *chunk) for chunk in pairwise([own_begin[number], *ends])], dtype=np.int64))
    tagged = np.concatenate(chunks)
    example, tag_from, tag_until = tagged[np.argsort(tagged[:, 1])].T

    # Half of the free tokens are for the left context, or more if the right one has fewer. The right context then takes
    # the whole words that fit, and the left one what remains.
    begin, end = offsets[context_begin[example]], offsets[context_end[example]]
    free = max_tokens - (offsets[tag_until] - offsets[tag_from])
    left = np.maximum(free // 2, free - (end - offsets[tag_until]))
    read_from = np.searchsorted(offsets, np.maximum(offsets[tag_from] - left, begin))
    limit = offsets[read_from] + max_tokens
    read_until = np.searchsorted(offsets, np.minimum(limit, end), side="right") - 1
    read_from = np.searchsorted(offsets, np.maximum(offsets[read_until] - max_tokens, begin))
    return WordWindows(example, read_from, tag_from, tag_until, read_until)


def _chunk_ends(offsets: Ints, begin: int, end: int, limit: int) -> list[int]:
    """Split a long sentence into chunks of as many words as `limit` tokens hold, at least one; return their ends."""
    ends = []
    while begin < end:
        fitting = int(np.searchsorted(offsets, offsets[begin] + limit, side="right")) - 1
        begin = min(max(fitting, begin + 1), end)
        ends.append(begin)
    return ends
