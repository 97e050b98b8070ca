"""Taggers with and without a language model's states: the BiLSTM-CNN-CRF, TagLM, ELMo's top layer and its mix.

    python bench/context_taggers.py --data shared/data/conll2003 --language-model runs/elmo --results FILE.jsonl
    … --shorter runs/elmo-short --task-model runs/elmo-conll      (the findings of TagLM's paper as further rows)

All have two LSTM layers, random word vectors, the same examples, steps, rate and seeds; the scores on test are of the
weights with the best score on dev. --limit and --limit-dev choose sentences at random, the same for all; test is whole.
Results are appended as they come, and runs that the file has are not repeated; seeds come one after the other. Systems
are compared by paired intervals over the seeds that both have.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean
from typing import Any

from bertwright.base.files import read_json
from bertwright.tasks.splits import sample_examples
from environment import make_parser, use_threads
from study import by_seed, compare, finetune_table, format_mean, print_heading, print_row, read_splits, run_missing

BASE = "BiLSTM-CNN-CRF"
TAGGERS: dict[str, tuple[str, dict[str, Any], str]] = {  # architecture, settings, option with the language model
    BASE: ("bilstm-crf", {"lstm_layers": 2}, ""),
    "TagLM": ("taglm", {}, "language_model"),
    "ELMo, top layer": ("elmo", {"lm_layers": "top"}, "language_model"),
    "ELMo, mix": ("elmo", {}, "language_model"),
    "TagLM, forward direction alone": ("taglm", {"lm_directions": "forward"}, "language_model"),
    "TagLM, states after layer 2": ("taglm", {"lm_places": [2]}, "language_model"),
    "TagLM, language model with fewer steps": ("taglm", {}, "shorter"),
    "TagLM, language model on the task's text": ("taglm", {}, "task_model"),
}
NUM_TAGGERS = 4  # the others are the findings
RULE = ("limit", "limit_dev", "epochs", "batch_size", "rate")
COLUMNS = (
    "tagger",
    "perplexity",
    "dev F1",
    "test F1",
    "test by seed",
    "step up",
    "interval",
    "over the first",
    "interval",
    "CPU s",
)


def read_perplexity(run: str) -> float:
    """Return the held-out perplexity at the end of a pre-training."""
    return round(float(read_json(Path(run, "report.json"))["held_out_after"]["perplexity"]), 1)


def train(run: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Train one tagger; return its scores in percent."""
    architecture, words, model = TAGGERS[run["tagger"]]
    source = {"task": "conll2003", "data": str(options.data)}
    examples = read_splits(source, ("train", "dev", "test"))
    for split, limit in (("train", run["limit"]), ("dev", run["limit_dev"])):
        if limit is not None:
            examples[split] = list(sample_examples(examples[split], limit))
    table = {
        "task": source,
        "architecture": architecture,
        "words": words | ({"language_model": getattr(options, model)} if model else {}),
        "epochs": run["epochs"],
        "batch_size": run["batch_size"],
        "seed": run["seed"],
        "optimizer": {"learning_rate": run["rate"]},
    }
    report = finetune_table(table, examples)
    scores = {split: 100 * report["scores"][split]["f1"] for split in ("dev", "test")}
    return scores | {"best_step": report["best_step"]}


def print_table(names: list[str], results: list[dict[str, Any]]) -> None:
    """Print a row per tagger; differences are paired by seed."""
    print_heading(COLUMNS)
    base, above = by_seed(results, "test", tagger=BASE), dict[int, float]()
    for name in names:
        dev, test, cpu = (by_seed(results, field, tagger=name) for field in ("dev", "test", "cpu_seconds"))
        if not test:
            continue
        perplexity = next(record["perplexity"] for record in results if record["tagger"] == name)
        cells = [name, perplexity or "", format_mean([*dev.values()]), format_mean([*test.values()])]
        cells.append(", ".join(f"{value:.2f}" for value in test.values()))
        cells += [*compare(above, test), *(("", "") if name == BASE else compare(base, test))]
        print_row([*cells, f"{mean(cpu.values()):.0f}"])
        above = test


def main() -> None:
    parser = make_parser(__doc__)
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
    listed = [*TAGGERS] if options.shorter or options.task_model else [*TAGGERS][:NUM_TAGGERS]
    models = {name: getattr(options, option) if option else None for name, (_, _, option) in TAGGERS.items()}
    listed = [name for name in listed if models[name] or name == BASE]
    rule = {name: getattr(options, name) for name in RULE}
    perplexities = {name: read_perplexity(model) if (model := models[name]) else None for name in listed}
    runs = [
        {"tagger": name, "seed": seed, "perplexity": perplexities[name]} | rule
        for seed in range(options.seeds)
        for name in listed
    ]
    print_table(listed, run_missing(options.results, runs, lambda run: train(run, options)))


if __name__ == "__main__":
    main()
