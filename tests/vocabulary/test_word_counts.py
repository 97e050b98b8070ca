"""Word counts against `tokenizers`' own normalizer and pre-tokenizer, on arbitrary text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import normalizers, pre_tokenizers

from bertwright.kernels import native_library
from bertwright.vocabulary.learn import chunk_counter, word_counts
from bertwright.vocabulary.learn.word_counts import WordCounts, count_words

FRAGMENTS = st.sampled_from(
    [" ", "\n", "\t", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\xa0", "\u2028", "\u3000", "\u200d", "\ufffd", "\x00",
     "don't", "漢字", "한국", "é", "e\u0301", "İ", "\u0345", "...", "が", "ab" * 60, "    ", "\u0301", "`", "\u1fef"]
)  # fmt: skip
TEXTS = st.lists(FRAGMENTS | st.text(max_size=8) | st.text(alphabet="ab.漢 ", max_size=8), max_size=12).map("".join)


@pytest.fixture(params=["native", "python"], scope="module")
def counter(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use each chunk counter in turn; the native one if there is a compiler."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(word_counts, "make_chunk_counter", chunk_counter.PythonChunkCounter)
        elif native_library.load_library("wordpiece") is None:
            pytest.skip("no C++ compiler")
        yield


@settings(max_examples=400)
@given(texts=st.lists(TEXTS, max_size=4), lowercase=st.booleans(), strip=st.sampled_from([None, True, False]))
def test_words_equal_those_of_tokenizers(counter: None, texts: list[str], lowercase: bool, strip: bool | None) -> None:
    normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip)
    pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    expected: Counter[str] = Counter()
    for text in texts:
        expected.update(word for word, _ in pre_tokenizer.pre_tokenize_str(normalizer.normalize_str(text)))
    counts = count_words(texts, lowercase=lowercase, strip_accents=strip)
    assert counts.words == {word: count for word, count in expected.items() if len(word) <= 100}
    assert counts.total == expected.total()


def test_counts_of_a_short_text_equal_those_worked_by_hand(counter: None) -> None:
    counts = count_words(["The cat, the CAT.\nNaïve\x0bté", "漢字 " + "x" * 101], lowercase=True)
    assert counts.words == {"the": 2, "cat": 2, ",": 1, ".": 1, "naivete": 1, "漢": 1, "字": 1}
    assert counts.too_long == 1


def test_counts_do_not_depend_on_the_size_of_tables(counter: None, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a b c d e f", "a. b! 漢字", "g h i a"]
    whole = count_words(texts, lowercase=True)
    monkeypatch.setattr(word_counts, "CHUNK_LIMIT", 2)
    monkeypatch.setattr(word_counts, "CHARACTERS_PER_CALL", 2)
    assert count_words(texts, lowercase=True) == whole


@given(text=TEXTS, lowercase=st.booleans(), strip=st.sampled_from([None, True, False]))
def test_counts_do_not_depend_on_the_length_of_chunks(text: str, lowercase: bool, strip: bool | None) -> None:
    text = text.replace(" ", "")
    with pytest.MonkeyPatch.context() as patch:
        whole = count_words([text], lowercase=lowercase, strip_accents=strip)
        patch.setattr(word_counts, "CHARACTERS_PER_CALL", 3)
        assert count_words([text], lowercase=lowercase, strip_accents=strip) == whole


def test_characters_of_long_text_without_spaces_are_counted() -> None:
    counts = count_words(["漢字" * 200_000, "漢a" * 100_000], lowercase=True)
    assert counts.words == {"漢": 300_000, "字": 200_000, "a": 100_000}


def test_table_of_text_without_spaces_is_cleared_by_its_bytes(counter: None, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{n}漢字，" * 200 + "\n" for n in range(60)]  # one distinct chunk each, of more than a kilobyte
    whole = count_words(texts, lowercase=True)
    sizes: list[int] = []
    make = word_counts.make_chunk_counter

    def make_recorder() -> chunk_counter.PythonChunkCounter | chunk_counter.NativeChunkCounter:
        chunks = make()
        add = chunks.add
        monkeypatch.setattr(chunks, "add", lambda text: (sizes.append(add(text)), sizes[-1])[1], raising=False)
        return chunks

    monkeypatch.setattr(word_counts, "make_chunk_counter", make_recorder)
    monkeypatch.setattr(word_counts, "CHUNK_LIMIT", 20_000)
    assert count_words(texts, lowercase=True) == whole
    assert len(sizes) == 60
    assert max(sizes) <= 20_000 + 2 * len(texts[-1].encode())
    assert min(sizes[1:]) < sizes[0] + 2_000  # after it was cleared, the table is as small as at first
    assert sum(later < earlier for earlier, later in pairwise(sizes)) > 3


def test_chunk_counter_returns_its_memory_and_its_chunks_in_order(
    counter: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_counter, "CHUNKS_PER_READ", 3)
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
def test_prune_drops_the_rarest_words_and_counts_them(words: dict[str, int], limit: int) -> None:
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


def test_number_of_words_is_bounded_while_counting(counter: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_counts, "CHUNK_LIMIT", 10)
    texts = [f"the of w{n}" for n in range(300)]
    counts = count_words(texts, lowercase=True, max_words=20)
    assert len(counts.words) <= 20
    assert counts.words["the"] == counts.words["of"] == 300
    assert counts.total == 900
    assert counts.pruned > 0


def test_merges_equal_those_worked_by_hand() -> None:
    """Eleven words start with a letter; ma, mà and Má become ma, of which the most frequent is ma."""
    counts = count_words(["ma ma mà, Má ❤\ufe0f é The the US us; Us ≠b"], lowercase=True)
    words = 11
    assert counts.stripped == (pytest.approx(3 / words), pytest.approx(2 / words), "má, mà → ma; é → e")
    assert counts.lowered.changed == pytest.approx(4 / words)  # Má, The, US, Us
    assert counts.lowered.merged == pytest.approx(3 / words)  # The, US and Us; má was Má alone
    assert counts.lowered.examples.startswith("Us, US → us; The → the")
    assert count_words(["Má mà"], lowercase=False).stripped == (0, 0, "")
    preserved = count_words(["Má mà ısı"], lowercase=True, strip_accents=False)
    assert (preserved.stripped.changed, preserved.lowered, preserved.dotless) == (0, (1 / 3, 0, "Má → má"), 1 / 3)


def test_letters_with_diacritics_are_counted() -> None:
    counts = count_words(["한국 が हिन्दी ไทย café naïve Straße русский"], lowercase=True)
    assert (counts.chunks, counts.letters_with_diacritics) == (8, 4)


def test_progress_counts_all_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_counts, "PROGRESS_EVERY", 5)
    reports: list[int] = []
    count_words(["abc", "한국", "d"], lowercase=True, progress=reports.append)
    assert reports == [9, 1]


def test_lone_surrogate_raises_an_error(counter: None) -> None:
    with pytest.raises(ValueError, match="text 1: lone surrogate at character 2"):
        count_words(["a", "bc\udcff"], lowercase=True)
