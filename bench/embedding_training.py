"""Train text vectors from all-MiniLM-L6-v2 as a user does, beside sentence-transformers with the same recipe.

    python bench/embedding_training.py sts [--seeds 3] [--limit N] [--data DATA] [--output FILE]
    python bench/embedding_training.py dims|scifact [--seeds 1]
    python bench/embedding_training.py banking77 --seeds 5 --output bench/results/few_texts_per_class.jsonl

sts: STS-B, train → dev and test, CoSENT, 4 epochs of 32 pairs, by both. dims: the same with `--dims 32`; what the first
32 numbers keep, trained and untrained. scifact: claims → abstracts, ranking.
banking77: ten texts per class, the samples of `head_per_label.py`, whose figures are compared; this package trains by
`labels`, sentence-transformers on pairs as SetFit makes them for the same CPU seconds; then both get the same logistic
regression on the vectors of the same texts (bench/plans/few_per_class.md). Runs that the result file has are not
repeated.
`--limit` takes a sample of each split, of banking77 this many classes.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import bertwright
from bertwright.base.reporter import SILENT
from bertwright.base.settings import from_table
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tables.text_roles import TextRow, read_text_table
from bertwright.tasks.collation import step_items
from bertwright.tasks.splits import sample_examples
from bertwright.training.optimizer_settings import linear_warmup_decay
from environment import DATA, make_parser, minilm, print_heading, print_row, train_step, use_threads
from head_per_label import CONTENDERS, classify_vectors, splits_of
from study import (
    CPU,
    Record,
    by_seed,
    compare,
    find_records,
    finetune_table,
    format_mean,
    read_records,
    run_missing,
    score_sts,
)

RESULTS = Path(__file__).parent / "results" / "embedding_training.jsonl"
SPLITS = ("train", "dev", "test")
RATE, WARMUP = 8e-5, 0.1  # the package's default at this hidden size; used by both
OTHERS = RESULTS.with_name("head_per_label.jsonl")


def read_sts(data: Path, limit: int | None) -> dict[str, list[TextRow]]:
    """Read STS-B's rated pairs."""
    rows = {split: read_text_table(str(data / "glue" / "STS-B" / f"{split}.tsv")).rows for split in SPLITS}
    return {split: [*sample_examples(given, limit or len(given))] for split, given in rows.items()}


def train_ours(task: dict[str, Any], seed: int, **more: Any) -> Record:
    """Train with this package; return the scores before and after."""
    table = {"task": {"task": "embedding", **task}, "model": str(minilm()), "seed": seed}
    report = finetune_table(table | more)
    return {"scores": report["scores"], "gain": report.get("gain")}


def sts_files(data: Path) -> dict[str, list[str]]:
    return {split: [str(data / "glue" / "STS-B" / f"{split}.tsv")] for split in SPLITS}


def train_dims(data: Path, seed: int, limit: int | None) -> Record:
    """Train vectors whose first 32 numbers are vectors, too; return Spearman's correlation on test by size, in percent.

    `untrained` has those of the model before, `kept` the shares of the whole vector's that 32 numbers have.
    """
    with TemporaryDirectory() as folder:
        task = {"task": "embedding", "overrides": {"dims": [32]}, **sts_files(data)}
        table = {"task": task, "model": str(minilm()), "seed": seed, "run": f"{folder}/run", "device": CPU}
        tuning = {"tuning": {"limit": limit}} if limit else {}
        trained = bertwright.load(finetune(from_table(FinetuneSettings, table | tuning, "table"), SILENT), "cpu")
    models = {"trained": trained, "untrained": bertwright.load(minilm(), "cpu")}
    found = {name: {str(size): score_sts(model, data, size) for size in (384, 32)} for name, model in models.items()}
    return found | {"kept": {name: round(100 * scores["32"] / scores["384"], 2) for name, scores in found.items()}}


def train_sts_theirs(data: Path, seed: int, limit: int | None) -> Record:
    """Train sentence-transformers in a plain loop, because its trainer needs further packages.

    Its scores on dev select nothing: the weights of the last step are scored.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss

    torch.manual_seed(seed)
    rows = read_sts(data, limit)
    model = SentenceTransformer(str(minilm()), device="cpu")
    loss, size = CoSENTLoss(model), len(rows["train"])
    steps = round(4 * size / 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    model.train()
    for step in range(steps):
        rate = linear_warmup_decay(step, peak=RATE, warmup=int(WARMUP * steps), total=steps)
        optimizer.param_groups[0]["lr"] = rate
        batch = [rows["train"][number] for number in step_items(size, 32, step, seed)]
        features = [model.preprocess([row.texts[side] for row in batch]) for side in (0, 1)]
        train_step(model, partial(loss, features, torch.tensor([row.score for row in batch])), optimizer, False)
    model.eval()
    scores = {}
    for split in ("dev", "test"):
        given = rows[split]
        evaluator = EmbeddingSimilarityEvaluator(
            [row.anchor for row in given], [row.positives[0] for row in given], [row.score or 0.0 for row in given]
        )
        scores[split] = {"spearman_cosine": float(evaluator(model)["spearman_cosine"])}
    return {"scores": scores}


def train_classes(examples: dict[str, list[Any]], seed: int) -> Record:
    """Train on a file of texts and classes by the defaults; return accuracy on test, seconds, and the defaults."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "train.jsonl")
        rows = ({"text": example.text, "label": example.label} for example in examples["train"])
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        task = {"task": "embedding", "train": [str(file)]}
        table = {"task": task, "model": str(minilm()), "seed": seed, "linear_floor": False, "run": f"{folder}/run"}
        settings = from_table(FinetuneSettings, table | {"device": CPU}, "table")
        started = time.process_time()
        model = finetune(settings, SILENT)
        spent = time.process_time() - started
        score = classify_vectors(examples, bertwright.load(model, "cpu").embed)
        rate = settings.optimizer.learning_rate
        defaults = {"rate": rate, "epochs": settings.epochs, "batch_size": settings.batch_size}
        return {"score": score, "training_seconds": spent, "defaults": defaults}


def train_pairs(examples: dict[str, list[Any]], seed: int, seconds: float) -> Record:
    """Train sentence-transformers as SetFit does for some CPU seconds: pairs, cosine loss, batches of 16, 2e-5."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss

    torch.manual_seed(seed)
    model, rng, train = SentenceTransformer(str(minilm()), device="cpu"), random.Random(seed), examples["train"]
    by_class: dict[str, list[Any]] = {}
    for example in train:
        by_class.setdefault(example.label, []).append(example)
    loss = CosineSimilarityLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01)
    started, steps = time.process_time(), 0
    model.train()
    while (spent := time.process_time() - started) < seconds:
        first = rng.choices(train, k=16)
        labels = [place % 2 for place in range(16)]  # as many pairs of one class as of two
        second = [
            rng.choice(by_class[one.label if label else rng.choice([*{*by_class} - {one.label}])])
            for one, label in zip(first, labels, strict=True)
        ]
        optimizer.param_groups[0]["lr"] = 2e-5 * min(10 * spent / seconds, (1 - spent / seconds) / 0.9)
        features = [model.preprocess([one.text for one in side]) for side in (first, second)]
        loss(features, torch.tensor(labels, dtype=torch.float)).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    model.eval()
    return {"score": classify_vectors(examples, model.encode), "training_seconds": spent, "steps": steps}


def execute(run: Record, data: Path, output: Path) -> Record:
    """Train one system with one seed; `output`: the file of results."""
    seed, limit = run["seed"], run["limit"]
    if run["study"] == "sts":
        if run["system"] != "bertwright":
            return train_sts_theirs(data, seed, limit)
        return train_ours(sts_files(data), seed, tuning={"limit": limit} if limit else {})
    if run["study"] == "dims":
        return train_dims(data, seed, limit)
    if run["study"] == "scifact":
        judgements = data / "scifact" / "qrels"
        return train_ours({"train": [str(judgements / "train.tsv")], "dev": [str(judgements / "test.tsv")]}, seed)
    examples = splits_of("banking77 10", data, seed)
    if limit:
        classes = sorted({example.label for example in examples["train"]})[:limit]
        examples = {name: [one for one in split if one.label in classes] for name, split in examples.items()}
    if run["system"] == "bertwright":
        return train_classes(examples, seed)
    (ours,) = find_records(output, [run | {"system": "bertwright"}])
    return train_pairs(examples, seed, ours["training_seconds"])


def make_runs(options: argparse.Namespace) -> Iterator[Record]:
    """Yield the runs of a study; the systems alternate."""
    systems = ("bertwright",) if options.study in ("dims", "scifact") else ("bertwright", "sentence-transformers")
    for seed in range(options.seeds):
        for system in systems:
            yield {"study": options.study, "system": system, "seed": seed, "limit": options.limit}


def main() -> None:
    """Run what the result file lacks, and print a table."""
    parser = make_parser(__doc__)
    parser.add_argument("study", choices=("sts", "dims", "scifact", "banking77"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, help="rows of each split of STS-B, classes of Banking77; all if not given")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    use_threads(1)
    records = run_missing(options.output, make_runs(options), lambda run: execute(run, options.data, options.output))
    if options.study == "banking77":
        print_classes(records)
        return
    if options.study == "dims":
        for record in records:
            print_row([record[name] for name in ("seed", "trained", "untrained", "kept")])
        return
    print_heading(["system", "split", "first score", "mean of the seeds"])
    for system in dict.fromkeys(record["system"] for record in records):
        own = [record for record in records if record["system"] == system]
        for split in own[0]["scores"]:
            metric = next(iter(own[0]["scores"][split]))
            print_row([system, split, metric, format_mean([100 * one["scores"][split][metric] for one in own])])


def print_classes(records: list[Record]) -> None:
    """Print the mean accuracies, and the differences to the figures of the same samples."""
    figures = {name: by_seed(records, "score", system=name) for name in ("bertwright", "sentence-transformers")}
    others = read_records(OTHERS)
    for name in CONTENDERS[1:4]:
        figures[name] = by_seed(others, "score", task="banking77 10", contender=name)
    print_heading(["", "accuracy", "bertwright − it, 95 % interval"])
    percent = {name: {seed: 100 * score for seed, score in scores.items()} for name, scores in figures.items()}
    for name, scores in percent.items():
        print_row([name, format_mean([*scores.values()]), " ".join(compare(scores, percent["bertwright"]))])


if __name__ == "__main__":
    main()
