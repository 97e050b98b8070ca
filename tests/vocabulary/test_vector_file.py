"""Files of word vectors: every format both ways, look-up by spelling, neighbours, and bad files."""

from __future__ import annotations

import gzip
import os
import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from bertwright.base.files import read_json
from bertwright.vocabulary import vector_file
from bertwright.vocabulary.fasttext_file import FastTextFile, Subwords, hash_subwords, write_fasttext
from bertwright.vocabulary.vector_file import VectorFile, load_vectors
from bertwright.vocabulary.vector_formats import write_text_vectors, write_word2vec_binary
from helpers import write_file

WORDS = ["the", "house", "0.00", "naïve", "한국어", "</s>"]
VECTORS = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
TEXT = "the 1 2\nhouse 3 4\n"


def write_fasttext_file(path: Path, words: list[str]) -> FastTextFile:
    grams = Subwords(3, 6, 1_000)
    matrix = np.random.default_rng(1).normal(size=(len(words) + grams.buckets, 5)).astype(np.float32)
    model = FastTextFile(words, np.arange(len(words), 0, -1), grams, matrix, None)
    write_fasttext(path, model)
    return model


@pytest.mark.parametrize("form", ["glove", "word2vec", "binary", "gz"])
def test_a_written_file_gives_the_same_words_and_numbers(tmp_path: Path, form: str) -> None:
    path = tmp_path / "vectors"
    if form == "binary":
        write_word2vec_binary(path, WORDS, VECTORS)
    else:
        write_text_vectors(path, WORDS, VECTORS, header=form != "glove")
    if form == "gz":
        compressed = gzip.compress(path.read_bytes())
        path = Path(write_file(tmp_path, compressed, "vectors.txt.gz"))
    file = load_vectors(path)
    assert file.words == WORDS
    np.testing.assert_array_equal(file.vectors, VECTORS)


def test_a_word_with_spaces_and_a_binary_file_without_line_ends_are_read(tmp_path: Path) -> None:
    assert load_vectors(write_file(tmp_path, "the 1 2\n. . . 3 4 \n", "glove.txt")).words == ["the", ". . ."]
    content = b"2 2\na " + struct.pack("<2f", 1, 2) + b"b " + struct.pack("<2f", 3, 4)
    assert load_vectors(write_file(tmp_path, content, "google.bin")).vectors.tolist() == [[1, 2], [3, 4]]


def test_words_are_looked_up_as_written_then_lower_case_then_with_digits_as_zero(tmp_path: Path) -> None:
    file = load_vectors(write_file(tmp_path, "The 1 0\nthe 2 0\nb-00 3 0\n", "v.txt"))
    found = file.lookup(["The", "the", "THE", "B-47", "absent"])
    assert found.vectors[:, 0].tolist() == [1, 2, 2, 3, 0]
    assert found.rows.tolist() == [0, 1, 1, 2, -1]
    assert found.has_vector.tolist() == [True] * 4 + [False]
    assert "the" in file
    assert "THE" not in file


def test_nearest_words_and_analogies_by_hand(tmp_path: Path) -> None:
    text = "man 1 0 0\nwoman 1 0 1\nking 1 0.5 0\nqueen 1 0.5 1\nstone -1 0 0\n"
    file = load_vectors(write_file(tmp_path, text, "v.txt"))
    assert file.analogy("man", "king", "woman")[0].word == "queen"
    assert [similar.word for similar in file.nearest(["man"], 2)] == ["king", "woman"]
    assert file.nearest(["man"], 2)[0].similarity == pytest.approx(1.25**-0.5)
    assert len(file.nearest(["man"], 99)) == 4
    with pytest.raises(ValueError, match=r"v\.txt: no vector for 'kin'; did you mean \"king\""):
        file.nearest(["kin"])


def test_ngrams_are_hashed_as_fasttext_hashes_them() -> None:
    """Buckets that fastText 0.11 (package fasttext-community) gives for these words with 5,000 buckets."""
    expected = {
        "naïve": [1890, 2692, 3190, 3201, 546, 4404, 2043, 1687, 1832, 3007, 331, 1570, 3548, 3654],
        "한국": [4397, 3345, 4607],
        "a": [2600],
    }
    hashed = hash_subwords([*expected, "</s>"], Subwords(3, 6, 5_000))
    assert [buckets.tolist() for buckets in hashed] == [*expected.values(), []]


def test_a_fasttext_file_composes_known_and_unknown_words(tmp_path: Path) -> None:
    """Reference: a sum over the n-grams, hashed byte by byte."""
    model = write_fasttext_file(tmp_path / "v.bin", ["the", "naïve", "</s>"])
    file = load_vectors(tmp_path / "v.bin")

    def reference(word: str, row: int | None) -> np.ndarray:
        rows = [] if row is None else [row]
        marked = f"<{word}>"
        for first in range(len(marked)):
            for size in range(3, 7):
                if first + size <= len(marked):
                    value = 2166136261
                    for byte in marked[first : first + size].encode():
                        value = ((value ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) % 2**32
                    rows.append(3 + value % 1_000)
        return model.input[rows].mean(axis=0)

    assert file.words == model.words
    np.testing.assert_allclose(file.vectors[1], reference("naïve", 1), rtol=1e-6)
    found = file.lookup(["unseen", "naïve", "</s>"])
    np.testing.assert_allclose(found.vectors[0], reference("unseen", None), rtol=1e-6)
    assert found.rows.tolist() == [-1, 1, 2]
    assert found.has_vector.all()
    np.testing.assert_array_equal(found.vectors[2], model.input[2])


def test_a_cached_file_opens_without_reading_it_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_file, "SMALLEST_CACHED", 0)
    monkeypatch.setattr(vector_file, "user_cache", lambda: tmp_path / "cache")
    path = write_file(tmp_path, TEXT, "v.txt")
    assert load_vectors(path).words == ["the", "house"]
    with monkeypatch.context() as patch:
        patch.setattr(vector_file, "_write_index", None)
        assert load_vectors(path).lookup(["house"]).vectors.tolist() == [[3, 4]]
    write_file(tmp_path, TEXT + "new 5 6\n", "v.txt")
    assert load_vectors(path).words == ["the", "house", "new"]
    assert len(list((tmp_path / "cache" / "vectors").iterdir())) == 1
    write_file(tmp_path, TEXT + "bad 5\n", "v.txt")
    with pytest.raises(ValueError, match="line 3"):
        load_vectors(path)
    assert list((tmp_path / "cache" / "vectors").iterdir()) == []  # nothing half-written


def test_the_cache_has_a_limit_and_the_oldest_use_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_file, "SMALLEST_CACHED", 0)
    monkeypatch.setenv("BERTWRIGHT_CACHE", str(tmp_path / "cache"))
    paths = [write_file(tmp_path, TEXT, f"{name}.txt") for name in "abc"]
    folder = tmp_path / "cache" / "vectors"

    def cached() -> list[str]:
        return sorted(Path(read_json(path)["path"]).stem for path in folder.glob("*/source.json"))

    def open_at(path: str, time: int) -> VectorFile:
        file = load_vectors(path)
        for source in folder.glob("*/source.json"):
            if read_json(source)["path"] == path:
                assert source.stat().st_mtime > 1_000_000  # its last use is now
                os.utime(source, (time, time))
        return file

    opened = [open_at(path, time) for time, path in enumerate(paths[:2])]
    assert cached() == ["a", "b"]
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2
    monkeypatch.setenv("BERTWRIGHT_VECTOR_CACHE_GB", str(2.5 * size / 1e9))
    open_at(paths[0], 2)
    open_at(paths[2], 3)
    assert cached() == ["a", "c"]
    assert opened[1].lookup(["house"]).vectors.tolist() == [[3, 4]]  # still mapped
    monkeypatch.setenv("BERTWRIGHT_VECTOR_CACHE_GB", str(0.5 * size / 1e9))
    assert load_vectors(paths[2]).words == ["the", "house"]
    assert cached() == []
    monkeypatch.setenv("BERTWRIGHT_VECTOR_CACHE_GB", "0")
    monkeypatch.setattr(vector_file, "_write_cache", None)
    assert load_vectors(paths[0]).words == ["the", "house"]
    for value in ("many", "-1", "nan"):
        monkeypatch.setenv("BERTWRIGHT_VECTOR_CACHE_GB", value)
        with pytest.raises(ValueError, match=f"BERTWRIGHT_VECTOR_CACHE_GB: .* got '{value}'"):
            load_vectors(paths[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty"),
        ("the\n", "line 1: expected a word and its numbers"),
        (TEXT + "a 5\n", "line 3: expected a word and 2 numbers, got 1"),
        (TEXT + "a 5 6 7\n", "line 3: expected a word and 2 numbers, got 3"),
        (TEXT + "a 5 x7\n", "line 3: expected a word and 2 numbers, got 'x7'"),
        (TEXT + "a nan 1\n", "line 3: expected finite numbers for 'a', got nan"),
        (TEXT + "a 1e99 1\n", "line 3: expected finite numbers for 'a', got inf"),
        (TEXT + " 5 6\n", "line 3: expected a word before the numbers"),
        ("3 2\n" + TEXT, "expected 3 words .line 1., got 2; the file is truncated"),
        ("2 0\n" + TEXT, "line 1: expected from 1 to"),
        ("0 2\n", "no words"),
        ("caf\xe9 1 2\nd\xe9 1 2\na 1 2\n".encode("latin-1"), "expected words in UTF-8, got 2 in another encoding"),
        (b"\x80\x04\x95 1 2\n", "not text but a pickle .*save_word2vec_format"),
        (
            b"2 2\na " + struct.pack("<2f", 1, 2) + b"b \0",
            "expected 2 words .line 1., got 1; the file is trunc",
        ),
        (b"1 2\na " + struct.pack("<2f", 1, 2) + b"b ", "byte 14: expected the end after 1 words"),
        (b"1 2\na " + struct.pack("<2f", 1, np.nan), "word 1: expected finite numbers"),
    ],
)
def test_a_bad_file_is_named_with_its_place(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = write_file(tmp_path, content, "bad.vec")
    with pytest.raises(ValueError, match=rf"bad\.vec.*{message}"):
        load_vectors(path)


@pytest.mark.parametrize("form", ["text", "word2vec", "fasttext"])
def test_words_that_are_not_utf8_or_occur_again_are_left_out_with_their_counts(tmp_path: Path, form: str) -> None:
    words = ["the", "caf\udce9", "mill", "the", "caf\udce8", "river"]
    path = tmp_path / "v.bin"
    if form == "fasttext":
        write_fasttext_file(path, ["the", "cafX", "mill", "THE", "cafY", "river"])
        content = path.read_bytes().replace(b"cafX", b"caf\xe9").replace(b"THE", b"the").replace(b"cafY", b"caf\xe8")
    elif form == "word2vec":
        content = b"6 5\n" + b"".join(
            word.encode(errors="surrogateescape") + b" " + row.tobytes()
            for word, row in zip(words, VECTORS, strict=True)
        )
    else:
        lines = (f"{word} {' '.join(map(str, row))}\n" for word, row in zip(words, VECTORS.tolist(), strict=True))
        content = "".join(lines).encode(errors="surrogateescape")
    path.write_bytes(content)
    for _ in range(2):
        with pytest.warns(
            UserWarning, match=r"v\.bin: left out 2 words that are not UTF-8 and 1 that are repeated .*; 3 are read"
        ):
            file = load_vectors(path)
        assert file.words == ["the", "mill", "river"]
    if form != "fasttext":
        np.testing.assert_array_equal(file.vectors, VECTORS[[0, 2, 5]])


def test_a_truncated_or_quantized_fasttext_file_is_refused(tmp_path: Path) -> None:
    write_fasttext_file(tmp_path / "v.bin", ["the", "house"])
    content = (tmp_path / "v.bin").read_bytes()
    for end in (30, 90, 110, 130, 2_000):
        with pytest.raises(ValueError, match=r"cut\.bin: .*truncated"):
            load_vectors(write_file(tmp_path, content[:end], "cut.bin"))
    pruned = content[:88] + (3).to_bytes(8, "little") + content[96:]
    with pytest.raises(ValueError, match=r"pruned\.bin: .*quantized"):
        load_vectors(write_file(tmp_path, pruned, "pruned.bin"))


def test_words_that_a_format_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without white space, got 'a b'"):
        write_word2vec_binary(tmp_path / "v.bin", ["a b"], VECTORS[:1])
    with pytest.raises(ValueError, match=r"each of 2 words, got 1"):
        write_text_vectors(tmp_path / "v.txt", ["a", "b"], VECTORS[:1], header=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [-1, 0, 65, 2**31 - 1])
def test_damaged_numbers_of_a_fasttext_file_name_it(tmp_path: Path, value: int) -> None:
    """Settings, counts of words and the shape of the matrix, one after the other."""
    path = tmp_path / "a.bin"
    write_fasttext_file(path, ["a", "b"])
    content = path.read_bytes()
    words = content.index(b"a\0")
    shape = content.index(b"b\0") + 11
    errors = 0
    for place in [*range(8, words, 4), *range(shape, shape + 16, 4)]:
        path.write_bytes(content[:place] + struct.pack("<i", value) + content[place + 4 :])
        with suppress(ValueError):  # some values change nothing that is read
            load_vectors(path)
            continue
        errors += 1
        with pytest.raises(ValueError, match=f"^{path}: "):
            load_vectors(path)
    assert errors > 4
