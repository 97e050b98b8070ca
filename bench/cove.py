"""BCN with word vectors alone, and with CoVe beside them, on TREC-6 and SST-2 (McCann et al. 2017, table 2).

    python bench/cove.py DATA --vectors runs/vectors --translation-model runs/mt --results FILE.jsonl

DATA has the folders trec and glue/SST-2. Rules: both systems have the same examples, vectors, steps, rate and seeds;
dev is a tenth of the training examples and chooses the epoch; tests are the test set of TREC and dev.tsv of SST-2. The
floor is the most frequent label of the training examples. Results are appended as they come; runs that the file has are
not repeated.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from environment import make_parser
from study import by_seed, compare, finetune_table, format_mean, print_heading, print_row, read_trec, run_missing

SYSTEMS = ("BCN, vectors", "BCN, vectors + CoVe")
TASKS = ("trec", "sst2")
RULE = ("limit", "epochs", "batch_size", "rate", "lstm_size")


def read_task(data: Path, task: str) -> dict[str, list[tuple[str, str]]]:
    """Read the texts and labels of the training and the test examples of a task."""
    if task == "trec":
        splits = {split: read_trec(next((data / "trec").glob(f"*{split}*"))) for split in ("train", "test")}
        return {split: [(text, label.split(":")[0]) for text, label in rows] for split, rows in splits.items()}
    files = {"train": data / "glue/SST-2/train.tsv", "test": data / "glue/SST-2/dev.tsv"}
    lines = {split: path.read_text(encoding="utf-8").splitlines()[1:] for split, path in files.items()}
    return {split: [line.split("\t") for line in rows] for split, rows in lines.items()}  # type: ignore[misc]


def train(run: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Train one system; return its scores in percent."""
    words = {"vectors": options.vectors, "lstm_size": run["lstm_size"]}
    if run["system"].endswith("CoVe"):
        words["translation_model"] = options.translation_model
    with TemporaryDirectory() as folder:
        for split, rows in read_task(options.data, run["task"]).items():
            text = "".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *rows])
            Path(folder, f"{split}.tsv").write_text(text, encoding="utf-8")
        table = {
            "task": {"task": "classification"} | {split: [f"{folder}/{split}.tsv"] for split in ("train", "test")},
            "architecture": "bcn",
            "words": words,
            "epochs": run["epochs"],
            "batch_size": run["batch_size"],
            "seed": run["seed"],
            "tuning": {"validation_fraction": 0.1, "limit": run["limit"]},
            "optimizer": {"learning_rate": run["rate"]},
        }
        report = finetune_table(table)
    scores = {split: 100 * report["scores"][split]["accuracy"] for split in ("dev", "test")}
    return scores | {"best_step": report["best_step"]}


def print_table(data: Path, task: str, results: list[dict[str, Any]]) -> None:
    """Print the floor and a row per system; differences are paired by seed."""
    splits = read_task(data, task)
    frequent = Counter(label for _, label in splits["train"]).most_common(1)[0][0]
    floor = 100 * mean(label == frequent for _, label in splits["test"])
    print()
    print_heading([task, "dev", "test", "test by seed", "difference", "interval"])
    print_row(["most frequent label", "", f"{floor:.2f}", "", "", ""])
    base = by_seed(results, "test", task=task, system=SYSTEMS[0])
    for system in SYSTEMS:
        dev, test = (by_seed(results, split, task=task, system=system) for split in ("dev", "test"))
        values = ", ".join(f"{score:.2f}" for score in test.values())
        compared = ("", "") if system == SYSTEMS[0] else compare(base, test)
        print_row([system, format_mean([*dev.values()]), format_mean([*test.values()]), values, *compared])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--vectors", required=True)
    parser.add_argument("--translation-model", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--limit", type=int, default=None, help="examples of each split; by default all")
    parser.add_argument("--epochs", type=float, default=10.0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--lstm-size", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    rule = {name: getattr(options, name) for name in RULE}
    runs = [
        {"task": task, "system": system, "seed": seed} | rule
        for seed in range(options.seeds)
        for task in options.tasks
        for system in SYSTEMS
    ]
    results = run_missing(options.results, runs, lambda run: train(run, options))
    for task in options.tasks:
        print_table(options.data, task, results)


if __name__ == "__main__":
    main()
