"""Compute published figures again: scorers on published predictions, a released model on its test sets, model sizes.

    python bench/published_figures.py DATA --results bench/results/published_figures.json

DATA has the folders squad (with published_predictions), sts and glue/STS-B. Each figure is printed beside the published
one, with as many digits. The published figures: SQuAD's leaderboard page of the predictions (BERT, table 2; Rajpurkar
et al. 2016 for the logistic regression is of another split, so that the figure of its file counts); the model card and
MTEB for all-MiniLM-L6-v2, Spearman's correlation of cosines in percent; BERT, section 3; Peters et al. 2018 and
AllenNLP's table of released models.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bertwright
from bertwright.metrics.answer_scores import scores
from bertwright.metrics.scores import spearman
from bertwright.systems.bert.bert_config import BertConfig
from embedding import pairs
from environment import commit, describe_machine, make_parser, minilm, use_threads

STS = {"STS12": 72.37, "STS13": 80.60, "STS14": 75.59, "STS15": 85.39, "STS16": 78.99, "STS-B": 82.03}
SQUAD = {
    ("1.1", "BERT-ensemble"): (86.21, 92.20),
    ("1.1", "logreg"): (40.14, 50.98),
    ("2.0", "BERT-single"): (78.74, 81.78),
}
SIZES = {"base": 110, "large": 340}  # million parameters; the paper rounds to ten


def score_squad(data: Path, version: str, system: str) -> tuple[float, float]:
    """Return exact match and F1 of published predictions, in percent; a question without one is wrong."""
    files = data / f"dev-v{version}.json", data / "published_predictions" / f"pred-v{version}-{system}.json"
    root, predictions = (json.loads(path.read_text(encoding="utf-8")) for path in files)
    questions = [one for article in root["data"] for paragraph in article["paragraphs"] for one in paragraph["qas"]]
    right = [[answer["text"] for answer in question["answers"]] for question in questions]
    found = scores(right, [predictions.get(question["id"], "") for question in questions])
    return round(100 * found["exact_match"], 2), round(100 * found["f1"], 2)


def read_pairs(data: Path, name: str) -> tuple[list[str], list[str], list[float]]:
    """Read the sentences and the scores of a set of similar sentences."""
    if name == "STS-B":
        first, second, gold = zip(*pairs(data / "glue" / "STS-B" / "test.tsv"), strict=True)
        return [*first], [*second], [*gold]
    with gzip.open(data / "sts" / f"{name}.tsv.gz", "rt", encoding="utf-8", newline="\n") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    return [row[2] for row in rows], [row[3] for row in rows], [float(row[1]) for row in rows]


def score_pairs(model: Any, data: Path, name: str) -> float:
    """Return Spearman's correlation of the cosines with the scores, in percent."""
    first, second, gold = read_pairs(data, name)
    cosines = np.sum(model.embed(first) * model.embed(second), axis=1)
    return round(100 * spearman(gold, cosines.tolist()), 2)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    chosen = parser.parse_args()
    use_threads(1)
    rows: list[dict[str, Any]] = []

    def add(what: str, published: Any, ours: Any) -> None:
        rows.append({"what": what, "published": published, "ours": ours})
        print(f"{what:<60} published {published!s:>15} ours {ours!s:>15}", flush=True)

    for (version, system), published in SQUAD.items():
        what = f"SQuAD {version}, {system}: exact match, F1"
        add(what, list(published), list(score_squad(chosen.data / "squad", version, system)))
    for size, published_size in SIZES.items():
        millions = BertConfig.from_size(size, 30_522).num_parameters / 1e6
        add(f"BERT {size.upper()}: million parameters", published_size, round(millions, 1))
    model = bertwright.load(minilm(), "cpu", torch.float32)
    for name, published_score in STS.items():
        add(f"all-MiniLM-L6-v2 on {name}: Spearman", published_score, score_pairs(model, chosen.data, name))
    report = {"machine": describe_machine(1), "commit": commit(), "figures": rows}
    chosen.results.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
