"""Fine-tune a sentence-embedding model: the pooler's output against mean pooling, at several learning rates.

    python bench/pooling_and_rates.py --trec shared/data/trec --model MODEL --work /tmp/pooling

Data: the fine labels of TREC, `--examples` of the training questions at random; scores on TREC's 500 test questions.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

import bertwright
from bertwright.base.reporter import SILENT
from bertwright.base.settings import from_table
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings

Rows = list[tuple[str, str]]


def read_trec(path: Path) -> Rows:
    """Read questions and fine labels."""
    lines = path.read_text(encoding="latin-1").splitlines()
    return [(text, label) for label, _, text in (line.partition(" ") for line in lines)]


def write_table(path: Path, rows: Rows) -> str:
    """Write a .csv file; return its path."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return str(path)


def main() -> None:
    """Print a line per run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trec", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=600)
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--poolings", nargs="+", default=["cls", "mean"])
    parser.add_argument("--rates", nargs="+", type=float, default=[3e-5, 6e-5])
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    options.work.mkdir(parents=True)
    train, test = read_trec(options.trec / "TREC.train"), read_trec(options.trec / "TREC.test")
    train = [train[n] for n in np.random.default_rng(0).permutation(len(train))[: options.examples]]
    known = {label for _, label in train}
    scored = [row for row in test if row[1] in known]
    files = write_table(options.work / "train.csv", train), write_table(options.work / "test.csv", scored)
    bert = bertwright.load(options.model, "cpu")
    vectors = [bert.embed([text for text, _ in rows]) for rows in (train, scored)]
    fitted = LogisticRegression(C=10.0, max_iter=1000).fit(vectors[0], [label for _, label in train])
    print(
        f"{len(known)} labels, {len(train)} and {len(scored)} examples; logistic regression on embed's vectors:",
        end=" ",
    )
    print(f"{fitted.score(vectors[1], [label for _, label in scored]):.3f}", flush=True)
    for pooling in options.poolings:
        for rate in options.rates:
            scores = []
            for seed in range(options.seeds):
                run = options.work / f"{pooling}-{rate:g}-{seed}"
                table = {
                    "run": str(run), "model": options.model, "epochs": options.epochs, "seed": seed,
                    "task": {"task": "classification", "train": [files[0]], "test": [files[1]]},
                    "tuning": {"pooling": pooling, "head_init": "random"}, "optimizer": {"learning_rate": rate},
                    "device": {"device": "cpu", "dtype": "float32", "threads": 1},
                }  # fmt: skip
                finetune(from_table(FinetuneSettings, table, "bench"), SILENT)
                scores.append(json.loads((run / "report.json").read_text())["scores"]["test"]["accuracy"])
            shown = ", ".join(f"{100 * score:.1f}" for score in scores)
            print(f"{pooling} {rate:g}: {shown}; mean {100 * float(np.mean(scores)):.1f}", flush=True)


if __name__ == "__main__":
    main()
