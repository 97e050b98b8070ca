"""Learning pieces by merging: the best pair of adjacent symbols becomes a new symbol, until there are enough.

A symbol is a piece in its written form ("un", "##able"). The score of a pair ab, by criterion:

- "likelihood", WordPiece's: f(ab) / (f(a) · f(b)), how much more often a and b meet than chance would have it.
- "bpe": f(ab).

The ratio alone is known to fail: it is greatest for pairs of rare symbols, so that names and misprints that occur a
handful of times fill a vocabulary before "the" is made. So a pair must be frequent to be considered at all, and the
floor falls: it begins at the most frequent pair and is halved whenever no pair above it is left, down to the minimum
frequency. Among pairs of about the same frequency the likelihood decides. Measured on 100 English novels (30,000
tokens, minimum frequency 5): 1.88 tokens a word and 10,318 tokens never used with a floor that stays at the minimum,
1.02 and 2,235 with one that falls.

Frequencies are exact after every merge, and ties go to the pair whose texts come first: the result is a function of
the counts. `NativeMergeTrainer` (wordpiece.cpp) and `PythonMergeTrainer` give the same tokens in the same order.
"""

from __future__ import annotations

import ctypes
import heapq
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from bertwright.kernels import native
from bertwright.vocabulary.tokenizer_io import CONTINUATION
from bertwright.vocabulary.word_counts import code_points


class Criterion(NamedTuple):
    """When a pair is merged."""

    likelihood: bool  # else by frequency
    min_frequency: int


class MergeTrainer(Protocol):
    """Learns as many pieces as asked, and more when asked again."""

    def advance(self, wanted: int) -> list[str]:
        """The next pieces in the order of learning; fewer than `wanted` where no pair is left."""
        ...


def make_trainer(words: Mapping[str, int], alphabet: frozenset[str], criterion: Criterion) -> MergeTrainer:
    """The native learner, or its twin where there is no compiler.

    Words with a character outside `alphabet` are [UNK] as a whole, whatever is learned: nothing is learned from them.
    """
    known = {word: count for word, count in words.items() if alphabet.issuperset(word)}
    library = native.load_library("wordpiece")
    return PythonMergeTrainer(known, criterion) if library is None else NativeMergeTrainer(known, criterion, library)


def initial_symbols(word: str) -> list[str]:
    """A word as single characters.

    >>> initial_symbols("the")
    ['t', '##h', '##e']
    """
    return [word[0], *(CONTINUATION + character for character in word[1:])]


Pair = tuple[str, str]


class PythonMergeTrainer:
    """The twin of `NativeMergeTrainer`. Its heap is lazy: an entry whose score has changed since is thrown away on top."""

    def __init__(self, words: Mapping[str, int], criterion: Criterion) -> None:
        self._criterion = criterion
        self._words = [(initial_symbols(word), count) for word, count in words.items()]
        self._symbols: dict[str, int] = {}  # frequency of each
        self._pairs: dict[Pair, int] = {}  # frequency of each
        self._where: dict[Pair, set[int]] = {}  # words in which it occurs, or once did
        self._of_symbol: dict[str, set[Pair]] = {}
        self._touched: set[Pair] = set()
        for number in range(len(self._words)):
            self._tally(number, +1)
        self._heap: list[tuple[float, Pair]] = []  # minus the score, pair
        falling = criterion.likelihood and self._pairs
        self._floor = max([criterion.min_frequency, *self._pairs.values()]) if falling else criterion.min_frequency
        self._fill_heap()

    def advance(self, wanted: int) -> list[str]:
        learned: list[str] = []
        while len(learned) < wanted:
            best = self._pop()
            if best is None:
                if self._floor <= self._criterion.min_frequency:
                    break
                self._floor = max(self._criterion.min_frequency, self._floor // 2)
                self._fill_heap()
                continue
            merged = best[0] + best[1].removeprefix(CONTINUATION)
            if merged not in self._symbols:
                learned.append(merged)
            self._merge(best, merged)
        return learned

    def _score(self, pair: Pair) -> float:
        count = float(self._pairs[pair])
        if not self._criterion.likelihood:
            return count
        return count / (float(self._symbols[pair[0]]) * float(self._symbols[pair[1]]))

    def _fill_heap(self) -> None:
        self._heap = [(-self._score(pair), pair) for pair, count in self._pairs.items() if count >= self._floor]
        heapq.heapify(self._heap)

    def _pop(self) -> Pair | None:
        while self._heap:
            minus_score, pair = heapq.heappop(self._heap)
            if self._pairs[pair] >= self._floor and self._score(pair) == -minus_score:
                return pair
        return None

    def _tally(self, number: int, sign: int) -> None:
        """Count a word's symbols and pairs in (sign +1) or out (sign -1)."""
        symbols, count = self._words[number]
        for symbol in symbols:
            self._symbols[symbol] = self._symbols.get(symbol, 0) + sign * count
        for pair in pairwise(symbols):
            self._pairs[pair] = self._pairs.get(pair, 0) + sign * count
            self._touched.add(pair)
            if sign > 0:
                self._where.setdefault(pair, set()).add(number)
                for symbol in pair:
                    self._of_symbol.setdefault(symbol, set()).add(pair)

    def _merge(self, best: Pair, merged: str) -> None:
        self._touched.clear()
        for number in self._where.pop(best):
            symbols, count = self._words[number]
            rewritten = _rewritten(symbols, best, merged)
            if len(rewritten) < len(symbols):
                self._tally(number, -1)
                self._words[number] = (rewritten, count)
                self._tally(number, +1)
        if self._criterion.likelihood:  # the frequency of a symbol is part of the score of all its pairs
            for symbol in (*best, merged):
                self._touched |= self._of_symbol.get(symbol, set())
        for pair in self._touched:
            if self._pairs[pair] >= self._floor:
                heapq.heappush(self._heap, (-self._score(pair), pair))


def _rewritten(symbols: list[str], pair: Pair, merged: str) -> list[str]:
    rewritten: list[str] = []
    place = 0
    while place < len(symbols):
        if tuple(symbols[place : place + 2]) == pair:
            rewritten.append(merged)
            place += 2
        else:
            rewritten.append(symbols[place])
            place += 1
    return rewritten


class NativeMergeTrainer:
    """The learner in wordpiece.cpp."""

    def __init__(self, words: Mapping[str, int], criterion: Criterion, library: ctypes.CDLL) -> None:
        _declare(library)
        self._library = library
        codes, lengths = code_points(words)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        inside = np.ones(len(codes), dtype=np.uint32)
        inside[starts[:-1]] = 0
        distinct, symbols = np.unique(2 * codes + inside, return_inverse=True)
        texts = [f"{CONTINUATION * (code & 1)}{chr(code >> 1)}\n" for code in distinct.tolist()]
        self._handle = library.learner_new(
            "".join(texts).encode(),
            len(words),
            symbols.astype(np.int32).ctypes.data_as(ctypes.c_void_p),
            starts.astype(np.int64).ctypes.data_as(ctypes.c_void_p),
            np.fromiter(words.values(), np.int64, len(words)).ctypes.data_as(ctypes.c_void_p),
            int(criterion.likelihood),
            criterion.min_frequency,
        )

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._library.learner_free(self._handle)

    def advance(self, wanted: int) -> list[str]:
        before = self._library.learner_size(self._handle)
        learned = self._library.learner_advance(self._handle, wanted)
        return [self._library.learner_text(self._handle, before + n).decode() for n in range(learned)]


def _declare(library: ctypes.CDLL) -> None:
    pointer, integer, text = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
    library.learner_new.argtypes = [text, integer, pointer, pointer, pointer, ctypes.c_int32, integer]
    library.learner_new.restype = pointer
    library.learner_free.argtypes = [pointer]
    library.learner_advance.argtypes, library.learner_advance.restype = [pointer, integer], integer
    library.learner_size.argtypes, library.learner_size.restype = [pointer], integer
    library.learner_text.argtypes, library.learner_text.restype = [pointer, integer], text
