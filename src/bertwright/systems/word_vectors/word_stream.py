"""A text as a stream of word numbers on disk: it is read once, and trained on many times in constant memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.base.npy import NpyWriter
from bertwright.base.reporter import ProgressCallback
from bertwright.corpus.documents import CorpusSettings, read
from bertwright.corpus.sentences import make_document_splitter
from bertwright.systems.word_vectors.vector_settings import WordRule
from bertwright.vocabulary.word_tokenizer import BLANK, DIGIT, WORD

END = -1  # of a sentence
WORDS_PER_WRITE = 1 << 20

Ids = npt.NDArray[np.int32]


class WordStream(NamedTuple):
    """Words of a text, V different ones, and the text as their numbers."""

    words: list[str]  # V, most frequent first; words of equal count in the order of the text
    counts: npt.NDArray[np.int64]  # V
    text: Ids  # numbers in order of first occurrence, from 1; 0 ends a sentence; memory-mapped
    ids: Ids  # the id of each number: 0 ≤ id < V, END, or -2 for a word that is too rare

    @property
    def length(self) -> int:
        """Words of the text, rare ones and ends of sentences included."""
        return len(self.text)

    def stretches(self, size: int) -> Iterator[Ids]:
        """Yield the ids of the text without rare words, in stretches of `size` numbers of the text."""
        for start in range(0, len(self.text), size):
            ids = self.ids[self.text[start : start + size]]
            yield ids[ids != -2]


def read_words(corpus: CorpusSettings, rule: WordRule, folder: Path, advance: ProgressCallback) -> WordStream:
    """Read a corpus and write its word numbers into a folder.

    Raises ValueError if no word occurs `min_count` times, and the errors of `documents.read`.
    """
    split = make_document_splitter(corpus.sentence_splitter)
    pattern = WORD if rule.split_punctuation else BLANK
    numbers: defaultdict[str, int] = defaultdict(count(1).__next__)
    path = folder / "text.npy"
    with NpyWriter(path, np.int32) as writer:
        pending: list[int] = []
        for document in read(corpus):
            advance(len(document.text.encode()))
            for sentence in split(document):
                text = sentence.lower() if rule.lowercase else sentence
                text = DIGIT.sub("0", text) if rule.zero_digits else text
                pending += [numbers[word] for word in pattern.findall(text)]
                pending.append(0)
            if len(pending) >= WORDS_PER_WRITE:
                writer.append(np.array(pending, dtype=np.int32))
                pending = []
        writer.append(np.array(pending, dtype=np.int32))
    text = np.load(path, mmap_mode="r")
    occurrences = np.zeros(len(numbers) + 1, dtype=np.int64)
    for start in range(0, len(text), WORDS_PER_WRITE):
        occurrences += np.bincount(text[start : start + WORDS_PER_WRITE], minlength=len(occurrences))
    occurrences[0] = 0
    order = np.argsort(-occurrences, kind="stable")
    order = order[occurrences[order] >= rule.min_count]
    if len(order) < 2:
        raise ValueError(
            f"{', '.join(corpus.inputs)}: expected words that occur {rule.min_count} times (--min-count), got "
            f"{len(order)} among {len(numbers):,} words; use more text, or a lower count"
        )
    ids = np.full(len(occurrences), -2, dtype=np.int32)
    ids[order] = np.arange(len(order))
    ids[0] = END
    names = list(numbers)
    return WordStream([names[number - 1] for number in order.tolist()], occurrences[order], text, ids)
