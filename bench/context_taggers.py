"""Taggers with and without a language model's states: the BiLSTM-CNN-CRF, TagLM, ELMo's top layer and its mix.

    python bench/context_taggers.py --data shared/data/conll2003 --language-model runs/elmo --results FILE.jsonl
    … --shorter runs/elmo-short --task-model runs/elmo-conll      (the findings of TagLM's paper as further rows)

All have two LSTM layers, random word vectors, the same examples, steps, rate and seeds; the scores on test are of the
weights with the best score on dev. --limit and --limit-dev choose sentences at random, the same for all; test is whole.
Results are appended as they come, and runs that the file has are not repeated; seeds come one after the other. Systems
are compared by paired t-tests over the seeds that both have.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from scipy.stats import ttest_rel

from bertwright.base.reporter import MUTE
from bertwright.base.settings import from_table
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tasks.splits import sample_examples
from bertwright.tasks.task_data import read_examples
from environment import describe_machine, use_threads

BASE = "BiLSTM-CNN-CRF"
TAGGERS: dict[str, tuple[str, dict[str, Any], str]] = {  # architecture, settings, option with the language model
    BASE: ("bilstm-crf", {"lstm_layers": 2}, ""),
    "TagLM": ("taglm", {}, "language_model"),
    "ELMo, top layer": ("elmo", {"lm_layers": "top"}, "language_model"),
    "ELMo, mix": ("elmo", {}, "language_model"),
}
FINDINGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "TagLM, forward direction alone": ("taglm", {"lm_directions": "forward"}, "language_model"),
    "TagLM, states after layer 2": ("taglm", {"lm_places": [2]}, "language_model"),
    "TagLM, language model with fewer steps": ("taglm", {}, "shorter"),
    "TagLM, language model on the task's text": ("taglm", {}, "task_model"),
}


def read_perplexity(run: str) -> float:
    """Return the held-out perplexity at the end of a pre-training."""
    report = json.loads(Path(run, "report.json").read_text(encoding="utf-8"))
    return round(float(report["held_out_after"]["perplexity"]), 1)


def train(tagger: tuple[str, dict[str, Any], str], seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train one tagger; return its scores."""
    architecture, words, model = tagger
    if model:
        words = words | {"language_model": getattr(options, model)}
    started = time.process_time()
    with TemporaryDirectory() as folder:
        table = {
            "run": f"{folder}/run",
            "task": {"task": "conll2003", "data": str(options.data)},
            "architecture": architecture,
            "words": words,
            "epochs": options.epochs,
            "batch_size": options.batch_size,
            "seed": seed,
            "optimizer": {"learning_rate": options.rate},
            "device": {"dtype": "float32", "threads": 1},
        }
        settings = from_table(FinetuneSettings, table, "table")
        task = settings.task.build_task()
        examples = {split: read_examples(task, settings.task, split) for split in ("train", "dev", "test")}
        for split, limit in (("train", options.limit), ("dev", options.limit_dev)):
            if limit is not None:
                examples[split] = list(sample_examples(examples[split], limit))
        run = finetune(settings, MUTE, examples).parent
        report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    scores = {split: 100 * report["scores"][split]["f1"] for split in ("dev", "test")}
    cost = {"best_step": report["best_step"], "cpu_seconds": round(time.process_time() - started, 1)}
    return {"seed": seed, **scores, **cost}


def print_table(names: list[str], results: list[dict[str, Any]]) -> None:
    """Print a row per tagger; differences are paired by seed."""
    own = {name: {r["seed"]: r for r in results if r["tagger"] == name} for name in names}
    columns = (
        "tagger",
        "perplexity",
        "dev F1",
        "test F1",
        "test by seed",
        "step up",
        "p",
        "over the first",
        "p",
        "CPU s",
    )
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    above = ""
    for name, rows in own.items():
        if not rows:
            continue
        dev, test = ([row[split] for row in rows.values()] for split in ("dev", "test"))
        cells = [format_mean(dev), format_mean(test), ", ".join(f"{value:.2f}" for value in test)]
        cells += [cell for before in (above, BASE) for cell in compare(own.get(before, {}), rows, before != name)]
        perplexity = next(iter(rows.values()))["perplexity"]
        cells.append(f"{mean(row['cpu_seconds'] for row in rows.values()):.0f}")
        print(f"| {' | '.join([name, f'{perplexity:.1f}' if perplexity else '', *cells])} |")
        above = name


def format_mean(values: list[float]) -> str:
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def compare(before: dict[int, Any], after: dict[int, Any], differ: bool) -> tuple[str, str]:
    """Return the mean difference on test over the seeds that both have, and its p-value."""
    seeds = sorted(before.keys() & after.keys()) if differ else []
    if not seeds:
        return "", ""
    lower, higher = ([rows[seed]["test"] for seed in seeds] for rows in (before, after))
    p = f"{ttest_rel(higher, lower).pvalue:.3f}" if len(seeds) > 1 else ""
    return f"{mean(higher) - mean(lower):+.2f}", p


def main() -> None:
    """Train what the results lack, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--language-model", required=True)
    parser.add_argument("--shorter", help="run of the same model with fewer steps")
    parser.add_argument("--task-model", help="run of the same model on the task's text alone")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None, help="training sentences; by default all")
    parser.add_argument("--limit-dev", type=int, default=None, help="sentences of dev; by default all")
    parser.add_argument("--epochs", type=float, default=20.0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    use_threads(1)
    given = {"": True} | {name: getattr(options, name) for name in ("language_model", "shorter", "task_model")}
    findings = FINDINGS if options.shorter or options.task_model else {}
    taggers = {name: tagger for name, tagger in (TAGGERS | findings).items() if given[tagger[2]]}
    rule = {name: getattr(options, name) for name in ("limit", "limit_dev", "epochs", "batch_size", "rate")}
    rules = {
        name: {"tagger": name} | rule | {"perplexity": read_perplexity(getattr(options, model)) if model else None}
        for name, (_, _, model) in taggers.items()
    }
    lines = options.results.read_text(encoding="utf-8").splitlines() if options.results.exists() else []
    records = [json.loads(line) for line in lines]
    results = [record for record in records if rules.get(record["tagger"], {"": ""}).items() <= record.items()]
    done = {(result["tagger"], result["seed"]) for result in results}
    for seed in range(options.seeds):
        for name, tagger in taggers.items():
            if (name, seed) in done:
                continue
            result = rules[name] | train(tagger, seed, options) | {"machine": describe_machine(1)}
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result, ensure_ascii=False) + "\n")
            results.append(result)
            print(f"{name}, seed {seed}: dev {result['dev']:.2f}, test {result['test']:.2f}", flush=True)
    print(describe_machine(1))
    print_table([*taggers], results)


if __name__ == "__main__":
    main()
