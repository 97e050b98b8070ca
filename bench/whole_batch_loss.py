"""Time the two passes of a loss over all rows of a step against one graph of the whole batch.

    python bench/whole_batch_loss.py [--pairs 64] [--length 32] [--rounds 7] [--output FILE]

A BERT of four layers (H256) computes a vector per text; the loss finds each text's partner in the batch. All ways
alternate in each round; each is timed after a step of its own kind, as in training. A single micro-batch is the same
computation as the graph of the whole batch, so its ratio shows the error of the measurement. Times are seconds of the
process (CPU), which a busy machine changes less than the time of day.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from bertwright.base.files import write_json
from bertwright.kernels.cpu import configure_malloc
from bertwright.models.packing import TokenBatch, pack
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.training.loop import LossOutput
from bertwright.training.whole_batch_loss import RowOutput, WholeBatchLoss, backward
from environment import commit, describe_machine, make_parser, take_turns, use_threads

MICRO_BATCHES = (1, 4, 8)
SPLIT = (-4, -8)  # as many micro-batches, each with a single pass and a loss of its own: the price of small batches
RESULTS = Path(__file__).parent / "results" / "whole_batch_loss.json"


def contrast(vectors: Tensor, rows: Tensor) -> LossOutput:
    """Return the cross entropy of each text's partner among the partners of all texts."""
    texts, partners = vectors.chunk(2, dim=1)
    loss = cross_entropy(20 * texts @ partners.T, torch.arange(len(rows)))
    return LossOutput(loss, {"loss": loss})


def make_loss(encoder: BertEncoder) -> WholeBatchLoss[TokenBatch]:
    """Return the loss; a row is a pair, whose texts are neighbours in the batch."""

    def vectors(batch: TokenBatch) -> RowOutput:
        states = encoder(batch, batch.packing.first_positions).float()  # 2 R × H
        rows = torch.zeros(len(states) // 2, 1)
        return RowOutput(normalize(states).view(len(rows), -1), rows, {"tokens": torch.tensor(float(len(states)))})

    return WholeBatchLoss(vectors, contrast)


def make_micro_batches(pairs: int, length: int, number: int) -> list[TokenBatch]:
    """Cut the same pairs of random texts into micro-batches."""
    texts = np.random.default_rng(0).integers(1000, size=(2 * pairs, length))
    parts = np.split(texts, number)
    firsts = [part * texts.size // number for part in range(number)]
    return [pack([*part]).with_dropout(1, first) for part, first in zip(parts, firsts, strict=True)]


def measure(options: argparse.Namespace) -> dict[int, dict[str, float]]:
    """Return medians of seconds and ratios for each number of micro-batches."""
    encoder = BertEncoder(BertConfig(1000, 256, 4, 4, 1024, options.length))
    loss = make_loss(encoder)
    batches = {number: make_micro_batches(options.pairs, options.length, number) for number in MICRO_BATCHES}

    def compute_singly(micro_batches: list[TokenBatch]) -> None:
        for batch in micro_batches:
            output = loss.vectors(batch)
            loss.loss(output.vectors, output.rows).loss.backward()  # type: ignore[no-untyped-call]

    def make_step(number: int) -> Callable[[], None]:
        passes = partial(backward, loss) if number > 0 else compute_singly

        def run() -> None:
            encoder.zero_grad()
            passes(batches[abs(number) or 1])

        return run

    steps = {str(number): make_step(number) for number in (0, *MICRO_BATCHES, *SPLIT)}  # 0: one graph
    turns = {f"{name}, {when}": step for name, step in steps.items() for when in ("before", "timed")}
    timed = take_turns(turns, options.rounds, time.process_time)
    seconds = {int(name): timed[f"{name}, timed"] for name in steps}
    results = {}
    for number in MICRO_BATCHES:
        ratios = [two / one for two, one in zip(seconds[number], seconds[0], strict=True)]
        results[number] = {
            "direct_seconds": statistics.median(seconds[0]),
            "two_pass_seconds": statistics.median(seconds[number]),
            "single_pass_seconds": statistics.median(seconds[-number if number > 1 else 0]),
            "ratio": statistics.median(ratios),
            "ratio_to_single_pass": statistics.median(
                two / one for two, one in zip(seconds[number], seconds[-number if number > 1 else 0], strict=True)
            ),
            "lowest_ratio": min(ratios),
            "highest_ratio": max(ratios),
            "expected_ratio": 1 + (number - 1) / (3 * number),  # a backward pass costs two forward passes
        }
    return results


def main() -> None:
    """Print the ratio for each number of micro-batches, and write all figures."""
    parser = make_parser(__doc__)
    parser.add_argument("--pairs", type=int, default=64, help="pairs of texts per step, a multiple of 8")
    parser.add_argument("--length", type=int, default=32, help="tokens per text")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    use_threads(1)
    configure_malloc()  # as training does
    results = measure(options)
    setting = f"BERT L4 H256, dropout 0.1, float32, {options.pairs} pairs of {options.length} tokens per text"
    setting += f", {options.rounds} interleaved rounds, CPU seconds of one thread"
    write_json(
        options.output,
        {"machine": describe_machine(1), "commit": commit(), "setting": setting, "micro_batches": results},
    )
    print(describe_machine(1), setting, sep="\n")
    for number, result in results.items():
        spread = f"{result['lowest_ratio']:.2f} to {result['highest_ratio']:.2f}"
        print(
            f"{number} micro-batches: ratio {result['ratio']:.2f} ({spread}), expected {result['expected_ratio']:.2f}; "
            f"to a single pass over the same micro-batches {result['ratio_to_single_pass']:.2f}"
        )


if __name__ == "__main__":
    main()
