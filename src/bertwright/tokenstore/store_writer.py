"""Writer of a token store; `store.py` has its format, and the reader."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import numpy as np

from bertwright.base import files
from bertwright.base.npy import NpyWriter
from bertwright.tokenstore.store import (
    FORMAT_VERSION,
    HEADER,
    DocumentChunk,
    Provenance,
    StoreFile,
    StoreHeader,
    digest_of,
    sampled_digest,
)

FILE_TOKENS = 1 << 28  # per file: 512 MB of uint16, so that a large corpus is a few dozen files


def write_store(
    folder: Path,
    chunks: Iterable[DocumentChunk],
    provenance: Provenance,
    corpus_digest: str,
    file_tokens: int = FILE_TOKENS,
) -> StoreHeader:
    """Write a store into an existing, empty folder, in constant memory; the header comes last.

    `corpus_digest` is the digest of the documents' texts, `file_tokens` the capacity of a token file. To make the store
    appear atomically, call this within `files.atomic_folder`.
    """
    with ExitStack() as stack:
        tokens = _TokenFiles(folder, provenance.vocab_size, file_tokens, stack)
        sentence_starts = stack.enter_context(NpyWriter(folder / "sentence_starts.npy", np.int64))
        document_starts = stack.enter_context(NpyWriter(folder / "document_starts.npy", np.int64))
        sentence_starts.append(np.zeros(1, np.int64))
        document_starts.append(np.zeros(1, np.int64))
        num_tokens = num_sentences = num_documents = 0
        for chunk in chunks:
            sentence_ends, document_ends = np.cumsum(chunk.sentence_lengths), np.cumsum(chunk.document_lengths)
            sentence_starts.append(num_tokens + sentence_ends)
            document_starts.append(num_sentences + document_ends)
            tokens.append(chunk.tokens, sentence_ends[document_ends - 1])
            num_tokens += len(chunk.tokens)
            num_sentences += len(chunk.sentence_lengths)
            num_documents += len(chunk.document_lengths)
    arrays = [*tokens.arrays, sentence_starts, document_starts]
    header = StoreHeader(
        format_version=FORMAT_VERSION,
        provenance=provenance,
        corpus_digest=corpus_digest,
        num_tokens=num_tokens,
        num_sentences=num_sentences,
        num_documents=num_documents,
        files=tuple(map(_describe, arrays)),
    )
    described = asdict(header) | {"files": [file._asdict() for file in header.files]}
    files.write_json(folder / HEADER, described | {"digest": digest_of(described)})
    return header


def _describe(array: NpyWriter) -> StoreFile:
    """Describe a finished file, with digests of what was actually written."""
    path = array.path
    return StoreFile(path.name, array.length, path.stat().st_size, files.digest_file(path), sampled_digest(path))


class _TokenFiles:
    """The token files of a store that is being written; a new one starts if the next document does not fit."""

    def __init__(self, folder: Path, vocab_size: int, capacity: int, stack: ExitStack) -> None:
        self._folder = folder
        self._dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
        self._capacity = capacity
        self._stack = stack
        self.arrays: list[NpyWriter] = []
        self._open_file()

    def append(self, tokens: np.ndarray, document_ends: np.ndarray) -> None:
        """Append whole documents; document i ends before `tokens[document_ends[i]]`."""
        start = done = 0
        while done < len(document_ends):
            free = self._capacity - self.arrays[-1].length
            fitting = int(np.searchsorted(document_ends, start + free, side="right"))
            if fitting == done and self.arrays[-1].length:
                self._open_file()
                continue
            done = max(fitting, done + 1)  # a document larger than the capacity has a file of its own
            end = int(document_ends[done - 1])
            self.arrays[-1].append(tokens[start:end])
            start = end

    def _open_file(self) -> None:
        array = NpyWriter(self._folder / f"tokens-{len(self.arrays):05}.npy", self._dtype)
        self.arrays.append(self._stack.enter_context(array))
