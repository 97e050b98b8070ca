"""BM25 (Robertson et al. 1994) in Lucene's form: documents that share words with a query, rare words first.

N documents, V distinct words, Q queries, k documents per query.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertwright.base.files import atomic_file, read_utf8, write_text
from bertwright.search.exact_search import Ints, Neighbours, empty_neighbours

# scipy takes a while to import, so the functions import it.

K1, B = 1.2, 0.75  # Lucene's defaults
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|\w+")  # kana and Han are written without spaces
TERMS, POSTINGS = "bm25_terms.txt", "bm25_postings.npz"


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case; no word is left out, and none is reduced to its stem.

    >>> split_words("Cats' tails, 2!")
    ['cats', 'tails', '2']
    """
    return WORD.findall(text.lower())


class Bm25:
    """The words of documents, and the weight of each word in each document."""

    def __init__(self, terms: Sequence[str], weights: Any) -> None:
        """Open an index of known weights, sparse V × N by rows."""
        self.numbers = {term: number for number, term in enumerate(terms)}
        self.weights = weights

    @classmethod
    def build(cls, texts: Iterable[str]) -> Bm25:
        """Count the words of documents.

        Weight of a word that occurs f times in a document of length n, m on average, and in d of N documents:
        ln(1 + (N - d + 0.5) / (d + 0.5)) · f / (f + k1 · (1 - b + b · n / m)).
        """
        from scipy import sparse

        numbers: dict[str, int] = {}
        places, counts, ends = list[Ints](), list[Ints](), [0]
        for text in texts:
            found = Counter(split_words(text))
            places.append(np.array([numbers.setdefault(word, len(numbers)) for word in found], np.int32))
            counts.append(np.array([*found.values()], np.int32))
            ends.append(ends[-1] + len(found))
        flat, columns = (np.concatenate([*parts, np.zeros(0, np.int32)]) for parts in (counts, places))
        documents = np.repeat(np.arange(len(counts)), np.diff(ends))
        lengths = np.bincount(documents, flat, minlength=len(counts))
        frequency = np.bincount(columns, minlength=len(numbers))
        rarity = np.log1p((len(counts) - frequency + 0.5) / (frequency + 0.5))
        norm = K1 * (1 - B + B * lengths / max(lengths.mean() if len(lengths) else 0, 1e-9))
        weights = (rarity[columns] * flat / (flat + norm[documents])).astype(np.float32)
        shape = (len(counts), len(numbers))
        by_document = sparse.csr_matrix((weights, columns, np.array(ends)), shape=shape)
        return cls([*numbers], by_document.T.tocsr())

    def find(self, queries: Sequence[str], k: int) -> Neighbours:
        """Find the `k` documents with the largest scores, best first; of equal scores, the lower position first.

        Documents without a word of the query are not found: position -1, score -inf.
        """
        size = self.weights.shape[1]
        positions, scores = nearest = empty_neighbours(len(queries), k)
        for number, query in enumerate(queries):
            sums = self.score(query)
            found = np.flatnonzero(sums)
            if len(found) > k:
                floor = np.partition(sums[found], len(found) - k)[len(found) - k]
                found = found[sums[found] >= floor]
            found = found[np.lexsort((found, -sums[found]))][: min(k, size)]
            positions[number, : len(found)], scores[number, : len(found)] = found, sums[found]
        return nearest

    def score(self, query: str) -> Any:
        """Compute the score of each document, N float32."""
        counts = Counter(self.numbers[word] for word in split_words(query) if word in self.numbers)
        rows, times = np.array([*counts], np.int64), np.array([*counts.values()], float)
        starts, ends = self.weights.indptr[rows], self.weights.indptr[rows + 1]
        chosen = np.concatenate([np.arange(start, end) for start, end in zip(starts, ends, strict=True)] or [rows])
        values = self.weights.data[chosen] * np.repeat(times, ends - starts)
        sums = np.bincount(self.weights.indices[chosen], values, minlength=self.weights.shape[1])
        return sums.astype(np.float32)

    def save(self, folder: Path) -> None:
        from scipy import sparse

        write_text(folder / TERMS, "".join(f"{term}\n" for term in self.numbers))
        with atomic_file(folder / POSTINGS) as temporary, temporary.open("wb") as file:
            sparse.save_npz(file, self.weights)

    @classmethod
    def load(cls, folder: Path) -> Bm25:
        """Read the files of a folder. Raises ValueError if they do not belong together."""
        from scipy import sparse

        terms, weights = read_utf8(folder / TERMS).splitlines(), sparse.load_npz(folder / POSTINGS)
        if weights.shape[0] != len(terms):
            raise ValueError(
                f"{folder / POSTINGS}: expected {len(terms):,} words, got {weights.shape[0]:,}; build again"
            )
        return cls(terms, weights)
