"""Whole documents against shuffled sentences: the same text trains two GPTs, which then read the same held-out books.

    python bench/document_order.py BOOK.txt … --work WORK --results bench/results/document_order.jsonl [--steps 1000]

GPT's section 4.1 says of a corpus that is shuffled by sentences that this destroys its long-range structure, BERT's
section 3.1 that a corpus of whole documents is critical. Here both models have the same shape, vocabulary, rate, seeds
and number of tokens; for the second one, the sentences of all training books are shuffled. The held-out books keep
their order: a model that has learned to use the sentences before predicts their words better.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

from bertwright.base.files import read_json
from bertwright.base.reporter import MUTE
from bertwright.base.settings import from_table
from bertwright.corpus.documents import CorpusSettings
from bertwright.corpus.sentences import split_sentences
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.vocabulary.learn.learn_vocabulary import LearnSettings, learn_vocabulary
from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from environment import make_parser, print_heading, print_row, use_threads
from study import CPU, by_seed, compare, format_mean, run_missing

ORDERS = ("whole documents", "shuffled sentences")
HELD_OUT = 10  # every tenth book


def prepare(books: list[Path], work: Path) -> None:
    """Write the text in both orders, and a token store of each, with one vocabulary."""
    texts = [[*split_sentences(book.read_text(encoding="utf-8"))] for book in sorted(books)]
    train = [text for number, text in enumerate(texts) if number % HELD_OUT]
    sentences = [sentence for text in train for sentence in text]
    random.Random(0).shuffle(sentences)
    rest = iter(sentences)
    shuffled = [[next(rest) for _ in text] for text in train]
    work.mkdir(parents=True, exist_ok=True)
    for name, documents in (("held-out", texts[::HELD_OUT]), *zip(ORDERS, (train, shuffled), strict=True)):
        lines = (" ".join(" ".join(sentence.split()) for sentence in document) for document in documents)
        (work / f"{name}.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    settings = VocabularySettings(size=8_000, algorithm="byte-pair", criterion="bpe")
    corpus = CorpusSettings((str(work / f"{ORDERS[0]}.txt"),))
    learn_vocabulary(LearnSettings(corpus, work / "vocabulary", settings), MUTE)
    for order in ORDERS:
        parts = BuildSettings(held_out_inputs=(str(work / "held-out.txt"),), workers=1)
        corpus = CorpusSettings((str(work / f"{order}.txt"),))
        build(work / f"{order}-store", corpus, open_tokenizer(work / "vocabulary"), parts)


def train(run: dict[str, Any], work: Path) -> dict[str, Any]:
    """Train a GPT on one order; return its perplexity on the held-out books."""
    folder = work / f"{run['order']}-{run['steps']}-{run['seed']}"
    table = {
        "run": str(folder),
        "store": str(work / f"{run['order']}-store"),
        "steps": run["steps"],
        "eval_every": run["steps"],
        "model": {"architecture": "gpt", "size": "tiny", "max_positions": run["length"]},
        "data": {"max_length": run["length"], "batch_size": 16, "seed": run["seed"]},
        "optimizer": {"learning_rate": run["rate"], "warmup_ratio": 0.05},
        "device": CPU,
    }
    pretrain(from_table(PretrainSettings, table, "bench"), MUTE)
    report = read_json(folder / "report.json")
    return {"perplexity": report["held_out_after"]["perplexity"], "tokens": report["tokens"]}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("books", type=Path, nargs="+")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--seeds", type=int, default=3)
    chosen: argparse.Namespace = parser.parse_args()
    use_threads(1)
    if not (chosen.work / f"{ORDERS[-1]}-store").exists():
        prepare(chosen.books, chosen.work)
    rule = {"steps": chosen.steps, "length": 128, "rate": 2e-3}
    runs = [{"order": order, "seed": seed} | rule for seed in range(chosen.seeds) for order in ORDERS]
    records = run_missing(chosen.results, runs, lambda run: train(run, chosen.work))
    scores = {order: by_seed(records, "perplexity", order=order) for order in ORDERS}
    print_heading(("training text", "perplexity of held-out books", "difference", "p"))
    for order in ORDERS:
        print_row((order, format_mean([*scores[order].values()]), *compare(scores[ORDERS[0]], scores[order])))


if __name__ == "__main__":
    main()
