"""Pairs per second of contrastive training of all-MiniLM-L6-v2, beside sentence-transformers.

    python bench/vector_training_speed.py captions [--steps 4] [--rounds 5] [--threads 2]
    python bench/vector_training_speed.py squad --steps 1 --rounds 3

captions: two English captions of each photograph. squad: questions and their paragraphs, up to 256 tokens. The recipe
is the same on every side: in-batch negatives (MultipleNegativesRankingLoss, scale 20), 64 pairs per step, dropout 0.1,
AdamW (theirs fused), clipping at 1.0; texts are tokenized within the time by theirs, beforehand by ours.

sentence-transformers runs as documented, in random order and float32, and at its best settings: batches of similar
length (sorted among 50 batches), thresholds of malloc and huge pages, and autocast to bfloat16 if --dtype says so, in
which we and the products compute, too. Its step is its trainer's in a plain loop. Contenders are
processes of their own and take turns, one block of steps each, with the same pairs in a block; the
first round is not counted, and ratios are taken within a round. A fourth process computes the products of the linear
layers alone, forward and backward, with as many rows as our steps have tokens: sentence-transformers beside it is the
bound that no work on anything else can pass.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bertwright
from bertwright.base.reporter import SILENT
from bertwright.base.settings import from_table
from bertwright.finetuning.finetune_state import make_spec, open_run
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.models.heads import TaskBatch
from bertwright.tables.question_files import read_questions
from bertwright.tables.text_roles import TextRow
from bertwright.tasks.collation import split_step
from bertwright.training.context import execution_context
from bertwright.training.fit import train_until_stopped
from bertwright.training.throughput import choose_micro_batch_tokens
from contenders import OPEN, Contender, Variables, take_turns_apart
from environment import (
    DATA,
    DTYPES,
    RESULTS,
    append_result,
    format_range,
    format_ratio,
    make_parser,
    minilm,
    multiply,
    print_heading,
    print_row,
    train_step,
    use_threads,
)
from pretraining import MEMORY

BATCH, GROUPED, PAIRS, RATE = 64, 50, 3_200, 8e-5
PRODUCTS = "products of the linear layers alone"
Ints = np.ndarray[Any, np.dtype[np.int64]]
Block = Callable[[int], float]  # number of a block -> mean loss of its steps


def read_pairs(study: str) -> list[TextRow]:
    """Read the first pairs of a set."""
    if study == "squad":
        questions = read_questions(str(DATA / "squad" / "train-v1.1.json"))
        return [TextRow(one.question, one.location, (one.context,)) for one in islice(questions, PAIRS)]
    columns = []
    for number in (1, 2):
        with gzip.open(DATA / "captions" / f"train.{number}.en.gz", "rt", encoding="utf-8") as file:
            columns.append([line.strip() for line in islice(file, PAIRS)])
    return [TextRow(one, f"line {n}", (other,)) for n, (one, other) in enumerate(zip(*columns, strict=True), 1)]


def block_rows(lengths: Ints, number: int, steps: int, is_grouped: bool) -> Ints:
    """Choose the pairs of a block, steps × BATCH: evenly spaced batches of all pairs in order of length.

    In random order unless `is_grouped`.
    """
    drawn = np.random.default_rng(number)
    batches = np.argsort(-lengths, kind="stable").reshape(GROUPED, BATCH)
    offsets = (drawn.random() + np.arange(steps)) * GROUPED / steps
    rows: Ints = batches[offsets.astype(np.int64)]
    return rows if is_grouped else drawn.permutation(rows.reshape(-1)).reshape(rows.shape)


def ours(chosen: argparse.Namespace) -> Block:
    """Train as `bertwright finetune --task embedding` does, on given rows."""
    pairs = read_pairs(chosen.study)
    lengths = measure_lengths(pairs)
    table = {
        "run": "not-written", "task": {"task": "embedding"}, "model": str(minilm()), "batch_size": BATCH,
        "device": {"device": "cpu", "dtype": chosen.dtype, "threads": chosen.threads}, "epochs": 1000.0,
        "optimizer": {"learning_rate": RATE}, "tuning": {"dropout": 0.1},
    }  # fmt: skip
    settings = from_table(FinetuneSettings, table, "table")
    context = OPEN.enter_context(execution_context(settings.device))
    state = open_run(settings, context, SILENT, {"train": pairs})
    encoded = state.train.encoded

    def batches(_: int) -> Iterator[list[TaskBatch]]:
        blocks = (block_rows(lengths, number, chosen.steps, False) for number in count())
        for step, rows in enumerate(row for block in blocks for row in block):
            in_step = int(encoded.item_lengths[rows].sum())
            yield split_step(encoded, rows, step, 0, choose_micro_batch_tokens(context, state.model.config, in_step))

    steps = train_until_stopped(replace(make_spec(state, settings, context), batches=batches), context, ())
    return lambda number: statistics.fmean(next(steps).sums["loss"] for _ in range(chosen.steps))


def products(chosen: argparse.Namespace) -> Block:
    """Compute the products of the linear layers and of their gradients, with as many rows as a step has tokens."""
    pairs = read_pairs(chosen.study)
    lengths = measure_lengths(pairs)
    bert = bertwright.load(minilm(), "cpu", dtype=chosen.dtype)
    rows = [text for pair in pairs for text in pair.texts]
    sizes = np.array([min(len(ids), 256) for ids in bert.tokenizer.encode_ids(rows)]).reshape(-1, 2).sum(1)

    def block(number: int) -> float:
        for step in block_rows(lengths, number, chosen.steps, False):
            multiply(bert.model.encoder, int(sizes[step].sum()), True, DTYPES[chosen.dtype])
        return 0.0

    return block


def measure_lengths(pairs: list[TextRow]) -> Ints:
    """Count the characters of each pair, by which batches of similar length are made."""
    return np.array([sum(map(len, row.texts)) for row in pairs])


def theirs(chosen: argparse.Namespace, is_grouped: bool) -> Block:
    """Train by the step of sentence-transformers' trainer."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    pairs = read_pairs(chosen.study)
    lengths = measure_lengths(pairs)
    model = SentenceTransformer(str(minilm()), device="cpu")
    loss = MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, fused=True)
    model.train()

    is_half = is_grouped and chosen.dtype == "bfloat16"

    def take_step(rows: Ints) -> float:
        batch = [pairs[row] for row in rows]
        features = [model.preprocess([row.texts[side] for row in batch]) for side in (0, 1)]
        return float(train_step(model, lambda: loss(features, torch.empty(0)), optimizer, is_half))

    return lambda number: statistics.fmean(map(take_step, block_rows(lengths, number, chosen.steps, is_grouped)))


def prepare(make: Callable[[argparse.Namespace], Block], chosen: argparse.Namespace) -> Callable[[], float]:
    """Return a function that trains on the next block."""
    use_threads(chosen.threads)
    torch.manual_seed(0)
    block, numbers = make(chosen), count()
    return lambda: block(next(numbers))


CONTENDERS: dict[str, tuple[Callable[[argparse.Namespace], Block], Variables]] = {
    "sentence-transformers, as documented": (partial(theirs, is_grouped=False), None),
    "sentence-transformers, at its best settings": (partial(theirs, is_grouped=True), MEMORY),
    "bertwright": (ours, None),
    PRODUCTS: (products, None),
}


def main() -> None:
    """Print a table, and append it to the result file."""
    parser = make_parser(__doc__)
    parser.add_argument("study", choices=("captions", "squad"))
    parser.add_argument("--steps", type=int, default=4, help="steps of a block")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each contender that are counted")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--results", type=Path, default=RESULTS / "vector_training_speed.jsonl")
    chosen = parser.parse_args()
    contenders = {name: Contender(partial(prepare, make, chosen), more) for name, (make, more) in CONTENDERS.items()}
    turns = take_turns_apart(contenders, chosen.rounds)
    own, rows = [turn.seconds for turn in turns["bertwright"]], dict[str, dict[str, float]]()
    print_heading(["", "pairs/s (minimum to maximum)", "bertwright is, × as fast", "peak memory, GB", "loss"])
    for name, their_turns in turns.items():
        seconds, peak = [turn.seconds for turn in their_turns], their_turns[-1].peak / 1e9
        speeds = [BATCH * chosen.steps / one for one in seconds]
        ratios = [one / other for one, other in zip(seconds, own, strict=True)]
        loss = statistics.fmean(turn.result for turn in their_turns)
        ratio = "" if name == "bertwright" else format_ratio(seconds, own)
        print_row([name, format_range(speeds, ".1f"), ratio, f"{peak:.2f}", f"{loss:.3f}"])
        rows[name] = {
            "pairs_per_second": round(statistics.median(speeds), 1),
            "times_as_fast": round(statistics.median(ratios), 2),
            "lowest": round(min(ratios), 2),
            "highest": round(max(ratios), 2),
            "peak_gb": round(peak, 2),
            "loss": round(loss, 4),
        }
    about = {"study": chosen.study, "dtype": chosen.dtype, "rounds": chosen.rounds, "steps": chosen.steps}
    append_result(chosen.results, about | {"contenders": rows}, chosen.threads)


if __name__ == "__main__":
    main()
