"""Token ids on disk, memory-mapped, with the boundaries of sentences and documents.

A store is a folder:

    header.json              digests (its own too), counts, and for every file its size and digests
    tokens-00000.npy …       token ids, uint16 (uint32 for vocabularies above 65,536); no document crosses two files
    sentence_starts.npy      S + 1 int64, the token at which each sentence starts; the last entry is the token count
    document_starts.npy      D + 1 int64, the sentence at which each document starts; the last entry is S

The arrays are plain .npy files: `numpy.load(path, mmap_mode="r")` opens them without this package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from bertwright import files

FORMAT_VERSION = 1
SHARD_TOKENS = 1 << 28  # tokens a file: 512 MB of uint16, so that a large corpus is a few dozen files
SAMPLE_BLOCKS = 64  # blocks of a file that `open` compares
SAMPLE_BYTES = 4096
WAY_OUT = "copy the store again from where it was built, or prepare the corpus again"


class StoreFile(NamedTuple):
    """One array of a store, as the header describes it."""

    name: str
    length: int
    """Entries of the array."""
    bytes: int
    """Size of the file."""
    digest: str
    """BLAKE2b of the whole file: compared by `verify`."""
    sampled_digest: str
    """BLAKE2b of 64 blocks spread over the file: compared whenever the store is opened."""


@dataclass(frozen=True)
class Provenance:
    """What decided a store's content."""

    vocabulary: str
    """`Tokenizer.digest` of the vocabulary whose ids stand in the store."""
    vocab_size: int
    lowercase: bool
    rules: str
    """The sentence rules and their version, as "rules/3"."""


@dataclass(frozen=True)
class StoreHeader:
    """What a store says about itself."""

    format_version: int
    origin: Provenance
    corpus: str
    """Digest over the texts of the store's documents, in order."""
    num_tokens: int
    num_sentences: int
    num_documents: int
    files: tuple[StoreFile, ...]
    """The token files in order, then sentence_starts.npy and document_starts.npy."""


class DocumentBatch(NamedTuple):
    """Some whole documents on their way into a store."""

    tokens: np.ndarray
    sentence_lengths: np.ndarray
    """Tokens of each sentence; none is empty."""
    document_lengths: np.ndarray
    """Sentences of each document; none is empty."""


class TokenStore:
    """One opened store. Documents and sentences are numbered through all of its token files."""

    def __init__(self, folder: Path, header: StoreHeader) -> None:
        """For `TokenStore.open`, which checks the files first."""
        self.folder = folder
        self.header = header
        *tokens, self.sentence_starts, self.document_starts = (_mapped(folder, file) for file in header.files)
        self._shards: list[np.ndarray] = tokens
        self._shard_starts = np.cumsum([0, *(len(shard) for shard in tokens)])

    @classmethod
    def open(cls, folder: Path | str, vocabulary: str | None = None, verify: bool = False) -> TokenStore:
        """Open a store after comparing its files with its header.

        Compared always: format version, vocabulary digest (where `vocabulary`, a `Tokenizer.digest`, is given), every
        file's size, and the digest of 64 blocks of every file (all of a file up to 256 kB). `verify` compares every
        byte, at the speed of the disk.
        Raises ValueError, with the way out, where something differs.
        """
        folder = Path(folder)
        header = _read_header(folder)
        if vocabulary is not None and header.origin.vocabulary != vocabulary:
            raise ValueError(
                f"{folder}: prepared with another vocabulary (digest {header.origin.vocabulary}, "
                f"{header.origin.vocab_size:,} tokens), this one has digest {vocabulary}; use the tokenizer that "
                "stands beside the store, or prepare the corpus again with this one"
            )
        for file in header.files:
            _check_file(folder / file.name, file, verify)
        return cls(folder, header)

    @property
    def num_tokens(self) -> int:
        return self.header.num_tokens

    @property
    def num_sentences(self) -> int:
        return self.header.num_sentences

    @property
    def num_documents(self) -> int:
        return self.header.num_documents

    def tokens(self, start: int, end: int) -> np.ndarray:
        """Ids from token `start` up to token `end`; a view of the file unless the range crosses files."""
        if not 0 <= start <= end <= self.num_tokens:
            raise ValueError(f"tokens {start} … {end} asked for; {self.folder} has 0 … {self.num_tokens}")
        bounds = zip(self._shards, self._shard_starts, self._shard_starts[1:], strict=False)
        views = [shard[max(start - low, 0) : end - low] for shard, low, high in bounds if low < end and start < high]
        return views[0] if len(views) == 1 else np.concatenate([*views, self._shards[0][:0]])

    def gather(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Ids of many token ranges, laid end to end: range i is `starts[i] … ends[i]`, within one document each."""
        lengths = ends - starts
        shard_of = np.searchsorted(self._shard_starts, starts, side="right") - 1
        shard_of = np.minimum(shard_of, len(self._shards) - 1)
        within = starts - self._shard_starts[shard_of]
        range_ends = np.cumsum(lengths)
        places = np.repeat(within - (range_ends - lengths), lengths) + np.arange(lengths.sum())
        used = np.unique(shard_of)
        if len(used) == 1:
            return np.take(self._shards[used[0]], places)
        shard_of_token = np.repeat(shard_of, lengths)
        ids = np.empty(len(places), dtype=self._shards[0].dtype)
        for shard in used:
            here = np.flatnonzero(shard_of_token == shard)
            ids[here] = np.take(self._shards[shard], places[here])
        return ids


def write_store(
    folder: Path, documents: Iterable[DocumentBatch], origin: Provenance, corpus: str, shard_tokens: int = SHARD_TOKENS
) -> StoreHeader:
    """Write a store into an existing, empty folder, in constant memory; the header comes last.

    Wrap it in `files.whole_folder`, so that the store appears whole or not at all.
    """
    with ExitStack() as stack:
        tokens = _TokenFiles(folder, origin.vocab_size, shard_tokens, stack)
        sentences = stack.enter_context(_ArrayFile(folder / "sentence_starts.npy", np.int64))
        boundaries = stack.enter_context(_ArrayFile(folder / "document_starts.npy", np.int64))
        sentences.append(np.zeros(1, np.int64))
        boundaries.append(np.zeros(1, np.int64))
        num_tokens = num_sentences = num_documents = 0
        for chunk in documents:
            sentence_ends, document_ends = np.cumsum(chunk.sentence_lengths), np.cumsum(chunk.document_lengths)
            sentences.append(num_tokens + sentence_ends)
            boundaries.append(num_sentences + document_ends)
            tokens.append(chunk.tokens, sentence_ends[document_ends - 1])
            num_tokens += len(chunk.tokens)
            num_sentences += len(chunk.sentence_lengths)
            num_documents += len(chunk.document_lengths)
    arrays = [*tokens.arrays, sentences, boundaries]
    header = StoreHeader(
        format_version=FORMAT_VERSION,
        origin=origin,
        corpus=corpus,
        num_tokens=num_tokens,
        num_sentences=num_sentences,
        num_documents=num_documents,
        files=tuple(array.described() for array in arrays),
    )
    described = asdict(header) | {"files": [file._asdict() for file in header.files]}
    files.write_json(folder / "header.json", described | {"digest": _digest_of(described)})
    return header


class _ArrayFile:
    """A .npy file that grows by appending, its length written into its head at the end.

    Written with plain writes and not through a memory map, where a full disk kills the process (SIGBUS).
    """

    def __init__(self, path: Path, dtype: type[np.unsignedinteger[Any]] | type[np.int64]) -> None:
        self.path = path
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.length = 0

    def __enter__(self) -> _ArrayFile:
        self._file = self.path.open("wb")
        self._write_head()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        with self._file:
            if kind is None:
                self._file.seek(0)
                self._write_head()

    def append(self, values: np.ndarray) -> None:
        self._file.write(values.astype(self.dtype, copy=False).tobytes())
        self.length += len(values)

    def _write_head(self) -> None:
        # numpy pads this head so that it keeps its size while the length grows
        shape = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, shape)

    def described(self) -> StoreFile:
        """The finished file, its digests read back from what was written."""
        size = self.path.stat().st_size
        return StoreFile(self.path.name, self.length, size, files.digest_file(self.path), _sampled_digest(self.path))


class _TokenFiles:
    """The token files of a store in writing: a new one begins where the next document would not fit."""

    def __init__(self, folder: Path, vocab_size: int, capacity: int, stack: ExitStack) -> None:
        """`stack` closes the files in the end."""
        self._folder = folder
        self._dtype = np.uint16 if vocab_size <= 1 << 16 else np.uint32
        self._capacity = capacity
        self._stack = stack
        self.arrays: list[_ArrayFile] = []
        self._begin_file()

    def append(self, tokens: np.ndarray, document_ends: np.ndarray) -> None:
        """Append whole documents: document i ends before `tokens[document_ends[i]]`."""
        begin = done = 0
        while done < len(document_ends):
            room = self._capacity - self.arrays[-1].length
            fitting = int(np.searchsorted(document_ends, begin + room, side="right"))
            if fitting == done and self.arrays[-1].length:
                self._begin_file()
                continue
            done = max(fitting, done + 1)  # a document larger than a whole file has one of its own
            end = int(document_ends[done - 1])
            self.arrays[-1].append(tokens[begin:end])
            begin = end

    def _begin_file(self) -> None:
        array = _ArrayFile(self._folder / f"tokens-{len(self.arrays):05}.npy", self._dtype)
        self.arrays.append(self._stack.enter_context(array))


def _read_header(folder: Path) -> StoreHeader:
    path = folder / "header.json"
    if not path.is_file():
        raise ValueError(f"{folder}: no token store (header.json is missing); build one with `bertwright prepare`")
    value = files.read_json(path)
    version = value.get("format_version") if isinstance(value, dict) else None
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path}: store format {version} found, {FORMAT_VERSION} is what this version of bertwright reads; "
            "prepare the corpus again"
        )
    if value.pop("digest", None) != _digest_of(value):
        raise ValueError(f"{path}: altered since the store was built; {WAY_OUT}")
    origin = Provenance(**value.pop("origin"))
    return StoreHeader(origin=origin, files=tuple(StoreFile(**file) for file in value.pop("files")), **value)


def _digest_of(described: dict[str, Any]) -> str:
    return files.digest_bytes(json.dumps(described, sort_keys=True).encode())


def _check_file(path: Path, expected: StoreFile, verify: bool) -> None:
    if not path.is_file():
        raise ValueError(f"{path}: this file of the token store is missing; {WAY_OUT}")
    if (size := path.stat().st_size) != expected.bytes:
        raise ValueError(f"{path}: {size:,} bytes found, {expected.bytes:,} expected (cut off or altered); {WAY_OUT}")
    found, noted = _sampled_digest(path), expected.sampled_digest
    if verify and found == noted:
        found, noted = files.digest_file(path), expected.digest
    if found != noted:
        raise ValueError(f"{path}: altered since the store was built (digest {found}, {noted} expected); {WAY_OUT}")


def _sampled_digest(path: Path) -> str:
    """BLAKE2b of evenly spread blocks, the first and the last among them: milliseconds for a file of any size."""
    state = hashlib.blake2b(digest_size=16)
    last = max(0, path.stat().st_size - SAMPLE_BYTES)
    with path.open("rb") as file:
        for block in range(SAMPLE_BLOCKS):
            file.seek(last * block // (SAMPLE_BLOCKS - 1))
            state.update(file.read(SAMPLE_BYTES))
    return state.hexdigest()


def _mapped(folder: Path, file: StoreFile) -> np.ndarray:
    array = np.load(folder / file.name, mmap_mode="r", allow_pickle=False)
    if array.shape != (file.length,):
        place = folder / file.name
        raise ValueError(f"{place}: shape {array.shape} found, ({file.length},) expected; prepare the corpus again")
    return np.asarray(array)  # a plain view: indexing numpy's memmap class costs far more than the read
