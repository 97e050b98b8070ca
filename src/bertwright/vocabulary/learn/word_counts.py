"""Word counts of a corpus, from which a vocabulary is learned.

Words are split by BERT's rules (`BertNormalizer`, then `BertPreTokenizer`). A few hundred thousand distinct chunks
between spaces make up gigabytes of text: so raw chunks are counted first, in a hash table, and only distinct chunks go
through Unicode normalization.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import tee
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers import normalizers, pre_tokenizers

from bertwright.base.reporter import ProgressCallback
from bertwright.vocabulary.learn.chunk_counter import ChunkTable, make_chunk_counter
from bertwright.vocabulary.wordpiece_files import MAX_WORD_LENGTH

# Bytes of distinct chunks in memory before they are split into words: over two million chunks of English. A limit on
# their number would not bound memory: in text without spaces a chunk is a whole paragraph.
CHUNK_LIMIT = 128 << 20
CHARACTERS_PER_CALL = 1 << 17  # limit of a call of the normalizer, which takes 100 bytes per character
PROGRESS_EVERY = 1 << 22  # bytes between two calls of `progress`

# Characters that str.split() takes for spaces; BERT deletes them and joins the text on both sides.
DELETED = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
# Indic, Thai, Lao, Tibetan, Burmese, Khmer, Javanese and Maldivian scripts, kana, Hangul, and the Latin letters of
# Vietnamese, Yoruba and Igbo: here the marks that NFD separates belong to the letter. Stripping them removes the vowels
# of Hindi, turns が into か and 한 into three jamo, and makes one word of má, mà and mạ.
DIACRITIC_LETTERS = re.compile(
    "[\u0309\u031b\u0323\u0780-\u07bf\u0900-\u109f\u1700-\u17ff\u1a00-\u1aaf\u1b00-\u1c4f\u1ea0-\u1ef9\u3040-\u30ff"
    "\ua800-\uabff\uac00-\ud7a3]"
)
SPELLINGS_PER_CALL = 1 << 16  # chunks that normalization changes, split together as they are written
ALONE = re.compile("[!-/:-@\\[-`{-~\u4e00-\u9fff]")  # punctuation and ideographs, words by themselves; not all of them
# Separates chunks that are normalized together. Normalization puts at most two adjacent spaces into a chunk (between
# two CJK characters), so four are always a boundary.
BOUNDARY = " " * 4


class Merge(NamedTuple):
    """Effect of a rule, such as stripping accents, on the words of a text that start with a letter."""

    changed: float = 0.0
    """Share of the words that the rule changes."""
    merged: float = 0.0
    """Share of the words that it makes equal to a more frequent word."""
    examples: str = ""
    """The most frequent of these, such as "má, mà → ma"; else of the changed words."""


NO_MERGE = Merge()


@dataclass
class WordCounts:
    """Numbers of occurrences of words."""

    words: Counter[str] = field(default_factory=Counter)
    too_long: int = 0  # occurrences of words above BERT's 100 characters, which are always [UNK]
    pruned: int = 0  # occurrences of rare words dropped to bound memory
    chunks: int = 0  # occurrences of strings between spaces
    letters_with_diacritics: int = 0  # chunks of scripts that stripping accents would mutilate
    # For the report; a few words depend on how long chunks are split.
    spellings: Counter[str] = field(default_factory=Counter, compare=False)  # changed words, as they are written
    stripped: Merge = field(default=NO_MERGE, compare=False)  # effect of stripping accents
    lowered: Merge = field(default=NO_MERGE, compare=False)  # effect of lower-casing
    dotless: float = 0.0  # share of the words with a Turkish ı, which no I becomes in lower case

    @property
    def total(self) -> int:
        return self.words.total() + self.too_long + self.pruned

    def characters(self) -> Counter[str]:
        codes, lengths = code_points(self.words)
        occurrences = np.repeat(np.fromiter(self.words.values(), np.int64, len(self.words)), lengths)
        distinct, indices = np.unique(codes, return_inverse=True)
        totals = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(totals, indices, occurrences)
        return Counter(dict(zip(map(chr, distinct.tolist()), totals.tolist(), strict=True)))

    def prune(self, max_words: int) -> None:
        """Drop rare words, up to the frequency that leaves half of them, if more than `max_words` are distinct.

        Half, so that it happens rarely; by frequency alone, so that the order of words does not matter.
        """
        if len(self.spellings) > max_words:
            self.spellings = Counter(dict(self.spellings.most_common(max_words // 2)))
        if len(self.words) <= max_words:
            return
        frequencies = np.sort(np.fromiter(self.words.values(), np.int64, len(self.words)))
        threshold = int(frequencies[len(frequencies) - max_words // 2 - 1])
        before = self.words.total()
        self.words = Counter({word: count for word, count in self.words.items() if count > threshold})
        self.pruned += before - self.words.total()


def code_points(words: Collection[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return the code points of all words, end to end, and the length of each word."""
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    return np.frombuffer("".join(words).encode("utf-32-le"), np.uint32), lengths


class WordRules:
    """Word rules of a BERT tokenizer, applied by the tokenizer's own components."""

    def __init__(self, lowercase: bool, strip_accents: bool | None) -> None:
        self._normalizer = normalizers.BertNormalizer(
            clean_text=True, lowercase=lowercase, strip_accents=strip_accents, handle_chinese_chars=True
        )
        self._pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._alone: dict[str, bool] = {}

    def stands_alone(self, character: str) -> bool:
        """Return whether this (normalized) character is always a word of its own, as punctuation and ideographs are."""
        if character not in self._alone:
            normalized = self._normalizer.normalize_str(f"a{character}a")
            self._alone[character] = len(self._pre_tokenizer.pre_tokenize_str(normalized)) > 1
        return self._alone[character]

    def words(self, chunks: Iterable[str]) -> Iterator[list[str]]:
        """Yield the words of each chunk; chunks contain no white space."""
        for batch in _batches(chunks):
            normalized = self._normalizer.normalize_str(BOUNDARY.join(batch))
            alone = "".join(re.escape(c) for c in sorted(set(normalized)) if c != " " and self.stands_alone(c))
            word = re.compile(f"[{alone}]|[^ {alone}]+" if alone else "[^ ]+")
            yield from map(word.findall, normalized.split(BOUNDARY))


def _batches(chunks: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of chunks of at least `CHARACTERS_PER_CALL` characters each; the last may have fewer."""
    batch: list[str] = []
    size = 0
    for chunk in chunks:
        batch.append(chunk)
        size += len(chunk)
        if size >= CHARACTERS_PER_CALL:
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
    progress: ProgressCallback = lambda _: None,
) -> WordCounts:
    """Count the words of texts. `progress` receives the number of UTF-8 bytes read since its last call.

    Raises ValueError for a text with a lone surrogate.
    """
    counter = WordCounter(lowercase=lowercase, strip_accents=strip_accents, max_words=max_words)
    pending = 0
    for number, text in enumerate(texts):
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text {number}: lone surrogate at character {error.start}") from None
        pending += len(data)
        counter.add(data)
        if pending >= PROGRESS_EVERY:
            progress(pending)
            pending = 0
    counts = counter.finish()
    progress(pending)
    return counts


class WordCounter:
    """Counter of the words of texts, in memory for distinct words alone."""

    def __init__(self, *, lowercase: bool, strip_accents: bool | None, max_words: int) -> None:
        self._rules = WordRules(lowercase, strip_accents)
        self._keeping = WordRules(lowercase, strip_accents=False)
        self._max_words = max_words
        self._counts = WordCounts()
        self._chunks = make_chunk_counter()

    def add(self, text: bytes) -> None:
        if self._chunks.add(text) > CHUNK_LIMIT:
            self._add_chunks()

    def merge(self, table: ChunkTable) -> bool:
        """Count the words of the texts of a table as `add` would; return False if that takes the texts one by one.

        It does where chunks have to be split into words between two of the texts, to bound memory.
        """
        if self._chunks.bytes_with(table) > CHUNK_LIMIT:
            return False
        self._chunks.merge(table)
        return True

    def finish(self) -> WordCounts:
        self._add_chunks()
        _measure_merges(self._counts, self._rules, self._keeping)
        return self._counts

    def _add_chunks(self) -> None:
        """Add the words of the counted chunks; chunks are streamed, so that only words take memory."""
        counts = self._counts
        for_words, for_counts = tee(_clean(counts, self._chunks.take()))
        changed: list[tuple[str, list[str], int]] = []
        for words, (chunk, count) in zip(self._rules.words(chunk for chunk, _ in for_words), for_counts, strict=True):
            if "".join(words) != chunk:
                changed.append((chunk, words, count))
                if len(changed) == SPELLINGS_PER_CALL:
                    _add_spellings(counts, changed)
                    changed = []
            for word in words:
                if len(word) > MAX_WORD_LENGTH:
                    counts.too_long += count
                else:
                    counts.words[word] = counts.words.get(word, 0) + count
        _add_spellings(counts, changed)
        counts.prune(self._max_words)


def _add_spellings(counts: WordCounts, changed: list[tuple[str, list[str], int]]) -> None:
    """Add the spellings of words that normalization changes: of chunks, their normalized words and their counts."""
    written = WordRules(lowercase=False, strip_accents=False)
    for spellings, (_, words, count) in zip(written.words(chunk for chunk, _, _ in changed), changed, strict=True):
        if len(spellings) == len(words):  # else a character has become punctuation, such as ≠
            for spelling, word in zip(spellings, words, strict=True):
                if spelling != word and word[0].isalpha() and len(word) <= MAX_WORD_LENGTH:
                    counts.spellings[spelling] += count


def _measure_merges(counts: WordCounts, rules: WordRules, keeping: WordRules) -> None:
    """Measure what stripping accents and lower-casing do; `keeping` are the rules without the former."""
    number = sum(count for word, count in counts.words.items() if word[0].isalpha())
    counts.dotless = sum(count for word, count in counts.words.items() if "ı" in word) / max(number, 1)
    marked: Counter[str] = Counter()
    lowered = ["".join(words) for words in keeping.words(counts.spellings)]
    for word, count in zip(lowered, counts.spellings.values(), strict=True):
        marked[word] += count
    bare = ["".join(words) for words in rules.words(marked)]
    counts.stripped = _measure_merge(marked, bare, counts.words, number)
    totals = Counter(counts.words)  # with their marks
    for word, stripped in zip(marked, bare, strict=True):
        if word != stripped:
            totals[stripped] -= marked[word]
            totals[word] += marked[word]
    counts.lowered = _measure_merge(counts.spellings, lowered, totals, number)


def _measure_merge(before: Counter[str], after: Iterable[str], totals: Mapping[str, int], number: int) -> Merge:
    """Measure a rule that turns words `before` into `after`; `totals` counts the latter among all `number` words."""
    groups: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for (word, count), result in zip(before.items(), after, strict=True):
        if word != result:
            groups[result].append((count, word))
    changes: list[tuple[int, int, str]] = []
    for result, group in groups.items():
        changed = sum(count for count, _ in group)
        unchanged = max(totals.get(result, 0) - changed, 0)
        changes.append((changed + unchanged - max(unchanged, max(group)[0]), changed, result))
    examples = [
        f"{', '.join(word for _, word in sorted(groups[result], reverse=True)[:2])} → {result}"
        for _, _, result in nlargest(3, changes)
    ]
    return Merge(
        changed=sum(changed for _, changed, _ in changes) / max(number, 1),
        merged=sum(merged for merged, _, _ in changes) / max(number, 1),
        examples="; ".join(examples),
    )


def _clean(counts: WordCounts, chunks: Iterator[tuple[str, int]]) -> Iterator[tuple[str, int]]:
    """Yield chunks without deleted characters, split at all white space; add their statistics to `counts`."""
    for chunk, count in chunks:
        if chunk.isascii() and chunk.isprintable() and len(chunk) <= CHARACTERS_PER_CALL:
            counts.chunks += count
            yield chunk, count
            continue
        for string in DELETED.sub("", chunk).split():
            counts.chunks += count
            if DIACRITIC_LETTERS.search(string):
                counts.letters_with_diacritics += count
            for short in _split_chunk(string):
                yield short, count


def _split_chunk(chunk: str) -> Iterator[str]:
    """Split a long chunk into chunks of few more than CHARACTERS_PER_CALL characters with the same words.

    Text without spaces may be one chunk of any length. It can be split before a character that is always a word; a
    chunk without such characters stays as it is.
    """
    first = 0
    while found := ALONE.search(chunk, first + CHARACTERS_PER_CALL):
        yield chunk[first : found.start()]
        first = found.start()
    yield chunk[first:]
