"""The contexts of questions in windows, and spans of their tokens, as Google's run_squad makes them.

Q questions; S windows; M tokens of all contexts, each tokenized once for all its questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from unicodedata import category

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from bertwright.base.ragged import Ragged, flat_ranges, offsets_from_lengths, positions_from_lengths
from bertwright.tables.qa_example import QaExample
from bertwright.tasks.encoded import Floats, Ints
from bertwright.vocabulary.sequence_layout import PlacedSegments, SequenceLayout
from bertwright.vocabulary.tokenizer import TextTokenizer

CONTEXTS_PER_CALL = 512  # of the tokenizer, whose encodings are large


class Spans(NamedTuple):
    """Spans of tokens, best first."""

    scores: Floats
    first: Ints
    last: Ints


class Contexts(NamedTuple):
    """The contexts of Q questions as M tokens; a context of several questions is tokenized once."""

    ids: Ints
    """M, tokens; or M × W, the characters of words."""
    offsets: npt.NDArray[np.int32]
    """M × 2, start and end of each token in its context, in characters."""
    bounds: Ints
    """Start of each distinct context among the M tokens, and the end of the last one."""
    of_question: Ints
    """Q, index of each question's context."""

    @property
    def begin(self) -> Ints:
        """Q, index of the first token of each question's context."""
        return self.bounds[self.of_question]

    @property
    def num_tokens(self) -> Ints:
        """Q, number of tokens of each question's context."""
        return np.diff(self.bounds)[self.of_question]


class Windows(NamedTuple):
    """Context tokens of S windows."""

    question: Ints
    """S, index of the question."""
    first: Ints
    """S, index of the first context token among the M tokens of all contexts."""
    lengths: Ints
    """S, number of context tokens."""


def tokenize_contexts(examples: Sequence[QaExample], tokenizer: TextTokenizer) -> Contexts:
    texts = list(dict.fromkeys(example.context for example in examples))
    numbers = {text: number for number, text in enumerate(texts)}
    ids, offsets = [tokenizer.encode_raw([]).ids.astype(np.int64)], [np.empty((0, 2), np.int32)]
    for begin in range(0, len(texts), CONTEXTS_PER_CALL):
        for encoding in tokenizer.encode_raw_batch(texts[begin : begin + CONTEXTS_PER_CALL]):
            ids.append(encoding.ids)
            offsets.append(encoding.offsets.astype(np.int32))
    bounds = offsets_from_lengths(np.array([len(row) for row in ids[1:]], dtype=np.int64))
    of_question = np.array([numbers[example.context] for example in examples], dtype=np.int64)
    return Contexts(np.concatenate(ids), np.concatenate(offsets), bounds, of_question)


def split_windows(begin: Ints, num_tokens: Ints, capacity: Ints, stride: int) -> Windows:
    """Split contexts of `num_tokens` tokens, from token `begin` on, into windows of `capacity` tokens.

    Every token is in a window, the last window ends with the last token, and a context without tokens has one window.

    >>> [array.tolist() for array in split_windows(np.array([0, 9]), np.array([9, 3]), np.array([5, 5]), stride=3)]
    [[0, 0, 0, 1], [0, 3, 6, 9], [5, 5, 3, 3]]
    """
    step = np.minimum(capacity, stride)
    counts = 1 + np.maximum(-(-(num_tokens - capacity) // step), 0)
    question = np.repeat(np.arange(len(num_tokens)), counts)
    skipped = positions_from_lengths(counts) * step[question]  # context tokens before the window
    lengths = np.minimum(capacity[question], num_tokens[question] - skipped)
    return Windows(question, begin[question] + skipped, lengths)


def place_windows(
    questions: Ragged, query_lengths: Ints, contexts: Contexts, windows: Windows, layout: SequenceLayout
) -> PlacedSegments:
    """Lay out the tokens of windows: the first `query_lengths` tokens of the question, and the context tokens."""
    placed = layout.place([query_lengths[windows.question], windows.lengths])
    pool = np.concatenate([questions.ids, contexts.ids]).astype(np.int32)
    first = np.stack([questions.offsets[windows.question], len(questions.ids) + windows.first], axis=1)
    lengths = np.stack([query_lengths[windows.question], windows.lengths], axis=1)
    ids = placed.rows_like(pool)
    ids[placed.is_text] = pool[flat_ranges(first.reshape(-1), lengths.reshape(-1))]
    return placed._replace(ids=ids)


def label_windows(tokens: Ints, windows: Windows, context_start: Ints) -> Ints:
    """Return the first and last token of the answer in each window, S × 2; 0 if it is not wholly inside.

    `tokens`: first and last token of each answer among the M tokens of all contexts, Q × 2.

    >>> windows = Windows(np.array([0, 0]), np.array([0, 3]), np.array([5, 5]))
    >>> label_windows(np.array([[4, 5]]), windows, context_start=np.array([7, 7])).tolist()
    [[0, 0], [8, 9]]
    """
    spans, first = tokens[windows.question], windows.first
    inside = (spans[:, 0] >= first) & (spans[:, 1] < first + windows.lengths)
    return np.where(inside[:, None], spans - first[:, None] + context_start[:, None], 0)


def answer_characters(examples: Sequence[QaExample]) -> Ints:
    """Return start and end of each answer in its context, in characters, Q × 2; -1 for no answer."""
    bounds = np.full((len(examples), 2), -1)
    for number, example in enumerate(examples):
        if (answer := example.target) and answer.start is not None:
            bounds[number] = answer.start, answer.start + len(answer.text)
    return bounds


def answer_tokens(examples: Sequence[QaExample], characters: Ints, contexts: Contexts, strict: bool = True) -> Ints:
    """Return the first and last token of each answer among the M tokens of all contexts, Q × 2; -1 for no answer.

    These are the tokens that share a character with the answer. Raises ValueError if there are none and `strict`.
    """
    begin, end = characters.T
    # One search for all contexts: a character's key is its context and its index there.
    base = np.repeat(np.arange(len(contexts.bounds) - 1) << 32, np.diff(contexts.bounds))
    own_base, offsets = contexts.of_question << 32, contexts.offsets
    first = np.searchsorted(base + offsets[:, 1], own_base + begin, side="right")
    last = np.searchsorted(base + offsets[:, 0], own_base + end, side="left") - 1
    answered = begin >= 0
    if strict and (lost := np.flatnonzero(answered & (last < first))).size:
        example = examples[lost[0]]
        answer = example.target
        assert answer is not None
        raise ValueError(f"{example.location}: the answer {answer.text!r} has no token; remove the question")
    return np.where(answered[:, None], np.stack([first, last], axis=1), -1)


def count_cut_answers(characters: Ints, tokens: Ints, offsets: npt.NDArray[np.int32]) -> int:
    """Count answers that begin or end inside a token."""
    answered = characters[:, 0] >= 0
    (begin, end), (first, last) = characters[answered].T, tokens[answered].T
    return int(((offsets[first, 0] < begin) | (offsets[last, 1] > end)).sum())


def after_marks(text: str, end: int) -> int:
    """Return where a span ends that includes the combining marks after its last character.

    A tokenizer that strips accents leaves them out of its tokens.

    >>> after_marks("cafe\u0301.", 4)
    5
    """
    while end < len(text) and category(text[end])[0] == "M":
        end += 1
    return end


def max_context_window(first: Ints, context_lengths: Ints) -> Ints:
    """Return for each token of one context the window with the most context around it, on the side that has less.

    Google's "max context" rule, by which a token is scored once. Among equals the longer window wins, then the earlier.

    >>> max_context_window(np.array([0, 3]), np.array([6, 6])).tolist()
    [0, 0, 0, 0, 0, 1, 1, 1, 1]
    """
    owner = np.zeros(first[-1] + context_lengths[-1], dtype=np.int64)
    if len(first) == 1:
        return owner
    best = np.full(len(owner), -1, dtype=np.int64)
    for number, (begin, length) in enumerate(zip(first.tolist(), context_lengths.tolist(), strict=True)):
        left = np.arange(length)
        context = 100 * np.minimum(left, left[::-1]) + length  # Google's rule times 100: integers compare exactly
        better = context > best[begin : begin + length]
        best[begin : begin + length][better] = context[better]
        owner[begin : begin + length][better] = number
    return owner


def best_spans(
    start: Floats, end: Floats, own: npt.NDArray[np.bool_], max_answer_length: int, n_best_size: int
) -> Spans:
    """Find the `n_best_size` spans (i, j) with maximal `start[i] + end[j]`, i ≤ j < i + max_answer_length and `own[i]`.

    >>> spans = best_spans(np.array([0.0, 3, 1]), np.array([9.0, 1, 2]), np.array([True] * 3), 2, 2)
    >>> [array.tolist() for array in spans]
    [[9.0, 5.0], [0, 1], [0, 2]]
    """
    longest = min(max_answer_length, len(start))
    if not own.any():
        return Spans(np.empty(0), *np.empty((2, 0), dtype=np.int64))
    begins = np.flatnonzero(own)
    ends = sliding_window_view(np.concatenate([end, np.full(longest - 1, -np.inf)]), longest)
    sums = (start[begins, None] + ends[begins]).reshape(-1)
    count = min(n_best_size, int(np.minimum(longest, len(start) - begins).sum()))  # the others are past the end
    bound = np.partition(sums, len(sums) - count)[len(sums) - count]
    chosen = np.flatnonzero(sums >= bound)  # more than `count` in a tie for the last rank
    chosen = chosen[np.argsort(-sums[chosen], kind="stable")][:count]
    first = begins[chosen // longest]
    return Spans(sums[chosen], first, first + chosen % longest)
