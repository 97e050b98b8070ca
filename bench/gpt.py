"""GPT after a short pre-training: four tasks from random weights, from the pre-trained ones, with and without the LM.

    python bench/gpt.py MODEL DATA --results bench/results/gpt.jsonl [--tasks sst2 mrpc cola codah] [--seeds 2]

MODEL is a run of `bertwright pretrain --architecture gpt`, DATA the folder with glue/ and codah/ as published. Fixed
before any result: 3 epochs, batches of 32, the default rate of the model's width, at most --limit training examples of
each task, the last epoch's or an earlier one's dev score, whichever is best; each dev split is scored whole. Runs that
the file has are not repeated; seeds come one after the other, so that an early stop leaves whole rows. The floor is the
most frequent answer.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from pathlib import Path
from typing import Any

from bertwright.metrics.seed_summary import summarize_seeds
from bertwright.tasks.presets import PRESETS
from environment import make_parser, use_threads
from study import CPU, by_seed, finetune_table, print_heading, print_row, read_splits, run_missing

FOLDERS = {"sst2": "glue/SST-2", "mrpc": "glue/MRPC", "cola": "glue/CoLA", "codah": "codah"}
WAYS: dict[str, dict[str, Any]] = {
    "random weights": {"from_scratch": True, "auxiliary_lm": 0.0},
    "pre-trained, without auxiliary LM": {"auxiliary_lm": 0.0},
    "pre-trained, auxiliary LM 0.5": {"auxiliary_lm": 0.5},
}


def make_task(task: str, data: Path) -> dict[str, str]:
    return {"task": task, "data": str(data / FOLDERS[task])}


def read(task: dict[str, str], limit: int) -> dict[str, list[Any]]:
    """Read the examples of both splits; the first `limit` of the training examples in a fixed random order."""
    examples = read_splits(task, ("train", "dev"))
    random.Random(0).shuffle(examples["train"])
    return examples | {"train": examples["train"][:limit]}


def train(run: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Fine-tune once; return the dev score."""
    task = make_task(run["task"], options.data)
    examples = read(task, options.limit)
    report = finetune_table(
        {
            "model": str(options.model),
            "seed": run["seed"],
            "task": task,
            "tuning": WAYS[run["way"]],
            "device": CPU | {"dtype": "auto"},
        },
        examples,
    )
    metric = report["metric"]
    return {"metric": metric, "score": report["scores"]["dev"][metric], "train": len(examples["train"])}


def floor(task: str, data: Path) -> float:
    """Score the most frequent answer on dev: by accuracy, F1 of the positive label, or Matthews' correlation."""
    metric = PRESETS[task].task.metric
    labels = Counter(example.label for example in read(make_task(task, data), 1)["dev"])
    share = labels.most_common(1)[0][1] / labels.total()
    if metric == "f1":
        share = labels["1"] / labels.total()
        return 2 * share / (1 + share)
    return 0.0 if metric == "matthews" else share


def print_table(options: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Print the dev scores in percent: mean and standard deviation over the seeds."""
    print(f"{options.model}, at most {options.limit:,} training examples; mean ± sd (seeds)\n")
    print_heading(["dev scores, %", *(f"{task}, {PRESETS[task].task.metric}" for task in options.tasks)])
    print_row(["most frequent answer", *(f"{100 * floor(task, options.data):.1f}" for task in options.tasks)])
    for way in WAYS:
        scores = [by_seed(results, "score", task=task, way=way) for task in options.tasks]
        print_row([way, *(summarize_seeds([*values.values()]) if values else "" for values in scores)])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=[*FOLDERS], choices=[*FOLDERS])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--limit", type=int, default=3_000)
    options = parser.parse_args()
    use_threads(1)
    runs = [
        {"task": task, "way": way, "seed": seed}
        for seed in range(options.seeds)
        for task in options.tasks
        for way in WAYS
    ]
    print_table(options, run_missing(options.results, runs, lambda run: train(run, options)))


if __name__ == "__main__":
    main()
