"""Measure exact search: seconds per query in float32 and int8, and of the search of a mining run.

    python bench/search_speed.py [--vectors 1000000] [--threads 2]

The vectors are random, of 384 numbers, in an index folder that is deleted at the end: the time does not depend on what
they mean. CPU seconds of the process stand beside those of the clock, because other programs may run. Each call appends
a line to bench/results/search_speed.jsonl.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertwright.search.exact_search import Vectors, find_nearest
from bertwright.search.vector_index import Document, IndexDescription, VectorIndex, build_index
from environment import RESULTS, append_result, make_parser, use_threads

DIMS, QUERIES, BATCH, DEPTH, MINED = 384, 5, 64, 10, 110


def random_vectors(texts: Sequence[str]) -> Vectors:
    """Return uniform numbers around 0, one row per text; the first text seeds them."""
    return np.random.default_rng(int(texts[0])).random((len(texts), DIMS), np.float32) - 0.5


def fill(folder: Path, number: int) -> None:
    documents = (Document(str(place), str(place)) for place in range(number))
    for _ in build_index(folder, documents, IndexDescription({}, DIMS, "both", has_bm25=False), random_vectors):
        pass


def seconds(work: Callable[[], Any]) -> dict[str, float]:
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    return {"clock": round(time.perf_counter() - clock, 4), "cpu": round(time.process_time() - cpu, 4)}


def measure_speed(folder: Path, number: int, add: Callable[[str, Any], None]) -> None:
    add("build, seconds", seconds(lambda: fill(folder, number)))
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


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS / "search_speed.jsonl")
    chosen = parser.parse_args()
    use_threads(chosen.threads)
    figures: dict[str, Any] = {}

    def add(what: str, value: Any) -> None:
        figures[what] = value
        print(what, value, flush=True)

    with tempfile.TemporaryDirectory(prefix="search-") as folder:
        measure_speed(Path(folder) / "index", chosen.vectors, add)
    append_result(chosen.results, {"vectors": chosen.vectors, "figures": figures}, chosen.threads)


if __name__ == "__main__":
    main()
