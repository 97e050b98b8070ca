"""[UNK] and tokens per word of the texts that a model reads."""

from __future__ import annotations

import numpy as np

from bertwright.tasks.unknown_rates import InputCounts
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, "a", "##a"], lowercase=True)


def count(*texts: str) -> InputCounts:
    return InputCounts.count_ids(len(texts), TOKENIZER.encode_ids(texts).ids, TOKENIZER)


def test_words_tokens_and_unknown_words_are_counted_without_special_tokens() -> None:
    assert count("a aaa b [MASK]", "") == InputCounts(2, 0, words=3, tokens=5, unknown=1)
    total = InputCounts()
    for chunk in (count("a aaa"), count("b")):
        total.add(chunk)
    assert total == count("a aaa", "b")
    assert InputCounts.count_ids(0, np.array([], dtype=np.uint32), TOKENIZER).vocabulary_warnings() == []


def test_only_more_than_a_few_percent_and_long_words_in_number_are_warned_of() -> None:
    assert count("a " * 97 + "b " * 3).vocabulary_warnings() == []
    assert "4 of 100 tokens (4.0%) are [UNK]:" in count("a " * 96 + "b " * 4).vocabulary_warnings()[0]
    assert count("aaaa " * 19).vocabulary_warnings() == count("aaa " * 20).vocabulary_warnings() == []
    assert count("aaaa " * 20).vocabulary_warnings()[0].startswith("4.0 tokens per word:")
