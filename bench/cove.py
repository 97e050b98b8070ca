"""BCN with word vectors alone, and with CoVe beside them, on TREC-6 and SST-2 (McCann et al. 2017, table 2).

    python bench/cove.py DATA --vectors runs/vectors --translation-model runs/mt --results FILE.jsonl

DATA has the folders trec and glue/SST-2. Rules: both systems have the same examples, vectors, steps, rate and seeds;
dev is a tenth of the training examples and chooses the epoch; tests are the test set of TREC and dev.tsv of SST-2. The
floor is the most frequent label of the training examples. Results are appended as they come; runs that the file has are
not repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from scipy.stats import ttest_rel

from bertwright.base.reporter import SILENT
from bertwright.base.settings import from_table
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from environment import describe_machine

SYSTEMS = ("BCN, vectors", "BCN, vectors + CoVe")
TASKS = ("trec", "sst2")
Rows = list[tuple[str, str]]  # labels and texts


def read_task(data: Path, task: str) -> dict[str, Rows]:
    """Read the training and the test examples of a task."""
    if task == "sst2":
        files = {"train": data / "glue/SST-2/train.tsv", "test": data / "glue/SST-2/dev.tsv"}
        lines = {split: path.read_text(encoding="utf-8").splitlines()[1:] for split, path in files.items()}
        return {split: [(*line.split("\t")[::-1],) for line in rows] for split, rows in lines.items()}  # type: ignore[misc]
    files = {split: next((data / "trec").glob(f"*{split}*")) for split in ("train", "test")}
    questions = {split: path.read_text(encoding="utf-8").splitlines() for split, path in files.items()}
    return {split: [(line.split(":")[0], line.split(" ", 1)[1]) for line in rows] for split, rows in questions.items()}


def train(task: str, system: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train one system; return its scores."""
    words = {"vectors": options.vectors, "lstm_size": options.lstm_size}
    if system.endswith("CoVe"):
        words["translation_model"] = options.translation_model
    started = time.process_time()
    with TemporaryDirectory() as folder:
        for split, rows in read_task(options.data, task).items():
            text = "".join(f"{label}\t{text}\n" for label, text in [("label", "text"), *rows])
            Path(folder, f"{split}.tsv").write_text(text, encoding="utf-8")
        files = {split: [f"{folder}/{split}.tsv"] for split in ("train", "test")}
        table = {
            "run": f"{folder}/run",
            "task": {"task": "classification", **files},
            "architecture": "bcn",
            "words": words,
            "epochs": options.epochs,
            "batch_size": options.batch_size,
            "seed": seed,
            "tuning": {"validation_fraction": 0.1, "limit": options.limit},
            "optimizer": {"learning_rate": options.rate},
            "device": {"dtype": "float32", "threads": 1},
        }
        run = finetune(from_table(FinetuneSettings, table, "table"), SILENT).parent
        report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    scores = {split: 100 * report["scores"][split]["accuracy"] for split in ("dev", "test")}
    cost = {"best_step": report["best_step"], "cpu_seconds": time.process_time() - started}
    return {"task": task, "system": system, "seed": seed, **scores, **cost}


def print_table(data: Path, task: str, results: list[dict[str, Any]]) -> None:
    """Print the floor and a row per system; differences are paired by seed."""
    splits = read_task(data, task)
    frequent = Counter(label for label, _ in splits["train"]).most_common(1)[0][0]
    floor = 100 * mean(label == frequent for label, _ in splits["test"])
    print(f"\n{task}\n| system | dev | test | test by seed | difference | p |\n|---|---:|---:|---|---:|---:|")
    print(f"| most frequent label | | {floor:.2f} | | | |")
    own = {system: {r["seed"]: r for r in results if (r["task"], r["system"]) == (task, system)} for system in SYSTEMS}
    seeds = sorted(set.intersection(*(set(rows) for rows in own.values())))
    for system, rows in own.items():
        values = {split: [rows[seed][split] for seed in seeds] for split in ("dev", "test")}
        spread = [f"{mean(v):.2f}" + (f" ± {stdev(v):.2f}" if len(v) > 1 else "") for v in values.values() if v]
        by_seed, compared = ", ".join(f"{value:.2f}" for value in values["test"]), ["", ""]
        base = [own[SYSTEMS[0]][seed]["test"] for seed in seeds]
        if system != SYSTEMS[0] and seeds:
            compared[0] = f"{mean(values['test']) - mean(base):+.2f}"
            compared[1] = f"{ttest_rel(values['test'], base).pvalue:.3f}" if len(seeds) > 1 else ""
        print(f"| {' | '.join([system, *spread, by_seed, *compared])} |")


def main() -> None:
    """Train what the results lack, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    rule = {name: getattr(options, name) for name in ("limit", "epochs", "batch_size", "rate", "lstm_size")}
    lines = options.results.read_text(encoding="utf-8").splitlines() if options.results.exists() else []
    results = [result for result in map(json.loads, lines) if rule.items() <= result.items()]
    done = {(result["task"], result["system"], result["seed"]) for result in results}
    for seed in range(options.seeds):
        for task in options.tasks:
            for system in SYSTEMS:
                if (task, system, seed) in done:
                    continue
                result = train(task, system, seed, options) | rule | {"machine": describe_machine(1)}
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result, ensure_ascii=False) + "\n")
                results.append(result)
                print(f"{task}, {system}, seed {seed}: dev {result['dev']:.2f}, test {result['test']:.2f}", flush=True)
    print(describe_machine(1))
    for task in options.tasks:
        print_table(options.data, task, results)


if __name__ == "__main__":
    main()
