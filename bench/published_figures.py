"""Compute published figures again: scorers on published predictions, a released model on its test sets, model sizes.

    python bench/published_figures.py DATA --results FILE.json [--only squad sizes sts banking77 scifact]

DATA has the folders squad (with published_predictions), sts, glue/STS-B, banking77 and scifact. Each figure is printed
beside the published one, with as many digits. The published figures: SQuAD's leaderboard page of the predictions (BERT,
table 2; Rajpurkar et al. 2016 for the logistic regression is of another split, so that the figure of its file counts);
the model card and MTEB's results of all-MiniLM-L6-v2 (Spearman and accuracy in percent; SciFact nDCG@10 of the model
card's repository); BEIR's BM25 on one field (tantivy #2455); BERT, section 3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch

import bertwright
from bertwright.inference.evaluate_vectors import rank_by_words
from bertwright.inference.text_vectors import embed_by_role
from bertwright.metrics.answer_scores import scores
from bertwright.metrics.ranking_scores import score_rankings
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.tables.text_roles import TableOptions
from bertwright.tasks.labeled_texts import read_labeled_texts, score_vectors
from bertwright.tasks.unknown_rates import InputCounts
from environment import make_parser, minilm, use_threads, write_result

SQUAD = {
    ("1.1", "BERT-ensemble"): [86.21, 92.20],
    ("1.1", "logreg"): [40.14, 50.98],
    ("2.0", "BERT-single"): [78.74, 81.78],
}
SIZES = {"base": 110, "large": 340}  # million parameters; the paper rounds to ten
STS = {"STS12": 72.37, "STS13": 80.60, "STS14": 75.59, "STS15": 85.39, "STS16": 78.99, "STS-B": 82.03, "SICK": 77.58}
SICK = ("anchor=sentence_A", "positive=sentence_B", "score=relatedness_score")
CLASSES = ("anchor=text", "label=category")
Figure = tuple[str, object, object]
"""What it is, the published figure, and ours."""


def score_squad(data: Path) -> Iterator[Figure]:
    """Yield exact match and F1 of published predictions, in percent; a question without one is wrong."""
    for (version, system), published in SQUAD.items():
        files = data / f"dev-v{version}.json", data / "published_predictions" / f"pred-v{version}-{system}.json"
        root, predictions = (json.loads(path.read_text(encoding="utf-8")) for path in files)
        questions = [one for article in root["data"] for paragraph in article["paragraphs"] for one in paragraph["qas"]]
        right = [[answer["text"] for answer in question["answers"]] for question in questions]
        found = scores(right, [predictions.get(question["id"], "") for question in questions])
        ours = [round(100 * found[name], 2) for name in ("exact_match", "f1")]
        yield f"SQuAD {version}, {system}: exact match, F1", published, ours


def count_parameters() -> Iterator[Figure]:
    for size, published in SIZES.items():
        millions = BertConfig.from_size(size, 30_522).num_parameters / 1e6
        yield f"BERT {size.upper()}: million parameters", published, round(millions, 1)


def score_model(data: Path, kind: str, model: bertwright.Bert | None = None) -> Iterator[Figure]:
    """Yield the scores of a model, by default all-MiniLM-L6-v2, on sets of a kind, in percent; of BM25 on SciFact."""
    embed = embed_by_role(model or bertwright.load(minilm(), "cpu", torch.float32), InputCounts())

    def score(path: Path, metric: str, columns: tuple[str, ...] = (), train: Path | None = None) -> float:
        texts = read_labeled_texts([str(path)], TableOptions(columns))
        known = read_labeled_texts([str(train)], TableOptions(columns)).data if train else ()
        return round(100 * score_vectors(texts, embed, known).scores[metric], 2)

    if kind == "sts":
        for name, published in STS.items():
            path = data / "glue" / "STS-B" / "test.tsv" if name == "STS-B" else data / "sts" / f"{name}.tsv.gz"
            yield f"{name}: Spearman", published, score(path, "spearman_cosine", SICK if name == "SICK" else ())
    elif kind == "banking77":
        files = data / "banking77" / "test.csv", data / "banking77" / "train.csv"
        yield "Banking77, 8 texts a class: accuracy", 80.04, score(files[0], "accuracy", CLASSES, files[1])
    else:
        texts = read_labeled_texts([str(data / "scifact")], TableOptions())
        words = score_rankings(rank_by_words(texts.data), texts.data.judgements).means
        yield "BM25 on SciFact: nDCG@10", 67.9, round(100 * words["ndcg@10"], 2)
        yield "SciFact: nDCG@10", 64.5, score(data / "scifact", "cosine_ndcg@10")


def main() -> None:
    parser = make_parser(__doc__)
    kinds = ("squad", "sizes", "sts", "banking77", "scifact")
    parser.add_argument("data", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    chosen = parser.parse_args()
    use_threads(1)
    rows: list[dict[str, object]] = []
    for kind in chosen.only:
        own = {"squad": score_squad(chosen.data / "squad"), "sizes": count_parameters()}
        for what, published, ours in own.get(kind) or score_model(chosen.data, kind):
            rows.append({"what": what, "published": published, "ours": ours})
            print(f"{what:<50} published {published!s:>15} ours {ours!s:>15}", flush=True)
            write_result(chosen.results, {"figures": rows}, 1)


if __name__ == "__main__":
    main()
