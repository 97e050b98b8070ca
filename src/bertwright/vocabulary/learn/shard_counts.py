"""Counting of words by workers: each counts the chunks of a shard, and this process adds them up in order.

`read` and `count_words` in one process give the same counts in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from bertwright.base.reporter import ProgressCallback
from bertwright.corpus.documents import CorpusSettings, CorpusShard, describe_empty_corpus, read_shard, shard_corpus
from bertwright.executors.executor import Executor, run_in_order
from bertwright.text.decoding import ReadStats
from bertwright.vocabulary.learn.chunk_counter import ChunkTable, make_chunk_counter
from bertwright.vocabulary.learn.word_counts import WordCounter, WordCounts
from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings
from bertwright.vocabulary.word_tokenizer import WordRules

SHARD_BYTES = 16 << 20  # of the inputs: a tenth of a second of work, and half of it in tables of distinct chunks
TABLE_BYTES = 32 << 20  # text of one table; a compressed file is one shard of many tables


class CountedTable(NamedTuple):
    """Chunks of some consecutive documents of a shard."""

    documents: int
    chunks: ChunkTable


C = TypeVar("C")


class ShardCounts(NamedTuple, Generic[C]):
    """Result of a worker."""

    counts: C
    documents: int
    stats: ReadStats
    text_bytes: int
    """UTF-8 bytes of the documents."""


def count_in_shards(
    corpus: CorpusSettings, settings: VocabularySettings, executor: Executor, progress: ProgressCallback
) -> WordCounts:
    """Count the words of a corpus by the workers of an executor, as `count_words` does in one process.

    Raises ValueError if the text contradicts the settings of the corpus, and for a corpus without documents.
    """
    counter = WordCounter(
        lowercase=settings.lowercase, strip_accents=settings.strip_accents, max_words=settings.max_words
    )
    shards = shard_corpus(corpus, SHARD_BYTES)
    for shard, tables in _add_up(corpus, run_in_order(executor, _count_chunks, corpus, shards), progress):
        first = 0
        for table in tables:
            if not counter.merge(table.chunks):
                for document in islice(read_shard(corpus, shard), first, first + table.documents):
                    counter.add(document.text.encode())
            first += table.documents
    return counter.finish()


def count_whole_words(
    corpus: CorpusSettings, rules: WordRules, executor: Executor, progress: ProgressCallback
) -> Counter[str]:
    """Count the whole words of a corpus by the workers of an executor. Raises the errors of `count_in_shards`."""
    words, shards = Counter[str](), shard_corpus(corpus, SHARD_BYTES)
    for _, counts in _add_up(corpus, run_in_order(executor, _count_words, (corpus, rules), shards), progress):
        words.update(counts)
    return words


def _add_up(
    corpus: CorpusSettings, results: Iterable[tuple[CorpusShard, ShardCounts[C]]], progress: ProgressCallback
) -> Iterator[tuple[CorpusShard, C]]:
    """Yield each shard with its counts. Raises ValueError at the end if there was no document."""
    stats, documents = ReadStats(), 0
    for shard, counted in results:
        yield shard, counted.counts
        stats.add(counted.stats)
        documents += counted.documents
        progress(counted.text_bytes)
    if not documents:
        raise ValueError(describe_empty_corpus(corpus, stats))


def _count_chunks(shard: CorpusShard, corpus: CorpusSettings) -> ShardCounts[list[CountedTable]]:
    stats, counter = ReadStats(), make_chunk_counter()
    tables: list[CountedTable] = []
    documents = size = total = 0
    for document in read_shard(corpus, shard, stats):
        data = document.text.encode()
        counter.add(data)
        documents += 1
        size += len(data)
        if size >= TABLE_BYTES:
            tables.append(CountedTable(documents, counter.take_table()))
            documents, size, total = 0, 0, total + size
    tables.append(CountedTable(documents, counter.take_table()))
    return ShardCounts(tables, sum(table.documents for table in tables), stats, total + size)


def _count_words(shard: CorpusShard, shared: tuple[CorpusSettings, WordRules]) -> ShardCounts[Counter[str]]:
    corpus, rules = shared
    words, stats, documents, size = Counter[str](), ReadStats(), 0, 0
    for document in read_shard(corpus, shard, stats):
        words.update(rules.pattern.findall(document.text.lower() if rules.lowercase else document.text))
        documents += 1
        size += len(document.text.encode(errors="replace"))
    return ShardCounts(words, documents, stats, size)
