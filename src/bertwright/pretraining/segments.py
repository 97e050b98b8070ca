"""Segment pairs for next-sentence prediction, and single segments for objectives without it (sections 3.1 and A.2).

An epoch takes each document's tokens about once: a document of n tokens gives round(n / room) examples (one at least),
where room = max_length - 3 is what [CLS] and two [SEP] leave. Their beginnings lie evenly over the document, shifted by
a new random phase in every epoch. So neither a plan of the epoch nor a history has to be kept: the examples of any step
are a function of (store, seed, step), found by binary search in the boundaries that the store holds.

Names: a *place* is the number of a token in the store; N examples are laid out at once, all arrays have length N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertwright.batching.permutation import uniform
from bertwright.tokenstore.store import TokenStore


class Segments(NamedTuple):
    """Where the segments of N examples lie in the store: places, int64. Segments are runs of consecutive tokens."""

    a_starts: np.ndarray
    a_ends: np.ndarray
    b_starts: np.ndarray
    """Equal to `b_ends` where an example has one segment only."""
    b_ends: np.ndarray
    is_random: np.ndarray
    """bool: B comes from another document (False: B follows A)."""


class ExampleStarts(NamedTuple):
    """Where N examples begin, before anything is drawn."""

    documents: np.ndarray
    begins: np.ndarray
    """Place of the first token: the start of a sentence, unless the sentence is longer than a whole example."""
    sentences: np.ndarray
    """Number of the sentence that `begins` lies in."""


@dataclass(frozen=True)
class ExampleIndex:
    """The examples of every epoch: which document each belongs to, and where in it it begins."""

    sentence_starts: np.ndarray
    document_starts: np.ndarray
    document_places: np.ndarray
    """D + 1: the token at which each document starts."""
    example_bounds: np.ndarray
    """D + 1: the examples before each document."""
    room: int
    """Tokens of text in a full-length example."""

    @classmethod
    def of(cls, store: TokenStore, room: int) -> ExampleIndex:
        """Share out the store's documents into examples of `room` tokens."""
        places = np.asarray(store.sentence_starts[store.document_starts])
        counts = np.maximum(1, np.rint(np.diff(places) / room)).astype(np.int64)
        bounds = np.concatenate([[0], np.cumsum(counts)])
        return cls(store.sentence_starts, store.document_starts, places, bounds, room)

    @property
    def examples_per_epoch(self) -> int:
        return int(self.example_bounds[-1])

    def chunks(self, examples: np.ndarray, phase_keys: np.ndarray, keep_sentences: int) -> ExampleStarts:
        """Where these examples of an epoch begin.

        `phase_keys` is each example's epoch as a key; `keep_sentences` is how many sentences must be left from the
        beginning to the document's end, in documents that have so many.

        Chunk c of n begins (c + phase) / n of the way through its document, less half a room; at the earliest at its
        start and at the latest one room before its end, so that both margins are seen too and no chunk is cut short.
        From there it steps back to the start of the sentence.
        """
        documents = np.searchsorted(self.example_bounds, examples, side="right") - 1
        first = self.example_bounds[documents]
        chunk, count = examples - first, self.example_bounds[documents + 1] - first
        starts, ends = self.document_places[documents], self.document_places[documents + 1]
        phase = uniform(documents, phase_keys)
        wanted = ((chunk + phase) * (ends - starts) / count).astype(np.int64) - self.room // 2
        begins = starts + np.clip(wanted, 0, np.maximum(0, ends - starts - self.room))

        sentences = np.searchsorted(self.sentence_starts, begins, side="right") - 1
        latest = np.maximum(self.document_starts[documents], self.document_starts[documents + 1] - keep_sentences)
        sentence_begins = self.sentence_starts[np.minimum(sentences, latest)]
        # Inside a sentence that is longer than an example, begin where the phase says: its end is text too.
        inside = (sentences <= latest) & (begins - sentence_begins >= self.room)
        return ExampleStarts(documents, np.where(inside, begins, sentence_begins), np.minimum(sentences, latest))


def sample_pairs(
    plan: ExampleIndex, chunks: ExampleStarts, short_seq_prob: float, rng: np.random.Generator
) -> Segments:
    """Draw segments A and B for each chunk (section 3.1; `create_instances_from_document` in Google's code).

    Whole sentences are taken up to the length aimed at: the full room, or, for a share of the examples, any length
    from 2 up, so that short inputs are seen in pre-training as they are in fine-tuning. They are split at a random
    sentence boundary. For half of the examples B is replaced by sentences from a random place of the corpus outside
    the document. What is too long is cut from the longer segment, token by token, at its front or its back.

    A document of one sentence has no next sentence: B is then always random. The only document of a store has no
    other: B is then a random place outside the chunk.
    """
    size = len(chunks.documents)
    is_short, short_length = rng.random(size) < short_seq_prob, rng.integers(2, plan.room, size, endpoint=True)
    aim = np.where(is_short, short_length, plan.room)

    document_ends = plan.document_starts[chunks.documents + 1]
    ends = np.searchsorted(plan.sentence_starts, chunks.begins + aim, side="left")
    ends = np.minimum(np.maximum(ends, chunks.sentences + 2), document_ends)
    count = ends - chunks.sentences
    a_count = np.where(count > 1, rng.integers(1, np.maximum(count, 2)), 1)
    a_ends = plan.sentence_starts[chunks.sentences + a_count]

    is_random = (rng.random(size) < 0.5) | (count == 1)
    b_starts, b_ends = a_ends, plan.sentence_starts[ends]
    random_starts, random_ends, exists = _random_segments(plan, chunks, ends, aim - (a_ends - chunks.begins), rng)
    is_random &= exists
    drawn = Segments(
        chunks.begins,
        a_ends,
        np.where(is_random, random_starts, b_starts),
        np.where(is_random, random_ends, b_ends),
        is_random,
    )
    return truncate_pairs(drawn, plan.room, rng)


def _random_segments(
    plan: ExampleIndex, chunks: ExampleStarts, chunk_ends: np.ndarray, aim: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Starts and ends of whole sentences, about `aim` tokens (one sentence at least), from outside each document.

    Every sentence of the corpus outside the document is equally likely ("a random sentence from the corpus"), so
    that B's style does not tell whether it is random. For the same reason a start so near to its document's end that
    B would come out short is moved forward: otherwise short inputs would give the answer away.
    The third array tells where there is anything outside at all.
    """
    num_sentences, several = len(plan.sentence_starts) - 1, len(plan.document_starts) > 2
    avoid_start = plan.document_starts[chunks.documents] if several else chunks.sentences
    avoid_end = plan.document_starts[chunks.documents + 1] if several else chunk_ends
    outside = num_sentences - (avoid_end - avoid_start)
    sentences = rng.integers(0, np.maximum(outside, 1))
    sentences += np.where(sentences >= avoid_start, avoid_end - avoid_start, 0)
    sentences = np.minimum(sentences, num_sentences - 1)

    aim = np.maximum(aim, 1)
    documents = np.searchsorted(plan.document_starts, sentences, side="right") - 1
    first, last = plan.document_starts[documents], plan.document_starts[documents + 1]
    if not several:  # stay on the drawn sentence's side of the chunk
        first = np.where(sentences >= avoid_end, avoid_end, first)
        last = np.where(sentences < avoid_start, avoid_start, last)
    latest = np.searchsorted(plan.sentence_starts, plan.sentence_starts[last] - aim, side="right") - 1
    sentences = np.minimum(sentences, np.maximum(latest, first))
    starts = plan.sentence_starts[sentences]
    ends = np.searchsorted(plan.sentence_starts, starts + aim, side="left")
    return starts, plan.sentence_starts[np.minimum(ends, last)], outside > 0


def truncate_pairs(segments: Segments, room: int, rng: np.random.Generator) -> Segments:
    """Cut pairs to `room` tokens as `truncate_seq_pair` does: one token after another from the longer segment (from B
    where both are equal), each at the front or at the back with probability 1/2.

    The lengths that this ends with are known beforehand, and so is the law of the tokens cut at the front: binomial.
    """
    a_lengths, b_lengths = segments.a_ends - segments.a_starts, segments.b_ends - segments.b_starts
    a_cut = a_lengths - np.minimum(a_lengths, np.maximum(room - b_lengths, (room + 1) // 2))
    b_cut = b_lengths - np.minimum(b_lengths, np.maximum(room - a_lengths, room // 2))
    a_front, b_front = rng.binomial(a_cut, 0.5), rng.binomial(b_cut, 0.5)
    return segments._replace(
        a_starts=segments.a_starts + a_front,
        a_ends=segments.a_ends - (a_cut - a_front),
        b_starts=segments.b_starts + b_front,
        b_ends=segments.b_ends - (b_cut - b_front),
    )


def sample_singles(
    plan: ExampleIndex, chunks: ExampleStarts, short_seq_prob: float, rng: np.random.Generator
) -> Segments:
    """One segment of consecutive tokens for each chunk, for objectives without next-sentence prediction (section 5.1).

    It has the full room, or, for a share of the examples, any length from 2 up; less only where its document ends.
    Half of the segments begin with a sentence, half end with one: so a document's last words are seen as its first are.
    """
    size = len(chunks.documents)
    is_short, short_length = rng.random(size) < short_seq_prob, rng.integers(2, plan.room, size, endpoint=True)
    aim = np.where(is_short, short_length, plan.room)
    document_ends = plan.document_places[chunks.documents + 1]
    after = np.searchsorted(plan.sentence_starts, chunks.begins + aim, side="left")
    sentence_ends = np.minimum(plan.sentence_starts[np.minimum(after, len(plan.sentence_starts) - 1)], document_ends)
    # In a sentence of a thousand tokens the beginning was drawn already; it must not jump to the sentence's end.
    surplus = np.clip(sentence_ends - chunks.begins - aim, 0, plan.room // 2)
    starts = chunks.begins + np.where(rng.random(size) < 0.5, surplus, 0)
    ends = np.minimum(starts + aim, document_ends)
    return Segments(starts, ends, ends, ends, np.zeros(size, bool))
