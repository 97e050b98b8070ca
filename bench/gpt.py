"""GPT after a short pre-training: four tasks from random weights, from the pre-trained ones, with and without the LM.

    python bench/gpt.py MODEL DATA WORK [--tasks sst2 mrpc cola codah] [--seeds 2] [--limit 3000] [--threads 1]
                        [--results bench/results/gpt.jsonl]

MODEL is a run of `bertwright pretrain --architecture gpt`, DATA the folder with glue/ and codah/ as published. Fixed
before any result: 3 epochs, batches of 32, the default rate of the model's width, at most --limit training examples of
each task, the last epoch's or an earlier one's dev score, whichever is best; each dev split is scored whole. Runs stay
in WORK, and one that is finished there is not run again; seeds come one after the other, so that an early stop leaves
whole rows. The floor is the most frequent answer.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bertwright.base.files import read_json
from bertwright.base.reporter import MUTE
from bertwright.base.settings import from_table
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.metrics.seed_summary import summarize_seeds
from bertwright.tasks.presets import PRESETS
from environment import describe_machine, use_threads

FOLDERS = {"sst2": "glue/SST-2", "mrpc": "glue/MRPC", "cola": "glue/CoLA", "codah": "codah"}
WAYS: dict[str, dict[str, Any]] = {
    "random weights": {"from_scratch": True, "auxiliary_lm": 0.0},
    "pre-trained, without auxiliary LM": {"auxiliary_lm": 0.0},
    "pre-trained, auxiliary LM 0.5": {"auxiliary_lm": 0.5},
}


def run_once(chosen: argparse.Namespace, task: str, way: str, seed: int) -> dict[str, Any]:
    """Fine-tune once, or read the finished run; return its record."""
    run = chosen.work / f"{task}-{[*WAYS].index(way)}-{seed}"
    table: dict[str, Any] = {
        "run": str(run),
        "model": str(chosen.model),
        "seed": seed,
        "task": {"task": task, "data": str(chosen.data / FOLDERS[task])},
        "tuning": WAYS[way],
        "device": {"device": "cpu", "threads": chosen.threads},
    }
    settings = from_table(FinetuneSettings, table, task)
    examples = read_examples(settings, chosen.limit)
    started = time.perf_counter()
    if not (run / "report.json").exists():
        finetune(settings, MUTE, examples)
    report = read_json(run / "report.json")
    return {
        "task": task,
        "way": way,
        "seed": seed,
        "metric": report["metric"],
        "score": report["scores"]["dev"][report["metric"]],
        "train": len(examples["train"]),
        "dev": len(examples["dev"]),
        "rate": settings.optimizer.learning_rate,
        "seconds": round(time.perf_counter() - started),
        "machine": describe_machine(chosen.threads),
    }


def read_examples(settings: FinetuneSettings, limit: int) -> dict[str, list[Any]]:
    """Read the examples of both splits; the first `limit` of the training examples in a fixed random order."""
    task = settings.task.build_task()
    examples = {
        split: [example for path in settings.task.files(split) for example in task.read(path)]
        for split in ("train", "dev")
    }
    random.Random(0).shuffle(examples["train"])
    return examples | {"train": examples["train"][:limit]}


def floor(chosen: argparse.Namespace, task: str) -> float:
    """Score the most frequent answer on dev: by accuracy, F1 of the positive label, or Matthews' correlation."""
    metric = PRESETS[task].task.metric
    table: dict[str, Any] = {"run": "unused", "model": str(chosen.model)}
    table |= {"task": {"task": task, "data": str(chosen.data / FOLDERS[task])}}
    labels = Counter(example.label for example in read_examples(from_table(FinetuneSettings, table, task), 1)["dev"])
    share = labels.most_common(1)[0][1] / labels.total()
    if metric == "f1":
        share = labels["1"] / labels.total()
        return 2 * share / (1 + share)
    return 0.0 if metric == "matthews" else share


def show(chosen: argparse.Namespace, records: list[dict[str, Any]]) -> None:
    """Print the scores in percent: mean and standard deviation over the seeds."""
    table = Table("", *chosen.tasks, title="dev scores (%)", title_justify="left")
    metrics = [PRESETS[task].task.metric for task in chosen.tasks]
    table.add_row("metric", *metrics)
    table.add_row("most frequent answer", *(f"{100 * floor(chosen, task):.1f}" for task in chosen.tasks))
    for way in WAYS:
        cells = []
        for task in chosen.tasks:
            scores = [record["score"] for record in records if (record["task"], record["way"]) == (task, way)]
            cells.append(str(summarize_seeds(scores)) if scores else "")
        table.add_row(way, *cells)
    reporter = Console(width=120)
    reporter.print(
        f"{describe_machine(chosen.threads)}\n{chosen.model}, at most {chosen.limit:,} training examples; "
        "mean ± sd (seeds)"
    )
    reporter.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--tasks", nargs="+", default=[*FOLDERS], choices=[*FOLDERS])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--limit", type=int, default=3_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "gpt.jsonl")
    chosen = parser.parse_args()
    use_threads(chosen.threads)
    chosen.work.mkdir(parents=True, exist_ok=True)
    records = []
    for seed in range(chosen.seeds):
        for task in chosen.tasks:
            for way in WAYS:
                records.append(record := run_once(chosen, task, way, seed))
                with chosen.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
        show(chosen, records)


if __name__ == "__main__":
    main()
