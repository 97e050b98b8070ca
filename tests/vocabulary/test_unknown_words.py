"""The five strategies for words that the training text lacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertwright.io.vector_file import VectorFile, load_vectors
from bertwright.vocabulary.unknown_words import (
    CLASSES,
    FILE_ROWS,
    KEYED_ROWS,
    STRATEGIES,
    UnknownWords,
    WordRows,
    table_words,
)
from helpers import write_file

COUNTS = {"the": 9, "house": 5, "Rare": 4, "a": 9}


@pytest.fixture
def vectors(tmp_path: Path) -> VectorFile:
    return load_vectors(write_file(tmp_path, "the 1 1\nrare 2 2\nKolkata 3 3\n", "v.txt"))


def make_rows(strategy: UnknownWords, vectors: VectorFile | None) -> WordRows:
    return WordRows(strategy, table_words(COUNTS, strategy), vectors)


def test_the_table_has_frequent_words_in_order_of_frequency() -> None:
    assert table_words(COUNTS, "unk") == ["<PAD>", "<UNK>", "a", "the", "house"]
    assert table_words(COUNTS, "class", min_count=9) == ["<PAD>", "<UNK>", *CLASSES, "a", "the"]
    assert table_words({"<UNK>": 9, "a": 9}, "unk") == ["<PAD>", "<UNK>", "a"]


def test_each_strategy_by_hand(vectors: VectorFile) -> None:
    words = ["the", "Rare", "Kolkata", "xkcd", "1,234", "walking"]
    assert make_rows("unk", vectors).rows(words).tolist() == [3, 1, 1, 1, 1, 1]
    assert make_rows("char", vectors).rows(words).tolist() == [3, 1, 1, 1, 1, 1]
    rows = make_rows("pretrained", vectors).rows(words)
    assert rows.tolist() == [3, FILE_ROWS + 1, FILE_ROWS + 2, 1, 1, 1]
    rows = make_rows("random", vectors).rows(words)
    assert rows[:3].tolist() == [3, FILE_ROWS + 1, FILE_ROWS + 2]
    assert (rows[3:] >= KEYED_ROWS).all()
    assert (make_rows("random", None).rows(words)[1:] >= KEYED_ROWS).all()
    table = make_rows("class", None)
    names = [table.words[row] for row in table.rows(words)]
    assert names == ["the", "<UNK-capitalized>", "<UNK-capitalized>", "<UNK>", "<UNK-number>", "<UNK-ing>"]


@given(st.lists(st.text(min_size=1), min_size=1, max_size=8), st.sampled_from(STRATEGIES))
def test_a_word_has_the_same_row_wherever_it_occurs(words: list[str], strategy: UnknownWords) -> None:
    """Question and passage, training and test: the other words and the order do not matter."""
    table = make_rows(strategy, None) if strategy != "pretrained" else make_rows("unk", None)
    together = table.rows([*words, *reversed(words)])
    assert together.tolist() == [table.row(word) for word in [*words, *reversed(words)]]


def test_vectors_outside_the_table_come_from_the_file_or_from_the_word(vectors: VectorFile) -> None:
    rows = make_rows("random", vectors)
    ids = rows.rows(["Kolkata", "xkcd", "xkcd", "qwzx"])
    outside = rows.outside_vectors(ids, 2)
    assert outside[0].tolist() == [3, 3]
    np.testing.assert_array_equal(outside[1], outside[2])
    assert not np.array_equal(outside[1], outside[3])


def test_random_vectors_are_the_same_in_every_process_and_spread_evenly() -> None:
    table = make_rows("random", None)
    vectors = table.outside_vectors(table.rows([f"w{number}" for number in range(2_000)]), 50)
    np.testing.assert_allclose(vectors[0, :3], [-0.0179, -0.1937, -0.1402], atol=1e-4)  # recorded 2026-11-26
    assert np.abs(vectors).max() <= np.sqrt(3 / 50)
    assert np.abs(vectors.mean(axis=0)).max() < 0.02
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1).mean(), 1, atol=0.02)
    assert np.abs(np.corrcoef(vectors.T) - np.eye(50)).max() < 0.12


def test_the_initial_table_has_the_vectors_of_the_file(vectors: VectorFile) -> None:
    table = make_rows("unk", vectors).initial_table(2, seed=1)
    assert table[0].tolist() == [0, 0]
    assert table[3].tolist() == [1, 1]
    assert 0 < np.abs(table[4]).max() <= np.sqrt(3 / 2)
    with pytest.raises(ValueError, match=r"v\.txt: expected 100 numbers per word.*got 2"):
        make_rows("unk", vectors).initial_table(100, seed=1)


def test_misuse_names_the_setting_or_the_file(vectors: VectorFile) -> None:
    with pytest.raises(ValueError, match=r'unknown_words is "pretrained": expected a file'):
        make_rows("pretrained", None)
    with pytest.raises(ValueError, match="expected a file with 9 numbers per word, got 2 numbers per word"):
        make_rows("random", vectors).outside_vectors(np.array([FILE_ROWS]), 9)
