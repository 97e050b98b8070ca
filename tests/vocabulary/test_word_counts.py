"""Word counts against `tokenizers`' own normalizer and pre-tokenizer, on arbitrary text."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from bertwright.kernels import native
from bertwright.vocabulary import word_counts
from bertwright.vocabulary.word_counts import WordCounts, count_words

PIECES = st.sampled_from(
    [" ", "\n", "\t", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\xa0", "\u2028", "\u3000", "\u200d", "\ufffd", "\x00",
     "don't", "漢字", "한국", "é", "e\u0301", "İ", "\u0345", "...", "が", "ab" * 60, "    ", "\u0301", "`", "\u1fef"]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=8) | st.text(alphabet="ab.漢 ", max_size=8), max_size=12).map("".join)


@pytest.fixture(params=["native", "python"], scope="module")
def counter(request):
    """Both chunk counters in turn; the native one where there is a compiler."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(word_counts, "make_chunk_counter", word_counts.PythonChunkCounter)
        elif native.load_library("wordpiece") is None:
            pytest.skip("no C++ compiler")
        yield


@settings(max_examples=400)
@given(texts=st.lists(TEXTS, max_size=4), lowercase=st.booleans(), strip=st.sampled_from([None, True, False]))
def test_words_are_those_of_the_tokenizer(counter, texts, lowercase, strip):
    normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip)
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    expected: Counter[str] = Counter()
    for text in texts:
        expected.update(word for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text)))
    counts = count_words(texts, lowercase=lowercase, strip_accents=strip)
    assert counts.words == {word: count for word, count in expected.items() if len(word) <= 100}
    assert counts.total == expected.total()


def test_hand_worked(counter):
    counts = count_words(["The cat, the CAT.\nNaïve\x0bté", "漢字 " + "x" * 101], lowercase=True)
    assert counts.words == {"the": 2, "cat": 2, ",": 1, ".": 1, "naivete": 1, "漢": 1, "字": 1}
    assert counts.too_long == 1


def test_small_tables_change_nothing(counter, monkeypatch):
    texts = ["a b c d e f", "a. b! 漢字", "g h i a"]
    whole = count_words(texts, lowercase=True)
    monkeypatch.setattr(word_counts, "CHUNK_LIMIT", 2)
    monkeypatch.setattr(word_counts, "CHARACTERS_PER_CALL", 2)
    assert count_words(texts, lowercase=True) == whole


@given(text=TEXTS, lowercase=st.booleans(), strip=st.sampled_from([None, True, False]))
def test_long_chunks_are_cut_where_no_word_is(text, lowercase, strip):
    text = text.replace(" ", "")
    with pytest.MonkeyPatch.context() as patch:
        whole = count_words([text], lowercase=lowercase, strip_accents=strip)
        patch.setattr(word_counts, "CHARACTERS_PER_CALL", 3)
        assert count_words([text], lowercase=lowercase, strip_accents=strip) == whole


def test_text_without_spaces_is_cut():
    pieces = list(word_counts._split_chunk("漢字" * 200_000))
    assert "".join(pieces) == "漢字" * 200_000
    assert max(map(len, pieces)) == word_counts.CHARACTERS_PER_CALL
    assert list(word_counts._split_chunk("a" * 300_000)) == ["a" * 300_000]


def test_text_without_spaces_is_settled_by_its_bytes(counter, monkeypatch):
    texts = [f"{n}漢字，" * 200 + "\n" for n in range(60)]  # a chunk each, of more than a kilobyte, no two alike
    whole = count_words(texts, lowercase=True)
    held: list[int] = []
    made = word_counts.make_chunk_counter

    def watched():
        chunks = made()
        add = chunks.add
        monkeypatch.setattr(chunks, "add", lambda text: (held.append(add(text)), held[-1])[1], raising=False)
        return chunks

    monkeypatch.setattr(word_counts, "make_chunk_counter", watched)
    monkeypatch.setattr(word_counts, "CHUNK_LIMIT", 20_000)
    assert count_words(texts, lowercase=True) == whole
    assert len(held) == 60
    assert max(held) <= 20_000 + 2 * len(texts[-1].encode())
    assert min(held[1:]) < held[0] + 2_000  # settled, the table is as it was at first
    assert sum(later < earlier for earlier, later in pairwise(held)) > 3


def test_a_table_tells_its_bytes_and_gives_its_chunks_in_order(counter, monkeypatch):
    monkeypatch.setattr(word_counts, "CHUNKS_PER_READ", 3)
    chunks = word_counts.make_chunk_counter()
    words = [f"w{number}" for number in range(10)]
    first = chunks.add(" ".join(words).encode())
    assert first > 20
    assert chunks.add(b"w3 w3\n") == first
    assert chunks.add(b"x" * 5_000) > first + 5_000
    counts = {word: 3 if word == "w3" else 1 for word in words} | {"x" * 5_000: 1}
    assert list(chunks.take()) == list(counts.items())
    assert list(chunks.take()) == []


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(1, 9)), st.integers(1, 20))
def test_pruning_drops_the_rarest_and_says_how_much(words, limit):
    counts = WordCounts(Counter(words))
    before = counts.total
    counts.prune(limit)
    assert counts.total == before
    if len(words) <= limit:
        assert counts.words == words
    else:
        assert len(counts.words) <= limit // 2
        dropped = set(words) - set(counts.words)
        assert max(words[word] for word in dropped) < min(counts.words.values(), default=10)


def test_memory_is_bounded_while_counting(counter, monkeypatch):
    monkeypatch.setattr(word_counts, "CHUNK_LIMIT", 10)
    texts = [f"the of w{n}" for n in range(300)]
    counts = count_words(texts, lowercase=True, max_words=20)
    assert len(counts.words) <= 20
    assert counts.words["the"] == counts.words["of"] == 300
    assert counts.total == 900
    assert counts.pruned > 0


def test_scripts_whose_letters_with_diacritics_are_noticed():
    counts = count_words(["한국 が हिन्दी ไทย café naïve Straße русский"], lowercase=True)
    assert (counts.chunks, counts.letters_with_diacritics) == (8, 4)


def test_progress_counts_all_bytes(monkeypatch):
    monkeypatch.setattr(word_counts, "PROGRESS_EVERY", 5)
    told: list[int] = []
    count_words(["abc", "한국", "d"], lowercase=True, progress=told.append)
    assert told == [9, 1]


def test_lone_surrogate(counter):
    with pytest.raises(ValueError, match="text 1: lone surrogate at character 2"):
        count_words(["a", "bc\udcff"], lowercase=True)
