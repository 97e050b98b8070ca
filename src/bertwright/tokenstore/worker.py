"""One piece of the corpus → one part of a store in building: what a worker process does.

A part is two files: `00012.chunks`, arrays one after the other, and `00012.npz`, its summary, which is written last and
whole or not at all: with it the part is finished.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from bertwright import files
from bertwright.corpus.documents import CorpusSettings, CorpusShard, Document, read_shard
from bertwright.corpus.sentences import make_sentence_splitter
from bertwright.tokenstore.store import DocumentBatch
from bertwright.vocabulary.tokenizer import Tokenizer

PR_SET_PDEATHSIG = 1  # linux/prctl.h: the signal that a process gets when its parent dies
CHUNK_CHARACTERS = 4 << 20  # of text in one call of the tokenizer: enough to hide the call, little enough for memory


class PartTask(NamedTuple):
    """What a worker is given: make this piece the part `number` in `folder`."""

    folder: Path
    number: int
    corpus: CorpusSettings
    piece: CorpusShard


class PartSummary(NamedTuple):
    """What the choice between training and held-out documents needs to know of a part."""

    digests: np.ndarray
    """D 2 uint64: BLAKE2b (128 bit) of each document's text."""
    chunks: int
    empty_documents: int
    """Dropped: no sentence of theirs has a token."""
    empty_sentences: int
    """Dropped: they have no token."""
    unknown_tokens: int
    """[UNK]: characters that the vocabulary does not have."""


def worker_main(descriptor: int, parent: int) -> None:
    """A worker process: receive a tokenizer, then tasks; answer each with None or with the error it ended in.

    It ends when the other side closes the connection, which a killed process does too; on Linux it ends with it at
    once, so that nobody writes on behind the back of the build that goes on. `parent` is the process id of the other
    side: where that died before the worker was ready, its tasks still wait in the connection, and nobody wants them.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with Connection(descriptor) as connection:
        try:
            tokenizer: Tokenizer = connection.recv()
            while True:
                task: PartTask = connection.recv()
                if os.getppid() != parent:
                    return
                try:
                    write_part(task, tokenizer)
                    connection.send(None)
                except (ValueError, OSError) as error:
                    connection.send(error)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            sys.exit()


def write_part(task: PartTask, tokenizer: Tokenizer) -> None:
    """Read, split and tokenize one piece; leave nothing but whole files."""
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    digests: list[bytes] = []
    chunks = kept_documents = all_sentences = kept_sentences = unknown_tokens = 0
    kept: list[np.ndarray] = []
    with files.atomic_file(_chunks_path(task.folder, task.number)) as path, path.open("wb") as file:
        documents = read_shard(task.corpus, task.piece)
        for chunk in _sentence_chunks(documents, task.corpus.sentence_splitter, digests):
            encoded = tokenizer.encode_raw(chunk.sentences)
            lengths = np.diff(encoded.offsets)
            document = np.repeat(np.arange(len(chunk.counts)), chunk.counts)
            document_lengths = np.bincount(document[lengths > 0], minlength=len(chunk.counts))
            kept.append(document_lengths > 0)
            whole = DocumentBatch(
                encoded.ids.astype(dtype),
                lengths[lengths > 0].astype(np.uint32),
                document_lengths[document_lengths > 0].astype(np.uint32),
            )
            for column in whole:
                _append(file, column)
            chunks += 1
            kept_documents += len(whole.document_lengths)
            all_sentences += len(lengths)
            kept_sentences += len(whole.sentence_lengths)
            unknown_tokens += int(np.count_nonzero(whole.tokens == tokenizer.unk_id))
    numbers = np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)
    summary = PartSummary(
        digests=numbers[np.concatenate([*kept, np.zeros(0, bool)])],
        chunks=chunks,
        empty_documents=len(digests) - kept_documents,
        empty_sentences=all_sentences - kept_sentences,
        unknown_tokens=unknown_tokens,
    )
    with files.atomic_file(_summary_path(task.folder, task.number)) as path, path.open("wb") as file:
        np.savez(file, allow_pickle=False, **{name: np.asarray(value) for name, value in summary._asdict().items()})


def is_finished(folder: Path, number: int) -> bool:
    """Is the part whole on disk?"""
    return _summary_path(folder, number).is_file()


def read_summary(folder: Path, number: int) -> PartSummary:
    """The summary of a finished part."""
    with np.load(_summary_path(folder, number), allow_pickle=False) as arrays:
        digests, *counts = (arrays[name] for name in PartSummary._fields)
        return PartSummary(digests, *(int(count) for count in counts))


def read_chunks(folder: Path, number: int, count: int) -> Iterator[DocumentBatch]:
    """The documents of a finished part."""
    with _chunks_path(folder, number).open("rb") as file:
        for _ in range(count):
            yield DocumentBatch(*(np.load(file, allow_pickle=False) for _ in DocumentBatch._fields))


def selected(documents: DocumentBatch, chosen: np.ndarray) -> DocumentBatch:
    """Those documents for which `chosen` (bool) says so."""
    if chosen.all():
        return documents
    sentences = np.repeat(chosen, documents.document_lengths)
    return DocumentBatch(
        documents.tokens[np.repeat(sentences, documents.sentence_lengths)],
        documents.sentence_lengths[sentences],
        documents.document_lengths[chosen],
    )


class _SentenceChunk(NamedTuple):
    sentences: list[str]
    counts: list[int]
    """Sentences of each document."""


def _sentence_chunks(documents: Iterable[Document], rule: str, digests: list[bytes]) -> Iterator[_SentenceChunk]:
    """Split documents and group them to chunks for the tokenizer; add the digest of each to `digests`."""
    split = make_sentence_splitter(rule)
    chunk, characters = _SentenceChunk([], []), 0
    for document in documents:
        digests.append(hashlib.blake2b(document.text.encode(), digest_size=16).digest())
        sentences = split(document.text)
        chunk.sentences.extend(sentences)
        chunk.counts.append(len(sentences))
        characters += len(document.text)
        if characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = _SentenceChunk([], []), 0
    if chunk.counts:
        yield chunk


def _append(file: BinaryIO, column: np.ndarray) -> None:
    """`numpy.save`, but by the file's own write: on a full disk numpy's raises an error that does not say so."""
    buffer = io.BytesIO()
    np.save(buffer, column, allow_pickle=False)
    file.write(buffer.getbuffer())


def _chunks_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06}.chunks"


def _summary_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06}.npz"
