"""The token store: token ids on disk, memory-mapped, with the boundaries of sentences and documents.

A store is a folder:

    header.json              counts, and the sizes and digests of all files, its own digest included
    tokens-00000.npy …       token ids, uint16 (uint32 for vocabularies above 65,536); a document is in one file
    sentence_starts.npy      S + 1 int64, the token at which each sentence starts; the last entry is the token count
    document_starts.npy      D + 1 int64, the sentence at which each document starts; the last entry is S

The arrays are plain .npy files: `numpy.load(path, mmap_mode="r")` opens them without this package.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_origin, get_type_hints

import numpy as np

from bertwright.base import files, object_storage
from bertwright.base.description import Description
from bertwright.base.foreign import check_link, is_name
from bertwright.base.object_storage import as_url, display
from bertwright.base.reporter import Line, Reporter

FORMAT_VERSION = 2
HEADER = "header.json"  # the last file of a store that is written
SAMPLE_BLOCKS = 64  # per file, compared when a store is opened
SAMPLE_BYTES = 4096
CHECKED_STARTS = 1 << 22  # compared at a time by `verify`
RESTORE_HINT = "copy the store again from where it was built, or prepare the corpus again"


R = TypeVar("R")


class StoreFile(NamedTuple):
    """Description of one array of a store, in the header."""

    name: str
    length: int
    """Entries of the array."""
    bytes: int
    """Size of the file."""
    digest: str
    """BLAKE2b of the whole file, compared by `verify`."""
    sampled_digest: str
    """BLAKE2b of a sample of SAMPLE_BLOCKS blocks, compared whenever the store is opened."""


@dataclass(frozen=True)
class Provenance:
    """Vocabulary and sentence splitter that a store was built with."""

    vocabulary_digest: str
    """`Tokenizer.digest` of the vocabulary."""
    vocab_size: int
    lowercase: bool
    sentence_splitter: str
    """Name and version, such as "rules/3"."""


@dataclass(frozen=True)
class StoreHeader:
    """Description of a store: header.json."""

    format_version: int
    provenance: Provenance
    corpus_digest: str
    """Digest of the texts of all documents, in order."""
    num_tokens: int
    num_sentences: int
    num_documents: int
    files: tuple[StoreFile, ...]
    """Token files in order, then sentence_starts.npy and document_starts.npy."""


class DocumentChunk(NamedTuple):
    """Tokens and boundaries of some whole documents."""

    tokens: np.ndarray
    sentence_lengths: np.ndarray
    """Tokens of each sentence; none is empty."""
    document_lengths: np.ndarray
    """Sentences of each document; none is empty."""


class TokenStore:
    """An open store. Tokens, sentences and documents are numbered across its token files."""

    def __init__(self, folder: Path, header: StoreHeader) -> None:
        """Map the files; called by `TokenStore.open`, which checks them first."""
        self.folder = folder
        self.header = header
        self.num_tokens, self.num_sentences = header.num_tokens, header.num_sentences
        self.num_documents = header.num_documents
        *tokens, self.sentence_starts, self.document_starts = (_map_array(folder, file) for file in header.files)
        self._arrays: list[np.ndarray] = tokens
        self._array_starts = np.cumsum([0, *map(len, tokens)])
        _check_counts(self)

    @classmethod
    def open(cls, folder: Path | str, vocabulary_digest: str | None = None, verify: bool = False) -> TokenStore:
        """Open a store after comparing its files with its header.

        Compares the format version, the vocabulary digest (if a `Tokenizer.digest` is given), the size of each file,
        and a sample of 64 blocks of each file, which covers files of up to 256 kB completely. With `verify`, compares
        every byte, at the speed of the disk. Raises ValueError if anything differs.
        """
        folder = files.local_folder(Path(folder))
        header = read_header(folder)
        if vocabulary_digest not in (None, header.provenance.vocabulary_digest):
            raise ValueError(
                f"{folder}: prepared with another vocabulary ({header.provenance.vocab_size:,} tokens); use the "
                f"tokenizer in {folder.parent / 'tokenizer'}, or prepare the corpus again"
            )
        for file in header.files:
            _check_file(folder / file.name, file, verify)
        store = cls(folder, header)
        if verify:
            for file, starts in zip(header.files[-2:], (store.sentence_starts, store.document_starts), strict=True):
                _check_order(folder / file.name, starts)
        return store

    def read_tokens(self, start: int, end: int) -> np.ndarray:
        """Return the ids of tokens `start` to `end`.

        They are a view of the memory-mapped file, or a copy if the range spans several files.
        """
        if not 0 <= start <= end <= self.num_tokens:
            raise ValueError(f"{self.folder}: expected tokens within 0 … {self.num_tokens}, got {start} … {end}")
        bounds = zip(self._arrays, self._array_starts, self._array_starts[1:], strict=False)
        views = [array[max(start - low, 0) : end - low] for array, low, high in bounds if low < end and start < high]
        return views[0] if len(views) == 1 else np.concatenate([*views, self._arrays[0][:0]])

    def gather(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the ids of many token ranges, end to end.

        Range i is `starts[i]` to `ends[i]`, within one document.
        """
        lengths = ends - starts
        array_of = np.searchsorted(self._array_starts, starts, side="right") - 1
        array_of = np.minimum(array_of, len(self._arrays) - 1)
        within = starts - self._array_starts[array_of]
        range_ends = np.cumsum(lengths)
        indices = np.repeat(within - (range_ends - lengths), lengths) + np.arange(lengths.sum())
        used = np.unique(array_of)
        if len(used) == 1:
            return np.take(self._arrays[used[0]], indices)
        array_of_token = np.repeat(array_of, lengths)
        ids = np.empty(len(indices), dtype=self._arrays[0].dtype)
        for number in used:
            here = np.flatnonzero(array_of_token == number)
            ids[here] = np.take(self._arrays[number], indices[here])
        return ids


def read_header(folder: Path) -> StoreHeader:
    """Read and check `header.json` of a store. Raises ValueError for a folder that holds no intact store."""
    path = folder / HEADER
    if not files.exists(path):
        raise ValueError(
            f"{display(folder)}: no token store (header.json is missing); build one with `bertwright prepare`"
        )
    value = files.read_json(path)
    version = value.get("format_version") if isinstance(value, dict) else None
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{display(path)}: expected store format {FORMAT_VERSION}, got {version}, which this version of bertwright "
            "does not read; prepare the corpus again"
        )
    if value.pop("digest", None) != digest_of(value):
        raise ValueError(f"{display(path)}: altered since the store was built; {RESTORE_HINT}")
    value["provenance"] = _parse(Provenance, value.get("provenance"), path)
    listed = value.get("files")
    if not isinstance(listed, list) or len(listed) < 3:
        raise ValueError(f"{path}: files: expected a list of three or more, got {str(listed)[:60]}; {RESTORE_HINT}")
    value["files"] = tuple(_parse(StoreFile, file, path) for file in listed)
    for file in value["files"]:
        if not is_name(file.name):
            raise ValueError(f"{path}: expected the name of a file in the same folder, got {file.name!r}")
        check_link(folder / file.name, folder)
    return _parse(StoreHeader, value, path)


def _parse(record: type[R], value: Any, path: Path) -> R:
    """Create a record from JSON. Raises ValueError, naming the file, for other keys or types and negative numbers."""
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected an object for {record.__name__}, got {str(value)[:60]}; {RESTORE_HINT}")
    types = {name: get_origin(hint) or hint for name, hint in get_type_hints(record).items()}
    for name in types.keys() | value.keys():
        item = value.get(name)
        if name not in types or type(item) is not types[name] or (type(item) is int and item < 0):
            expected = types[name].__name__ if name in types else "no such key"
            raise ValueError(f"{path}: {name}: expected {expected}, got {str(item)[:60]!r}; {RESTORE_HINT}")
    return record(**value)


def digest_of(described: dict[str, Any]) -> str:
    return files.digest_bytes(json.dumps(described, sort_keys=True).encode())


def _check_file(path: Path, expected: StoreFile, verify: bool) -> None:
    if not path.is_file():
        raise ValueError(f"{path}: missing from the token store; {RESTORE_HINT}")
    if (size := path.stat().st_size) != expected.bytes:
        raise ValueError(
            f"{path}: expected {expected.bytes:,} bytes, got {size:,} (truncated or altered); {RESTORE_HINT}"
        )
    digest, recorded = sampled_digest(path), expected.sampled_digest
    if verify and digest == recorded:
        digest, recorded = files.digest_file(path), expected.digest
    if digest != recorded:
        raise ValueError(
            f"{path}: altered since the store was built (expected digest {recorded}, got {digest}); {RESTORE_HINT}"
        )


def sampled_digest(path: Path) -> str:
    """Return the BLAKE2b of evenly spread blocks, from the first to the last; milliseconds for a file of any size."""
    state = hashlib.blake2b(digest_size=16)
    last = max(0, path.stat().st_size - SAMPLE_BYTES)
    with files.open_binary(path) as file:
        for block in range(SAMPLE_BLOCKS):
            file.seek(last * block // (SAMPLE_BLOCKS - 1))
            state.update(file.read(SAMPLE_BYTES))
    return state.hexdigest()


def _map_array(folder: Path, file: StoreFile) -> np.ndarray:
    path = folder / file.name
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, TypeError, OverflowError, EOFError) as error:
        raise ValueError(f"{path}: not an array in .npy format ({error}); {RESTORE_HINT}") from None
    if array.dtype.kind not in "iu":
        raise ValueError(f"{path}: expected whole numbers, got {array.dtype}; {RESTORE_HINT}")
    if array.shape != (file.length,):
        raise ValueError(f"{path}: expected shape ({file.length},), got {array.shape}; prepare the corpus again")
    return np.asarray(array)  # a plain view: indexing numpy's memmap class costs far more than the read


def _check_counts(store: TokenStore) -> None:
    """Raise ValueError for arrays that do not hold what the header counts."""
    *_, sentences, documents = (store.folder / file.name for file in store.header.files)
    if (length := store._array_starts[-1]) != store.num_tokens:
        raise ValueError(f"{store.folder}: expected {store.num_tokens:,} tokens, got {length:,}; {RESTORE_HINT}")
    for path, starts, number, end in (
        (sentences, store.sentence_starts, store.num_sentences, store.num_tokens),
        (documents, store.document_starts, store.num_documents, store.num_sentences),
    ):
        if len(starts) != number + 1 or starts[0] != 0 or starts[-1] != end:
            raise ValueError(f"{path}: expected {number + 1:,} positions from 0 to {end:,}; {RESTORE_HINT}")


def _check_order(path: Path, starts: np.ndarray) -> None:
    for first in range(0, len(starts), CHECKED_STARTS):
        block = starts[first : first + CHECKED_STARTS + 1]
        if (block[1:] < block[:-1]).any():
            raise ValueError(f"{path}: expected positions in ascending order; {RESTORE_HINT}")


def local_store(store: Path, reporter: Reporter) -> Path:
    """Return the folder of a store on this machine: the given one, or a copy of an object store's in the user's cache.

    The copy is made once, and again after the store has changed. Raises ValueError if there is no such store.
    """
    if (url := as_url(store)) is None:
        return store
    with reporter.progress(f"copying {url}", object_storage.count_bytes(url), "bytes") as advance:
        copy = files.local_folder(store, advance)
    reporter.record(Line(f"{url}: read from its copy {copy}", "minor"))
    return copy


def open_held_out(store: Path, tokenizer_digest: str) -> TokenStore:
    """Open the held-out documents of a store, unverified, to measure a loss on.

    Raises ValueError if there are none, or a single sentence.
    """
    if not files.exists(store / "held_out"):
        raise ValueError(f"{store}: no held-out documents; prepare the text again with --held-out 0.01")
    held_out = TokenStore.open(store / "held_out", tokenizer_digest, verify=False)
    if held_out.num_sentences < 2:
        raise ValueError(f"{store}: one held-out sentence; prepare the text again with a larger --held-out")
    return held_out


def describe(folder: Path, verify: bool) -> Description | None:
    """Describe a finished token store, with its held-out part; None for another folder."""
    if not (folder / "train" / HEADER).is_file():
        return None
    fields = {}
    for name in ("train", "held_out"):
        if (folder / name).is_dir():
            store = TokenStore.open(folder / name, verify=verify)
            fields[name.replace("_", " ")] = (
                f"{store.num_documents:,} documents, {store.num_sentences:,} sentences, {store.num_tokens:,} tokens"
            )
    provenance = store.header.provenance
    fields["vocabulary"] = f"{provenance.vocab_size:,} tokens, digest {provenance.vocabulary_digest}"
    fields["sentence splitter"] = provenance.sentence_splitter
    fields["checked"] = "every byte" if verify else "sizes and sampled blocks (--verify: every byte)"
    return Description("token store", fields, has_digests=True)
