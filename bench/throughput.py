"""Speed of building a token store, and of making pre-training batches from it.

    python bench/throughput.py store [CORPUS ...]
    python bench/throughput.py batches [CORPUS ...]

`store`: seconds beside the same store tokenized through `tokenizers` alone. Both sides read, split and write with the
same code in as many processes; only the tokenizer differs, and the stores must be equal. `batches`: tokens per second
of batches of 256 examples on one core. Without arguments the corpora of ../shared/data are used (environment variable
BERTWRIGHT_DATA).
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bertwright.base.ragged import Ragged
from bertwright.corpus.documents import CorpusSettings, shard_corpus
from bertwright.objectives.data_settings import DataSettings
from bertwright.systems.registry import find_objective
from bertwright.tokenstore import build as building
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.tokenstore.build_part import ShardSpec, write_shard
from bertwright.tokenstore.store import TokenStore
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from environment import DATA, describe_machine, format_range, format_ratio, keep_printed, make_parser, take_turns

OBJECTIVES = {
    "mlm+nsp, 128": DataSettings(max_length=128),
    "mlm+nsp, 512": DataSettings(max_length=512),
    "mlm+nsp, 128, whole words": DataSettings(max_length=128, whole_word_mask=True),
    "mlm, 128": DataSettings(max_length=128, objective="mlm"),
    "ltr, 128": DataSettings(max_length=128, objective="ltr"),
}
STORE_ROUNDS, BATCH_ROUNDS, STEPS = 3, 5, 20


class AloneTokenizer(Tokenizer):
    """A tokenizer that uses `tokenizers` alone, by its fastest call."""

    def encode_raw(self, texts: Sequence[str]) -> Ragged:
        rows = [row.ids for row in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]
        offsets = np.cumsum([0, *map(len, rows)])
        return Ragged(np.fromiter((number for row in rows for number in row), np.uint32, offsets[-1]), offsets)


def write_peer_shard(shard: ShardSpec, vocabulary: str) -> None:
    write_shard(shard, AloneTokenizer.load(vocabulary, lowercase=True))


def build_peer(folder: Path, corpus: CorpusSettings, vocabulary: str, settings: BuildSettings) -> None:
    """Build the same store, with its shards tokenized by `tokenizers` in as many processes."""
    tokenizer = Tokenizer.load(vocabulary, lowercase=True)
    folder.mkdir()
    plan = building._make_plan(folder, [corpus], tokenizer)
    plan.folder.mkdir()
    with multiprocessing.get_context("spawn").Pool(settings.workers) as pool:
        pool.starmap(write_peer_shard, [(shard, vocabulary) for shard in plan.shards], chunksize=1)
    building._publish(folder, plan, tokenizer, settings)


def measure_store(folder: Path, corpus: CorpusSettings, vocabulary: str) -> None:
    """Print the seconds of both ways to build a store."""
    os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # as in the workers of `build`
    settings, numbers = BuildSettings(workers=2), itertools.count()
    tokenizer = Tokenizer.load(vocabulary, lowercase=True)
    ways = {
        "bertwright": lambda: build(folder / f"{next(numbers)}", corpus, tokenizer, settings),
        "tokenizers alone": lambda: build_peer(folder / f"{next(numbers)}", corpus, vocabulary, settings),
    }
    seconds = take_turns(ways, STORE_ROUNDS)
    ours, theirs = (TokenStore.open(folder / name / "train").header for name in ("0", "1"))
    assert ours == theirs, "the two stores differ"
    size = sum(shard.size for shard in shard_corpus(corpus, building.SHARD_BYTES)) / 1e6
    print(f"{size:.1f} MB, {ours.num_tokens:,} tokens, {settings.workers} workers; {STORE_ROUNDS} rounds in turn\n")
    print("| store through | seconds | MB/s |\n|---|---:|---:|")
    for name, taken in seconds.items():
        print(f"| {name} | {format_range(taken)} | {size / statistics.median(taken):.1f} |")
    print(f"\n{format_ratio(seconds['tokenizers alone'], seconds['bertwright'])} times as fast")


def measure_batches(folder: Path, corpus: CorpusSettings, vocabulary: str) -> None:
    """Print the tokens per second of each objective."""
    tokenizer = Tokenizer.load(vocabulary, lowercase=True)
    build(folder, corpus, tokenizer, BuildSettings(held_out=0))
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core, for numpy and torch as well
    counts: dict[str, list[int]] = {name: [] for name in OBJECTIVES}

    def make_batches(name: str) -> None:
        first = len(counts[name]) * STEPS
        batches = (batch for step in range(first, first + STEPS) for batch in data[name].batches_for_step(step))
        counts[name].append(sum(batch.packing.num_tokens for batch in batches))

    data = {
        name: find_objective(settings.objective).open_examples(folder / "train", tokenizer, [settings])[0]
        for name, settings in OBJECTIVES.items()
    }
    seconds = take_turns({name: partial(make_batches, name) for name in OBJECTIVES}, BATCH_ROUNDS)
    print(
        f"batch 256; one core; {BATCH_ROUNDS} rounds in turn\n\n| batches | M tokens/s | ms per step |\n|---|---:|---:|"
    )
    for name, taken in seconds.items():
        rates = [count / 1e6 / spent for count, spent in zip(counts[name], taken, strict=True)]
        print(f"| {name} | {format_range(rates)} | {1000 * statistics.median(taken) / STEPS:.1f} |")


def main() -> None:
    parser = make_parser(__doc__)
    measures = {"store": measure_store, "batches": measure_batches}
    books, wikipedia = DATA / "corpora" / "english_books", DATA / "corpora" / "english_wikipedia" / "train.txt"
    parser.add_argument("what", choices=measures)
    parser.add_argument("inputs", nargs="*", default=[f"file={books}", str(wikipedia)])
    parser.add_argument("--vocabulary", default=str(DATA / "vocab" / "bert-base-uncased-vocab.txt"))
    arguments = parser.parse_args()
    keep_printed(__file__)
    print(describe_machine())
    with tempfile.TemporaryDirectory() as folder:
        measures[arguments.what](Path(folder, "stores"), CorpusSettings(tuple(arguments.inputs)), arguments.vocabulary)


if __name__ == "__main__":
    main()
