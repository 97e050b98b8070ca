"""Learning of tokens by merging: the best pair of adjacent symbols becomes a new symbol, until there are enough.

A symbol is a token as it is written: in WordPiece with "##" before the symbols inside a word ("un", "##able"), in byte
pairs with "</w>" after a word's last symbol ("un", "able</w>"). The score of a pair ab, by rule, with N symbols in the
text:

- "gain": f(ab) · log[f(ab) · N / (f(a) · f(b))], by how much the merge raises the log-likelihood of the text under a
  unigram model of symbols, to first order. WordPiece's authors choose the unit "that increases the likelihood on the
  training data the most" (Schuster and Nakajima 2012), without a formula. Learning ends when no merge raises it.
- "bpe": f(ab) (Sennrich, Haddow and Birch 2016).

Frequencies are exact after every merge, and ties go to the pair that is first in alphabetical order: the result is a
function of the counts ("gain": and of the C library's logarithm). `NativeMergeTrainer` (wordpiece.cpp) and
`PythonMergeTrainer` give the same tokens in the same order.
"""

from __future__ import annotations

import ctypes
import heapq
import math
import re
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

import numpy as np

from bertwright.kernels import native_library
from bertwright.vocabulary.learn.chunk_counter import check_memory
from bertwright.vocabulary.learn.word_counts import code_points
from bertwright.vocabulary.wordpiece_files import CONTINUATION

WORD_END: Literal["</w>"] = "</w>"  # marks a token that ends a word
Mark = Literal["##", "</w>"]
UNWRITABLE = re.compile("[\0\n]")  # ends a symbol in wordpiece.cpp

Rule = Literal["gain", "bpe"]
RULES: tuple[Rule, ...] = get_args(Rule)  # same order as `enum Rule` in wordpiece.cpp


class Criterion(NamedTuple):
    """The rule by which pairs are merged, and the minimum frequency of a pair."""

    rule: Rule
    min_frequency: int
    mark: Mark = "##"
    """How the symbols of a word are written."""

    @property
    def prefix(self) -> str:
        """Text before a symbol inside a word, which a merge drops."""
        return CONTINUATION if self.mark == CONTINUATION else ""


Pair = tuple[str, str]


def make_trainer(
    words: Mapping[str, int], alphabet: frozenset[str], criterion: Criterion
) -> PythonMergeTrainer | NativeMergeTrainer:
    """Create the native trainer, or the one in Python if there is no native library.

    Words with a character outside `alphabet` are [UNK] as a whole, so nothing is learned from them. Raises ValueError
    for a word with a NUL or a line end, which tokens cannot contain.
    """
    for word in words:
        if UNWRITABLE.search(word):
            raise ValueError(f"word {word!r}: a NUL or a line end; split words at white space")
    known = {word: count for word, count in words.items() if alphabet.issuperset(word)}
    library = native_library.load_library("wordpiece")
    return PythonMergeTrainer(known, criterion) if library is None else NativeMergeTrainer(known, criterion, library)


def initial_symbols(word: str, mark: Mark = "##") -> list[str]:
    """Split a word into characters.

    >>> initial_symbols("the"), initial_symbols("the", "</w>")
    (['t', '##h', '##e'], ['t', 'h', 'e</w>'])
    """
    if mark == WORD_END:
        return [*word[:-1], word[-1] + WORD_END]
    return [word[0], *(CONTINUATION + character for character in word[1:])]


class PythonMergeTrainer:
    """Reference implementation, with a lazy heap: an entry with an outdated score is dropped at the top."""

    def __init__(self, words: Mapping[str, int], criterion: Criterion) -> None:
        self._criterion = criterion
        self._words = [(initial_symbols(word, criterion.mark), count) for word, count in words.items()]
        self._symbols: dict[str, int] = {}  # symbol to frequency
        self._pairs: dict[Pair, int] = {}  # pair to frequency
        self._where: dict[Pair, set[int]] = {}  # pair to the words in which it occurs or has occurred
        self._of_symbol: dict[str, set[Pair]] = {}
        self._touched: set[Pair] = set()
        self._merges: list[Pair] = []
        self._num_symbols = 0
        for number in range(len(self._words)):
            self._add_counts(number, +1)
        frequent = [pair for pair, count in self._pairs.items() if count >= criterion.min_frequency]
        self._heap = [(-self._score(pair), pair) for pair in frequent]
        heapq.heapify(self._heap)

    def advance(self, wanted: int) -> list[str]:
        """Learn and return the next tokens, in order; fewer than `wanted` if no pair is left."""
        learned: list[str] = []
        while len(learned) < wanted:
            best = self._pop()
            if best is None:
                break
            merged = best[0] + best[1].removeprefix(self._criterion.prefix)
            self._merges.append(best)
            if merged not in self._symbols:
                learned.append(merged)
            self._merge(best, merged)
        return learned

    def merges(self) -> list[Pair]:
        """Return all merges in order; several may give the same token."""
        return self._merges

    def _score(self, pair: Pair) -> float:
        count = float(self._pairs[pair])
        if self._criterion.rule == "bpe":
            return count
        product = float(self._symbols[pair[0]]) * float(self._symbols[pair[1]])
        return count * math.log(count * float(self._num_symbols) / product)

    def _pop(self) -> Pair | None:
        while self._heap:
            minus_score, pair = heapq.heappop(self._heap)
            if self._pairs[pair] < self._criterion.min_frequency:
                continue
            score = self._score(pair)
            if score == -minus_score:
                if self._criterion.rule != "gain" or score > 0:
                    return pair
                heapq.heappush(self._heap, (minus_score, pair))
                return None
            if self._criterion.rule == "gain" and score < -minus_score:
                # Gains depend on the number of symbols, which only falls: the scores in the heap are upper bounds.
                heapq.heappush(self._heap, (-score, pair))
        return None

    def _add_counts(self, number: int, sign: int) -> None:
        """Add (sign +1) or subtract (sign -1) the symbols and pairs of a word."""
        symbols, count = self._words[number]
        self._num_symbols += sign * count * len(symbols)
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
            rewritten = _replace_pair(symbols, best, merged)
            if len(rewritten) < len(symbols):
                self._add_counts(number, -1)
                self._words[number] = (rewritten, count)
                self._add_counts(number, +1)
        if self._criterion.rule != "bpe":  # the score of a pair depends on the frequency of its symbols
            for symbol in (*best, merged):
                self._touched |= self._of_symbol.get(symbol, set())
        for pair in self._touched:
            if self._pairs[pair] >= self._criterion.min_frequency:
                heapq.heappush(self._heap, (-self._score(pair), pair))


def _replace_pair(symbols: list[str], pair: Pair, merged: str) -> list[str]:
    rewritten: list[str] = []
    position = 0
    while position < len(symbols):
        if tuple(symbols[position : position + 2]) == pair:
            rewritten.append(merged)
            position += 2
        else:
            rewritten.append(symbols[position])
            position += 1
    return rewritten


class NativeMergeTrainer:
    """Trainer with the methods of `PythonMergeTrainer`, in wordpiece.cpp."""

    def __init__(self, words: Mapping[str, int], criterion: Criterion, library: ctypes.CDLL) -> None:
        _declare(library)
        self._library = library
        codes, lengths = code_points(words)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        marked = np.full(len(codes), criterion.mark == CONTINUATION, dtype=np.uint32)
        edges = starts[:-1] if criterion.mark == CONTINUATION else starts[1:] - 1
        marked[edges] ^= 1
        prefix, suffix = criterion.prefix, "" if criterion.prefix else criterion.mark
        distinct, symbols = np.unique(2 * codes + marked, return_inverse=True)
        texts = [f"{prefix * (code & 1)}{chr(code >> 1)}{suffix * (code & 1)}\n" for code in distinct.tolist()]
        self._handle = library.learner_new(
            "".join(texts).encode(),
            len(words),
            symbols.astype(np.int32).ctypes.data_as(ctypes.c_void_p),
            starts.astype(np.int64).ctypes.data_as(ctypes.c_void_p),
            np.fromiter(words.values(), np.int64, len(words)).ctypes.data_as(ctypes.c_void_p),
            RULES.index(criterion.rule),
            criterion.min_frequency,
            len(criterion.prefix),
        )

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self._library.learner_free(self._handle)

    def advance(self, wanted: int) -> list[str]:
        before = self._library.learner_size(self._handle)
        return [self._text(before + n) for n in range(self._library.learner_advance(self._handle, wanted))]

    def merges(self) -> list[Pair]:
        parts = partial(self._library.learner_part, self._handle)
        count = self._library.learner_merges(self._handle)
        return [(self._text(parts(n, 0)), self._text(parts(n, 1))) for n in range(count)]

    def _text(self, symbol: int) -> str:
        text: str = self._library.learner_text(self._handle, symbol).decode()
        return text


def _declare(library: ctypes.CDLL) -> None:
    pointer, integer, text = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
    library.learner_new.argtypes = [text, integer, pointer, pointer, pointer, ctypes.c_int32, integer, ctypes.c_int32]
    library.learner_new.restype = pointer
    library.learner_free.argtypes = [pointer]
    library.learner_advance.argtypes, library.learner_advance.restype = [pointer, integer], integer
    library.learner_new.errcheck = library.learner_advance.errcheck = check_memory
    library.learner_size.argtypes, library.learner_size.restype = [pointer], integer
    library.learner_merges.argtypes, library.learner_merges.restype = [pointer], integer
    library.learner_part.argtypes, library.learner_part.restype = [pointer, integer, ctypes.c_int32], integer
    library.learner_text.argtypes, library.learner_text.restype = [pointer, integer], text
