"""Whole vocabularies: alphabet, size, unused tokens, files, statistics, errors."""

from __future__ import annotations

import random
import unicodedata
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, BertTokenizerFast

from bertwright.vocabulary.learn import merges
from bertwright.vocabulary.learn.word_counts import WordCounts
from bertwright.vocabulary.learn.wordpiece_trainer import (
    ASCII,
    VocabularySettings,
    alphabet,
    count_corpus_words,
    learn,
    learn_wordpiece,
    token_counts,
    vocabulary_stats,
)
from bertwright.vocabulary.wordpiece_tokenizer import SPECIAL_TOKENS, Tokenizer

SYLLABLES = ["ka", "to", "mi", "re", "lu", "sen", "tor", "ing", "qua", "한국", "言", "é"]


def corpus(words: int = 3000, seed: int = 1) -> list[str]:
    """Generate text whose words share syllables."""
    rng = random.Random(seed)
    lexicon = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(400)]
    frequent_first = [1 / (rank + 1) for rank in range(len(lexicon))]
    chosen = rng.choices(lexicon, weights=frequent_first, k=words)
    return [" ".join(chosen[start : start + 50]) + "." for start in range(0, words, 50)]


def tokenizer(tokens: list[str]) -> Tokenizer:
    return Tokenizer.from_tokens(tokens, lowercase=False)


CASED = VocabularySettings(size=400, lowercase=False, min_frequency=2)


@pytest.fixture(scope="module")
def counts() -> WordCounts:
    return count_corpus_words(corpus(), CASED)


@pytest.mark.parametrize("criterion", merges.RULES)
def test_vocabulary_is_special_tokens_then_characters_then_longer_tokens(
    counts: WordCounts, criterion: merges.Rule
) -> None:
    tokens = learn(counts, VocabularySettings(size=300, lowercase=False, min_frequency=2, criterion=criterion))
    assert tokens[:5] == list(SPECIAL_TOKENS)
    assert len(tokens) == len(set(tokens)) == 300
    single = [token for token in tokens[5:] if len(token.removeprefix("##")) == 1]
    assert tokens[5 : 5 + len(single)] == single
    assert set(ASCII) <= set(single)
    assert {"한", "##한", "言", "é", "##é", "a", "##z", "."} <= set(single)
    assert not {"##言", "##.", "##["} & set(single)  # these are always words of their own


@pytest.mark.parametrize("criterion", merges.RULES)
def test_drop_unused_replaces_unused_tokens(counts: WordCounts, criterion: merges.Rule) -> None:
    with_unused, without = (
        VocabularySettings(size=300, lowercase=False, min_frequency=2, criterion=criterion, drop_unused=drop)
        for drop in (False, True)
    )
    before, after = (
        vocabulary_stats(tokenizer(learn(counts, with_unused)), counts),
        vocabulary_stats(tokenizer(learn(counts, without)), counts),
    )
    assert before.tokens == after.tokens == 300
    assert after.unused < before.unused
    assert after.fertility <= before.fertility


def test_drop_unused_removes_unused_tokens_if_nothing_is_left_to_learn(counts: WordCounts) -> None:
    tokens = learn(counts, VocabularySettings(size=5000, lowercase=False, min_frequency=50))
    assert len(tokens) < 5000
    learned = [n for n, token in enumerate(tokens) if n >= 5 and len(token.removeprefix("##")) > 1]
    assert (token_counts(tokens, counts)[learned] > 0).all()


def test_learned_tokens_are_a_function_of_the_counts(counts: WordCounts, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = learn(counts, CASED)
    shuffled = list(counts.words.items())
    random.Random(0).shuffle(shuffled)
    assert learn(WordCounts(Counter(dict(shuffled))), CASED) == tokens
    monkeypatch.setattr(merges.native_library, "load_library", lambda name: None)  # as without a compiler
    assert learn(counts, CASED) == tokens


def test_uncased_vocabulary_has_no_accents_unless_asked() -> None:
    texts = ["Été ÉTÉ été Ete and other words of a longer text"] * 10
    plain = VocabularySettings(size=150, min_frequency=2)
    tokens = learn(count_corpus_words(texts, plain), plain)
    assert "ete" in tokens
    assert not [token for token in tokens[5:] if token != token.lower() or "é" in token]
    accented = VocabularySettings(size=150, strip_accents=False, min_frequency=2)
    assert {"été", "ete", "é"} <= set(learn(count_corpus_words(texts, accented), accented))


def test_alphabet_covers_the_share_asked_for() -> None:
    # 900 a, then 60, 30 and 10 of others
    counts = WordCounts(Counter({"a": 900, "語": 60, "é": 30, "한": 10}))

    def others(**changed: object) -> list[str]:
        characters = alphabet(counts, VocabularySettings(lowercase=False, **changed))  # type: ignore[arg-type]
        assert set(ASCII) <= set(characters)
        return [c for c in characters if c not in ASCII]

    assert others(character_coverage=1.0) == ["語", "é", "한"]
    assert others(character_coverage=0.99) == ["語", "é"]
    assert others(character_coverage=0.9) == []
    assert others(character_coverage=1.0, max_characters=1) == ["語"]
    assert not set("ABC") & set(alphabet(counts, VocabularySettings()))


def test_token_counts_equal_those_of_the_tokenizer(counts: WordCounts) -> None:
    tokens = learn(counts, CASED)
    backend = Tokenizer.from_tokens(tokens, lowercase=False)
    expected: Counter[int] = Counter()
    for text in corpus():
        expected.update(backend.encode_raw([text]).ids.tolist())
    assert token_counts(tokens, counts).tolist() == [expected[n] for n in range(len(tokens))]


def test_vocabulary_stats_of_four_words_equal_those_worked_by_hand() -> None:
    tokens = [*SPECIAL_TOKENS, "a", "b", "##b", "ab", "##c", "xyz"]
    counts = WordCounts(Counter({"ab": 6, "abb": 2, "a": 1, "é": 1}), too_long=2, pruned=3)
    figures = vocabulary_stats(tokenizer(tokens), counts)
    assert figures.tokens == 11
    assert figures.characters == 3  # a b c
    assert figures.character_coverage == pytest.approx((12 + 6 + 1) / (12 + 6 + 1 + 1))
    assert figures.fertility == pytest.approx((6 + 4 + 1 + 1) / 10)
    assert figures.unknown == pytest.approx((1 + 2) / 12)
    assert figures.whole_words == pytest.approx(7 / 10)
    assert figures.unused == 3  # b ##c xyz
    assert figures.pruned == pytest.approx(3 / 15)
    assert figures.longest == ("xyz", "ab", "##b", "##c", "a", "b")
    assert figures.last == ("[UNK]", "[CLS]", "[SEP]", "[MASK]", *tokens[5:])


@settings(max_examples=20)
@given(st.lists(st.text(max_size=40), min_size=1, max_size=6), st.booleans())
def test_vocabulary_of_any_text_is_equal_in_transformers_and_tokenizers(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], lowercase: bool
) -> None:
    chosen = VocabularySettings(lowercase=lowercase, strip_accents=False, min_frequency=1, character_coverage=1.0)
    counts = count_corpus_words([*texts, "word"], chosen)
    folder = tmp_path_factory.mktemp("vocabulary")
    ours = learn_wordpiece(counts, chosen)
    ours.save(folder)
    for text in texts:
        ids = ours.encode(text).ids.tolist()
        assert ours.unk_id not in ids or "[UNK]" in text
        assert BertTokenizerFast.from_pretrained(folder)(text)["input_ids"] == ids
        assert Backend.from_file(str(folder / "tokenizer.json")).encode(text).ids == ids


def test_korean_vocabulary_is_equal_in_transformers(tmp_path: Path) -> None:
    chosen = VocabularySettings(size=300, strip_accents=False, min_frequency=2)
    texts = ["대한민국 국민은 BERT를 쓴다", "국민의 대한민국"] * 5
    ours = learn_wordpiece(count_corpus_words(texts, chosen), chosen)
    ours.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(texts[0])["input_ids"] == ours.encode(texts[0]).ids.tolist()
    assert [ours.token(n) for n in ours.encode("대한민국").ids] == ["[CLS]", "대한민국", "[SEP]"]


VIETNAMESE = "Con ma ở nhà má. Con mà nói mạ và mả, còn mã thì không."


@pytest.mark.parametrize(
    "text",
    [
        VIETNAMESE,
        "Tôi là sinh viên ở Hà Nội.",  # no two of its words become equal
        unicodedata.normalize("NFD", VIETNAMESE),
        "Mo fẹ́ lọ sí ọjà láti ra oúnjẹ.",  # Yoruba
        "Wǒ ài nǐ mā má mǎ mà.",  # Pinyin
        "ខ្ញុំទៅសាលា",  # Khmer
        "ދިވެހި ބަސް",  # Maldivian
    ],
)
def test_text_whose_words_stripping_accents_would_merge_raises_an_error(text: str) -> None:
    chosen = VocabularySettings(size=300)
    with pytest.raises(ValueError, match=r"% of the words lose marks.*--strip-accents False"):
        learn(count_corpus_words([text], chosen), chosen)
    for strip_accents in (True, False):
        decided = replace(chosen, strip_accents=strip_accents)
        assert learn(count_corpus_words([text], decided), decided)


@pytest.mark.parametrize(
    "text",
    ["Schön und schon, über Bär und bar.", "Il a été à Paris où il a vu la forêt.", "Türkçe çok güzel bir dildir."],
)
def test_text_that_loses_some_accents_is_learned_from(text: str) -> None:
    chosen = VocabularySettings(size=300)
    assert count_corpus_words([text], chosen).stripped.changed > 0.2
    assert learn(count_corpus_words([text], chosen), chosen)


def test_text_that_stripping_accents_would_mutilate_raises_an_error() -> None:
    texts = ["대한민국 국민은 글을 쓴다 and English"]
    chosen = VocabularySettings(size=300)
    with pytest.raises(ValueError, match=r"67% of the text is Korean, .*--strip-accents False"):
        learn(count_corpus_words(texts, chosen), chosen)
    knowingly = VocabularySettings(size=300, strip_accents=True)
    assert "ᄀ" in learn(count_corpus_words(texts, knowingly), knowingly)
    cased = VocabularySettings(size=300, lowercase=False)
    assert "글" in learn(count_corpus_words(texts, cased), cased)


def test_invalid_settings_and_empty_text_raise_errors(counts: WordCounts) -> None:
    with pytest.raises(ValueError, match="no words to learn from"):
        learn(count_corpus_words(["", " \n"], CASED), CASED)
    with pytest.raises(ValueError, match=r"size is 50, .*5 special .*\d+ char.* take \d+"):
        learn(counts, VocabularySettings(size=50, lowercase=False))
    for wrong in ({"size": 0}, {"min_frequency": 0}, {"character_coverage": 1.5}, {"max_words": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            VocabularySettings(**wrong)


def test_progress_sums_to_the_number_of_learned_tokens(counts: WordCounts) -> None:
    reports: list[int] = []
    chosen = VocabularySettings(size=300, lowercase=False, min_frequency=2, drop_unused=False)
    tokens = learn(counts, chosen, reports.append)
    start = sum(len(token.removeprefix("##")) == 1 for token in tokens) + 5
    assert sum(reports) == 300 - start
