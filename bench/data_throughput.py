"""Measure tokens per second of pre-training batches on one core, from a store that is built here.

    python bench/data_throughput.py [CORPUS ...]

Without arguments the corpora of ../shared/data are used (environment variable BERTWRIGHT_DATA).
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bertwright.corpus.documents import CorpusSettings
from bertwright.objectives.data_settings import DataSettings
from bertwright.objectives.objective import Examples
from bertwright.systems.objective_registry import find_objective
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.tokenstore.store import TokenStore
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from environment import describe_machine

DATA = Path(os.environ.get("BERTWRIGHT_DATA", Path(__file__).parents[2] / "shared" / "data"))
CASES = {
    "mlm+nsp, 128": DataSettings(max_length=128),
    "mlm+nsp, 512": DataSettings(max_length=512),
    "mlm+nsp, 128, whole words": DataSettings(max_length=128, whole_word_mask=True),
    "mlm, 128": DataSettings(max_length=128, objective="mlm"),
    "ltr, 128": DataSettings(max_length=128, objective="ltr"),
}
STEPS = 20
ROUNDS = 5


def tokens_per_second(data: Examples[Any], first: int) -> float:
    """Measure the rate of `STEPS` consecutive steps."""
    began = time.perf_counter()
    tokens: int = sum(
        batch.packing.num_tokens for step in range(first, first + STEPS) for batch in data.batches_for_step(step)
    )
    return tokens / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    books, wikipedia = DATA / "corpora" / "english_books", DATA / "corpora" / "english_wikipedia" / "train.txt"
    parser.add_argument("inputs", nargs="*", default=[f"file={books}", str(wikipedia)])
    parser.add_argument("--vocabulary", default=str(DATA / "vocab" / "bert-base-uncased-vocab.txt"))
    arguments = parser.parse_args()

    tokenizer = Tokenizer.load(arguments.vocabulary, lowercase=True)
    with tempfile.TemporaryDirectory() as folder:
        build(Path(folder), CorpusSettings(tuple(arguments.inputs)), tokenizer, BuildSettings(held_out=0))
        store = TokenStore.open(Path(folder) / "train")
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, for numpy and torch as well
        data = {
            name: find_objective(settings.objective).open_examples(store.folder, tokenizer, [settings])[0]
            for name, settings in CASES.items()
        }
        found: dict[str, list[float]] = {name: [] for name in CASES}
        for number in range(ROUNDS):  # interleaved, so that a slow minute of the machine affects all equally
            for name in CASES:
                found[name].append(tokens_per_second(data[name], number * STEPS))
    print(describe_machine())
    print(f"{store.num_tokens:,} tokens in the store; batch 256; one core; median of {ROUNDS} rounds (min … max)\n")
    print("| batches | M tokens/s | ms per step |\n|---|---|---|")
    for name, rates in found.items():
        rate = statistics.median(rates)
        tokens = data[name].describe(1).tokens_per_step
        spread = f"({min(rates) / 1e6:.2f} … {max(rates) / 1e6:.2f})"
        print(f"| {name} | {rate / 1e6:.2f} {spread} | {1000 * tokens / rate:.1f} |")


if __name__ == "__main__":
    main()
