"""Measure the systems with BERT's layers beside a BERT of the same shape.

Each contender runs the same texts through its encoder: states alone, and states with the gradients of all weights. The
vocabulary is the same for all (bench/roberta.py has large ones), so that a ratio is that of the networks.

In a round each contender runs once, in a new random order, between two runs of the first one; its ratio is to the mean
of both, so that a drift of the machine's speed cancels out. Printed are the median of the ratios and its 95 % interval,
by the order statistics of the median. A second copy of the first one is the control: its interval should hold 1.

    python bench/family_speed.py [--device cuda] [--output FILE]
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertwright.base.files import write_json
from bertwright.kernels.cpu import configure_malloc
from bertwright.models.packing import TokenBatch, from_flat
from bertwright.systems.albert.albert import AlbertConfig, AlbertEncoder
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.distilbert.distilbert import DistilBertConfig, DistilBertEncoder
from bertwright.systems.electra.electra import ElectraConfig, ElectraEncoder
from bertwright.systems.mpnet.mpnet import MpnetConfig, MpnetEncoder
from bertwright.systems.roberta.roberta import RobertaConfig, RobertaEncoder
from environment import commit, describe_machine, make_parser, use_threads

SHAPE = {"hidden_size": 768, "num_layers": 4, "num_heads": 12, "intermediate_size": 3072, "max_positions": 128}
VOCABULARY = 30_522
Seconds = dict[str, list[tuple[float, float]]]
"""Seconds and ratio of each run, by contender."""
Figures = dict[str, dict[str, float]]
"""Figures of each contender."""
RESULTS = Path(__file__).parent / "results" / "family_speed.json"


def encoders() -> dict[str, BertEncoder]:
    """Return an encoder of each system in the same shape."""
    sizes: Any = {"vocab_size": VOCABULARY} | SHAPE
    return {
        "bert": BertEncoder(BertConfig(**sizes)),
        "distilbert": DistilBertEncoder(DistilBertConfig(**sizes)),
        "electra": ElectraEncoder(ElectraConfig(**sizes, embedding_size=768)),
        "electra, embeddings of 128": ElectraEncoder(ElectraConfig(**sizes)),
        "albert": AlbertEncoder(AlbertConfig(**sizes, activation="gelu")),
        "roberta": RobertaEncoder(RobertaConfig(**sizes)),
        "mpnet": MpnetEncoder(MpnetConfig(**sizes)),
        "bert again": BertEncoder(BertConfig(**sizes)),
    }


def make_batch(texts: int, seed: int) -> TokenBatch:
    """Return texts of 16 to 128 random tokens."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(16, 129, texts)
    return from_flat(rng.integers(5, VOCABULARY, lengths.sum()), np.zeros(lengths.sum(), dtype=np.int64), lengths)


def read(encoder: BertEncoder, batch: TokenBatch) -> None:
    with torch.inference_mode():
        encoder(batch)


def train(encoder: BertEncoder, batch: TokenBatch) -> None:
    encoder.zero_grad()
    encoder(batch).square().mean().backward()


def run(work: Callable[[BertEncoder, TokenBatch], None], encoder: BertEncoder, batch: TokenBatch, device: str) -> None:
    work(encoder, batch)
    if device == "cuda":
        torch.cuda.synchronize()


def sandwich(contenders: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> Seconds:
    """Measure each contender between two runs of the first one; return seconds, and ratios to the mean of these two."""

    def time_of(run: Callable[[], object]) -> float:
        started = clock()
        run()
        return clock() - started

    (base, run_base), *others = contenders.items()
    seconds: Seconds = {name: [] for name in contenders}
    rng = random.Random(0)
    for _ in range(rounds):
        before = time_of(run_base)
        for name, contender in rng.sample(others, len(others)):
            own, after = time_of(contender), time_of(run_base)
            seconds[name].append((own, 2 * own / (before + after)))
            seconds[base].append((after, 1.0))
            before = after
    return seconds


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return a 95 % interval of the median, by order statistics: the normal approximation of the binomial counts."""
    ordered, count = sorted(values), len(values)
    below = max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)))
    return ordered[below], ordered[count - 1 - below]


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Figures]]:
    """Yield each kind of work with, for each contender, the median seconds, the median ratio and its interval."""
    batch, models = make_batch(options.texts, seed=1).to(options.device), encoders()
    for encoder in models.values():
        encoder.sparse_gradients = True
        encoder.to(options.device).eval()
        if options.device == "cuda":
            encoder.compute_dtype = torch.bfloat16
    clock = time.perf_counter if options.device == "cuda" else time.process_time
    for name, work in (("states", read), ("states and gradients", train)):
        contenders: dict[str, Callable[[], object]] = {
            system: partial(run, work, encoder, batch, options.device) for system, encoder in models.items()
        }
        yield name, compare(contenders, options.rounds, clock)


def compare(contenders: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float]) -> Figures:
    """Return the figures of each contender, after a round that does not count."""
    sandwich(contenders, 1, clock)
    return {name: summarize(pairs) for name, pairs in sandwich(contenders, rounds, clock).items()}


def summarize(pairs: list[tuple[float, float]]) -> dict[str, float]:
    """Return medians of seconds and ratios, and the interval of the ratio."""
    seconds, ratios = zip(*pairs, strict=True)
    low, high = median_interval(ratios)
    return {
        "seconds": statistics.median(seconds),
        "ratio": statistics.median(ratios),
        "ratio from": low,
        "ratio to": high,
    }


def main() -> None:
    """Print the ratios, and write all figures."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=18)
    parser.add_argument("--texts", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    use_threads(1)
    configure_malloc()
    results, machine = dict[str, Figures](), describe_machine(1, options.device)
    dtype, clock = ("bfloat16", "seconds") if options.device == "cuda" else ("float32", "CPU seconds of one thread")
    setting = f"L4 H768, no dropout, {dtype}, {options.texts} texts, {options.rounds} rounds, {clock}"
    print(machine, setting, sep="\n")
    for work, figures in measure(options):
        results[work] = figures
        write_json(options.output, {"machine": machine, "commit": commit(), "setting": setting, "results": results})
        print(work)
        for name, one in figures.items():
            print(f"  {name}: {one['ratio']:.3f} ({one['ratio from']:.3f} to {one['ratio to']:.3f})", flush=True)


if __name__ == "__main__":
    main()
