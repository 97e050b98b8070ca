"""Which tokens are hidden, and what stands in their place (section 3.1); the targets of left-to-right training.

T tokens of B sequences lie end to end; M of them are to be predicted.
Every draw belongs to a token's place in its step (`tokens` below), so a rank or micro-batch that holds only a part of
the step draws exactly what the whole would have drawn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bertwright.batching.batch import offsets_from_lengths, positions_from_lengths
from bertwright.batching.permutation import uniform
from bertwright.seeding import derive_key
from bertwright.vocabulary.tokenizer import Tokenizer

Mix = tuple[float, float, float]
"""Shares of MASK, SAME and RND, in the order of the paper's Table 8."""


class MaskingVocab(NamedTuple):
    """What masking must know of a vocabulary."""

    cls_id: int
    sep_id: int
    mask_id: int
    regular_ids: np.ndarray
    """Every id that is no special token: what a random token is drawn from."""
    continuation: np.ndarray
    """bool for each id: the token goes on with a word ("##")."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> MaskingVocab:
        regular = np.setdiff1d(np.arange(tokenizer.vocab_size), np.array(sorted(tokenizer.special_ids)))
        return cls(tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, regular, tokenizer.is_continuation())


class Masked(NamedTuple):
    """What the model reads, and what it should have read."""

    input_ids: np.ndarray
    """T int64."""
    positions: np.ndarray
    """M int64, ascending places into T."""
    labels: np.ndarray
    """M int64."""


def mask_counts(lengths: np.ndarray, specials: int, share: float, max_predictions_per_seq: int) -> np.ndarray:
    """How many tokens of each sequence are predicted: min(max_predictions_per_seq, max(1, round(share * length))).

    `lengths` count the whole sequences with their `specials` ([CLS], [SEP]), as in Google's code; rounding is to even
    as in Python. A large share meets one more limit: the specials themselves are never predicted.

    >>> mask_counts(np.array([128, 90, 5]), specials=3, share=0.15, max_predictions_per_seq=20).tolist()
    [19, 14, 1]
    """
    counts = np.maximum(1, np.rint(share * lengths)).astype(np.int64)
    limited: np.ndarray = np.minimum(np.minimum(counts, max_predictions_per_seq), lengths - specials)
    return limited


def choose_tokens(lengths: np.ndarray, candidates: np.ndarray, counts: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Positions of the `counts[i]` candidates with the lowest scores in each sequence: M int64, ascending.

    `compute_metrics` (T) are uniform in [0, 1); `candidates` (T) is bool.
    """
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    # One sort orders all sequences: each has a unit of the number line to itself, candidates in its first half.
    order = np.argsort(sequence + np.where(candidates, scores / 2, 0.75), kind="stable")
    return np.sort(order[np.repeat(offsets_from_lengths(lengths)[:-1], counts) + positions_from_lengths(counts)])


def choose_whole_words(
    lengths: np.ndarray, candidates: np.ndarray, continues: np.ndarray, counts: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    """The same by whole words: words in random order, each taken if all of its tokens still fit into the count.

    `continues` (T, bool) marks the tokens that go on with the word before them. A word counts as one draw however
    many tokens it has. Where no word fits, the first drawn gives as many tokens as the count allows, so that every
    sequence predicts something.
    """
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    begins = candidates & ~(continues & np.concatenate([[False], candidates[:-1]]))
    word_starts = np.flatnonzero(begins)
    word_of = np.cumsum(begins) - 1
    word_lengths = np.bincount(word_of[candidates], minlength=len(word_starts))
    word_sequence = sequence[word_starts]

    # From here on words stand in the order of drawing, sequence by sequence.
    order = np.argsort(word_sequence + scores[word_starts], kind="stable")
    first_drawn = order[np.flatnonzero(np.diff(word_sequence[order], prepend=-1))]
    taken = np.zeros(len(order), dtype=np.int64)
    room = counts.copy()
    while len(order := order[word_lengths[order] <= room[word_sequence[order]]]):
        # Take each sequence's words as long as they fit together; the first that does not is passed over.
        of, sizes = word_sequence[order], word_lengths[order]
        summed = np.cumsum(sizes)
        before = np.searchsorted(of, of, side="left")
        fits = summed - (summed[before] - sizes[before]) <= room[of]
        taken[order[fits]] = sizes[fits]
        room -= np.bincount(of[fits], weights=sizes[fits], minlength=len(room)).astype(np.int64)
        order = order[~fits]
    none_fits = first_drawn[room[word_sequence[first_drawn]] == counts[word_sequence[first_drawn]]]
    taken[none_fits] = counts[word_sequence[none_fits]]
    positions: np.ndarray = np.repeat(word_starts, taken) + positions_from_lengths(taken)
    return positions


def mask_tokens(
    ids: np.ndarray, positions: np.ndarray, tokens: np.ndarray, symbols: MaskingVocab, mix: Mix, mask_key: int
) -> Masked:
    """Hide the chosen tokens: 80 % as [MASK], 10 % unchanged, 10 % as a random token, or any other mix.

    `tokens` (M) are the chosen tokens' places in the whole step, `mask_key` is the step's key. A random token is any
    but a special one, each equally likely (the right one included, as in Google's code).
    """
    mlm_probability, same_share, _ = mix
    action = uniform(tokens, derive_key(mask_key, 0))
    replacement = (uniform(tokens, derive_key(mask_key, 1)) * len(symbols.regular_ids)).astype(np.int64)
    labels = ids[positions]
    shown = np.where(action < mlm_probability + same_share, labels, symbols.regular_ids[replacement])
    shown[action < mlm_probability] = symbols.mask_id
    input_ids = ids.copy()
    input_ids[positions] = shown
    return Masked(input_ids, positions, labels)


def causal_lm_targets(ids: np.ndarray, lengths: np.ndarray) -> Masked:
    """Left-to-right targets: every token but the last of its sequence predicts the next (section 5.1, "LTR").

    >>> causal_lm_targets(np.array([2, 7, 8, 3, 2, 9, 3]), np.array([4, 3])).labels.tolist()
    [7, 8, 3, 9, 3]
    """
    is_last = np.zeros(len(ids), dtype=bool)
    is_last[offsets_from_lengths(lengths)[1:] - 1] = True
    positions = np.flatnonzero(~is_last)
    return Masked(ids, positions, ids[positions + 1])
