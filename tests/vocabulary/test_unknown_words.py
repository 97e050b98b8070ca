"""Vectors and classes of words that the training text lacks; the strategies themselves: test_word_tokenizer.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertwright.vocabulary.unknown_words import CLASSES, UnknownWords, keyed_vectors, word_class
from bertwright.vocabulary.vector_file import hash_word
from bertwright.vocabulary.word_tokenizer import WordRules, WordTokenizer


@pytest.mark.parametrize(
    ("word", "name"),
    [
        *[(word, "<UNK-number>") for word in ("7", "1,234.5", "-3", "1996-08-22", "10:30", "50%")],
        *[("US", "<UNK-all-caps>"), ("B-52", "<UNK-all-caps>"), ("Rome", "<UNK-capitalized>")],
        *[("pre-war", "<UNK-hyphen>"), ("-war", "<UNK>"), ("nations", "<UNK-s>"), ("nation", "<UNK-ion>")],
        *[("happiness", "<UNK-ness>"), ("boxing", "<UNK-ing>"), ("ing", "<UNK>"), ("한국", "<UNK>")],
    ],
)
def test_the_class_of_a_word_by_hand(word: str, name: str) -> None:
    assert word_class(word) == name


@given(st.text())
def test_every_word_has_a_class_of_the_list(word: str) -> None:
    assert word_class(word) in {*CLASSES, "<UNK>"}


@given(st.lists(st.text("abAB-1", min_size=1), min_size=1, max_size=8))
@pytest.mark.parametrize("strategy", ["unk", "char", "class", "random"])
def test_an_unknown_word_is_the_same_wherever_it_occurs(strategy: UnknownWords, words: list[str]) -> None:
    """Question and passage, training and test: neither the words around it nor their order matter."""
    tokenizer = WordTokenizer.learn(["known words"], WordRules(unknown_words=strategy))
    together = tokenizer.encode_raw([" ".join([*words, "known", *reversed(words)])]).ids
    apart = np.concatenate([tokenizer.encode_raw([word]).ids for word in [*words, "known", *reversed(words)]])
    np.testing.assert_array_equal(together, apart)


def test_random_vectors_are_the_same_in_every_process_and_spread_evenly() -> None:
    keys = np.array([hash_word(f"w{number}") % (1 << 31) for number in range(2_000)])
    vectors = keyed_vectors(keys, 50)
    np.testing.assert_allclose(vectors[0, :3], [-0.1533, 0.1155, -0.1174], atol=1e-4)  # recorded 2026-11-26
    assert np.abs(vectors).max() <= np.sqrt(3 / 50)
    assert np.abs(vectors.mean(axis=0)).max() < 0.02
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1).mean(), 1, atol=0.02)
    assert np.abs(np.corrcoef(vectors.T) - np.eye(50)).max() < 0.12
    np.testing.assert_array_equal(keyed_vectors(keys[5:6], 50)[0], vectors[5])
