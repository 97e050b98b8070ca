"""How often each word occurs in a corpus: what a vocabulary is learned from.

Words are those that a BERT tokenizer will see (`BertNormalizer`, then `BertPreTokenizer`). Text between spaces repeats
so much that a few hundred thousand distinct chunks make up gigabytes: so raw chunks are counted first, which is a hash
table's work, and only distinct chunks go through Unicode normalization.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import tee

import numpy as np
import numpy.typing as npt
from tokenizers import normalizers, pre_tokenizers

from bertwright.kernels import native
from bertwright.vocabulary.tokenizer_io import MAX_WORD_LENGTH

# Bytes of distinct chunks held before they are turned into words: over two million of English. In text without spaces
# a chunk is a paragraph and no two are alike, so that a limit on their number would be none.
CHUNK_LIMIT = 128 << 20
TAKE_AT_ONCE = 4096  # chunks copied out of the native table in one call
CHUNK_COST = 140  # bytes that a chunk takes in a Counter besides its text
NORMALIZE_AT_ONCE = 1 << 17  # characters a call of the normalizer, which takes a hundred bytes for each
PROGRESS_EVERY = 1 << 22  # bytes between two reports

# Characters that str.split() takes for spaces and BERT deletes, so that they join what stands on either side.
DELETED = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
# Indic, Thai, Lao, Tibetan and Burmese scripts, kana, Hangul: what NFD sets apart here, or what counts as an accent,
# is part of the letter. Stripping takes the vowels of Hindi, makes が into か and 한 into three jamo.
ACCENTS_ARE_LETTERS = re.compile("[\u0900-\u109f\u3040-\u30ff\uac00-\ud7a3]")
ALONE = re.compile("[!-/:-@\\[-`{-~\u4e00-\u9fff]")  # punctuation and ideographs: words by themselves; there are others
# Stands between chunks while they are normalized together. Inside a chunk at most two spaces meet (of two CJK
# characters, each of which is set apart by spaces), so four of them are a boundary and nothing else.
BOUNDARY = " " * 4


@dataclass
class WordCounts:
    """Occurrences of words."""

    words: Counter[str] = field(default_factory=Counter)
    too_long: int = 0  # occurrences of words above BERT's 100 characters, which no vocabulary can help
    pruned: int = 0  # occurrences of rare words dropped to bound memory
    chunks: int = 0  # what stood between spaces, occurrences
    accents_are_letters: int = 0  # chunks of scripts that stripping accents would mutilate

    @property
    def total(self) -> int:
        """Occurrences of all words that were met."""
        return self.words.total() + self.too_long + self.pruned

    def characters(self) -> Counter[str]:
        """Occurrences of characters."""
        codes, lengths = code_points(self.words)
        occurrences = np.repeat(np.fromiter(self.words.values(), np.int64, len(self.words)), lengths)
        distinct, places = np.unique(codes, return_inverse=True)
        totals = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(totals, places, occurrences)
        return Counter(dict(zip(map(chr, distinct.tolist()), totals.tolist(), strict=True)))

    def prune(self, max_words: int) -> None:
        """Above `max_words` distinct words, drop all words up to the frequency that leaves half of them or fewer.

        Half, so that this seldom happens; by frequency alone, so that the order of words does not matter.
        """
        if len(self.words) <= max_words:
            return
        frequencies = np.sort(np.fromiter(self.words.values(), np.int64, len(self.words)))
        threshold = int(frequencies[len(frequencies) - max_words // 2 - 1])
        before = self.words.total()
        self.words = Counter({word: count for word, count in self.words.items() if count > threshold})
        self.pruned += before - self.words.total()


def code_points(words: Collection[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """The characters of all words, end to end, and the length of each word."""
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    return np.frombuffer("".join(words).encode("utf-32-le"), np.uint32), lengths


class WordRules:
    """Splits raw chunks into words exactly as a BERT tokenizer does, by asking the tokenizer's own components."""

    def __init__(self, lowercase: bool, strip_accents: bool | None) -> None:
        self._normalizer = normalizers.BertNormalizer(
            clean_text=True, lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=True
        )
        self._pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._alone: dict[str, bool] = {}

    def stands_alone(self, character: str) -> bool:
        """Is this (normalized) character a word of its own wherever it stands, as punctuation and ideographs are?"""
        if character not in self._alone:
            normalized = self._normalizer.normalize_str(f"a{character}a")
            self._alone[character] = len(self._pre_tokenizer.pre_tokenize_str(normalized)) > 1
        return self._alone[character]

    def words(self, chunks: Iterable[str]) -> Iterator[list[str]]:
        """The words of each chunk; chunks hold no white space."""
        for batch in _batches(chunks):
            normalized = self._normalizer.normalize_str(BOUNDARY.join(batch))
            alone = "".join(re.escape(c) for c in sorted(set(normalized)) if c != " " and self.stands_alone(c))
            word = re.compile(f"[{alone}]|[^ {alone}]+" if alone else "[^ ]+")
            yield from map(word.findall, normalized.split(BOUNDARY))


def _batches(chunks: Iterable[str]) -> Iterator[list[str]]:
    """Chunks in lists that reach `NORMALIZE_AT_ONCE` characters each; the last may hold fewer."""
    batch: list[str] = []
    size = 0
    for chunk in chunks:
        batch.append(chunk)
        size += len(chunk)
        if size >= NORMALIZE_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def count_words(
    texts: Iterable[str],
    *,
    lowercase: bool,
    strip_accents: bool | None = None,
    max_words: int = 2_000_000,
    progress: Callable[[int], None] | None = None,
) -> WordCounts:
    """Count the words of texts. `progress` is told the UTF-8 bytes done since it was last told.

    Raises ValueError for a text with a lone surrogate.
    """
    rules = WordRules(lowercase, strip_accents)
    counts = WordCounts()
    chunks = chunk_counter()
    pending = 0
    for number, text in enumerate(texts):
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text {number}: lone surrogate at character {error.start}") from None
        pending += len(data)
        if chunks.add(data) > CHUNK_LIMIT:
            _settle(counts, chunks.take(), rules, max_words)
        if progress is not None and pending >= PROGRESS_EVERY:
            progress(pending)
            pending = 0
    _settle(counts, chunks.take(), rules, max_words)
    if progress is not None:
        progress(pending)
    return counts


def _settle(counts: WordCounts, chunks: Iterator[tuple[str, int]], rules: WordRules, max_words: int) -> None:
    """Turn counted chunks into counted words. Chunks come and go, so that only words are held beside their table."""
    for_words, for_counts = tee(_cleaned(counts, chunks))
    for words, (_, count) in zip(rules.words(chunk for chunk, _ in for_words), for_counts, strict=True):
        for word in words:
            if len(word) > MAX_WORD_LENGTH:
                counts.too_long += count
            else:
                counts.words[word] = counts.words.get(word, 0) + count
    counts.prune(max_words)


def _cleaned(counts: WordCounts, chunks: Iterator[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Chunks without what BERT deletes or takes for white space beyond ASCII; what they are is added to `counts`."""
    for chunk, count in chunks:
        if chunk.isascii() and chunk.isprintable() and len(chunk) <= NORMALIZE_AT_ONCE:
            counts.chunks += count
            yield chunk, count
            continue
        for part in DELETED.sub("", chunk).split():
            counts.chunks += count
            if ACCENTS_ARE_LETTERS.search(part):
                counts.accents_are_letters += count
            for piece in _pieces(part):
                yield piece, count


def _pieces(chunk: str) -> Iterator[str]:
    """A chunk in pieces of few more than NORMALIZE_AT_ONCE characters, with the same words.

    Text without spaces may be one chunk of any length. Before what stands alone it can be cut; without any of that, it
    is left whole.
    """
    first = 0
    while found := ALONE.search(chunk, first + NORMALIZE_AT_ONCE):
        yield chunk[first : found.start()]
        first = found.start()
    yield chunk[first:]


class PythonChunkCounter:
    """Counts what stands between spaces, tabs and line ends; the twin of the native one."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()
        self._bytes = 0

    def add(self, text: bytes) -> int:
        """Count the chunks of one UTF-8 text; returns how many bytes all distinct ones take."""
        # BERT deletes these two, and bytes.split() would divide at them.
        chunks = text.translate(None, b"\x0b\x0c").split()
        self._bytes += sum(len(chunk) + CHUNK_COST for chunk in set(chunks).difference(self._counts))
        self._counts.update(chunks)
        return self._bytes

    def take(self) -> Iterator[tuple[str, int]]:
        """Each chunk with its count, in the order of first occurrence; none are held afterwards."""
        taken, self._counts, self._bytes = self._counts, Counter(), 0
        for chunk, count in taken.items():
            yield chunk.decode(), count


class NativeChunkCounter:
    """The same as a C++ hash table, several times as fast."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._table = library.chunks_new()

    def __del__(self) -> None:
        self._library.chunks_free(self._table)

    def add(self, text: bytes) -> int:
        return int(self._library.chunks_add(self._table, text, len(text)))

    def take(self) -> Iterator[tuple[str, int]]:
        counts = np.empty(TAKE_AT_ONCE, dtype=np.int64)
        text, size = ctypes.c_void_p(), ctypes.c_int64()
        places = counts.ctypes.data_as(ctypes.c_void_p), ctypes.byref(text), ctypes.byref(size)
        first = 0
        while number := self._library.chunks_read(self._table, first, TAKE_AT_ONCE, *places):
            chunks = ctypes.string_at(text, size.value).decode().split("\n")[:-1]
            yield from zip(chunks, counts[:number].tolist(), strict=True)
            first += number
        self._library.chunks_clear(self._table)


def chunk_counter() -> PythonChunkCounter | NativeChunkCounter:
    """The native counter, or its twin where there is no compiler."""
    library = native.load_library("wordpiece")
    if library is None:
        return PythonChunkCounter()
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.chunks_new.restype = pointer
    library.chunks_free.argtypes = library.chunks_clear.argtypes = [pointer]
    library.chunks_add.argtypes, library.chunks_add.restype = [pointer, ctypes.c_char_p, integer], integer
    library.chunks_read.argtypes = [
        pointer,
        integer,
        integer,
        pointer,
        ctypes.POINTER(pointer),
        ctypes.POINTER(integer),
    ]
    library.chunks_read.restype = integer
    return NativeChunkCounter(library)
