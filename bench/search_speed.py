"""Measure exact search: seconds per query in float32 and int8, and of the search of a mining run.

    python bench/search_speed.py [--vectors 1000000] [--threads 2]
    python bench/search_speed.py --texts DATA/scifact DATA/corpora/english_wikipedia/heldout.txt

The vectors are random, of 384 numbers, in an index folder that is deleted at the end: the time does not depend on what
they mean. CPU seconds of the process stand beside those of the clock, because other programs may run. `--texts` instead
embeds the queries and documents of a folder in BEIR's layout, or the lines of a file, every tenth as a query, with
all-MiniLM-L6-v2, and counts how many of the first ten texts of float32 are found by int8, alone and with float32's
order of its 40 candidates. Each call appends a line to bench/results/search_speed.jsonl.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bertwright
from bertwright.search.exact_search import Vectors, find_nearest
from bertwright.search.vector_index import Document, IndexDescription, VectorIndex, build_index
from bertwright.tables.neighbours import is_retrieval_folder
from bertwright.tables.retrieval_folders import read_retrieval_folder
from bertwright.text.decoding import ReadStats, TextCodec, decode_blocks
from bertwright.text.lines import split_lines
from bertwright.text.sources import find_file
from environment import RESULTS, append_result, make_parser, minilm, use_threads

DIMS, QUERIES, BATCH, DEPTH, MINED = 384, 5, 64, 10, 110


def random_vectors(texts: Sequence[str]) -> Vectors:
    """Return uniform numbers around 0, one row per text; the first text seeds them."""
    return np.random.default_rng(int(texts[0])).random((len(texts), DIMS), np.float32) - 0.5


def fill(folder: Path, number: int, embed: Callable[[Sequence[str]], Vectors], texts: Iterator[str]) -> VectorIndex:
    documents = (Document(str(place), text) for place, text in zip(range(number), texts, strict=False))
    for _ in build_index(folder, documents, IndexDescription({}, DIMS, "both", has_bm25=False), embed):
        pass
    return VectorIndex(folder)


def seconds(work: Callable[[], Any]) -> dict[str, float]:
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    return {"clock": round(time.perf_counter() - clock, 4), "cpu": round(time.process_time() - cpu, 4)}


def measure_speed(folder: Path, number: int, add: Callable[[str, Any], None]) -> None:
    texts = map(str, range(number))
    add("build, seconds", seconds(lambda: fill(folder, number, random_vectors, texts)))
    index = VectorIndex(folder)
    floats, whole, scales = (index.arrays[name] for name in ("vectors.npy", "vectors_int8.npy", "scales.npy"))
    queries = random_vectors(["7"] * BATCH)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    find_nearest(queries[:1], floats, DEPTH)  # reads the file
    for name, find in (
        ("float32", lambda chosen: find_nearest(chosen, floats, DEPTH)),
        ("int8", lambda chosen: find_nearest(chosen, whole, DEPTH, scales)),
        ("int8, ordered by float32", lambda chosen: index.find_by_vectors(chosen, DEPTH)),
    ):
        single = [seconds(partial(find, queries[place : place + 1])) for place in range(QUERIES)]
        add(f"{name}: one query, seconds", min(single, key=lambda row: row["cpu"]))
        add(f"{name}: {BATCH} queries together, seconds", seconds(partial(find, queries)))
    part = np.array(floats[:100_000])
    chosen = part[:2_000]
    add(
        f"mining: {len(chosen):,} anchors × {len(part):,} texts, seconds",
        seconds(lambda: find_nearest(chosen, part, MINED)),
    )


def read_texts(path: str) -> tuple[list[str], list[str]]:
    """Return queries and documents."""
    if is_retrieval_folder(path):
        data = read_retrieval_folder(Path(path))
        return [*data.queries.values()], [*data.documents.values()]
    lines = split_lines(path, decode_blocks(find_file(path), TextCodec(), ReadStats()))
    texts = list(dict.fromkeys(line for _, line in lines if line.strip()))
    return texts[::10], [text for place, text in enumerate(texts) if place % 10]


def measure_recall(folder: Path, path: str, add: Callable[[str, Any], None]) -> None:
    texts, documents = read_texts(path)
    model = bertwright.load(minilm(), "cpu", torch.float32)
    queries = model.embed(texts)
    index = fill(folder, len(documents), model.embed, iter(documents))
    exact = find_nearest(queries, index.arrays["vectors.npy"], DEPTH)
    alone = find_nearest(queries, index.arrays["vectors_int8.npy"], DEPTH, index.arrays["scales.npy"])
    for name, found in (("int8", alone), ("int8, ordered by float32", index.find_by_vectors(queries, DEPTH))):
        pairs = zip(found.positions.tolist(), exact.positions.tolist(), strict=True)
        shares = [len({*one} & {*other}) / DEPTH for one, other in pairs]
        add(f"{Path(path).name}: recall@10 of {name}", round(float(np.mean(shares)), 4))
    add(f"{Path(path).name}: queries, documents", [len(queries), len(documents)])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--texts", nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS / "search_speed.jsonl")
    chosen = parser.parse_args()
    use_threads(chosen.threads)
    figures: dict[str, Any] = {}

    def add(what: str, value: Any) -> None:
        figures[what] = value
        print(what, value, flush=True)

    with tempfile.TemporaryDirectory(prefix="search-") as folder:
        for number, path in enumerate(chosen.texts):
            measure_recall(Path(folder) / str(number), path, add)
        if not chosen.texts:
            measure_speed(Path(folder) / "index", chosen.vectors, add)
    about = {} if chosen.texts else {"vectors": chosen.vectors}
    append_result(chosen.results, about | {"figures": figures}, chosen.threads)


if __name__ == "__main__":
    main()
