"""Segment pairs for next-sentence prediction, and single segments for objectives without it (sections 3.1 and A.2).

An epoch reads the tokens of each document about once: a document of n tokens gives round(n / max_num_tokens) examples,
at least one, where max_num_tokens = max_length - 3 is what [CLS] and two [SEP] leave. Their starts are evenly spaced
over the document, shifted by a new random phase in every epoch. So nothing is stored per epoch: the
examples of any step are a function of (store, seed, step), found by binary search in the boundaries of the store.

Starts and ends are token indices in the store. N examples are laid out at once; all arrays have length N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertwright.permutation import uniform
from bertwright.tokenstore.store import TokenStore


class Segments(NamedTuple):
    """Segments of N examples, as ranges of consecutive tokens in the store, int64."""

    a_starts: np.ndarray
    a_ends: np.ndarray
    b_starts: np.ndarray
    """Equal to `b_ends` if an example has only one segment."""
    b_ends: np.ndarray
    is_random_next: np.ndarray
    """bool: B comes from another document (False: B follows A)."""


class ExampleStarts(NamedTuple):
    """Starts of N examples, before segments are sampled."""

    documents: np.ndarray
    begins: np.ndarray
    """First token: the start of a sentence, unless the sentence is longer than a whole example."""
    sentences: np.ndarray
    """Index of the sentence that contains `begins`."""


@dataclass(frozen=True)
class ExampleIndex:
    """Index of the examples of an epoch: the document of each and its start."""

    sentence_starts: np.ndarray
    document_starts: np.ndarray
    document_offsets: np.ndarray
    """D + 1: first token of each document."""
    example_bounds: np.ndarray
    """D + 1: number of examples before each document."""
    max_num_tokens: int
    """Tokens of text in a full-length example."""

    @classmethod
    def of(cls, store: TokenStore, max_num_tokens: int) -> ExampleIndex:
        """Divide the documents of a store into examples of `max_num_tokens` tokens."""
        offsets = np.asarray(store.sentence_starts[store.document_starts])
        counts = np.maximum(1, np.rint(np.diff(offsets) / max_num_tokens)).astype(np.int64)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        return cls(store.sentence_starts, store.document_starts, offsets, bounds, max_num_tokens)

    @property
    def examples_per_epoch(self) -> int:
        """Number of examples in one pass over the documents."""
        return int(self.example_bounds[-1])

    def locate(self, examples: np.ndarray, phase_keys: np.ndarray, keep_sentences: int) -> ExampleStarts:
        """Return the starts of examples of an epoch.

        `phase_keys` holds the key of each example's epoch; `keep_sentences` is the minimum of sentences from the start
        to the end of the document, in documents that have that many.

        Example c of n starts (c + phase) / n of the way through its document, less half its length, but not before the
        document and not later than a full length before its end: so both margins are read and no example is short.
        From there it moves back to the start of the sentence.
        """
        documents = np.searchsorted(self.example_bounds, examples, side="right") - 1
        first = self.example_bounds[documents]
        number, count = examples - first, self.example_bounds[documents + 1] - first
        starts, ends = self.document_offsets[documents], self.document_offsets[documents + 1]
        phase = uniform(documents, phase_keys)
        wanted = ((number + phase) * (ends - starts) / count).astype(np.int64) - self.max_num_tokens // 2
        begins = starts + np.clip(wanted, 0, np.maximum(0, ends - starts - self.max_num_tokens))

        sentences = np.searchsorted(self.sentence_starts, begins, side="right") - 1
        latest = np.maximum(self.document_starts[documents], self.document_starts[documents + 1] - keep_sentences)
        sentence_begins = self.sentence_starts[np.minimum(sentences, latest)]
        # In a sentence longer than an example, start at the phase's token: the end of the sentence is read, too.
        inside = (sentences <= latest) & (begins - sentence_begins >= self.max_num_tokens)
        return ExampleStarts(documents, np.where(inside, begins, sentence_begins), np.minimum(sentences, latest))


def _target_seq_lengths(size: int, short_seq_prob: float, max_num_tokens: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the tokens of text that each example should have (`target_seq_length` in Google's code).

    It is the maximum or, with `short_seq_prob`, any length from 2 to the maximum with equal probability: inputs in
    fine-tuning are short, too. Google's code draws it once per pass over a document, in which a small target gives more
    examples: with 0.1, 17 to 28 % of its examples have a short target (decision 1). Here it is drawn per example.
    """
    is_short = rng.random(size) < short_seq_prob
    short_length = rng.integers(2, max_num_tokens, size, endpoint=True)
    return np.where(is_short, short_length, max_num_tokens)


def sample_pairs(
    index: ExampleIndex, example_starts: ExampleStarts, short_seq_prob: float, rng: np.random.Generator
) -> Segments:
    """Sample segments A and B for each start (section 3.1; `create_instances_from_document` in Google's code).

    Whole sentences are taken up to the target length (`_target_seq_lengths`) and split at a random sentence boundary.
    For half of the examples B is replaced by sentences from a random position of the corpus outside the document.
    Excess tokens are cut from the longer segment, one by one, at its front or its back.

    A document of one sentence has no next sentence: B is then always random. If the store has only one document, B is
    taken from anywhere in it outside the example.
    """
    size = len(example_starts.documents)
    target_seq_length = _target_seq_lengths(size, short_seq_prob, index.max_num_tokens, rng)

    document_ends = index.document_starts[example_starts.documents + 1]
    ends = np.searchsorted(index.sentence_starts, example_starts.begins + target_seq_length, side="left")
    ends = np.minimum(np.maximum(ends, example_starts.sentences + 2), document_ends)
    count = ends - example_starts.sentences
    a_count = np.where(count > 1, rng.integers(1, np.maximum(count, 2)), 1)
    a_ends = index.sentence_starts[example_starts.sentences + a_count]

    is_random_next = (rng.random(size) < 0.5) | (count == 1)
    b_starts, b_ends = a_ends, index.sentence_starts[ends]
    random_starts, random_ends, exists = _random_segments(
        index, example_starts, ends, target_seq_length - (a_ends - example_starts.begins), rng
    )
    is_random_next &= exists
    drawn = Segments(
        example_starts.begins,
        a_ends,
        np.where(is_random_next, random_starts, b_starts),
        np.where(is_random_next, random_ends, b_ends),
        is_random_next,
    )
    return truncate_pairs(drawn, index.max_num_tokens, rng)


def _random_segments(
    index: ExampleIndex,
    example_starts: ExampleStarts,
    example_ends: np.ndarray,
    target_seq_length: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sample ranges of whole sentences from outside each document, of about `target_seq_length` tokens, at least one.

    Every sentence of the corpus outside the document is equally likely ("a random sentence from the corpus", section
    3.1), so that the style of B does not reveal whether it is random; in Google's code every other document is equally
    likely. A start so near to the end of its document that B would be short is moved back: otherwise short inputs would
    reveal the answer.
    Returns starts, ends, and whether there is any sentence outside.
    """
    num_sentences, several = len(index.sentence_starts) - 1, len(index.document_starts) > 2
    avoid_start = index.document_starts[example_starts.documents] if several else example_starts.sentences
    avoid_end = index.document_starts[example_starts.documents + 1] if several else example_ends
    outside = num_sentences - (avoid_end - avoid_start)
    sentences = rng.integers(0, np.maximum(outside, 1))
    sentences += np.where(sentences >= avoid_start, avoid_end - avoid_start, 0)
    sentences = np.minimum(sentences, num_sentences - 1)

    target_seq_length = np.maximum(target_seq_length, 1)
    documents = np.searchsorted(index.document_starts, sentences, side="right") - 1
    first, last = index.document_starts[documents], index.document_starts[documents + 1]
    if not several:  # stay on the sampled sentence's side of the example
        first = np.where(sentences >= avoid_end, avoid_end, first)
        last = np.where(sentences < avoid_start, avoid_start, last)
    latest = np.searchsorted(index.sentence_starts, index.sentence_starts[last] - target_seq_length, side="right") - 1
    sentences = np.minimum(sentences, np.maximum(latest, first))
    starts = index.sentence_starts[sentences]
    ends = np.searchsorted(index.sentence_starts, starts + target_seq_length, side="left")
    return starts, index.sentence_starts[np.minimum(ends, last)], outside > 0


def truncate_pairs(segments: Segments, max_num_tokens: int, rng: np.random.Generator) -> Segments:
    """Truncate pairs to `max_num_tokens` tokens with the distribution of Google's `truncate_seq_pair`.

    It removes one token after another from the longer segment (from B if both are equal), at the front or at the back
    with probability 1/2. The final lengths follow directly, and the number of tokens cut at the front is binomial.
    """
    a_lengths, b_lengths = segments.a_ends - segments.a_starts, segments.b_ends - segments.b_starts
    a_cut = a_lengths - np.minimum(a_lengths, np.maximum(max_num_tokens - b_lengths, (max_num_tokens + 1) // 2))
    b_cut = b_lengths - np.minimum(b_lengths, np.maximum(max_num_tokens - a_lengths, max_num_tokens // 2))
    a_front, b_front = rng.binomial(a_cut, 0.5), rng.binomial(b_cut, 0.5)
    return segments._replace(
        a_starts=segments.a_starts + a_front,
        a_ends=segments.a_ends - (a_cut - a_front),
        b_starts=segments.b_starts + b_front,
        b_ends=segments.b_ends - (b_cut - b_front),
    )


def sample_singles(
    index: ExampleIndex, example_starts: ExampleStarts, short_seq_prob: float, rng: np.random.Generator
) -> Segments:
    """Sample one segment of consecutive tokens per start, for objectives without next sentences (section 5.1).

    It has the target length (`_target_seq_lengths`), less only at the end of a document. Half of the segments start
    with a sentence, half end with one, so that the last words of a document are as frequent as the first.
    """
    size = len(example_starts.documents)
    target_seq_length = _target_seq_lengths(size, short_seq_prob, index.max_num_tokens, rng)
    document_ends = index.document_offsets[example_starts.documents + 1]
    after = np.searchsorted(index.sentence_starts, example_starts.begins + target_seq_length, side="left")
    sentence_ends = np.minimum(index.sentence_starts[np.minimum(after, len(index.sentence_starts) - 1)], document_ends)
    # In a sentence of a thousand tokens the start is random already; it must not move to the end of the sentence.
    surplus = np.clip(sentence_ends - example_starts.begins - target_seq_length, 0, index.max_num_tokens // 2)
    starts = example_starts.begins + np.where(rng.random(size) < 0.5, surplus, 0)
    ends = np.minimum(starts + target_seq_length, document_ends)
    return Segments(starts, ends, ends, ends, np.zeros(size, bool))
