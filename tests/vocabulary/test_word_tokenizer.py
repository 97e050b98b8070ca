"""The vocabulary of whole words: rows, rules, files, and damaged files."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.unknown_words import UnknownWords
from bertwright.vocabulary.word_tokenizer import KEYED, WordRules, WordTokenizer

TEXTS = ["The cat saw 24 cats .", "Cats don't see it, in U.S. towns"]


def test_rows_have_the_word_and_its_characters() -> None:
    tokenizer = WordTokenizer.learn(["b-52 Ab"], WordRules(max_characters=3))
    assert tokenizer.tokens == ("<S>", "</S>", "<UNK>", "ab", "b-00")
    assert tokenizer.characters == "-5Ab"  # the 2 is beyond the third character
    rows = tokenizer.encode_raw(["B-77 AB x", ""])
    assert rows.offsets.tolist() == [0, 3, 3]
    assert rows.ids.tolist() == [[4, 1, 2, 1], [3, 4, 1, 0], [2, 1, 0, 0]]
    assert tokenizer.encode_ids(["ab"]).ids.tolist() == [[0, 0, 0, 0], [3, 1, 5, 0], [1, 0, 0, 0]]
    assert tokenizer.decode(tokenizer.encode_ids(["ab b-12"]).ids) == "ab b-00"


def test_rare_words_have_no_row_and_known_ones_have() -> None:
    tokenizer = WordTokenizer.learn(["a b a", "B c"], WordRules(), min_count=2, known=["Z", "a"])
    assert tokenizer.tokens[3:] == ("a", "b", "z")


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (WordRules(), ["Cats", "don't", "see", "it,", "in", "U.S.", "towns"]),
        (WordRules(split_punctuation=True), ["Cats", "don't", "see", "it", ",", "in", "U.S", ".", "towns"]),
    ],
)
def test_offsets_point_to_the_words(rules: WordRules, words: list[str]) -> None:
    tokenizer = WordTokenizer.learn(TEXTS, rules)
    (raw,), (typed,) = tokenizer.encode_raw_batch(TEXTS[1:]), tokenizer.encode_batch(TEXTS[1:])
    assert [TEXTS[1][begin:end] for begin, end in raw.offsets] == words
    assert typed.offsets.tolist() == [[0, 0], *raw.offsets.tolist(), [0, 0]]
    assert len(typed.ids) == len(words) + 2


def test_a_saved_tokenizer_is_read_back(tmp_path: Path) -> None:
    tokenizer = WordTokenizer.learn(TEXTS, WordRules(lowercase=False, zero_digits=False, max_characters=0))
    tokenizer.save(tmp_path)
    again = open_tokenizer(tmp_path)
    assert isinstance(again, WordTokenizer)
    assert (again.tokens, again.characters, again.rules) == (tokenizer.tokens, tokenizer.characters, tokenizer.rules)
    assert again.digest == tokenizer.digest
    assert again.encode_raw(TEXTS).ids.tolist() == tokenizer.encode_raw(TEXTS).ids.tolist()
    assert (again.lowercase, WordTokenizer.learn(TEXTS, WordRules(max_characters=0)).lowercase) == (False, True)


def test_lone_surrogates_and_values_that_are_no_texts_are_rejected() -> None:
    tokenizer = WordTokenizer.learn(TEXTS, WordRules())
    with pytest.raises(ValueError, match=r"text 1: lone surrogate U\+D83D at character 2"):
        tokenizer.encode_raw(["fine", "a \ud83d"])
    with pytest.raises(ValueError, match="text 0: expected a text, got '3'"):
        tokenizer.encode_raw([3])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("vocab.txt", "<UNK>", "<unk>", "vocab.txt: expected <S>, </S>, <UNK>, then different words"),
        ("vocab.txt", "cats\n", "the\n", "vocab.txt.*: expected different words"),
        ("tokenizer_config.json", '"characters"', '"letters"', "tokenizer_config.json: characters: expected a text"),
        ("tokenizer_config.json", "true", "1", "tokenizer_config.json: rules: lowercase: expected bool, got 1"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, old: str, new: str, message: str) -> None:
    WordTokenizer.learn(TEXTS, WordRules()).save(tmp_path)
    path = tmp_path / name
    content = path.read_text(encoding="utf-8")
    assert old in content
    path.write_text(content.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        open_tokenizer(tmp_path)


def test_a_vocabulary_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    WordTokenizer.learn(TEXTS, WordRules()).save(tmp_path)
    (tmp_path / "vocab.txt").write_bytes(b"<S>\n</S>\n\xff\n")
    with pytest.raises(ValueError, match=r"vocab\.txt: not UTF-8 at byte 9"):
        open_tokenizer(tmp_path)


def test_unknown_words_have_the_numbers_of_their_strategy() -> None:
    unknown = ["Rome", "ROME", "rome", "1,000"]

    def numbers(strategy: UnknownWords) -> list[int]:
        tokenizer = WordTokenizer.learn(["a cat"], WordRules(unknown_words=strategy))
        assert tokenizer.encode_raw(["a"]).ids[0, 0] == tokenizer.id("a")
        rows: list[int] = tokenizer.encode_raw([" ".join(unknown)]).ids[:, 0].tolist()
        return rows

    assert numbers("unk") == numbers("char") == [2] * 4
    classes = WordTokenizer.learn(["a cat"], WordRules(unknown_words="class"))
    expected = ["<UNK-capitalized>", "<UNK-all-caps>", "<UNK>", "<UNK-number>"]
    assert [classes.token(number) for number in numbers("class")] == expected
    first, second, third, number = numbers("random")
    assert first == second == third >= KEYED  # one word in lower case
    assert number >= KEYED
    assert number != first


def test_special_tokens_in_a_text_are_plain_words(tmp_path: Path) -> None:
    tokenizer = WordTokenizer.learn(["a </S> b <S>"], WordRules(lowercase=False))
    assert tokenizer.tokens == ("<S>", "</S>", "<UNK>", "a", "b")
    assert tokenizer.encode_raw(["</S> a <S>"]).ids[:, 0].tolist() == [2, 3, 2]
    tokenizer.save(tmp_path)
    assert WordTokenizer.load(tmp_path).tokens == tokenizer.tokens
