"""Masking: shares, whole words against a loop, hand-worked targets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertwright.base.example_order import uniform
from bertwright.base.seeding import derive_key
from bertwright.objectives.masking import (
    MaskingVocab,
    causal_lm_targets,
    choose_tokens,
    choose_whole_words,
    mask_counts,
    mask_tokens,
)

MASK = 4
VOCAB = MaskingVocab(mask_id=MASK, regular_ids=np.arange(5, 105), continuation=np.zeros(105, bool))


@pytest.mark.parametrize(
    ("length", "specials", "share", "max_predictions", "count"),
    [
        (128, 3, 0.15, 20, 19),  # 19.2
        (512, 3, 0.15, 77, 77),  # 76.8
        (128, 3, 0.15, 10, 10),
        (5, 3, 0.15, 20, 1),  # never none
        (10, 3, 0.25, 20, 2),  # 2.5 rounds to even, as Python's round
        (4, 3, 1.0, 20, 1),  # one token to predict, however large the share
        (128, 3, 1.0, 128, 125),
    ],
)
def test_mask_counts_equal_those_of_googles_code(
    length: int, specials: int, share: float, max_predictions: int, count: int
) -> None:
    assert mask_counts(np.array([length]), specials, share, max_predictions).tolist() == [count]


def test_choose_tokens_chooses_the_count_and_no_special_token() -> None:
    lengths = np.array([7, 3, 20, 4])
    candidates = np.ones(34, dtype=bool)
    candidates[[0, 6, 7, 9, 10, 29, 30, 33]] = False  # first and last of each
    counts = np.array([5, 1, 3, 2])
    for draw in range(50):
        chosen = choose_tokens(lengths, candidates, counts, uniform(np.arange(34), derive_key(draw)))
        assert candidates[chosen].all()
        assert np.bincount(np.searchsorted([7, 10, 30, 34], chosen, side="right"), minlength=4).tolist() == [5, 1, 3, 2]
        assert (np.diff(chosen) > 0).all()


def test_chosen_tokens_are_equally_likely() -> None:
    lengths, candidates = np.array([12]), np.array([False] + [True] * 10 + [False])
    chosen = [
        choose_tokens(lengths, candidates, np.array([3]), uniform(np.arange(12), derive_key(n))) for n in range(3000)
    ]
    shares = np.bincount(np.concatenate(chosen), minlength=12)[1:11] / 3000
    assert np.abs(shares - 0.3).max() < 4.5 * np.sqrt(0.3 * 0.7 / 3000)


@pytest.mark.parametrize("mix", [(0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.8, 0.0, 0.2), (0.0, 0.2, 0.8), (0.0, 0.0, 1.0)])
def test_shares_of_mask_same_and_random_tokens(mix: tuple[float, float, float]) -> None:
    """Table 8 of the paper: shares of MASK, SAME and RND."""
    ids = np.full(200_000, 50)
    positions = np.arange(0, 200_000, 2)
    masked = mask_tokens(ids, positions, positions, VOCAB, mix, derive_key(1))
    shown = masked.input_ids[positions]
    count = len(positions)
    by_chance = mix[2] / 100  # a random token is the right one once in a hundred times
    for found, expected in (
        (shown == MASK, mix[0]),
        (shown == 50, mix[1] + by_chance),
        ((shown != MASK) & (shown != 50), mix[2] - by_chance),
    ):
        assert abs(found.mean() - expected) <= 4 * np.sqrt(expected * (1 - expected) / count)
    assert (masked.labels == 50).all()
    assert (masked.input_ids[1::2] == 50).all()
    assert (ids == 50).all()  # the caller's array is left alone


def test_random_tokens_are_uniform_and_not_special() -> None:
    positions = np.arange(100_000)
    masked = mask_tokens(np.full(100_000, 7), positions, positions, VOCAB, (0.0, 0.0, 1.0), derive_key(2))
    counts = np.bincount(masked.input_ids, minlength=105)
    assert counts[:5].sum() == 0
    chi_square = ((counts[5:] - 1000) ** 2 / 1000).sum()
    assert 40 < chi_square < 180  # 99 degrees of freedom: mean 99, standard deviation 14


def test_random_numbers_depend_on_the_position_in_the_step_alone() -> None:
    ids = np.arange(5, 105).repeat(10)
    whole = mask_tokens(ids, np.arange(1000), np.arange(1000), VOCAB, (0.3, 0.3, 0.4), derive_key(3))
    micro_batch = mask_tokens(ids[400:600], np.arange(200), np.arange(400, 600), VOCAB, (0.3, 0.3, 0.4), derive_key(3))
    assert micro_batch.input_ids.tolist() == whole.input_ids[400:600].tolist()


def test_whole_words_equal_those_chosen_by_hand() -> None:
    """[CLS] un ##aff ##able man [SEP]: two may be masked. The word of three is drawn first but does not fit."""
    candidates = np.array([False, True, True, True, True, False])
    continues = np.array([False, False, True, True, False, False])
    scores = np.array([0.0, 0.1, 0.0, 0.0, 0.9, 0.0])
    lengths = np.array([6])
    assert choose_whole_words(lengths, candidates, continues, np.array([2]), scores).tolist() == [4]
    assert choose_whole_words(lengths, candidates, continues, np.array([3]), scores).tolist() == [1, 2, 3]
    assert choose_whole_words(lengths, candidates, continues, np.array([4]), scores).tolist() == [1, 2, 3, 4]


def test_tokens_of_the_first_word_are_chosen_if_no_word_fits() -> None:
    candidates = np.array([False, True, True, True, False])
    continues = np.array([False, False, True, True, False])
    assert choose_whole_words(np.array([5]), candidates, continues, np.array([1]), np.zeros(5)).tolist() == [1]


def test_continuation_at_the_start_of_a_segment_starts_a_word() -> None:
    """Truncation may cut the start of a word off; the remaining tokens do not continue [CLS]."""
    candidates = np.array([False, True, True, False])
    continues = np.array([False, True, True, False])
    assert choose_whole_words(np.array([4]), candidates, continues, np.array([2]), np.zeros(4)).tolist() == [1, 2]


sequences = st.lists(st.lists(st.booleans(), min_size=1, max_size=30), min_size=1, max_size=6)


@given(sequences, st.integers(1, 12), st.integers(0, 1000))
def test_whole_words_equal_those_of_a_loop(texts: list[list[bool]], count: int, draw: int) -> None:
    lengths = np.array([len(text) + 2 for text in texts])
    continues = np.concatenate([[False, *text, False] for text in texts])
    candidates = np.concatenate([[False] + [True] * len(text) + [False] for text in texts])
    counts = np.minimum(count, lengths - 2)
    scores = uniform(np.arange(len(continues)), derive_key(draw))
    chosen = choose_whole_words(lengths, candidates, continues, counts, scores).tolist()
    assert chosen == reference_choose_whole_words(texts, counts.tolist(), scores.tolist())


def reference_choose_whole_words(texts: list[list[bool]], counts: list[int], scores: list[float]) -> list[int]:
    """Choose words in the order of their first token's score, each if it still fits (Google's whole-word masking)."""
    chosen, begin = [], 1
    for text, count in zip(texts, counts, strict=True):
        words: list[list[int]] = []
        for position, continues in enumerate(text, begin):
            if continues and words:
                words[-1].append(position)
            else:
                words.append([position])
        words.sort(key=lambda word: scores[word[0]])
        taken: list[int] = []
        for word in words:
            if len(taken) + len(word) <= count:
                taken += word
        chosen += sorted(taken or words[0][:count])
        begin += len(text) + 2
    return chosen


def test_left_to_right_targets_equal_those_worked_by_hand() -> None:
    masked = causal_lm_targets(np.array([2, 7, 8, 3, 2, 9, 3]), np.array([4, 3]))
    assert masked.input_ids.tolist() == [2, 7, 8, 3, 2, 9, 3]
    assert masked.positions.tolist() == [0, 1, 2, 4, 5]
    assert masked.labels.tolist() == [7, 8, 3, 9, 3]
