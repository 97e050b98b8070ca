"""A folder with the vectors of documents: built, resumed after a kill, extended, searched exactly.

    index.json       the number of documents, and what has computed the vectors
    vectors.npy      N × D float32 of length 1, or int8
    scales.npy       N float32, of int8: a vector is its whole numbers times its scale
    documents.jsonl  id and text of each document
    ends.npy         N int64, where each line of documents.jsonl ends
    model.json       where the model was, if it has a folder

Numbers are appended in chunks of documents. `index.json` is written before the first chunk and after each, and says
how much of the files counts, so that a killed build goes on with the next chunk. A build has one chunk in memory and,
at its end, the postings of BM25. N documents, D numbers per vector.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from bertwright.base.description import Description
from bertwright.base.files import digest_bytes, ensure_folder, lock_folder, read_json, write_json
from bertwright.base.foreign import check_links, open_regular
from bertwright.base.npy import npy_header
from bertwright.search.bm25 import POSTINGS, Bm25
from bertwright.search.exact_search import (
    Neighbours,
    Vectors,
    empty_neighbours,
    find_nearest,
    score_pairs,
    unit_vectors,
)
from bertwright.search.fusion import fuse_rankings

Precision = Literal["float32", "int8", "both"]
By = Literal["vectors", "bm25", "fusion"]
EmbedDocuments = Callable[[Sequence[str]], Vectors]

INDEX, DOCUMENTS, ENDS, MODEL = "index.json", "documents.jsonl", "ends.npy", "model.json"
FLOATS, WHOLE, SCALES = "vectors.npy", "vectors_int8.npy", "scales.npy"
STATE = {  # members of index.json
    "documents": int, "before": int, "digest": str, "complete": bool, "model": dict, "dims": int, "precision": str,
    "bm25": bool,
}  # fmt: skip
CHUNK = 1_024  # documents that are embedded and written at a time; a resumed build must have the same chunks
WIDER = 4  # times k candidates by int8, which float32 orders
FUSED = 100  # documents of each ranking that are fused


class Document(NamedTuple):
    """A document of an index."""

    id: str
    text: str


class Hit(NamedTuple):
    """A document that was found."""

    id: str
    score: float
    """Cosine, BM25's score, or the sum of reciprocal ranks."""
    text: str


@dataclass(frozen=True)
class IndexDescription:
    """What the vectors of an index are: queries must be embedded in the same way."""

    model: Mapping[str, Any]
    """Digest and settings of the model."""
    dims: int
    precision: Precision
    has_bm25: bool
    source: str = ""
    """Folder or name of the model; empty: unknown."""

    def files(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Return type and shape of a document's numbers in each .npy file."""
        files: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {ENDS: (np.dtype("<i8"), ())}
        if self.precision != "int8":
            files[FLOATS] = np.dtype("<f4"), (self.dims,)
        if self.precision != "float32":
            files |= {WHOLE: (np.dtype("i1"), (self.dims,)), SCALES: (np.dtype("<f4"), ())}
        return files

    def to_record(self) -> dict[str, Any]:
        return {"format": 1, "model": dict(self.model), "dims": self.dims, "precision": self.precision} | {
            "bm25": self.has_bm25
        }


def build_index(
    folder: Path,
    documents: Iterable[Document],
    description: IndexDescription,
    embed: EmbedDocuments,
    append: bool = False,
) -> Iterator[int]:
    """Write documents to a new index or, with `append`, to the end of a finished one; yield their number at times.

    An unfinished build is resumed: the documents must be the same as before. Raises ValueError if they are
    others, if there are none, if the vectors of the index are another model's, and for a finished index without
    `append`.
    """
    with lock_folder(folder):
        state = _read_state(folder, description)
        if state["complete"] and not append:
            raise ValueError(f"{folder}: already an index of {state['documents']:,} documents; --append adds more")
        first = state["documents"] if state["complete"] else state["before"]
        done, digest, total = state["documents"] - first, "", first
        state |= {"complete": False, "before": first}
        given = iter(documents)
        while chunk := [*islice(given, CHUNK)]:
            total += len(chunk)
            digest = digest_bytes(digest.encode(), *(part.encode() for document in chunk for part in document))
            is_other = total == state["documents"] and digest != state["digest"]
            if is_other or total - len(chunk) < state["documents"] < total:  # its last chunk ended inside this one
                raise ValueError(f"{folder}: an unfinished index of other documents; give the same, or delete it")
            if total - first <= done:
                continue
            vectors = embed([document.text for document in chunk])
            if not state["documents"]:
                write_json(folder / INDEX, state)
            _append(folder, description, state["documents"], chunk, vectors)
            state |= {"documents": total, "digest": digest}
            write_json(folder / INDEX, state)
            yield total
        if total - first < done or total == first:
            raise ValueError(f"{folder}: expected at least {max(done, 1):,} documents, got {total - first:,}")
        if description.has_bm25:
            Bm25.build(document.text for document in read_all(folder, total)).save(folder)
        if description.source:
            write_json(folder / MODEL, description.source)
        write_json(folder / INDEX, state | {"complete": True})


def _read_state(folder: Path, description: IndexDescription) -> dict[str, Any]:
    """Return the content of `index.json`; for a new folder, the state of an empty index."""
    wanted = description.to_record()
    if not (folder / INDEX).is_file():
        if odd := [path.name for path in folder.iterdir() if not path.name.startswith(".")]:
            raise ValueError(f"{folder}: expected an index or a new folder, got {odd[0]}; choose another folder")
        return wanted | {"documents": 0, "before": 0, "digest": "", "complete": False}
    state = read_state(folder)
    for name, value in wanted.items():
        if state.get(name) != value:
            raise ValueError(f"{folder / INDEX}: {describe_change(name, state.get(name), value)}; build another index")
    return state


def read_state(folder: Path) -> dict[str, Any]:
    """Read `index.json`. Raises ValueError for a missing or wrong value, and for links to files outside the folder."""
    check_links(folder)
    path = folder / INDEX
    state = read_json(path)
    for name, kind in STATE.items():
        value = state.get(name) if isinstance(state, dict) else None
        known = get_args(Precision) if name == "precision" else (value,)
        if type(value) is not kind or value not in known or (isinstance(value, int) and value < 0):
            expected = f"{kind.__name__}{' of ' + ', '.join(known) if name == 'precision' else ''}"
            raise ValueError(
                f"{path}: {name}: expected {expected}, got {value!r}; restore it, or build the index again"
            )
    found: dict[str, Any] = state
    return found


def describe(folder: Path, verify: bool) -> Description | None:
    """Describe an index; None for another folder."""
    if not (folder / INDEX).is_file() or not (folder / DOCUMENTS).is_file():
        return None
    state = read_state(folder)
    model = folder / MODEL
    fields = {
        "documents": f"{state['documents']:,}" if state["complete"] else f"{state['documents']:,}, build not finished",
        "vectors": f"{state['dims']:,} numbers each, {state['precision']}",
        "BM25": "yes" if state["bm25"] else "no",
        "model": str(read_json(model)) if model.is_file() else "unknown",
    }
    return Description("index of documents", fields)


def describe_change(name: str, before: Any, after: Any) -> str:
    """Say which setting of an index is another one."""
    if name == "model":
        name = next((key for key in after if before.get(key) != after[key]), name)
        before, after = before.get(name), after.get(name)
    return f"{name}: {before!r} there, {after!r} here"


def _append(
    folder: Path, description: IndexDescription, done: int, chunk: Sequence[Document], vectors: Vectors
) -> None:
    """Write a chunk behind the first `done` documents; what an interrupted call wrote there is replaced."""
    ensure_folder(folder)
    unit = unit_vectors(vectors)
    lines = [json.dumps([*document], ensure_ascii=False).encode() + b"\n" for document in chunk]
    start = int(_map(folder, ENDS, description, done)[-1]) if done else 0
    with _open_at(folder / DOCUMENTS, start) as file:
        file.write(b"".join(lines))
    ends = start + np.cumsum([len(line) for line in lines])
    values: dict[str, npt.NDArray[Any]] = {ENDS: ends, FLOATS: unit}
    if description.precision != "float32":
        largest = np.abs(unit).max(1)
        scales = (np.where(largest == 0, 1, largest) / 127).astype("<f4")
        values |= {WHOLE: np.rint(unit / scales[:, None]), SCALES: scales}
    for name, (dtype, shape) in description.files().items():
        header = npy_header(dtype, (done + len(chunk), *shape))
        with _open_at(folder / name, 0 if not done else None) as file:
            file.write(header)
            file.seek(len(header) + done * dtype.itemsize * int(np.prod(shape)))
            file.truncate()
            file.write(values[name].astype(dtype).tobytes())


def _open_at(path: Path, start: int | None) -> IO[bytes]:
    """Open a file to write at a place, behind which it is cut off; None: at its start, without cutting."""
    file = path.open("r+b" if path.exists() else "w+b")
    if start is not None:
        file.seek(start)
        file.truncate()
    return file


def _map(folder: Path, name: str, description: IndexDescription, count: int) -> npt.NDArray[Any]:
    """Map the numbers of the first `count` documents into memory."""
    dtype, shape = description.files()[name]
    header = len(npy_header(dtype, (count, *shape)))
    try:
        return np.memmap(folder / name, dtype, "r", header, (count, *shape))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder / name}: not whole ({error}); restore it, or build the index again") from None


def read_all(folder: Path, count: int) -> Iterator[Document]:
    with open_regular(folder / DOCUMENTS) as file:
        for line in islice(file, count):
            yield Document(*json.loads(line))


def read_document(file: IO[bytes], start: int) -> Document:
    """Read the document whose line starts at a byte of `documents.jsonl`."""
    file.seek(start)
    return Document(*json.loads(file.readline()))


class VectorIndex:
    """A finished index, whose numbers are mapped into memory."""

    def __init__(self, folder: Path) -> None:
        """Open an index. Raises ValueError for a folder that is none, and for an unfinished one."""
        if not (folder / INDEX).is_file():
            raise ValueError(
                f"{folder}: no index ({INDEX} is missing); bertwright search build MODEL FILE --index {folder}"
            )
        state = read_state(folder)
        if not state["complete"]:
            raise ValueError(f"{folder}: its build was interrupted; run the same bertwright search build again")
        self.folder, self.size = folder, state["documents"]
        self.description = IndexDescription(state["model"], state["dims"], state["precision"], state["bm25"])
        self.arrays = {name: _map(folder, name, self.description, self.size) for name in self.description.files()}
        self._bm25: Bm25 | None = None

    def find_by_vectors(self, queries: Vectors, k: int) -> Neighbours:
        """Find the nearest documents of queries of length 1; int8 finds 4 · k, which float32 orders if it is kept."""
        if WHOLE not in self.arrays:
            return find_nearest(queries, self.arrays[FLOATS], k)
        wider = k if FLOATS not in self.arrays else min(WIDER * k, self.size)
        near = find_nearest(queries, self.arrays[WHOLE], wider, self.arrays[SCALES])
        if FLOATS not in self.arrays:
            return near
        rows, places = np.repeat(np.arange(len(queries)), wider), near.positions.ravel()
        scores = score_pairs(queries, self.arrays[FLOATS], rows, places).reshape(near.scores.shape)
        order = np.lexsort((near.positions, -scores), axis=1)[:, :k]
        return Neighbours(np.take_along_axis(near.positions, order, 1), np.take_along_axis(scores, order, 1))

    def find_by_words(self, queries: Sequence[str], k: int) -> Neighbours:
        """Find documents by BM25. Raises ValueError for an index without it."""
        if not self.description.has_bm25 or not (self.folder / POSTINGS).is_file():
            raise ValueError(f"{self.folder}: has no BM25; build it without --no-bm25")
        self._bm25 = self._bm25 or Bm25.load(self.folder)
        return self._bm25.find(queries, k)

    def find_by_both(self, queries: Sequence[str], vectors: Vectors, k: int) -> Neighbours:
        """Find documents by the sum of their reciprocal ranks in both orders."""
        depth = min(max(FUSED, k), self.size)
        both = (self.find_by_vectors(vectors, depth), self.find_by_words(queries, depth))
        positions, scores = nearest = empty_neighbours(len(queries), k)
        for number in range(len(queries)):
            ranked = fuse_rankings([[place for place in one.positions[number].tolist() if place >= 0] for one in both])
            best = [*ranked.items()][:k]
            positions[number, : len(best)] = [place for place, _ in best]
            scores[number, : len(best)] = [score for _, score in best]
        return nearest

    def hits(self, found: Neighbours) -> list[list[Hit]]:
        ends = self.arrays[ENDS]
        with open_regular(self.folder / DOCUMENTS) as file:
            return [
                [
                    Hit(document.id, score, document.text)
                    for place, score in zip(places, scores, strict=True)
                    if place >= 0
                    for document in [read_document(file, int(ends[place - 1]) if place else 0)]
                ]
                for places, scores in zip(found.positions.tolist(), found.scores.tolist(), strict=True)
            ]
