"""Counters of the strings between spaces: in C++, and in Python as its reference."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.kernels import native_library

CHUNKS_PER_READ = 4096  # chunks copied out of the native table in one call
CHUNK_COST = 140  # bytes per chunk in a Counter besides its text
NO_MEMORY = "not enough memory for the distinct words of the texts; use fewer texts"


class ChunkTable(NamedTuple):
    """Chunks of some texts, in order of first occurrence."""

    text: bytes
    """The chunks, each followed by a line end."""
    counts: npt.NDArray[np.int64]
    """Occurrences of each chunk."""


class PythonChunkCounter:
    """Counter of the strings between spaces, tabs and line ends; reference implementation."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()
        self._bytes = 0

    def add(self, text: bytes) -> int:
        """Count the chunks of a UTF-8 text; returns the memory of all distinct ones in bytes."""
        # BERT deletes these two, and bytes.split() would divide at them.
        chunks = text.translate(None, b"\x0b\x0c").split()
        self._bytes += sum(len(chunk) + CHUNK_COST for chunk in set(chunks).difference(self._counts))
        self._counts.update(chunks)
        return self._bytes

    def merge(self, table: ChunkTable) -> None:
        """Add the chunks of other texts with their counts."""
        for chunk, count in zip(table.text.split(b"\n"), table.counts.tolist(), strict=False):
            self._bytes += 0 if chunk in self._counts else len(chunk) + CHUNK_COST
            self._counts[chunk] += count

    def bytes_with(self, table: ChunkTable) -> int:
        """Return the most that `add` can return after the texts of a table have been added."""
        new = set(table.text.split(b"\n")[:-1]).difference(self._counts)
        return self._bytes + sum(len(chunk) + CHUNK_COST for chunk in new)

    def take(self) -> Iterator[tuple[str, int]]:
        """Yield each chunk with its count, in order of first occurrence, and clear the counter."""
        table = self.take_table()
        yield from zip(table.text.decode().split("\n")[:-1], table.counts.tolist(), strict=True)

    def take_table(self) -> ChunkTable:
        """Return all chunks with their counts, in order of first occurrence, and clear the counter."""
        taken, self._counts, self._bytes = self._counts, Counter(), 0
        counts = np.fromiter(taken.values(), np.int64, len(taken))
        return ChunkTable(b"".join(chunk + b"\n" for chunk in taken), counts)


class NativeChunkCounter:
    """Counter with the methods of `PythonChunkCounter`, in C++ and several times as fast."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._table = None
        self._table = library.chunks_new()

    def __del__(self) -> None:
        self._library.chunks_free(self._table)

    def add(self, text: bytes) -> int:
        return int(self._library.chunks_add(self._table, text, len(text)))

    def merge(self, table: ChunkTable) -> None:
        pointer = table.counts.ctypes.data_as(ctypes.c_void_p)
        self._library.chunks_merge(self._table, table.text, len(table.text), pointer)

    def bytes_with(self, table: ChunkTable) -> int:
        return int(self._library.chunks_bytes_with(self._table, table.text, len(table.text)))

    def take(self) -> Iterator[tuple[str, int]]:
        for text, counts in self._read():
            yield from zip(text.decode().split("\n")[:-1], counts.tolist(), strict=True)
        self._library.chunks_clear(self._table)

    def take_table(self) -> ChunkTable:
        parts = list(self._read())
        self._library.chunks_clear(self._table)
        counts = [np.zeros(0, np.int64), *(counts for _, counts in parts)]
        return ChunkTable(b"".join(text for text, _ in parts), np.concatenate(counts))

    def _read(self) -> Iterator[tuple[bytes, npt.NDArray[np.int64]]]:
        """Yield the chunks, each followed by a line end, and their counts, some at a time."""
        text, size = ctypes.c_void_p(), ctypes.c_int64()
        first = 0
        while True:
            counts = np.empty(CHUNKS_PER_READ, dtype=np.int64)
            outputs = counts.ctypes.data_as(ctypes.c_void_p), ctypes.byref(text), ctypes.byref(size)
            number = self._library.chunks_read(self._table, first, CHUNKS_PER_READ, *outputs)
            if not number:
                return
            yield ctypes.string_at(text, size.value), counts[:number]
            first += number


def check_memory(result: Any, *_: object) -> Any:
    """Return the result of a native function, as its `errcheck`. Raises MemoryError for null and for -1."""
    if result is None or result < 0:
        raise MemoryError(NO_MEMORY)
    return result


def make_chunk_counter() -> PythonChunkCounter | NativeChunkCounter:
    """Create the native counter, or the one in Python if there is no native library."""
    library = native_library.load_library("wordpiece")
    if library is None:
        return PythonChunkCounter()
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.chunks_new.restype = pointer
    library.chunks_free.argtypes = library.chunks_clear.argtypes = [pointer]
    library.chunks_add.argtypes, library.chunks_add.restype = [pointer, ctypes.c_char_p, integer], integer
    library.chunks_merge.argtypes = [pointer, ctypes.c_char_p, integer, pointer]
    library.chunks_bytes_with.argtypes = [pointer, ctypes.c_char_p, integer]
    library.chunks_merge.restype = library.chunks_bytes_with.restype = integer
    library.chunks_new.errcheck = library.chunks_add.errcheck = library.chunks_merge.errcheck = check_memory
    outputs = (pointer, ctypes.POINTER(pointer), ctypes.POINTER(integer))
    library.chunks_read.argtypes = [pointer, integer, integer, *outputs]
    library.chunks_read.restype = integer
    return NativeChunkCounter(library)
