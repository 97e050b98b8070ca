"""Segment pairs for next-sentence prediction, and single segments (sections 3.1 and A.2).

An epoch reads the tokens of each document about once: a document of n tokens gives round(n / max_num_tokens) examples,
at least one, where max_num_tokens = max_length - 3 is what [CLS] and two [SEP] leave. Their starts are evenly spaced
over the document, shifted by a new random phase in every epoch. So nothing is stored per epoch: the
examples of any step are a function of (store, seed, step), found by binary search in the boundaries of the store.

Three numberings are used; all are int64, and a name ends with its numbering where both could be meant:

    token       position in the store, of all documents end to end; segments are ranges of tokens
    sentence    number of a sentence in the store
    example     number of an example in its epoch, in the order of the documents

`document_sentences[d]` is the first sentence of document d, `document_tokens[d]` its first token, and
`document_examples[d]` its first example; `sentence_tokens[s]` is the first token of sentence s. Each of these arrays
has one entry more than there are documents or sentences: the end of the last one. N examples are laid out at once;
all other arrays have length N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertwright.base.example_order import uniform
from bertwright.base.ragged import offsets_from_lengths
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
    """Number of the document of each example."""
    tokens: np.ndarray
    """First token: the start of a sentence, unless the sentence is longer than a whole example."""
    sentences: np.ndarray
    """Sentence that contains the first token."""


@dataclass(frozen=True)
class ExampleIndex:
    """Index of the examples of an epoch: the document of each and its start. See the top of this module."""

    sentence_tokens: np.ndarray
    document_sentences: np.ndarray
    document_tokens: np.ndarray
    document_examples: np.ndarray
    max_num_tokens: int
    """Tokens of text in a full-length example."""

    @classmethod
    def of(cls, store: TokenStore, max_num_tokens: int) -> ExampleIndex:
        """Divide the documents of a store into examples of `max_num_tokens` tokens."""
        document_tokens = np.asarray(store.sentence_starts[store.document_starts])
        counts = np.maximum(1, np.rint(np.diff(document_tokens) / max_num_tokens)).astype(np.int64)
        document_examples = offsets_from_lengths(counts)
        return cls(store.sentence_starts, store.document_starts, document_tokens, document_examples, max_num_tokens)

    def locate(self, examples: np.ndarray, phase_keys: np.ndarray, keep_sentences: int) -> ExampleStarts:
        """Return the starts of examples of an epoch.

        `phase_keys` holds the key of each example's epoch; `keep_sentences` is the minimum of sentences from the start
        to the end of the document, in documents that have that many.

        Example c of n starts (c + phase) / n of the way through its document, less half its length, but not before the
        document and not later than a full length before its end: so both margins are read and no example is short.
        Then the start moves back to the start of its sentence.
        """
        documents = np.searchsorted(self.document_examples, examples, side="right") - 1
        first_example = self.document_examples[documents]
        number, count = examples - first_example, self.document_examples[documents + 1] - first_example
        first_token = self.document_tokens[documents]
        num_tokens = self.document_tokens[documents + 1] - first_token
        phase = uniform(documents, phase_keys)
        offset = ((number + phase) * num_tokens / count).astype(np.int64) - self.max_num_tokens // 2
        tokens = first_token + np.clip(offset, 0, np.maximum(0, num_tokens - self.max_num_tokens))

        sentences = np.searchsorted(self.sentence_tokens, tokens, side="right") - 1
        first_sentence, end_sentence = self.document_sentences[documents], self.document_sentences[documents + 1]
        latest_sentence = np.maximum(first_sentence, end_sentence - keep_sentences)
        is_early_enough = sentences <= latest_sentence
        sentences = np.minimum(sentences, latest_sentence)
        sentence_start = self.sentence_tokens[sentences]
        # In a sentence longer than an example, start at the phase's token, so that its end is also read.
        starts_inside = is_early_enough & (tokens - sentence_start >= self.max_num_tokens)
        return ExampleStarts(documents, np.where(starts_inside, tokens, sentence_start), sentences)


def _target_seq_lengths(size: int, short_seq_prob: float, max_num_tokens: int, rng: np.random.Generator) -> np.ndarray:
    """Draw the tokens of text that each example should have (`target_seq_length` in Google's code).

    It is the maximum or, with `short_seq_prob`, any length from 2 to the maximum with equal probability, because inputs
    in fine-tuning are short. Google's code draws it once per pass over a document; a small target then gives more
    examples: with 0.1, 17 to 28 % of its examples have a short target (decision 1). Here it is drawn per example.
    """
    is_short = rng.random(size) < short_seq_prob
    short_length = rng.integers(2, max_num_tokens, size, endpoint=True)
    return np.where(is_short, short_length, max_num_tokens)


def sample_pairs(
    index: ExampleIndex, starts: ExampleStarts, short_seq_prob: float, rng: np.random.Generator
) -> Segments:
    """Sample segments A and B for each start (section 3.1; `create_instances_from_document` in Google's code).

    Whole sentences are taken up to the target length (`_target_seq_lengths`) and split at a random sentence boundary.
    For half of the examples B is replaced by sentences from a random position of the corpus outside the document.
    Excess tokens are cut from the longer segment, one by one, at its front or its back.

    A document of one sentence has no next sentence: B is then always random. If the store has only one document, B is
    taken from anywhere in it outside the example.
    """
    size = len(starts.documents)
    target_seq_length = _target_seq_lengths(size, short_seq_prob, index.max_num_tokens, rng)

    # The example consists of the sentences from `starts.sentences` to before `end_sentence`, at least two.
    end_sentence = np.searchsorted(index.sentence_tokens, starts.tokens + target_seq_length, side="left")
    document_end = index.document_sentences[starts.documents + 1]
    end_sentence = np.minimum(np.maximum(end_sentence, starts.sentences + 2), document_end)
    num_sentences = end_sentence - starts.sentences
    num_a_sentences = np.where(num_sentences > 1, rng.integers(1, np.maximum(num_sentences, 2)), 1)
    a_end = index.sentence_tokens[starts.sentences + num_a_sentences]

    is_random_next = (rng.random(size) < 0.5) | (num_sentences == 1)
    b_length = target_seq_length - (a_end - starts.tokens)
    random_start, random_end, exists = _random_segments(index, starts, end_sentence, b_length, rng)
    is_random_next &= exists
    pairs = Segments(
        a_starts=starts.tokens,
        a_ends=a_end,
        b_starts=np.where(is_random_next, random_start, a_end),
        b_ends=np.where(is_random_next, random_end, index.sentence_tokens[end_sentence]),
        is_random_next=is_random_next,
    )
    return truncate_pairs(pairs, index.max_num_tokens, rng)


def _random_segments(
    index: ExampleIndex,
    starts: ExampleStarts,
    end_sentence: np.ndarray,
    target_length: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sample ranges of whole sentences from outside each document, of about `target_length` tokens, at least one.

    Every sentence of the corpus outside the document is equally likely ("a random sentence from the corpus", section
    3.1), so that the style of B does not reveal whether it is random; in Google's code every other document is equally
    likely. A start so near to the end of its document that B would be short is moved back: otherwise short inputs would
    reveal the answer.
    Returns start tokens, end tokens, and whether there is any sentence outside.
    """
    num_sentences, has_other_documents = len(index.sentence_tokens) - 1, len(index.document_sentences) > 2
    # Sentences that B must avoid: the document, or in a store of one document the example.
    avoid_start = index.document_sentences[starts.documents] if has_other_documents else starts.sentences
    avoid_end = index.document_sentences[starts.documents + 1] if has_other_documents else end_sentence
    num_outside = num_sentences - (avoid_end - avoid_start)
    sentences = rng.integers(0, np.maximum(num_outside, 1))
    sentences += np.where(sentences >= avoid_start, avoid_end - avoid_start, 0)
    sentences = np.minimum(sentences, num_sentences - 1)

    target_length = np.maximum(target_length, 1)
    documents = np.searchsorted(index.document_sentences, sentences, side="right") - 1
    start_of_range, end_of_range = index.document_sentences[documents], index.document_sentences[documents + 1]
    if not has_other_documents:  # stay on the sampled sentence's side of the example
        start_of_range = np.where(sentences >= avoid_end, avoid_end, start_of_range)
        end_of_range = np.where(sentences < avoid_start, avoid_start, end_of_range)
    latest_token = index.sentence_tokens[end_of_range] - target_length
    latest_sentence = np.searchsorted(index.sentence_tokens, latest_token, side="right") - 1
    sentences = np.minimum(sentences, np.maximum(latest_sentence, start_of_range))
    start_tokens = index.sentence_tokens[sentences]
    end_sentences = np.searchsorted(index.sentence_tokens, start_tokens + target_length, side="left")
    return start_tokens, index.sentence_tokens[np.minimum(end_sentences, end_of_range)], num_outside > 0


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
    index: ExampleIndex, starts: ExampleStarts, short_seq_prob: float, rng: np.random.Generator
) -> Segments:
    """Sample one segment of consecutive tokens per start, for objectives without next sentences (section 5.1).

    It has the target length (`_target_seq_lengths`), less only at the end of a document. Half of the segments start
    with a sentence, half end with one, so that the last words of a document are as frequent as the first.
    """
    size = len(starts.documents)
    target_seq_length = _target_seq_lengths(size, short_seq_prob, index.max_num_tokens, rng)
    document_end = index.document_tokens[starts.documents + 1]
    end_sentence = np.searchsorted(index.sentence_tokens, starts.tokens + target_seq_length, side="left")
    end_sentence = np.minimum(end_sentence, len(index.sentence_tokens) - 1)
    sentence_end = np.minimum(index.sentence_tokens[end_sentence], document_end)
    # In a sentence of a thousand tokens the start is random already; it must not move to the end of the sentence.
    surplus = np.clip(sentence_end - starts.tokens - target_seq_length, 0, index.max_num_tokens // 2)
    start_tokens = starts.tokens + np.where(rng.random(size) < 0.5, surplus, 0)
    end_tokens = np.minimum(start_tokens + target_seq_length, document_end)
    return Segments(start_tokens, end_tokens, end_tokens, end_tokens, np.zeros(size, bool))
