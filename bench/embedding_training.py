"""Train text vectors from all-MiniLM-L6-v2 as a user does, beside sentence-transformers with the same recipe.

    python bench/embedding_training.py sts [--seeds 3] [--limit N] [--data DATA] [--output FILE]
    python bench/embedding_training.py scifact | banking77
    python bench/embedding_training.py memory [--pairs 4096] [--length 128]

sts: STS-B, train → dev and test, CoSENT, 4 epochs of 32 pairs, by both. scifact: claims → abstracts, ranking.
banking77: ten texts per class, by labels. memory: the peak memory of one step of `ranking`, beside a step of 64 pairs,
in processes of their own. Runs that the result file has are not repeated. `--limit` takes a sample of each split.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertwright.tables.text_roles import TextRow, read_text_table
from bertwright.tasks.splits import sample_examples
from environment import DATA, commit, make_parser, minilm, use_threads
from study import Record, finetune_table, format_mean, print_heading, print_row, run_missing

RESULTS = Path(__file__).parent / "results" / "embedding_training.jsonl"
SPLITS = ("train", "dev", "test")
RATE, WARMUP = 8e-5, 0.1  # the package's default at this hidden size; used by both
PER_CLASS = 10  # texts per class of Banking77
MEMORY_SCRIPT = "import sys; sys.path.insert(0, {!r}); import embedding_training as e; e.take_step({}, {})"


def read_sts(data: Path, limit: int | None) -> dict[str, list[TextRow]]:
    """Read STS-B's rated pairs."""
    rows = {split: read_text_table(str(data / "glue" / "STS-B" / f"{split}.tsv")).rows for split in SPLITS}
    return {split: [*sample_examples(given, limit or len(given))] for split, given in rows.items()}


def train_ours(task: dict[str, Any], seed: int, examples: dict[str, Any] | None = None, **more: Any) -> Record:
    """Train with this package; return the scores before and after."""
    table = {"task": {"task": "embedding", **task}, "model": str(minilm()), "seed": seed, "linear_floor": False}
    report = finetune_table(table | more, examples)
    return {"scores": report["scores"], "gain": report.get("gain"), "commit": commit()}


def train_sts_theirs(data: Path, seed: int, limit: int | None) -> Record:
    """Train with sentence-transformers; its scores on dev select nothing: the weights of the last step are scored."""
    from datasets import Dataset  # type: ignore[import-not-found]  # pip install datasets
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as TrainingArguments
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
    from sentence_transformers.sentence_transformer.losses import CoSENTLoss

    rows = read_sts(data, limit)
    model = SentenceTransformer(str(minilm()), device="cpu")
    train = Dataset.from_list(
        [{"sentence1": row.anchor, "sentence2": row.positives[0], "score": row.score} for row in rows["train"]]
    )
    with TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder, num_train_epochs=4, per_device_train_batch_size=32, learning_rate=RATE, warmup_ratio=WARMUP,
            seed=seed, save_strategy="no", report_to="none", use_cpu=True, disable_tqdm=True, max_grad_norm=1.0,
        )  # fmt: skip
        SentenceTransformerTrainer(model, settings, train, loss=CoSENTLoss(model)).train()
    scores = {}
    for split in ("dev", "test"):
        given = rows[split]
        evaluator = EmbeddingSimilarityEvaluator(
            [row.anchor for row in given], [row.positives[0] for row in given], [row.score or 0.0 for row in given]
        )
        scores[split] = {"spearman_cosine": float(evaluator(model)["spearman_cosine"])}
    return {"scores": scores}


def few_per_class(rows: list[TextRow], seed: int) -> list[TextRow]:
    """Return PER_CLASS texts of each class, by the seed."""
    by_class: dict[str, list[TextRow]] = {}
    for row in rows:
        by_class.setdefault(row.label or "", []).append(row)
    rng = random.Random(seed)
    return [row for given in by_class.values() for row in rng.sample(given, PER_CLASS)]


def execute(run: Record, data: Path) -> Record:
    """Train one system with one seed."""
    seed, limit = run["seed"], run["limit"]
    if run["study"] == "sts":
        if run["system"] != "bertwright":
            return train_sts_theirs(data, seed, limit)
        files = {split: [str(data / "glue" / "STS-B" / f"{split}.tsv")] for split in SPLITS}
        return train_ours(files, seed, tuning={"limit": limit} if limit else {})
    if run["study"] == "scifact":
        judgements = data / "scifact" / "qrels"
        return train_ours({"train": [str(judgements / "train.tsv")], "dev": [str(judgements / "test.tsv")]}, seed)
    rows = {split: read_text_table(str(data / "banking77" / f"{split}.csv")).rows for split in ("train", "test")}
    examples = {"train": few_per_class(rows["train"], seed), "dev": rows["test"]}
    return train_ours({}, seed, examples)


def make_runs(options: argparse.Namespace) -> Iterator[Record]:
    """Yield the runs of a study; the systems alternate."""
    systems = ("bertwright", "sentence-transformers") if options.study == "sts" else ("bertwright",)
    for seed in range(options.seeds):
        for system in systems:
            yield {"study": options.study, "system": system, "seed": seed, "limit": options.limit}


def take_step(pairs: int, length: int) -> None:
    """Take one training step of `ranking` on random texts; print peak memory in MB, and CPU seconds."""
    import resource

    import numpy as np
    import torch

    from bertwright.base.reporter import SILENT
    from bertwright.base.settings import from_table
    from bertwright.finetuning.run import finetune
    from bertwright.finetuning.settings import FinetuneSettings

    use_threads(1)
    words = [str(number) for number in range(10)]
    texts = np.random.default_rng(0).choice(words, (2 * pairs, length - 2))
    rows = [TextRow(" ".join(texts[n]), f"{n}", (" ".join(texts[n + pairs]),)) for n in range(pairs)]
    task = {"task": "embedding"}
    with TemporaryDirectory() as folder:
        table = {"run": f"{folder}/run", "task": task, "model": str(minilm()), "batch_size": pairs, "epochs": 1.0}
        table["device"] = {"device": "cpu", "dtype": "float32", "threads": 1}
        started, cpu = time.perf_counter(), time.process_time()
        finetune(from_table(FinetuneSettings, table, "table"), SILENT, {"train": rows}, temporary=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(peak, time.process_time() - cpu, time.perf_counter() - started, torch.get_num_threads())


def measure_memory(run: Record) -> Record:
    """Take a step in a process of its own."""
    script = MEMORY_SCRIPT.format(str(Path(__file__).parent), run["pairs"], run["length"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    peak, cpu, *_ = done.stdout.split()
    return {"peak_mb": int(peak), "cpu_seconds_of_step": round(float(cpu), 1), "commit": commit()}


def main() -> None:
    """Run what the result file lacks, and print a table."""
    parser = make_parser(__doc__)
    parser.add_argument("study", choices=("sts", "scifact", "banking77", "memory"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, help="rows of each split of STS-B; all if not given")
    parser.add_argument("--pairs", type=int, default=4096)
    parser.add_argument("--length", type=int, default=128, help="tokens per text")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    use_threads(1)
    if options.study == "memory":
        sizes = ({"study": "memory", "pairs": pairs, "length": options.length} for pairs in (64, options.pairs))
        records = run_missing(options.output, sizes, measure_memory)
        print_heading(["pairs per step", "peak MB", "CPU seconds"])
        for record in records:
            print_row([record["pairs"], record["peak_mb"], record["cpu_seconds_of_step"]])
        return
    records = run_missing(options.output, make_runs(options), lambda run: execute(run, options.data))
    print_heading(["system", "split", "first score", "mean of the seeds"])
    for system in dict.fromkeys(record["system"] for record in records):
        own = [record for record in records if record["system"] == system]
        for split in own[0]["scores"]:
            metric = next(iter(own[0]["scores"][split]))
            print_row([system, split, metric, format_mean([100 * one["scores"][split][metric] for one in own])])


if __name__ == "__main__":
    main()
