"""Shards of a build: tokenized by a worker process, read by the process that writes the store.

A finished shard is two files: `000012.chunks`, arrays one after another, and `000012.npz`, its summary. The summary is
written last and atomically; a shard that has one is finished.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np

from bertwright.base import files, object_storage
from bertwright.base.object_storage import as_url
from bertwright.corpus.documents import CorpusSettings, CorpusShard, Document, read_shard
from bertwright.corpus.sentences import make_document_splitter
from bertwright.tokenstore.store import DocumentChunk
from bertwright.vocabulary.tokenizer import TextTokenizer

# characters per tokenizer call: large enough that the call's overhead is negligible, small enough for memory
CHUNK_CHARACTERS = 4 << 20


class ShardSpec(NamedTuple):
    """Input and output of one shard."""

    folder: Path
    """Folder of the finished shards."""
    number: int
    corpus: CorpusSettings
    source: CorpusShard

    @property
    def name(self) -> str:
        """Name in messages."""
        return self.source.name

    @property
    def chunks_path(self) -> Path:
        return self.folder / f"{self.number:06}.chunks"

    @property
    def summary_path(self) -> Path:
        return self.folder / f"{self.number:06}.npz"


class ShardSummary(NamedTuple):
    """Digests and counts of a shard, from which held-out documents are chosen without reading the shard."""

    digests: np.ndarray
    """D 2 uint64: BLAKE2b (128 bits) of each document's text."""
    bytes: int
    """Size of the file with the chunks."""
    chunks: int
    empty_documents: int
    """Documents that were dropped because they have no token."""
    empty_sentences: int
    """Sentences that were dropped because they have no token."""
    unknown_tokens: int
    """[UNK]: characters, or words, that the vocabulary lacks."""


def write_shard(shard: ShardSpec, tokenizer: TextTokenizer) -> None:
    """Read, split and tokenize one shard; write its files atomically."""
    dtype = np.uint16 if tokenizer.num_ids <= 1 << 16 else np.uint32
    digests: list[bytes] = []
    has_tokens: list[np.ndarray] = []  # per chunk, a bool for each document
    chunks = empty_documents = empty_sentences = unknown_tokens = 0
    with files.atomic_file(shard.chunks_path) as path, path.open("wb") as file:
        documents = read_shard(shard.corpus, shard.source)
        for chunk in _split_sentences(documents, shard.corpus.sentence_splitter, tokenizer.space):
            digests.extend(chunk.digests)
            encoded = tokenizer.encode_numbers(chunk.sentences)
            lengths = np.diff(encoded.offsets)
            document_of = np.repeat(np.arange(len(chunk.counts)), chunk.counts)  # number of each sentence's document
            document_lengths = np.bincount(document_of[lengths > 0], minlength=len(chunk.counts))
            tokenized = DocumentChunk(
                encoded.ids.astype(dtype),
                lengths[lengths > 0].astype(np.uint32),
                document_lengths[document_lengths > 0].astype(np.uint32),
            )
            for array in tokenized:
                buffer = io.BytesIO()  # on a full disk, `numpy.save` to the file would raise an error without its cause
                np.save(buffer, array, allow_pickle=False)
                file.write(buffer.getbuffer())
            has_tokens.append(document_lengths > 0)
            chunks += 1
            empty_documents += len(chunk.counts) - len(tokenized.document_lengths)
            empty_sentences += len(lengths) - len(tokenized.sentence_lengths)
            unknown_tokens += int(np.count_nonzero(tokenized.tokens == tokenizer.unk_id))
        size = file.tell()
    numbers = np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)
    summary = ShardSummary(
        digests=numbers[np.concatenate([*has_tokens, np.zeros(0, bool)])],
        bytes=size,
        chunks=chunks,
        empty_documents=empty_documents,
        empty_sentences=empty_sentences,
        unknown_tokens=unknown_tokens,
    )
    with files.atomic_file(shard.summary_path) as path, path.open("wb") as file:
        np.savez(file, allow_pickle=False, **{name: np.asarray(value) for name, value in summary._asdict().items()})


def list_missing(shards: Sequence[ShardSpec]) -> list[ShardSpec]:
    """Return the shards that are not finished; an object store is asked once for all names."""
    url = as_url(shards[0].folder) if shards else None
    names = {*object_storage.list_names(url)} if url else set()
    return [shard for shard in shards if (url and shard.summary_path.name not in names) or not _is_finished(shard)]


def _is_finished(shard: ShardSpec) -> bool:
    """Return whether a shard is complete on disk; one with a damaged summary or a truncated file is written again."""
    try:
        url = as_url(shard.chunks_path)
        size = object_storage.status(url)[0] if url else shard.chunks_path.stat().st_size
        return size == read_summary(shard).bytes
    except (OSError, EOFError, ValueError, KeyError, NotImplementedError, BadZipFile):
        return False


def check_written(shard: ShardSpec) -> None:
    """Raise ValueError if a shard that a worker has written is not in the folder: the worker's machine has another."""
    if not files.exists(shard.summary_path):
        raise ValueError(
            f"{shard.folder.parent}: a worker on another machine has written to a folder of its own; choose a folder "
            "on a disk that all machines of the cluster share, or on object storage such as s3://BUCKET/store"
        )


def read_summary(shard: ShardSpec) -> ShardSummary:
    with files.open_binary(shard.summary_path) as file, np.load(file, allow_pickle=False) as arrays:
        digests, *counts = (arrays[name] for name in ShardSummary._fields)
        return ShardSummary(digests, *(int(count) for count in counts))


def read_chunks(shard: ShardSpec, count: int) -> Iterator[DocumentChunk]:
    """Yield the documents of a finished shard of `count` chunks."""
    with files.open_binary(shard.chunks_path) as file:
        for _ in range(count):
            yield DocumentChunk(*(np.load(file, allow_pickle=False) for _ in DocumentChunk._fields))


def select_documents(documents: DocumentChunk, chosen: np.ndarray) -> DocumentChunk:
    if chosen.all():
        return documents
    sentences = np.repeat(chosen, documents.document_lengths)
    return DocumentChunk(
        documents.tokens[np.repeat(sentences, documents.sentence_lengths)],
        documents.sentence_lengths[sentences],
        documents.document_lengths[chosen],
    )


class _SentenceChunk(NamedTuple):
    sentences: list[str]
    counts: list[int]
    """Sentences of each document."""
    digests: list[bytes]
    """BLAKE2b (128 bits) of each document's text."""


def _split_sentences(documents: Iterable[Document], splitter: str, space: str) -> Iterator[_SentenceChunk]:
    """Split documents into sentences, with `space` between them; yield them in chunks for the tokenizer."""
    split = make_document_splitter(splitter)
    chunk, characters = _SentenceChunk([], [], []), 0
    for document in documents:
        chunk.digests.append(hashlib.blake2b(document.text.encode(), digest_size=16).digest())
        sentences = split(document)
        chunk.sentences.extend(sentences[:1])
        chunk.sentences.extend(space + sentence for sentence in sentences[1:])
        chunk.counts.append(len(sentences))
        characters += len(document.text)
        if characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = _SentenceChunk([], [], []), 0
    if chunk.counts:
        yield chunk
