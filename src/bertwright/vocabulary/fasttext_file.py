"""fastText's binary format (.bin) and its subwords (Bojanowski et al. 2017, section 3.2).

A word's subwords are its n-grams of `min_n` to `max_n` characters, with "<" before and ">" after the word; each is
hashed (FNV-1a, 32 bits) to one of `buckets` rows. The vector of a known word is the mean of its own row and its
subwords' rows, the vector of any other word the mean of the latter.

The file (fastText's fasttext.cc, args.cc, dictionary.cc and densematrix.cc, version 12): magic and version; twelve
int32 settings and a double; the words with their counts; two matrices, each after a byte that tells whether it is
quantized: input (V + buckets) × D, output V × D.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.base.files import READ_SIZE, new_file, open_binary
from bertwright.base.foreign import open_regular
from bertwright.base.ragged import Ragged, offsets_from_lengths
from bertwright.base.settings import check_range
from bertwright.vocabulary.vector_formats import COPY_AGAIN, FASTTEXT_MAGIC, Vectors, check_words

VERSION = 12
SETTINGS = struct.Struct("<12id")
COUNTS = struct.Struct("<3i2q")  # entries, words, labels, tokens, pruned buckets (-1: none)
SHAPE = struct.Struct("<?2q")  # quantized, rows, columns
END_OF_SENTENCE = "</s>"  # fastText gives it no subwords
FNV_OFFSET, FNV_PRIME = np.uint32(2166136261), np.uint32(16777619)
WORDS_PER_READ = 1 << 12  # words whose n-grams are looked up together; most n-grams are of several words
NEGATIVE_SAMPLING, SKIP_GRAM = 2, 2  # fastText's numbers of the loss and the model


@dataclass(frozen=True)
class Subwords:
    """Character n-grams of words, for fasttext."""

    min_n: int = 3
    """Characters of the shortest n-grams."""
    max_n: int = 6
    """Characters of the longest n-grams."""
    buckets: int = 2_000_000
    """Rows that the n-grams share by their hash; they take 4 bytes × size each, in memory and in the .bin file."""

    def __post_init__(self) -> None:
        check_range(self, 0, 64, "min_n", "max_n")
        check_range(self, 0, (1 << 31) - 1, "buckets")
        if self.min_n > self.max_n > 0:
            raise ValueError(f"min_n: expected at most max_n, {self.max_n}, got {self.min_n}")


@dataclass(frozen=True)
class FileRows:
    """Rows of a matrix in a file, read when they are asked for.

    It is no memory map, because a file that becomes shorter would then end the process (SIGBUS).
    """

    path: Path
    start: int
    """Place of the first row in the file, in bytes."""
    shape: tuple[int, int]

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> Vectors:
        """Return rows. Raises ValueError if the file has become shorter."""
        size = 4 * self.shape[1]
        parts = []
        with open_regular(self.path, buffering=0) as file:
            for row in rows.tolist():
                file.seek(self.start + size * row)
                parts.append(file.read(size))
        if len(content := b"".join(parts)) < size * len(rows):
            raise ValueError(f"{self.path}: became shorter while it was read; {COPY_AGAIN}")
        return np.frombuffer(content, dtype="<f4").astype(np.float32, copy=False).reshape(len(rows), -1)


class FastTextFile(NamedTuple):
    """Content of a .bin file: V words, most frequent first."""

    words: list[str]
    counts: npt.NDArray[np.int64]  # V
    subwords: Subwords
    input: Vectors | FileRows  # (V + buckets) × D
    output: Vectors | None  # V × D; not read
    window: int = 5
    epochs: int = 5
    min_count: int = 5
    negatives: int = 5
    sample: float = 1e-4


def hash_subwords(words: Sequence[str], subwords: Subwords) -> Ragged:
    """Return the buckets of each word's n-grams, in fastText's order: by first character, then by length.

    All words are hashed together: one step per character and byte of the n-grams.
    """
    if subwords.max_n < 1 or subwords.buckets < 1 or not words:
        return Ragged(np.zeros(0, dtype=np.uint32), np.zeros(len(words) + 1, dtype=np.int64))
    marked = [f"<{word}>" if word != END_OF_SENTENCE else "" for word in words]
    codes = np.frombuffer("".join(marked).encode("utf-32-le"), dtype=np.uint32)
    lengths = np.fromiter(map(len, marked), np.int64, len(marked))
    last = np.repeat(np.cumsum(lengths), lengths)  # the end of each character's word
    word_of = np.repeat(np.arange(len(words)), lengths)
    position = np.arange(len(codes))
    first_of = last - np.repeat(lengths, lengths)
    utf8, sizes = _utf8(codes)
    hashes = np.full(len(codes), FNV_OFFSET)
    buckets, keys = [], []
    for n in range(1, subwords.max_n + 1):
        inside = position + n <= last
        at = np.where(inside, position + n - 1, 0)
        for byte in range(4):
            used = inside & (sizes[at] > byte)
            signed = utf8[at, byte].astype(np.int8).astype(np.uint32)  # fastText's char is signed
            hashes = np.where(used, (hashes ^ signed) * FNV_PRIME, hashes)
        is_mark = (n == 1) & ((position == first_of) | (position + 1 == last))
        included = np.flatnonzero(inside & ~is_mark) if n >= subwords.min_n else np.zeros(0, dtype=np.int64)
        buckets.append(hashes[included] % np.uint32(subwords.buckets))
        keys.append(included * (subwords.max_n + 1) + n)
    order = np.argsort(np.concatenate(keys), kind="stable")
    owners = np.concatenate([word_of[key // (subwords.max_n + 1)] for key in keys])
    return Ragged(np.concatenate(buckets)[order], offsets_from_lengths(np.bincount(owners, minlength=len(words))))


def _utf8(codes: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the UTF-8 bytes of code points, N × 4, and how many bytes each has."""
    distinct, inverse = np.unique(codes, return_inverse=True)
    table = np.zeros((len(distinct), 4), dtype=np.uint8)
    sizes = np.zeros(len(distinct), dtype=np.int64)
    for row, code in enumerate(distinct.tolist()):
        encoded = chr(code).encode()
        table[row, : len(encoded)] = list(encoded)
        sizes[row] = len(encoded)
    return table[inverse], sizes[inverse]


def compose_vectors(model: FastTextFile, words: Sequence[str], rows: npt.NDArray[np.int64]) -> Vectors:
    """Return the vectors of words: means over each word's row, if it has one (rows ≥ 0), and its subwords' rows.

    A word without a row and without subwords has a vector of zeros.
    """
    vectors = np.zeros((len(words), model.input.shape[1]), dtype=np.float32)
    for start in range(0, len(words), WORDS_PER_READ):
        block = slice(start, start + WORDS_PER_READ)
        hashed = hash_subwords(words[block], model.subwords)
        parts = [buckets.astype(np.int64) + len(model.words) for buckets in hashed]
        parts = [np.append(part, row) if row >= 0 else part for part, row in zip(parts, rows[block], strict=True)]
        used, places = np.unique(np.concatenate(parts), return_inverse=True)  # in the order of the file
        matrix = model.input[used]
        for index, chosen in enumerate(np.split(places, np.cumsum([*map(len, parts)])[:-1]), start):
            if len(chosen):
                vectors[index] = matrix[chosen].mean(axis=0)
    return vectors


def read_fasttext(path: Path) -> FastTextFile:
    """Read words and settings of a .bin file; rows of its input matrix are read when they are used.

    Raises ValueError for another version, a quantized file, and one that ends early.
    """
    size = path.stat().st_size
    with open_binary(path) as file:
        magic, version = file.read(4), int.from_bytes(file.read(4), "little")
        if magic != FASTTEXT_MAGIC or version not in (11, VERSION):
            raise ValueError(f"{path}: expected a fastText file of version {VERSION}, got version {version}")
        settings = SETTINGS.unpack(_read(file, SETTINGS.size, path))
        width, window, epochs, min_count, negatives, _, _, model, _, min_n, max_n, _, sample = settings
        entries, count, labels, _, pruned = COUNTS.unpack(_read(file, COUNTS.size, path))
        if pruned >= 0:
            raise ValueError(
                f"{path}: expected a .bin file, got a quantized one (.ftz); take the .bin it was made from"
            )
        text = bytearray()
        names, counts = list[str](), list[int]()
        for number in range(entries):
            while (end := text.find(b"\0")) < 0 or end + 10 > len(text):
                more = file.read(READ_SIZE) if len(text) < READ_SIZE else b""  # no word is so long
                if not more:
                    raise ValueError(f"{path}: expected {entries:,} words, got {number:,}; {COPY_AGAIN}")
                text += more
            name = text[:end].decode(errors="surrogateescape")  # `load_vectors` leaves such words out
            if text[end + 9] == 0:  # a word, not a label
                names.append(name)
                counts.append(int.from_bytes(text[end + 1 : end + 9], "little"))
            del text[: end + 10]
        file.seek(-len(text), 1)
        quantized, rows, columns = SHAPE.unpack(_read(file, SHAPE.size, path))
        start = file.tell()
    if quantized or not columns == width > 0 or not len(names) == count <= rows or entries != count + labels:
        raise ValueError(
            f"{path}: expected {count:,} words and a matrix of width {width}, got {len(names):,} and {columns}"
        )
    if start + 4 * rows * columns > size:
        raise ValueError(
            f"{path}: expected a matrix of {rows:,} × {columns} numbers, got {size - start:,} bytes; {COPY_AGAIN}"
        )
    if version == 11 and model == 3:  # supervised models of this version had no subwords
        max_n = 0
    try:
        subwords = Subwords(min_n, max_n if rows > count else 0, rows - count)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; {COPY_AGAIN}") from None
    matrix = FileRows(path, start, (rows, columns))
    return FastTextFile(names, np.array(counts), subwords, matrix, None, window, epochs, min_count, negatives, sample)


def _read(file: IO[bytes], size: int, path: Path) -> bytes:
    content = file.read(size)
    if len(content) < size:
        raise ValueError(f"{path}: {COPY_AGAIN}")
    return content


def write_fasttext(path: Path, model: FastTextFile) -> None:
    """Write a new .bin file of skip-gram vectors, which fastText and gensim open."""
    if isinstance(model.input, FileRows):
        raise TypeError(f"{path}: expected vectors in memory, got {model.input.path}; copy that file")
    check_words(path, model.words, len(model.input) - model.subwords.buckets)
    width = model.input.shape[1]
    output = model.output if model.output is not None else np.zeros((len(model.words), width), dtype=np.float32)
    numbers = (width, model.window, model.epochs, model.min_count, model.negatives, 1, NEGATIVE_SAMPLING, SKIP_GRAM)
    grams = (model.subwords.buckets, model.subwords.min_n, model.subwords.max_n)
    with new_file(path) as temporary, temporary.open("wb") as file:
        file.write(FASTTEXT_MAGIC + VERSION.to_bytes(4, "little"))
        file.write(SETTINGS.pack(*numbers, *grams, 100, model.sample))
        file.write(COUNTS.pack(len(model.words), len(model.words), 0, int(model.counts.sum()), -1))
        for word, count in zip(model.words, model.counts.tolist(), strict=True):
            file.write(word.encode() + b"\0" + count.to_bytes(8, "little") + b"\0")
        for matrix in (model.input, output):
            file.write(SHAPE.pack(False, *matrix.shape))
            matrix.astype("<f4", copy=False).tofile(file)
