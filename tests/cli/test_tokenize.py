"""`bertwright tokenize`: the input of figure 2, token by token."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertwright.base.reporter import SILENT
from bertwright.inference.show_tokens import InputToken, TokenizeSettings, lay_out_input, tokenize
from bertwright.vocabulary.unknown_words import UnknownWords
from bertwright.vocabulary.word_tokenizer import ELMO_RULES, LOWERCASE_RULES, WordRules, WordTokenizer
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from harness import run_and_capture

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "my", "dog", "is", "cute", "he", "likes", "play", "##ing"]
TOKENIZER = Tokenizer.from_tokens(TOKENS, lowercase=True)


def test_a_pair_is_laid_out_as_in_figure_2() -> None:
    tokens = lay_out_input(TOKENIZER, "My dog is cute", "he likes playing")
    assert [token.token for token in tokens] == ("[CLS] my dog is cute [SEP] he likes play ##ing [SEP]".split())
    assert [token.segment for token in tokens] == [0] * 6 + [1] * 5
    assert [token.position for token in tokens] == list(range(11))
    assert tokens[0] == InputToken("[CLS]", 2, 0, 0, None)
    assert tokens[1] == InputToken("my", 5, 0, 1, "My")
    assert [token.text for token in tokens[8:10]] == ["play", "ing"]


def test_a_single_text_has_one_segment_and_special_tokens_are_plain_text() -> None:
    tokens = lay_out_input(TOKENIZER, "[MASK] dog")
    assert tokens[0].token == "[CLS]"
    assert tokens[-1].token == "[SEP]"
    assert {token.segment for token in tokens} == {0}
    assert "[MASK]" not in [token.token for token in tokens]


def test_the_command_prints_a_row_per_token_and_names_unknown_words(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path / "vocabulary")
    settings = TokenizeSettings(str(tmp_path / "vocabulary"), "my cat", pair="is cute")
    printed = run_and_capture(tokenize, settings, columns=100)
    rows = [line.split() for line in printed.splitlines()]
    assert ["my", "5", "A", "1", "my"] in rows
    assert ["cute", "8", "B", "5", "cute"] in rows
    assert "7 tokens, uncased vocabulary of 13" in printed
    assert "the vocabulary lacks 'cat'" in printed
    assert len(tokenize(settings, SILENT)) == 7


@pytest.mark.parametrize("rules", [ELMO_RULES, LOWERCASE_RULES, WordRules()])
def test_words_are_shown_with_their_ids_and_texts(rules: WordRules, tmp_path: Path) -> None:
    tokenizer = WordTokenizer.learn(["the old mill is by the river ."], rules)
    tokenizer.save(tmp_path)
    text, pair = "the old mill is red", "The river ."
    tokens = lay_out_input(tokenizer, text, pair)
    words = ["the", "old", "mill", "is", "<UNK>", "</S>", "the" if rules.lowercase else "<UNK>", "river", "."]
    assert [token.token for token in tokens] == ["<S>", *words, "</S>"]
    assert [token.id for token in tokens] == [tokenizer.id(token.token) for token in tokens]
    assert [token.text for token in tokens] == [None, *text.split(), None, *pair.split(), None]
    assert [token.position for token in tokens] == list(range(11))
    assert {token.segment for token in tokens} == {None}
    printed = run_and_capture(tokenize, TokenizeSettings(str(tmp_path), text), columns=100)
    assert ["mill", str(tokenizer.id("mill")), "3", "mill"] in [line.split() for line in printed.splitlines()]
    assert "lacks 'red'" in printed
    assert ("characters" in printed) == rules.bytes
    assert "embeddings" not in printed


@pytest.mark.parametrize(
    ("strategy", "token"), [("random", "<UNK>"), ("class", "<UNK-capitalized>"), ("char", "<UNK>")]
)
def test_words_that_the_vocabulary_lacks_are_shown_whatever_the_model_reads(strategy: UnknownWords, token: str) -> None:
    tokenizer = WordTokenizer.learn(["the mill"], WordRules(unknown_words=strategy))
    shown = lay_out_input(tokenizer, "the Anna")
    assert [one.text for one in shown] == [None, "the", "Anna", None]
    assert shown[2].token == token
    assert shown[2].id == tokenizer.id(token)


def test_a_folder_without_a_vocabulary_is_named(tmp_path: Path) -> None:
    with pytest.raises((ValueError, OSError), match="nowhere"):
        tokenize(TokenizeSettings(str(tmp_path / "nowhere"), "a"))
