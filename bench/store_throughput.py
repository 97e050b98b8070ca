"""Speed of building a token store in MB of text per second, beside the same store tokenized through `tokenizers` alone.

    python bench/store_throughput.py [CORPUS ...]

Both sides read, split and write with the same code in as many processes; only the tokenizer differs. The stores must
be equal. Without arguments the corpora of ../shared/data are used (environment variable BERTWRIGHT_DATA).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertwright.base.ragged import Ragged
from bertwright.corpus.documents import CorpusSettings, shard_corpus
from bertwright.tokenstore import build as building
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.tokenstore.build_part import ShardSpec, write_shard
from bertwright.tokenstore.store import StoreHeader
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from environment import describe_machine

DATA = Path(os.environ.get("BERTWRIGHT_DATA", Path(__file__).parents[2] / "shared" / "data"))
ROUNDS = 3


class AloneTokenizer(Tokenizer):
    """A tokenizer that uses `tokenizers` alone, by its fastest call."""

    def encode_raw(self, texts: Sequence[str]) -> Ragged:
        rows = [row.ids for row in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]
        offsets = np.cumsum([0, *map(len, rows)])
        return Ragged(np.fromiter((number for row in rows for number in row), np.uint32, offsets[-1]), offsets)


def write_peer_shard(shard: ShardSpec, vocabulary: str) -> None:
    write_shard(shard, AloneTokenizer.load(vocabulary, lowercase=True))


def peer_build(folder: Path, corpus: CorpusSettings, vocabulary: str, settings: BuildSettings) -> StoreHeader:
    """Build the same store, with its shards tokenized by `tokenizers` in as many processes."""
    tokenizer = Tokenizer.load(vocabulary, lowercase=True)
    folder.mkdir()
    plan = building._make_plan(folder, [corpus], tokenizer)
    plan.folder.mkdir()
    with multiprocessing.get_context("spawn").Pool(settings.workers) as pool:
        pool.starmap(write_peer_shard, [(shard, vocabulary) for shard in plan.shards], chunksize=1)
    return building._publish(folder, plan, tokenizer, settings).train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    books, wikipedia = DATA / "corpora" / "english_books", DATA / "corpora" / "english_wikipedia" / "train.txt"
    parser.add_argument("inputs", nargs="*", default=[f"file={books}", str(wikipedia)])
    parser.add_argument("--vocabulary", default=str(DATA / "vocab" / "bert-base-uncased-vocab.txt"))
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # as in the workers of `build`

    corpus, settings = CorpusSettings(tuple(arguments.inputs)), BuildSettings(workers=arguments.workers)
    size = sum(shard.size for shard in shard_corpus(corpus, building.SHARD_BYTES))
    tokenizer = Tokenizer.load(arguments.vocabulary, lowercase=True)
    seconds: dict[str, list[float]] = {"bertwright": [], "tokenizers alone": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):  # interleaved, so that a slow minute of the machine affects both equally
            began = time.perf_counter()
            ours = build(Path(folder) / f"ours-{number}", corpus, tokenizer, settings).train
            seconds["bertwright"].append(time.perf_counter() - began)
            began = time.perf_counter()
            theirs = peer_build(Path(folder) / f"theirs-{number}", corpus, arguments.vocabulary, settings)
            seconds["tokenizers alone"].append(time.perf_counter() - began)
            assert ours == theirs, "the two stores differ"

    print(describe_machine())
    print(f"{size / 1e6:.1f} MB, {ours.num_tokens:,} tokens, {settings.workers} workers; median of {ROUNDS} rounds\n")
    print("| store through | seconds (minimum … maximum) | MB/s |\n|---|---|---|")
    for name, taken in seconds.items():
        middle = statistics.median(taken)
        print(f"| {name} | {middle:.2f} ({min(taken):.2f} … {max(taken):.2f}) | {size / 1e6 / middle:.1f} |")
    ratio = statistics.median(theirs / ours for ours, theirs in zip(*seconds.values(), strict=True))
    print(f"\n{ratio:.1f} times as fast")


if __name__ == "__main__":
    main()
