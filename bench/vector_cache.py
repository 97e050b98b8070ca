"""CPU seconds to open a text file of word vectors for the first time, and from its index in the cache folder.

python bench/vector_cache.py [--words 100000] [--size 100]
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bertwright.vocabulary.vector_file import load_vectors
from environment import describe_machine


def main() -> None:
    """Write a file of random vectors, and open it three times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=100)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    with TemporaryDirectory() as folder:
        os.environ["BERTWRIGHT_CACHE"] = str(Path(folder, "cache"))
        path = Path(folder, "vectors.txt")
        with path.open("w", encoding="utf-8") as file:
            for word in range(options.words):
                numbers = " ".join(f"{value:.8f}" for value in rng.normal(size=options.size))
                file.write(f"word{word} {numbers}\n")
        print(describe_machine(1))
        print(f"{path.stat().st_size / 1e6:.0f} MB, {options.words:,} words of {options.size} numbers")
        for opening in ("first", "second", "third"):
            started = time.process_time()
            vectors = load_vectors(path)
            print(f"{opening} opening: {time.process_time() - started:.3f} s of CPU, {len(vectors.words):,} words")


if __name__ == "__main__":
    main()
