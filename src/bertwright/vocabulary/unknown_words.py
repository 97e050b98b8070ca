"""Unknown words of word-level models: which vector a word gets that the training text lacks, or has too rarely.

A model has a table of trained rows: `<UNK>`, the classes of the strategy `class`, and the words that occur
`min_count` times in the training text. `WordRows.row` gives every word of any text a row by one of five strategies:

- `unk`: a word without a trained row has the row of `<UNK>`.
- `char`: the same; the model adds a vector of the word's characters or n-grams to every word.
- `pretrained`: it has its vector in a vector file, if the file has the word, else the row of `<UNK>`.
- `random`: it has its vector in the vector file, if there is one with the word, else a random vector that the word
  itself determines (Dhingra et al. 2017, "A comparative study of word embeddings for reading comprehension").
- `class`: it has the row of its class: `<UNK-number>`, `<UNK-all-caps>`, `<UNK-capitalized>`, `<UNK-hyphen>`, one of
  frequent suffixes, such as `<UNK-ing>`, or `<UNK>`.

With every strategy, a word has the same row, and so the same vector, wherever it occurs: in question and passage, in
training and test, in every process.

Rows are numbers in three ranges: from 0, the trained table; from FILE_ROWS, the vector file, frozen; from KEYED_ROWS,
random vectors, which the number itself determines. A model embeds them so:

    outside = rows.outside(ids)                                        # mask: not in the trained table
    vectors = table(ids.masked_fill(outside, 0)); vectors[outside] = rows.outside_vectors(ids[outside])
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from bertwright.io.vector_file import VectorFile, hash_word
from bertwright.seeding import make_rng

UnknownWords = Literal["unk", "char", "pretrained", "random", "class"]
STRATEGIES: tuple[UnknownWords, ...] = get_args(UnknownWords)

PAD, UNK = "<PAD>", "<UNK>"  # rows 0 and 1 of every table
SUFFIXES = ("ing", "ed", "ion", "ly", "er", "est", "ity", "ness", "ment", "al", "ous", "ive", "able", "ic", "s")
SHAPES = ("number", "all-caps", "capitalized", "hyphen")
CLASSES = tuple(f"<UNK-{name}>" for name in (*SHAPES, *SUFFIXES))
NUMBER = re.compile(r"[+-]?\d[\d.,:/%-]*")

FILE_ROWS = 1 << 40
KEYED_ROWS = 1 << 48
KEYS = 1 << 48  # random vectors: two words share one with a probability of 4e-15

Rows = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]


def word_class(word: str) -> str:
    """Return the class of a word by its shape, else by its longest known suffix, else `<UNK>`.

    >>> [word_class(word) for word in ("1,234.5", "NATO", "Kolkata", "pre-war", "unfollowing", "xkcd")]
    ['<UNK-number>', '<UNK-all-caps>', '<UNK-capitalized>', '<UNK-hyphen>', '<UNK-ing>', '<UNK>']
    """
    if NUMBER.fullmatch(word):
        return "<UNK-number>"
    if word.isupper():
        return "<UNK-all-caps>"
    if word[:1].isupper():
        return "<UNK-capitalized>"
    if "-" in word[1:-1]:
        return "<UNK-hyphen>"
    suffixes = [suffix for suffix in SUFFIXES if word.endswith(suffix) and len(word) > len(suffix) + 1]
    return f"<UNK-{max(suffixes, key=len)}>" if suffixes else UNK


def keyed_vectors(rows: Rows, width: int) -> Vectors:
    """Return the random vectors of rows from KEYED_ROWS, N × `width`: uniform in ±√(3/width), of length about 1.

    Element i of a row is a hash (splitmix64) of the row and i, so that it depends on nothing else.
    """
    state: npt.NDArray[np.uint64] = rows.astype(np.uint64)[:, None] * np.uint64(width) + np.arange(width).astype("u8")
    state = (state + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = (state ^ (state >> np.uint64(31))) >> np.uint64(40)
    uniform = bits.astype(np.float32) / np.float32(1 << 24)
    vectors: Vectors = (uniform * 2 - 1) * np.float32(np.sqrt(3 / width))
    return vectors


@dataclass(frozen=True)
class WordRows:
    """The words of a trained table, and the rows of all other words by one strategy."""

    strategy: UnknownWords
    words: Sequence[str]
    """The trained table: `<PAD>`, `<UNK>`, classes if the strategy has them, then words."""
    vectors: VectorFile | None = None
    """Vectors of other words, for `pretrained` and `random`."""

    def __post_init__(self) -> None:
        if self.strategy == "pretrained" and self.vectors is None:
            raise ValueError('unknown_words is "pretrained": expected a file of word vectors, got none; name one')
        object.__setattr__(self, "_rows", {word: row for row, word in enumerate(self.words)})

    def row(self, word: str) -> int:
        """Return the row of a word."""
        return int(self.rows([word])[0])

    def rows(self, words: Sequence[str]) -> Rows:
        """Return the rows of words, one each."""
        known: dict[str, int] = self._rows  # type: ignore[attr-defined]
        rows = np.fromiter((known.get(word, -1) for word in words), np.int64, len(words))
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            rows[missing] = self._unknown_rows([words[index] for index in missing.tolist()], known)
        return rows

    def _unknown_rows(self, words: list[str], known: Mapping[str, int]) -> Rows:
        rows = np.full(len(words), known[UNK], dtype=np.int64)
        if self.strategy == "class":
            return np.array([known[word_class(word)] for word in words], dtype=np.int64)
        if self.strategy == "random":
            rows = np.array([KEYED_ROWS + hash_word(word) % KEYS for word in words], dtype=np.int64)
        if self.strategy in ("pretrained", "random") and self.vectors is not None:
            in_file = self.vectors.rows(words)
            rows = np.where(in_file >= 0, FILE_ROWS + in_file, rows)
        return rows

    def outside_vectors(self, rows: Rows, width: int) -> Vectors:
        """Return the vectors of rows that are not in the trained table, N × `width`."""
        vectors = np.empty((len(rows), width), dtype=np.float32)
        keyed = rows >= KEYED_ROWS
        vectors[keyed] = keyed_vectors(rows[keyed], width)
        if not keyed.all():
            if self.vectors is None or self.vectors.width != width:
                got = "none" if self.vectors is None else f"{self.vectors.width} numbers per word"
                raise ValueError(f"word vectors: expected a file with {width} numbers per word, got {got}")
            vectors[~keyed] = self.vectors.vectors[rows[~keyed] - FILE_ROWS]
        return vectors

    def initial_table(self, width: int, seed: int) -> Vectors:
        """Return a table to start training from, rows × `width`: vectors of the file, else uniform in ±√(3/width).

        The row of `<PAD>` is zero (Ma and Hovy 2016, section 3.2). Raises ValueError if the file has another width.
        """
        limit = np.sqrt(3 / width)
        table = make_rng(seed).uniform(-limit, limit, (len(self.words), width)).astype(np.float32)
        if self.vectors is not None:
            if self.vectors.width != width:
                raise ValueError(
                    f"{self.vectors.path}: expected {width} numbers per word, as the model has, got "
                    f"{self.vectors.width}; choose another file or width"
                )
            first = first_word_row(self.strategy)
            found = self.vectors.lookup(self.words[first:])
            table[first:][found.has_vector] = found.vectors[found.has_vector]
        table[0] = 0
        return table


def first_word_row(strategy: UnknownWords) -> int:
    """Return the number of special rows of a trained table."""
    return 2 + (len(CLASSES) if strategy == "class" else 0)


def table_words(counts: Mapping[str, int], strategy: UnknownWords, min_count: int = 5) -> list[str]:
    """Return the words of a trained table: special ones, then those of `min_count` occurrences, most frequent first.

    Words of equal frequency are in alphabetical order.
    """
    frequent = sorted(
        (word for word, count in counts.items() if count >= min_count), key=lambda word: (-counts[word], word)
    )
    special = [PAD, UNK, *(CLASSES if strategy == "class" else ())]
    return special + [word for word in frequent if word not in special]
