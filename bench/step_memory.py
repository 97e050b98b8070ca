"""The memory of a training step whose loss compares all texts of the step, by the number of pairs.

    python bench/step_memory.py --results bench/results/step_memory.jsonl [--pairs 64 512 4096] [--length 128]

A step of `ranking` on random texts from all-MiniLM-L6-v2, on one thread in float32, in a new process for each number.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bertwright.base.reporter import SILENT
from bertwright.base.settings import from_table
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.kernels.cpu import peak_resident_memory
from bertwright.tables.text_roles import TextRow
from contenders import run_alone
from environment import make_parser, minilm, print_heading, print_row, use_threads
from study import CPU, Record, run_missing


def take_step(run: Record) -> Record:
    """Take one step; return the peak memory of the process in MB."""
    use_threads(1)
    pairs, words = run["pairs"], [str(number) for number in range(10)]
    texts = np.random.default_rng(0).choice(words, (pairs, 2, run["length"] - 2))  # beside [CLS] and [SEP]
    rows = [TextRow(" ".join(first), f"{n}", (" ".join(second),)) for n, (first, second) in enumerate(texts)]
    with TemporaryDirectory() as folder:
        table = {"run": f"{folder}/run", "task": {"task": "embedding"}, "model": str(minilm()), "device": CPU}
        settings = from_table(FinetuneSettings, table | {"batch_size": pairs, "epochs": 1.0}, "table")
        finetune(settings, SILENT, {"train": rows}, temporary=True)
    return {"peak_mb": (peak_resident_memory() or 0) // 1024**2}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--pairs", type=int, nargs="+", default=[64, 512, 4096])
    parser.add_argument("--length", type=int, default=128, help="tokens per text")
    chosen = parser.parse_args()
    runs = [{"pairs": pairs, "length": chosen.length} for pairs in chosen.pairs]
    records = run_missing(chosen.results, runs, lambda run: run_alone(take_step, run))
    print_heading(("pairs per step", "peak memory, MB"))
    for record in records:
        print_row((record["pairs"], f"{record['peak_mb']:,}"))


if __name__ == "__main__":
    main()
