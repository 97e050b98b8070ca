"""Joint vocabularies: decoding restores the text, and both languages share pieces."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertwright.vocabulary.learn.joint_vocabulary import learn_joint_vocabulary
from bertwright.vocabulary.open_tokenizer import open_tokenizer

ENGLISH = ["the t-shirt is in the house .", "The House's roof (old) ...", "two houses"]
GERMAN = ["das t-shirt ist im haus .", "Das Dach des Hauses (alt) ...", "zwei Häuser, é"]
JOINT = learn_joint_vocabulary([*ENGLISH, *GERMAN], 150)


@given(st.lists(st.text(alphabet=sorted(set("".join([*ENGLISH, *GERMAN])) - {" "}), min_size=1), min_size=1))
def test_decoding_restores_a_text_of_known_characters(words: list[str]) -> None:
    text = " ".join(words)
    ids = JOINT.encode_raw([text])[0]
    assert JOINT.decode(ids) == text or any(len(word) > 100 for word in words)


def test_the_most_frequent_pairs_are_merged_and_the_folder_is_read_back(tmp_path: Path) -> None:
    assert JOINT.vocab_size == 77  # no other pair occurs twice
    assert {"t-shirt", "the", "."} <= set(JOINT.tokens)  # t-shirt once in each language, so twice together
    JOINT.save(tmp_path)
    again = open_tokenizer(tmp_path)
    assert again.digest == JOINT.digest
    assert again.decode(again.encode_raw(["the t-shirt , i-house"])[0]) == "the t-shirt , i-house"


def test_rare_characters_give_way_to_frequent_ones() -> None:
    few = learn_joint_vocabulary(["aaa aab abb c"], 5 + 8)
    assert few.tokens[5:9] == ("a", "b", "##a", "##b")
    assert few.encode_raw(["c"])[0].tolist() == [few.unk_id]


@pytest.mark.parametrize(("texts", "size", "expected"), [([" "], 100, "no words"), (["a"], 8, "vocab_size = 8")])
def test_a_vocabulary_that_cannot_be_learned_is_an_error(texts: list[str], size: int, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        learn_joint_vocabulary(texts, size)
