"""Score all-MiniLM-L6-v2 and BM25 on local test sets, beside published figures.

    python bench/vector_figures.py DATA --results bench/results/vector_figures.json [--only scifact]

DATA has the folders sts, glue/STS-B, banking77 and scifact. Published: MTEB's results of all-MiniLM-L6-v2 (Spearman and
accuracy in percent; SciFact nDCG@10 of the model card's repository) and BEIR's BM25 on one field (tantivy #2455). The
vectors of SciFact are also searched as int8: how many of the first ten of float32 are found.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import bertwright
from bertwright.inference.evaluate_vectors import rank_by_words
from bertwright.inference.text_vectors import embed_by_role
from bertwright.metrics.ranking_scores import score_rankings
from bertwright.tables.text_roles import TableOptions
from bertwright.tasks.labeled_texts import read_labeled_texts, score_vectors
from bertwright.tasks.unknown_rates import InputCounts
from environment import commit, describe_machine, make_parser, minilm, use_threads

STS = {"STS12": 72.37, "STS13": 80.60, "STS14": 75.59, "STS15": 85.39, "STS16": 78.99}
SICK = ("anchor=sentence_A", "positive=sentence_B", "score=relatedness_score")
CLASSES = ("anchor=text", "label=category")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    use_threads(1)
    model = bertwright.load(minilm(), "cpu", torch.float32)
    embed = embed_by_role(model, InputCounts())
    rows: list[dict[str, Any]] = []

    def add(what: str, published: float, ours: float) -> None:
        rows.append({"what": what, "published": published, "ours": round(100 * ours, 2)})
        print(f"{what:<50} published {published:>6} ours {100 * ours:>6.2f}", flush=True)
        report = {"machine": describe_machine(1), "commit": commit(), "figures": rows}
        chosen.results.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    def score(path: Path, options: TableOptions, train: Path | None = None) -> dict[str, float]:
        texts = read_labeled_texts([str(path)], options)
        known = read_labeled_texts([str(train)], options).data if train else ()
        return score_vectors(texts, embed, known).scores

    if chosen.only in ("", "scifact"):
        texts = read_labeled_texts([str(chosen.data / "scifact")], TableOptions())
        words = score_rankings(rank_by_words(texts.data), texts.data.judgements).means
        add("BM25 on SciFact: nDCG@10", 67.9, words["ndcg@10"])
    if chosen.only in ("", "sts"):
        for name, published in STS.items():
            scores = score(chosen.data / "sts" / f"{name}.tsv.gz", TableOptions())
            add(f"{name}: Spearman", published, scores["spearman_cosine"])
        stsb = score(chosen.data / "glue" / "STS-B" / "test.tsv", TableOptions())
        add("STS-B, test: Spearman", 82.03, stsb["spearman_cosine"])
        sick = score(chosen.data / "sts" / "SICK.tsv.gz", TableOptions(SICK))
        add("SICK, all rows: Spearman", 77.58, sick["spearman_cosine"])
    if chosen.only in ("", "banking77"):
        folder = chosen.data / "banking77"
        classes = score(folder / "test.csv", TableOptions(CLASSES), folder / "train.csv")
        add("Banking77, 8 texts a class: accuracy", 80.04, classes["accuracy"])
    if chosen.only in ("", "scifact"):
        add("SciFact: nDCG@10", 64.5, score_vectors(texts, embed).scores["cosine_ndcg@10"])


if __name__ == "__main__":
    main()
