"""How many vectors of all-MiniLM-L6-v2 keep their bits: a text alone and in a batch, one and two threads, twice.

    python bench/batch_bits.py FILE [--number 300] [--results bench/results/batch_bits.json]

FILE has a text per line; the texts are the first `--number` ones. Products are float32. Each number of threads runs in
a process of its own.
"""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bertwright
from contenders import run_alone
from environment import RESULTS, make_parser, minilm, use_threads, write_result

THREADS = (1, 2)


def embed(texts: list[str], threads: int) -> dict[str, Any]:
    """Return the vectors of the texts in one list, in the list again, and one by one."""
    use_threads(threads)
    model = bertwright.load(minilm(), "cpu", torch.float32)
    return {
        "in a batch": model.embed(texts),
        "in the batch again": model.embed(texts),
        "alone": np.stack([model.embed(text) for text in texts]),
    }


def compare(one: Any, other: Any) -> dict[str, float]:
    """Count the vectors with equal bits, and find the largest difference of a number."""
    equal = (one.view(np.uint32) == other.view(np.uint32)).all(1)
    return {"equal": int(equal.sum()), "of": len(equal), "largest_difference": float(np.abs(one - other).max())}


def main() -> None:
    """Embed the texts, compare, and write and print the results."""
    parser = make_parser(__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--results", type=Path, default=RESULTS / "batch_bits.json")
    arguments = parser.parse_args()
    texts = arguments.texts.read_text(encoding="utf-8", errors="replace").splitlines()[: arguments.number]
    vectors = {
        number: run_alone(embed, texts, number, environment={"OMP_NUM_THREADS": str(number)}) for number in THREADS
    }
    comparisons = {
        f"{first} | {second}, threads: {threads}": compare(vectors[threads][first], vectors[threads][second])
        for threads in THREADS
        for first, second in combinations(vectors[threads], 2)
        if second != "alone" or first == "in a batch"
    }
    for name in ("in a batch", "alone"):
        comparisons[f"{name}, threads: 1 | 2"] = compare(vectors[1][name], vectors[2][name])

    result = {"texts": f"{arguments.texts.name}, first {len(texts)}", "comparisons": comparisons}
    write_result(arguments.results, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
