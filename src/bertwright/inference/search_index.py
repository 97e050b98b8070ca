"""Search in Python: an index of documents, and the model that embeds them and the queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, get_args, overload

import numpy as np
import torch

from bertwright.base.files import digest_bytes, read_json
from bertwright.base.reporter import SILENT, Reporter
from bertwright.inference.bert import Bert, embedding_warnings
from bertwright.inference.python_inputs import check_text
from bertwright.inference.text_vectors import check_has_vectors, embed_by_role, normalize_vectors
from bertwright.models.pooling import Vectors
from bertwright.search.vector_index import (
    MODEL,
    By,
    Document,
    Hit,
    IndexDescription,
    Precision,
    VectorIndex,
    build_index,
    describe_change,
    read_state,
)
from bertwright.tasks.embedding_scores import DOCUMENT, QUERY
from bertwright.tasks.unknown_rates import InputCounts


class SearchIndex:
    """Documents that are found by the cosine of their vectors, by words (BM25), or by both."""

    def __init__(self, index: VectorIndex, model: Bert) -> None:
        """Combine an index with the model whose vectors it has; `open` checks that it is this model."""
        self.index, self.model = index, model

    def __len__(self) -> int:
        return int(self.index.size)

    @classmethod
    def build(
        cls,
        model: Bert,
        texts: Iterable[str],
        folder: Path | str,
        ids: Iterable[str] | None = None,
        dims: int | None = None,
        precision: Precision = "float32",
    ) -> SearchIndex:
        """Embed texts and write an index with BM25 into a new folder; a killed build is resumed.

        Of vectors, one chunk is in memory; of BM25, all postings.
        `ids`: one per text; unset: their numbers, from 1. `dims`: keep this many numbers of each vector, of a model
        that was trained for it. `precision`: float32; int8, a quarter of the size; or both, where int8 finds candidates
        that float32 orders. Raises ValueError for an existing index, and for numbers of texts and ids that differ.
        """
        names = None if ids is None else [*map(str, ids)]
        if odd := next((name for name, count in Counter(names or ()).items() if count > 1), None):
            raise ValueError(f"ids: {odd!r} occurs twice, which would name two texts; give each its own")
        write_index(_make_documents(texts, names), Path(folder), model, describe_index(model, dims, precision))
        return cls(VectorIndex(Path(folder)), model)

    @classmethod
    def open(cls, folder: Path | str, model: Bert) -> SearchIndex:
        """Open an index. Raises ValueError if it is unfinished, damaged, or of another model, and for a re-ranker."""
        check_has_vectors(model)
        index, given = VectorIndex(Path(folder)), describe_model(model)
        if {**(known := index.description.model)} != given:
            name = next(name for name in given if known.get(name) != given[name])
            change = describe_change(name, known.get(name), given[name])
            source = read_json(path) if (path := index.folder / MODEL).is_file() else "its own model"
            way = f"open it with {source} as it was, or build the index again"
            raise ValueError(f"{index.folder}: its vectors are another model's ({change}); {way}")
        return cls(index, model)

    @overload
    def search(self, queries: str, top_k: int = 10, by: By = "vectors") -> list[Hit]: ...  # type: ignore[overload-overlap]
    @overload
    def search(self, queries: Sequence[str], top_k: int = 10, by: By = "vectors") -> list[list[Hit]]: ...
    def search(self, queries: str | Sequence[str], top_k: int = 10, by: By = "vectors") -> list[Hit] | list[list[Hit]]:
        """Find the `top_k` documents for a query, best first, exactly; for a list of queries, a list for each.

        `by`: vectors; bm25, for an index that has it; fusion, the sum of the reciprocal ranks of both. Documents that
        share no word with the query are not found by bm25. Raises ValueError for other values.
        """
        if isinstance(queries, str):
            return self.search([queries], top_k, by)[0]
        if top_k < 1:
            raise ValueError(f"top_k: expected at least 1, got {top_k}")
        texts, k = [*queries], min(top_k, len(self))
        if by == "bm25":
            return self.index.hits(self.index.find_by_words(texts, k))
        if by not in get_args(By):
            raise ValueError(f"by: expected vectors, bm25 or fusion, got {by!r}")
        vectors = self.embed_queries(texts)
        found = self.index.find_by_both(texts, vectors, k) if by == "fusion" else self.index.find_by_vectors(vectors, k)
        return self.index.hits(found)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Compute the vectors of queries, of length 1 and with the numbers that the index keeps."""
        vectors = embed_by_role(self.model, InputCounts())(texts, QUERY)
        return normalize_vectors(vectors[:, : self.index.description.dims])


def _make_documents(texts: Iterable[str], ids: Iterable[str] | None) -> Iterator[Document]:
    """Yield documents. Raises ValueError for a value that is no text, and for numbers of ids and texts that differ."""
    pairs = zip_longest(texts, ids) if ids is not None else ((text, str(place)) for place, text in enumerate(texts, 1))
    for place, (text, name) in enumerate(pairs):
        if text is None or name is None:
            raise ValueError(f"ids: expected one for each text, got {place:,} {'texts' if text is None else 'ids'}")
        yield Document(name, check_text(text, f"text {place}"))


def describe_index(
    model: Bert, dims: int | None, precision: Precision, has_bm25: bool = True, source: str = ""
) -> IndexDescription:
    """Describe an index of a model's vectors. Raises ValueError for more `dims` than a vector has numbers."""
    size = model.vector_size()
    if dims is not None and not 0 < dims <= size:
        raise ValueError(f"dims: expected 1 to {size}, the numbers of a vector, got {dims}")
    return IndexDescription(describe_model(model), dims or size, precision, has_bm25, source)


def write_index(
    documents: Iterable[Document],
    folder: Path,
    model: Bert,
    description: IndexDescription,
    append: bool = False,
    reporter: Reporter = SILENT,
) -> int:
    """Embed documents into an index; return how many it has."""
    counts, total = InputCounts(), 0
    embed = embed_by_role(model, counts)

    def embed_documents(texts: Sequence[str]) -> Vectors:
        return embed(texts, DOCUMENT)[:, : description.dims]

    with reporter.progress("embedding", None) as advance:
        for number in build_index(folder, documents, description, embed_documents, append):
            advance(number - total)
            total = number
    for warning in embedding_warnings(counts):
        reporter.note(warning)
    return int(read_state(folder)["documents"])  # a resumed build may have had no vectors left to compute


def describe_model(model: Bert) -> dict[str, Any]:
    """Return what decides the vectors of a model: digests of weights and vocabulary, pooling, prompts, longest text."""
    modules, state = model.sentence_modules, model.model.encoder.state_dict()
    tensors = [state[name].detach().cpu().to(torch.float32).contiguous().numpy() for name in sorted(state)]
    files = [content for _, content in sorted(modules.files.items())] if modules else []
    weights = (np.ascontiguousarray(tensor).tobytes() for tensor in tensors)
    return {
        "weights": digest_bytes(*chain(weights, files)),
        "vocabulary": model.tokenizer.digest,
        "pooling": " ".join(modules.modes) if modules else "mean",
        "prompts": dict(modules.prompts) if modules else {},
        "max_length": modules.max_length if modules else None,
    }
