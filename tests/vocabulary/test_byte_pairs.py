"""Byte pairs with </w>: learning, and ids as `transformers` and a naive implementation give them."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoTokenizer, OpenAIGPTTokenizer

from bertwright.cli.main import run
from bertwright.vocabulary.byte_pair_tokenizer import BytePairTokenizer, read_merges
from bertwright.vocabulary.learn.wordpiece_trainer import (
    VocabularySettings,
    count_corpus_words,
    learn_byte_pairs,
    vocabulary_stats,
)
from bertwright.vocabulary.open_tokenizer import open_tokenizer

TEXTS = [
    "The lower the newest, the wider the lowest!",
    "Newer and lower: widest 12 of 345 'newest' widths.",
    "Café naïve déjà-vu; she's low, isn't she?",
] * 4
SETTINGS = VocabularySettings(size=300, algorithm="byte-pair", criterion="bpe", min_frequency=2)
COUNTS = count_corpus_words(TEXTS, SETTINGS)
TOKENIZER = learn_byte_pairs(COUNTS, SETTINGS)
NORMALIZE = normalizers.BertNormalizer(lowercase=True).normalize_str
SPLIT = pre_tokenizers.BertPreTokenizer().pre_tokenize_str


def naive_ids(text: str) -> list[int]:
    """Apply the merge of the lowest rank again and again (Sennrich et al. 2016, algorithm 1)."""
    ranks = {pair: rank for rank, pair in enumerate(TOKENIZER.merges)}
    ids = []
    for word, _ in SPLIT(NORMALIZE(text)):
        symbols = [*word[:-1], word[-1] + "</w>"]
        while candidates := [pair for pair in pairwise(symbols) if pair in ranks]:
            best = min(candidates, key=ranks.__getitem__)
            position = 0
            while position + 1 < len(symbols):
                if (symbols[position], symbols[position + 1]) == best:
                    symbols[position : position + 2] = ["".join(best)]
                position += 1
        ids += [TOKENIZER.id(symbol) or TOKENIZER.unk_id for symbol in symbols]
    return ids


def test_learning_gives_special_tokens_then_characters_then_one_token_per_new_merge() -> None:
    tokens = TOKENIZER.tokens
    assert tokens[:5] == ("<pad>", "<unk>", "_start_", "_delimiter_", "_classify_")
    assert {"t", "t</w>", "!", "!</w>"} <= {*tokens}
    learned = tokens[len(tokens) - len({a + b for a, b in TOKENIZER.merges}) :]
    assert {*learned} == {a + b for a, b in TOKENIZER.merges}
    assert TOKENIZER.merges[0] == ("h", "e</w>")  # "the" and "she": 5 × 4 times, like no other pair
    assert "the</w>" in learned
    assert all(len(token.removesuffix("</w>")) > 1 for token in learned)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abcdehilnorstw éİ,.!'12漢한\t\n", max_size=40))
def test_ids_equal_the_naive_algorithm(text: str) -> None:
    ids = naive_ids(text)
    assert TOKENIZER.encode_raw([text]).ids.tolist() == ids
    assert TOKENIZER.encode_raw_batch([text])[0].ids.tolist() == ids
    first, last = TOKENIZER.layout.first, TOKENIZER.layout.last
    assert TOKENIZER.encode(text).ids.tolist() == TOKENIZER.encode_ids([text]).ids.tolist() == [first, *ids, last]


def test_files_give_the_same_ids_in_transformers_and_when_read_back(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path, max_length=64)
    slow = OpenAIGPTTokenizer.from_pretrained(tmp_path)
    again, auto = open_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    (tmp_path / "vocab.json").unlink()
    of_description = open_tokenizer(tmp_path)  # as transformers 5 saves it
    assert isinstance(again, BytePairTokenizer)
    assert again.digest == of_description.digest == TOKENIZER.digest == pickle.loads(pickle.dumps(TOKENIZER)).digest
    assert again.layout == TOKENIZER.layout
    for text in [*TEXTS, "_start_ [UNK] ünknown \U0001f600 \u6f22\u5b57"]:
        ids = TOKENIZER.encode_raw([text]).ids.tolist()
        assert again.encode_raw([text]).ids.tolist() == of_description.encode_raw([text]).ids.tolist() == ids
        typed = TOKENIZER.encode(text).ids.tolist()[1:-1]
        assert slow.encode(text) == auto.encode(text) == typed
    assert auto.model_max_length == 64
    assert auto.cls_token_id == TOKENIZER.layout.last


def test_a_cased_vocabulary_keeps_capitals_and_accents_here_and_in_transformers(tmp_path: Path) -> None:
    rules = replace(SETTINGS, lowercase=False)
    cased = learn_byte_pairs(count_corpus_words(TEXTS, rules), rules)
    assert "The</w>" in cased.tokens
    cased.save(tmp_path)
    again, auto = open_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    (tmp_path / "vocab.json").unlink()
    of_description = open_tokenizer(tmp_path)
    assert isinstance(again, BytePairTokenizer)
    assert not again.lowercase
    assert again.digest == of_description.digest == cased.digest == pickle.loads(pickle.dumps(cased)).digest
    assert cased.digest != TOKENIZER.digest
    for text in TEXTS[:3]:
        ids = cased.encode_raw([text]).ids.tolist()
        assert again.encode_raw([text]).ids.tolist() == of_description.encode_raw([text]).ids.tolist() == ids
        assert auto.encode(text, add_special_tokens=False) == ids
    assert cased.decode(cased.encode_raw(["The Café"]).ids) == "The Café"
    assert cased.encode_raw(["The"]).ids.tolist() != cased.encode_raw(["the"]).ids.tolist()


def test_special_tokens_in_raw_text_are_plain_and_in_typed_text_special() -> None:
    assert TOKENIZER.layout.between not in TOKENIZER.encode_raw(["low _delimiter_ low"]).ids
    assert TOKENIZER.layout.between in TOKENIZER.encode("low _delimiter_ low").ids


def test_decoding_gives_words_with_spaces() -> None:
    ids = TOKENIZER.encode("The Lowest, newer!").ids
    assert TOKENIZER.decode(ids) == "the lowest , newer !"
    assert TOKENIZER.decode(ids, skip_special=False) == "_start_ the lowest , newer ! _classify_"


def test_offsets_name_the_characters_of_each_token() -> None:
    encoding = TOKENIZER.encode_raw_batch(["The Café"])[0]
    assert encoding.offsets[0].tolist() == [0, 3]
    assert encoding.offsets[-1].tolist()[1] == 8


def test_vocabulary_without_layout_tokens_gets_them_as_last_ids(tmp_path: Path) -> None:
    ids = {token: number for number, token in enumerate(["<unk>", "a", "b</w>", "ab</w>"])}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "OpenAIGPTTokenizer"}')
    tokenizer = open_tokenizer(tmp_path)
    assert tokenizer.layout[:3] == (4, 5, 6)
    assert tokenizer.encode("ab").ids.tolist() == [4, 3, 6]


def test_statistics_count_tokens_per_word() -> None:
    figures = vocabulary_stats(TOKENIZER, COUNTS)
    assert figures.tokens == TOKENIZER.vocab_size
    ids = TOKENIZER.encode_raw(TEXTS)
    assert figures.fertility == pytest.approx(len(ids.ids) / COUNTS.words.total())
    assert figures.unknown == 0


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("merges.txt", "#version: 0.2\nt h\nth e</w> x\n", ("merges.txt, line 3", "'th e</w> x'")),
        ("merges.txt", "t missing\n", ("vocab.json", "missing")),
        ("vocab.json", "[1]", ("vocab.json", "list")),
        ("vocab.json", '{"<unk>": 0, "a": 0}', ("vocab.json", "<unk>", "a", "same id")),
        ("vocab.json", '{"<unk>": 0, "a": -1}', ("vocab.json", "a", "-1")),
        ("vocab.json", '{"a": 0}', ("vocab.json", "<unk>")),
        ("tokenizer_config.json", '{"tokenizer_class": "OpenAIGPTTokenizer", "bos_token": 3}', ("bos_token", "3")),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: str, words: tuple[str, ...]) -> None:
    TOKENIZER.save(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match="expected|do not fit|same id") as error:  # noqa: RUF043
        open_tokenizer(tmp_path)
    assert all(word in str(error.value) for word in words)


def test_missing_merges_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"merges\.txt"):
        read_merges(tmp_path / "merges.txt")


def test_command_learns_byte_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXTS * 10))
    arguments = ["vocabulary", str(tmp_path / "text.txt"), "--algorithm", "byte-pair", "--size", "180"]
    assert run([*arguments, "--output", str(tmp_path / "vocabulary")]) == 0
    assert "characters with a token" in capsys.readouterr().out
    assert open_tokenizer(tmp_path / "vocabulary").vocab_size == 180
    assert run([*arguments, "--output", str(tmp_path / "cased"), "--no-lowercase", "--size", "240"]) == 0
    assert not open_tokenizer(tmp_path / "cased").lowercase
    assert run([*arguments, "--output", str(tmp_path / "other"), "--criterion", "gain"]) == 2
    assert "criterion" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["merges.txt", "vocab.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"#version: 0.2\nt \xff\n", b"\xff\xfea\0", b'{"a": \xe9}'])
def test_file_in_another_encoding_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    TOKENIZER.save(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{tmp_path / name}: not UTF-8 at byte \d+"):
        open_tokenizer(tmp_path)
