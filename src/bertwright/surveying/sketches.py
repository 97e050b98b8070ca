"""Counters of bounded memory: lengths, distinct strings, frequent lines, characters."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from tokenizers.normalizers import BertNormalizer

MAX_HASHES = 1 << 20  # distinct strings counted exactly; of more, a sample by hash is counted (error 0.1 %)
NUM_TOP_LINES = 10
MAX_CANDIDATES = 100_000  # lines counted to find the most frequent ones
BUFFER = 1 << 20  # characters counted at a time


@dataclass(frozen=True)
class LengthSummary:
    """Mean and quantiles of a length; above 1,000 the quantiles are right to three digits."""

    mean: float
    smallest: int
    p10: int
    median: int
    p90: int
    p99: int
    largest: int


@dataclass
class LengthHistogram:
    """A histogram of bounded size: lengths above 1,000 are rounded to three digits."""

    counts: Counter[int] = field(default_factory=Counter)
    total: int = 0
    largest: int = 0

    def add(self, sizes: Iterable[int]) -> None:
        for size in sizes:
            self.total += size
            self.largest = max(self.largest, size)
            while size >= 1000 and (step := 10 ** (len(str(size)) - 3)) > 1 and size % step:
                size -= size % step
            self.counts[size] += 1

    def merge(self, other: LengthHistogram) -> None:
        self.counts.update(other.counts)
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    def summarize(self) -> LengthSummary:
        sizes, number = np.array(sorted(self.counts)), self.counts.total()
        passed = np.cumsum([self.counts[size] for size in sizes.tolist()])
        p10, median, p90, p99 = sizes[np.searchsorted(passed, np.array([0.1, 0.5, 0.9, 0.99]) * number)].tolist()
        return LengthSummary(self.total / number, int(sizes[0]), p10, median, p90, p99, self.largest)


@dataclass
class DistinctCounter:
    """Estimate of the number of distinct strings, from the hashes of all or, of too many, a sample."""

    limit: int = MAX_HASHES
    seen: set[int] = field(default_factory=set)
    total: int = 0
    mask: int = 0

    def add(self, strings: Iterable[str]) -> None:
        for string in strings:
            self.total += 1
            key = int.from_bytes(hashlib.blake2b(string.encode(), digest_size=8).digest(), "little")
            if not key & self.mask:
                self.seen.add(key)
        self._thin()

    def merge(self, other: DistinctCounter) -> None:
        """Add the strings of another counter; the estimate does not depend on how strings are divided."""
        self.total += other.total
        if other.mask > self.mask:
            self.mask = other.mask
            self.seen = {key for key in self.seen if not key & self.mask}
        # In place: a new set of up to MAX_HASHES numbers for each shard would take longer than reading the shard.
        self.seen.update(other.seen if self.mask == other.mask else [key for key in other.seen if not key & self.mask])
        self._thin()

    def _thin(self) -> None:
        while len(self.seen) > self.limit:
            self.mask = 2 * self.mask + 1
            self.seen = {key for key in self.seen if not key & self.mask}

    def duplicate_share(self) -> float:
        """Return the share of strings that are equal to an earlier one."""
        return max(0.0, 1 - len(self.seen) * (self.mask + 1) / self.total) if self.total else 0.0


@dataclass
class LossyCounter:
    """The most frequent lines, by lossy counting: among too many candidates, the rarest are dropped."""

    counts: Counter[str] = field(default_factory=Counter)
    floor: int = 1

    def add(self, lines: Iterable[str]) -> None:
        self.counts.update(lines)
        while len(self.counts) > MAX_CANDIDATES:
            self.counts = Counter({line: count for line, count in self.counts.items() if count > self.floor})
            self.floor += len(self.counts) > MAX_CANDIDATES // 2

    def top(self) -> tuple[tuple[str, int], ...]:
        """Return the most frequent lines that occur more than once, with their counts."""
        return tuple((line, count) for line, count in self.counts.most_common(NUM_TOP_LINES) if count > 1)


@dataclass
class CharacterCounter:
    """Number of occurrences of each character."""

    waiting: list[str] = field(default_factory=list)
    size: int = 0
    counts: np.ndarray[tuple[int], np.dtype[np.int64]] = field(default_factory=lambda: np.zeros(0x110000, np.int64))

    def add(self, text: str) -> None:
        self.waiting.append(text)
        self.size += len(text)
        if self.size >= BUFFER:
            self._flush()

    def merge(self, other: CharacterCounter) -> None:
        """Add the characters of another counter, which has been trimmed."""
        self.counts[: len(other.counts)] += other.counts

    def trim(self) -> None:
        """Drop the characters after the last one that occurs, so that little is sent; no more texts can be added."""
        self._flush()
        self.counts = self.counts[: int(np.flatnonzero(self.counts).max(initial=-1)) + 1]

    def _flush(self) -> None:
        text = "".join(self.waiting)
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        occurrences = np.bincount(codes)
        self.counts[: len(occurrences)] += occurrences
        self.waiting, self.size = [], 0

    def to_dict(self) -> dict[str, int]:
        self._flush()
        return {chr(code): int(self.counts[code]) for code in np.flatnonzero(self.counts)}


# The tokenizer's own rules: its Unicode version differs from Python's, as for U+200B, U+00AD and U+0890.
_CLEANING = BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=False, lowercase=False)


def is_deleted(char: str) -> bool:
    r"""Return whether a BERT tokenizer deletes this character; False for U+FFFD, which is counted separately.

    >>> [is_deleted(char) for char in ("\x07", "\f", "\u200b", "\n", "\u3000", "\ufffd")]
    [True, True, True, False, False, False]
    """
    return char != "\ufffd" and not _CLEANING.normalize_str(char)


_STRIPPING = BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)


def mark_shares(characters: dict[str, int]) -> dict[str, float]:
    """Return the share among the letters of each letter, or separate mark, that stripping accents changes.

    >>> mark_shares({"a": 6, "é": 3, "한": 1, "!": 5, "\ufe0f": 5})
    {'é': 0.3, '한': 0.1}
    """
    number = sum(count for char, count in characters.items() if char.isalpha()) or 1
    return {
        char: count / number
        for char, count in sorted(characters.items(), key=lambda item: -item[1])
        if (char.isalpha() or unicodedata.category(char) == "Mn")
        and not unicodedata.name(char, "").startswith("VARIATION SELECTOR")
        and _STRIPPING.normalize_str(char) != char
    }


_SCRIPTS = frozenset(
    "Latin Greek Cyrillic Armenian Georgian Hebrew Arabic Syriac Devanagari Bengali Gurmukhi Gujarati Oriya Tamil "
    "Telugu Kannada Malayalam Sinhala Thai Lao Tibetan Myanmar Khmer Ethiopic Mongolian Hangul Han Kana".split()
)
_NAMES = {"CJK": "Han", "IDEOGRAPHIC": "Han", "HIRAGANA": "Kana", "KATAKANA": "Kana", "KATAKANA-HIRAGANA": "Kana"}


def script_shares(letters: dict[str, int]) -> dict[str, float]:
    """Return the share of letters by script, largest first; the first word of a letter's Unicode name is its script."""
    letters_by_script: Counter[str] = Counter()
    for letter, count in letters.items():
        word = unicodedata.name(letter, "OTHER").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ").split()[0]
        script = _NAMES.get(word, word.capitalize())
        letters_by_script[script if script in _SCRIPTS else "Other"] += count
    return {script: count / letters_by_script.total() for script, count in letters_by_script.most_common()}
