"""Masking: choice and replacement of the tokens to predict (section 3.1), and the targets of left-to-right training.

T tokens of B sequences are packed end to end, W words in all; M tokens are to be predicted. `lengths` and `counts` are
the numbers of tokens and of predictions of each sequence (B); positions are indices into the T tokens.
Every random number derives from a token's position in its step (`tokens` below), so a rank or micro-batch with some of
the sequences draws the same numbers as the whole step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bertwright.base.example_order import uniform
from bertwright.base.ragged import offsets_from_lengths, positions_from_lengths
from bertwright.base.seeding import derive_key

if TYPE_CHECKING:
    from bertwright.vocabulary.tokenizer import TextTokenizer

Mix = tuple[float, float, float]
"""Shares of MASK, SAME and RND, in the order of table 8 of the paper."""


class MaskingVocab(NamedTuple):
    """Ids of a vocabulary, for masking."""

    mask_id: int
    regular_ids: np.ndarray
    """Ids of all tokens but the special ones, from which random tokens are drawn."""
    continuation: np.ndarray
    """bool for each id: the token continues a word ("##")."""

    @classmethod
    def of(cls, tokenizer: TextTokenizer) -> MaskingVocab:
        regular = np.setdiff1d(np.arange(tokenizer.vocab_size), np.array(sorted(tokenizer.special_ids)))
        return cls(tokenizer.mask_id, regular, tokenizer.is_continuation)


class Masked(NamedTuple):
    """Masked input and its targets."""

    input_ids: np.ndarray
    """T int64."""
    positions: np.ndarray
    """M int64, ascending positions in T."""
    labels: np.ndarray
    """M int64."""


def mask_counts(lengths: np.ndarray, specials: int, share: float, max_predictions_per_seq: int) -> np.ndarray:
    """Return the number of predictions per sequence: min(max_predictions_per_seq, max(1, round(share * length))).

    `lengths` include the `specials` ([CLS], [SEP]), as in Google's code; rounding is to even, as in Python. The
    specials themselves are never predicted.

    >>> mask_counts(np.array([128, 90, 5]), specials=3, share=0.15, max_predictions_per_seq=20).tolist()
    [19, 14, 1]
    """
    counts = np.maximum(1, np.rint(share * lengths)).astype(np.int64)
    limited: np.ndarray = np.minimum(np.minimum(counts, max_predictions_per_seq), lengths - specials)
    return limited


def choose_tokens(lengths: np.ndarray, candidates: np.ndarray, counts: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Choose the `counts[i]` candidates with the lowest scores in each sequence; returns their positions, ascending.

    `scores` (T) are uniform in [0, 1); `candidates` (T) is bool.
    """
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    # One sort orders all sequences: sequence i has the interval [i, i + 1), its candidates the first half.
    order = np.argsort(sequence + np.where(candidates, scores / 2, 0.75), kind="stable")
    return np.sort(order[np.repeat(offsets_from_lengths(lengths)[:-1], counts) + positions_from_lengths(counts)])


def choose_whole_words(
    lengths: np.ndarray, candidates: np.ndarray, continues: np.ndarray, counts: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    """Choose whole words in random order, each if all of its tokens fit into the remaining count.

    `continues` (T, bool) marks the tokens that continue the word before them. A word is drawn once, however many tokens
    it has. If no word fits, the first one drawn gives as many tokens as the count allows, so that every sequence
    predicts something.
    """
    sequence_of_token = np.repeat(np.arange(len(lengths)), lengths)
    begins_word = candidates & ~(continues & np.concatenate([[False], candidates[:-1]]))
    word_starts = np.flatnonzero(begins_word)  # W, position of each word's first token
    word_of_token = np.cumsum(begins_word) - 1
    word_lengths = np.bincount(word_of_token[candidates], minlength=len(word_starts))
    word_sequences = sequence_of_token[word_starts]

    # `waiting` holds numbers of words, sequence by sequence, each in the order of drawing.
    waiting = np.argsort(word_sequences + scores[word_starts], kind="stable")
    first_drawn = waiting[np.flatnonzero(np.diff(word_sequences[waiting], prepend=-1))]
    num_taken = np.zeros(len(waiting), dtype=np.int64)  # W, tokens that are predicted of each word: all or none
    capacity = counts.copy()  # B, tokens that each sequence may still take
    while len(waiting := waiting[word_lengths[waiting] <= capacity[word_sequences[waiting]]]):
        # Take each sequence's words as long as they fit together; the first that does not must wait.
        sequences, sizes = word_sequences[waiting], word_lengths[waiting]
        summed = np.cumsum(sizes)
        first_of_sequence = np.searchsorted(sequences, sequences, side="left")
        summed_in_sequence = summed - (summed[first_of_sequence] - sizes[first_of_sequence])
        fits = summed_in_sequence <= capacity[sequences]
        num_taken[waiting[fits]] = sizes[fits]
        taken = np.bincount(sequences[fits], weights=sizes[fits], minlength=len(capacity))
        capacity -= taken.astype(np.int64)
        waiting = waiting[~fits]
    has_none = capacity[word_sequences[first_drawn]] == counts[word_sequences[first_drawn]]
    cut = first_drawn[has_none]  # in these sequences no word fits
    num_taken[cut] = counts[word_sequences[cut]]
    positions: np.ndarray = np.repeat(word_starts, num_taken) + positions_from_lengths(num_taken)
    return positions


def mask_tokens(
    ids: np.ndarray, positions: np.ndarray, tokens: np.ndarray, vocab: MaskingVocab, mix: Mix, mask_key: int
) -> Masked:
    """Replace the chosen tokens: 80 % by [MASK], 10 % unchanged, 10 % by a random token, or another mix.

    `tokens` (M) are the positions of the chosen tokens in the whole step, `mask_key` is the step's key. Random tokens
    are uniform over all tokens but the special ones; they may equal the original. Google's code also draws special and
    [unused] tokens.
    """
    mask_share, same_share, _ = mix
    action = uniform(tokens, derive_key(mask_key, 0))
    replacement = (uniform(tokens, derive_key(mask_key, 1)) * len(vocab.regular_ids)).astype(np.int64)
    labels = ids[positions]
    replaced = np.where(action < mask_share + same_share, labels, vocab.regular_ids[replacement])
    replaced[action < mask_share] = vocab.mask_id
    input_ids = ids.copy()
    input_ids[positions] = replaced
    return Masked(input_ids, positions, labels)


def causal_lm_targets(ids: np.ndarray, lengths: np.ndarray, is_reversed: bool = False) -> Masked:
    """Return left-to-right targets: every token but the last of a sequence predicts the next (section 5.1, "LTR").

    `is_reversed`: right to left, every token but the first predicts the previous one.

    >>> ids, lengths = np.array([2, 7, 8, 3, 2, 9, 3]), np.array([4, 3])
    >>> [causal_lm_targets(ids, lengths, is_reversed).labels.tolist() for is_reversed in (False, True)]
    [[7, 8, 3, 9, 3], [2, 7, 8, 2, 9]]
    """
    bounds, predicts = offsets_from_lengths(lengths), np.ones(len(ids), dtype=bool)
    predicts[bounds[:-1] if is_reversed else bounds[1:] - 1] = False
    positions = np.flatnonzero(predicts)
    return Masked(ids, positions, ids[positions - 1 if is_reversed else positions + 1])
