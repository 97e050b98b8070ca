"""Word vectors of a file, memory-mapped: big files open at once, and only the rows that are used are read.

The first opening of a file of more than 4 MB writes its vectors and an index of its words into the user's cache
(`BERTWRIGHT_CACHE`); later ones map these until the size or time of the file changes. The cache has at most
`BERTWRIGHT_VECTOR_CACHE_GB` gigabytes (10 if unset); the files that were not used for the longest time leave it first.
V words, D numbers per word.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.base.description import Description, format_work, name_damaged_file
from bertwright.base.files import atomic_folder, digest_bytes, read_json, remove_folder, user_cache, write_json
from bertwright.base.npy import NpyWriter
from bertwright.base.ragged import offsets_from_lengths
from bertwright.base.settings import did_you_mean, read_toml
from bertwright.text.decoding import FIX_INPUT, SURROGATE
from bertwright.vocabulary.fasttext_file import FastTextFile, compose_vectors, read_fasttext
from bertwright.vocabulary.vector_formats import (
    WORDS_PER_BLOCK,
    VectorBlock,
    Vectors,
    check_block,
    detect_format,
    read_text_vectors,
    read_word2vec_binary,
    unit_rows,
)

SMALLEST_CACHED = 1 << 22  # bytes; smaller files are read within a fraction of a second
CACHE_LIMIT = "BERTWRIGHT_VECTOR_CACHE_GB"  # variable of the environment
DEFAULT_LIMIT = "10"
CACHE_VERSION = 2  # raised with every change of the cache's files
SOURCE = "source.json"  # of a cache: version, path, size and time of the file; its own time is the cache's last use
ARRAYS = ("vectors", "letters", "offsets", "hashes", "hashed_rows")  # .npy files of a cache: see VectorFile
LEFT_OUT = "left_out.npy"  # of a cache: how many words are not UTF-8, and how many occur again
DIGITS = re.compile(r"\d")
RUN_FILES = ("vectors.bin", "vectors.txt")  # of a run of `bertwright word-vectors`, the best one first

Rows = npt.NDArray[np.int64]


class Lookup(NamedTuple):
    """Vectors of N words."""

    vectors: Vectors  # N × D; zeros for words without a vector
    has_vector: npt.NDArray[np.bool_]  # N
    rows: Rows  # N  row in the file; -1 for words that are not in it, even if subwords give them a vector


class SimilarWord(NamedTuple):
    """A word and its cosine similarity to a query."""

    word: str
    similarity: float


def hash_word(word: str) -> int:
    """Return the 64-bit hash of a word: the same on every machine and in every process."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def fallback_spellings(word: str) -> tuple[str, str, str]:
    """Return the spellings to look up, in order: as written, in lower case, and then with each digit as 0.

    >>> fallback_spellings("Boeing-747")
    ('Boeing-747', 'boeing-747', 'boeing-000')
    """
    lower = word.lower()
    return word, lower, DIGITS.sub("0", lower)


@dataclass(frozen=True, eq=False)
class VectorFile:
    """The words and vectors of a file; open one with `load_vectors`."""

    path: Path
    vectors: Vectors
    """V × D, memory-mapped, in the order of the file."""
    letters: npt.NDArray[np.uint8]
    """UTF-8 of all words, end to end."""
    offsets: Rows
    """V + 1: the start of each word in `letters`."""
    hashes: npt.NDArray[np.uint64]
    """V: hashes of the words, sorted."""
    hashed_rows: Rows
    """V: the row of each hash."""
    model: FastTextFile | None = None
    """Subwords, in a .bin file of fastText: unknown words get vectors from them."""

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def width(self) -> int:
        """Numbers per word."""
        return int(self.vectors.shape[1])

    def word(self, row: int) -> str:
        """Return the word of a row."""
        return self.letters[self.offsets[row] : self.offsets[row + 1]].tobytes().decode()

    @cached_property
    def words(self) -> list[str]:
        """All words, in the order of the file."""
        return [self.word(row) for row in range(len(self))]

    def __contains__(self, word: str) -> bool:
        """Return whether the file has this word exactly as it is written."""
        return bool(self._exact_rows([word])[0] >= 0)

    def rows(self, words: Sequence[str]) -> Rows:
        """Return the row of each word by the first spelling that the file has (`fallback_spellings`), else -1."""
        rows = np.full(len(words), -1, dtype=np.int64)
        spellings = [fallback_spellings(word) for word in words]
        for attempt in range(3):
            missing = np.flatnonzero(rows < 0)
            rows[missing] = self._exact_rows([spellings[index][attempt] for index in missing.tolist()])
        return rows

    def lookup(self, words: Sequence[str]) -> Lookup:
        """Return the vectors of words: of their rows, else the mean of their subwords in fastText's .bin files."""
        rows = self.rows(words)
        vectors = np.zeros((len(words), self.width), dtype=np.float32)
        vectors[rows >= 0] = self.vectors[rows[rows >= 0]]
        missing = np.flatnonzero(rows < 0)
        if self.model is not None and len(missing):
            vectors[missing] = compose_vectors(self.model, [words[index] for index in missing.tolist()], rows[missing])
        return Lookup(vectors, (rows >= 0) | vectors.any(axis=1), rows)

    def unit_vectors(self, words: Sequence[str]) -> Vectors:
        """Return vectors of length 1. Raises ValueError for a word without a vector."""
        result = self.lookup(words)
        if not result.has_vector.all():
            word = words[int(np.argmin(result.has_vector))]
            hint = did_you_mean(word, self.words[:50_000]).partition("known:")[0]
            raise ValueError(f"{self.path}: no vector for {word!r}{f'; {hint}' if hint else ''}")
        return unit_rows(result.vectors)

    def nearest(self, words: Sequence[str], count: int = 10) -> list[SimilarWord]:
        """Return the words with the highest cosine similarity to the sum of the unit vectors of some words."""
        return self._most_similar(self.unit_vectors(words).sum(axis=0), words, count)

    def analogy(self, a: str, b: str, c: str, count: int = 1) -> list[SimilarWord]:
        """Return the best words d for "a is to b as c is to d": nearest to b - a + c (Mikolov et al. 2013), not these.

        For example analogy("man", "king", "woman").
        """
        one, two, three = self.unit_vectors([a, b, c])
        return self._most_similar(two - one + three, [a, b, c], count)

    def _most_similar(self, query: Vectors, excluded: Sequence[str], count: int) -> list[SimilarWord]:
        """Return the words nearest to a vector, except the excluded ones in any spelling that was looked up."""
        similarities = self.vectors @ (query / max(float(np.linalg.norm(query)), 1e-12)) / self._norms
        rows = self.rows(excluded)
        similarities[rows[rows >= 0]] = -np.inf
        best = np.argsort(-similarities, kind="stable")[: min(count, len(self) - len(np.unique(rows[rows >= 0])))]
        return [SimilarWord(self.word(row), float(similarities[row])) for row in best.tolist()]

    @cached_property
    def _norms(self) -> Vectors:
        norms: Vectors = np.maximum(np.linalg.norm(self.vectors, axis=1), 1e-12)
        return norms

    def _exact_rows(self, words: Sequence[str]) -> Rows:
        """Return the row of each word exactly as written, else -1."""
        hashes = np.fromiter(map(hash_word, words), np.uint64, len(words))
        rows = np.full(len(words), -1, dtype=np.int64)
        for index, place in enumerate(np.searchsorted(self.hashes, hashes).tolist()):
            while place < len(self) and self.hashes[place] == hashes[index]:  # more than one: different words, one hash
                if self.word(row := int(self.hashed_rows[place])) == words[index]:
                    rows[index] = row
                    break
                place += 1
        return rows


def find_vectors(path: Path | str) -> Path:
    """Return the file of word vectors, also of a run. Raises ValueError for a folder without one."""
    path = Path(path)
    if not path.is_dir():
        return path
    files = [path / name for name in RUN_FILES if (path / name).is_file()]
    if not files:
        raise ValueError(f"{path}: expected word vectors, got a folder without {' and '.join(RUN_FILES)}")
    return files[0]


def load_vectors(path: Path | str) -> VectorFile:
    """Open word vectors: a file in any format of `vector_formats`, fastText's .bin, or a run of `word-vectors`.

    Words that are not UTF-8 and words that occur again are left out, with a warning. Raises ValueError with the line
    for lines of another width, NaN and truncated files; FileNotFoundError if there is no such file.
    """
    path = find_vectors(path)
    status = path.stat()
    source = {
        "version": CACHE_VERSION,
        "path": str(path.resolve()),
        "bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
    }
    limit = _cache_limit()
    if limit and status.st_size >= SMALLEST_CACHED:
        try:
            cache = user_cache() / "vectors" / digest_bytes(str(path.resolve()).encode())
            if not _is_current(cache, source):
                _write_cache(path, cache, source)
            file = _open_index(path, cache)
            with suppress(OSError):  # a cache of another user
                (cache / SOURCE).touch()
            _limit_caches(cache.parent, limit)
            return file
        except (OSError, RuntimeError):  # a cache that cannot be written, a user without a home folder
            pass
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder_name:  # the maps keep the deleted files
        _write_index(path, Path(folder_name))
        return _open_index(path, Path(folder_name))


def _cache_limit() -> float:
    """Return the number of bytes that all caches may have together. Raises ValueError for no number of gigabytes."""
    given = os.environ.get(CACHE_LIMIT, DEFAULT_LIMIT)
    try:
        limit = float(given) * 1e9
    except ValueError:
        limit = -1.0
    if not limit >= 0:  # NaN
        raise ValueError(f"{CACHE_LIMIT}: expected a number of gigabytes from 0, got {given!r}; change or unset it")
    return limit


def _limit_caches(folder: Path, limit: float) -> None:
    """Delete caches until the rest has at most `limit` bytes, the oldest use first; maps of their files stay valid."""
    caches = []
    for source in folder.glob(f"*/{SOURCE}"):
        with suppress(OSError):  # another process has deleted it
            size = sum(path.stat().st_size for path in source.parent.iterdir())
            caches.append((source.stat().st_mtime_ns, size, source.parent))
    total = sum(size for _, size, _ in caches)
    for _, size, cache in sorted(caches):
        if total <= limit:
            return
        with suppress(OSError):  # files that another process of Windows has open
            remove_folder(cache)
            total -= size


def _is_current(cache: Path, source: dict[str, Any]) -> bool:
    return (cache / SOURCE).is_file() and read_json(cache / SOURCE) == source


def _write_cache(path: Path, cache: Path, source: dict[str, Any]) -> None:
    if cache.exists():
        remove_folder(cache)
    try:
        with atomic_folder(cache) as folder:
            _write_index(path, folder)
            write_json(folder / SOURCE, source)
    except ValueError:
        if not _is_current(cache, source):  # else another process has written it in the meantime
            raise


def _open_index(path: Path, folder: Path) -> VectorFile:
    def map_array(name: str) -> Any:
        return np.load(folder / f"{name}.npy", mmap_mode="r")

    model = read_fasttext(path) if detect_format(path) == "fasttext-binary" else None
    vectors, letters, offsets, hashes, rows = map(map_array, ARRAYS)
    file = VectorFile(path, vectors, letters, offsets, hashes, rows, model)
    not_utf8, repeated = np.load(folder / LEFT_OUT).tolist()
    if not_utf8 or repeated:
        text = f"left out {not_utf8:,} words that are not UTF-8 and {repeated:,} that are repeated (the first counts)"
        warnings.warn(f"{path}: {text}; {len(file):,} are read", stacklevel=3)
    return file


def _write_index(path: Path, folder: Path) -> None:
    """Write the arrays of a VectorFile into a folder, in the memory of its words. Raises ValueError for a bad file."""
    seen: dict[str, None] = {}
    not_utf8 = repeated = 0
    blocks = _read_blocks(path)
    first = next(blocks, None)
    if first is None:
        raise ValueError(f"{path}: expected word vectors, got no words")
    with NpyWriter(folder / "vectors.npy", np.float32, first.vectors.shape[1:]) as writer:
        for block in chain([first], blocks):
            first_rows = []
            for row, word in enumerate(block.words):
                if SURROGATE.search(word):
                    not_utf8 += 1
                elif word in seen:
                    repeated += 1
                else:
                    seen[word] = None
                    first_rows.append(row)
            writer.append(block.vectors[first_rows])
    if not_utf8 > len(seen) + repeated:
        raise ValueError(f"{path}: expected words in UTF-8, got {not_utf8:,} in another encoding; {FIX_INPUT}")
    texts = [word.encode() for word in seen]
    hashes = np.fromiter(map(hash_word, seen), np.uint64, len(texts))
    order = np.argsort(hashes, kind="stable")
    np.save(folder / "letters.npy", np.frombuffer(b"".join(texts), dtype=np.uint8))
    np.save(folder / "offsets.npy", offsets_from_lengths(np.array([*map(len, texts)], dtype=np.int64)))
    np.save(folder / "hashes.npy", hashes[order])
    np.save(folder / "hashed_rows.npy", order)
    np.save(folder / LEFT_OUT, np.array([not_utf8, repeated]))


def _read_blocks(path: Path) -> Iterator[VectorBlock]:
    match detect_format(path):
        case "text":
            return read_text_vectors(path)
        case "word2vec-binary":
            return read_word2vec_binary(path)
    return _compose_blocks(path)


def _compose_blocks(path: Path) -> Iterator[VectorBlock]:
    model = read_fasttext(path)
    for start in range(0, len(model.words), WORDS_PER_BLOCK):
        words = model.words[start : start + WORDS_PER_BLOCK]
        rows = np.arange(start, start + len(words))
        readable = [word.encode(errors="replace").decode() for word in words]
        block = VectorBlock(words, [f"word {row + 1}" for row in rows], compose_vectors(model, readable, rows))
        check_block(path, block)
        yield block


def describe(folder: Path, verify: bool) -> Description | None:
    """Describe the folder of `bertwright word-vectors`, or another folder with its files; None for any other one."""
    if not any((folder / name).is_file() for name in RUN_FILES):
        return None
    vectors, report = load_vectors(folder), folder / "report.json"
    fields = {"file": vectors.path.name, "vectors": f"{len(vectors):,} words, {vectors.width} numbers each"}
    if (folder / "settings.toml").is_file():
        fields["model"] = str(read_toml(folder / "settings.toml").get("model", "unknown"))
    if report.is_file():
        with name_damaged_file(report):
            fields["trained on"] = format_work(read_json(report))
    return Description("word vectors", fields)
