"""Taggers with and without a language model's states: the BiLSTM-CNN-CRF, TagLM, ELMo's top layer and its mix.

    python bench/context_taggers.py --data shared/data/conll2003 --language-model runs/elmo --results FILE.jsonl

All have two LSTM layers, random word vectors, the same examples, steps, rate and seeds; the scores on test are of the
weights with the best score on dev. Results are appended as they come, and runs that the file has are not repeated.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from scipy.stats import ttest_rel

from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.settings import from_table
from environment import describe_machine

TAGGERS: dict[str, tuple[str, dict[str, Any]]] = {
    "BiLSTM-CNN-CRF": ("bilstm-crf", {"lstm_layers": 2}),
    "TagLM": ("taglm", {}),
    "ELMo, top layer": ("elmo", {"lm_layers": "top"}),
    "ELMo, mix": ("elmo", {}),
}


def train(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train one tagger; return its scores."""
    architecture, words = TAGGERS[name]
    if architecture != "bilstm-crf":
        words = words | {"language_model": options.language_model}
    with TemporaryDirectory() as folder:
        table = {
            "run": f"{folder}/run",
            "task": {"task": "conll2003", "data": str(options.data)},
            "architecture": architecture,
            "words": words,
            "epochs": options.epochs,
            "batch_size": options.batch_size,
            "seed": seed,
            "tuning": {"limit": options.limit},
            "optimizer": {"learning_rate": options.rate},
            "device": {"dtype": "float32", "threads": 1},
        }
        run = finetune(from_table(FinetuneSettings, table, "table"), Console(quiet=True)).parent
        report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    scores = {split: 100 * report["scores"][split]["f1"] for split in ("dev", "test")}
    return {"tagger": name, "seed": seed, "best_step": report["best_step"], **scores}


def main() -> None:
    """Train what the results lack, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--language-model", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None, help="sentences of each split; by default all")
    parser.add_argument("--epochs", type=float, default=20.0)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    rule = {name: getattr(options, name) for name in ("limit", "epochs", "batch_size", "rate")}
    lines = options.results.read_text(encoding="utf-8").splitlines() if options.results.exists() else []
    results = [result for result in map(json.loads, lines) if rule.items() <= result.items()]
    done = {(result["tagger"], result["seed"]) for result in results}
    for seed in range(options.seeds):
        for name in TAGGERS:
            if (name, seed) in done:
                continue
            result = train(name, seed, options) | rule | {"machine": describe_machine(1)}
            with options.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result, ensure_ascii=False) + "\n")
            results.append(result)
            print(f"{name}, seed {seed}: dev {result['dev']:.2f}, test {result['test']:.2f}", flush=True)
    print(describe_machine(1))
    print(f"| tagger | dev F1 | test F1 | test − {next(iter(TAGGERS))} | p |\n|---|---:|---:|---:|---:|")
    base = [result["test"] for result in results if result["tagger"] == next(iter(TAGGERS))]
    for name in TAGGERS:
        own = [result for result in results if result["tagger"] == name]
        dev, test = ([result[split] for result in own] for split in ("dev", "test"))
        cells = [f"{mean(values):.2f} ± {stdev(values):.2f}" for values in (dev, test)]
        compared = ["", ""]
        if test != base:
            p = ttest_rel(test, base).pvalue
            compared = [f"{mean(test) - mean(base):+.2f}", f"{p:.3f}"]
        print(f"| {' | '.join([name, *cells, *compared])} |")


if __name__ == "__main__":
    main()
