"""Check that training is bit-equal to an earlier commit: the loss of every step and the final weights.

    python bench/refactoring_parity.py [--base COMMIT] [--work DIR] [--jobs NAME ...] [--reference]

The commit (HEAD by default) and the working tree run the same jobs as command lines, in processes of their own: they
learn a vocabulary, prepare a token store, pre-train BERT-mini for 20 steps (with one and two threads), and fine-tune
the pre-trained model on four tasks for at least 20 steps each. The table names the job, the steps that were compared,
whether all records and weights are equal to the last bit, and the largest differences. The exit status is 1 if anything
differs. That killed runs end with the same bits, and that old checkpoints resume, is shown by tests.

Everything is float32 on the CPU. `--reference` sets BERTWRIGHT_NATIVE=0 for both trees, so that only the reference
implementations compute: use it when a native kernel was changed on purpose. With `--work DIR` the runs of the earlier
commit are saved and reused the next time. Data: ../shared/data (environment variable BERTWRIGHT_DATA).
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from environment import DATA, describe_machine, keep_printed, make_parser, sample

ROOT = Path(__file__).resolve().parents[1]
CLOCK_FIELDS = ("tokens_per_second", "sequences_per_second", "utilization", "seconds")
NUM_STEPS = 20


class Job(NamedTuple):
    """A training run as a command line, without `--run`."""

    command: str
    arguments: tuple[str, ...]
    threads: int = 1


class Tree(NamedTuple):
    """A source tree and the folder for what it computes."""

    source: Path
    work: Path
    reference: bool

    def run(self, command: str, *arguments: str, threads: int = 1) -> None:
        """Run one command to its end. Raises SystemExit with its output if it fails."""
        words = [sys.executable, "-m", "bertwright", command, *arguments]
        own = {"PYTHONPATH": str(self.source / "src"), "OMP_NUM_THREADS": str(threads)}
        own |= {"BERTWRIGHT_NATIVE": "0" if self.reference else "compile"}
        done = subprocess.run(words, env=os.environ | own, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}\nexit status {done.returncode}\n{done.stdout}{done.stderr}")


class Difference(NamedTuple):
    """Differences between two runs of a job."""

    steps: int
    records: list[str]
    weights: list[str]
    max_loss: float
    max_weight: float


def make_jobs(store: Path, model: Path, data: Path, folder: Path) -> dict[str, Job]:
    """Return all jobs by name. `folder` receives the data files, which are cut down to the first examples."""
    common = "--log-every 1 --save-every 5 --device cpu --dtype float32 --eval-every 10"
    mini = f"--steps {NUM_STEPS} --size mini --max-positions 128 --batch-size 16 --long-ratio 0.2 --long-length 128"
    mini += f" --learning-rate 5e-4 --warmup-ratio 0.1 --bias-correction --eval-sequences 32 {common}"
    pretraining = ("--store", str(store), *mini.split())
    tuning = f"--epochs 1 --learning-rate 3e-4 --head-init random {common}"
    examples, dev_examples = 32 * NUM_STEPS, 64
    document_marks = 40  # blocks of CoNLL files that are no examples

    def files(train: Path, dev: Path, number: int = examples) -> tuple[str, ...]:
        chosen = sample(train, number, folder), sample(dev, dev_examples, folder)
        return ("--train", str(chosen[0]), "--dev", str(chosen[1]))

    def finetuning(task: str, chosen: tuple[str, ...], options: str = "") -> Job:
        words = ("--task", task, "--model", str(model), *chosen, *tuning.split(), *options.split())
        return Job("finetune", words)

    glue, squad = data / "glue", data / "squad"
    conll = files(data / "conll2003/train.txt", data / "conll2003/valid.txt", examples + document_marks)
    rte = files(glue / "RTE/train.tsv", glue / "RTE/dev.tsv")
    answers = files(squad / "train-v1.1.json", squad / "dev-v1.1.json")
    return {
        "pretrain": Job("pretrain", pretraining),
        "pretrain-2-threads": Job("pretrain", pretraining, threads=2),
        "sst2": finetuning("sst2", files(glue / "SST-2/train.tsv", glue / "SST-2/dev.tsv")),
        "conll2003": finetuning("conll2003", conll),
        "rte": finetuning("rte", rte, "--layerwise-lr-decay 0.9 --freeze-layers 1"),
        "squad": finetuning("squad", answers, "--max-length 128 --doc-stride 64"),
    }


def prepare(tree: Tree, corpus: Path) -> Path:
    """Learn a vocabulary and write a token store with a tree's own commands; returns the store."""
    if not corpus.exists():
        subprocess.run([sys.executable, str(tree.source / "demo" / "corpus.py"), str(corpus)], check=True)
    vocabulary, store = tree.work / "vocabulary", tree.work / "store"
    if not (store / "tokenizer").exists():
        for folder in (vocabulary, store):
            shutil.rmtree(folder, ignore_errors=True)
        tree.run("vocabulary", str(corpus), "--size", "4000", "--output", str(vocabulary))
        tree.run("prepare", str(corpus), "--vocabulary", str(vocabulary), "--held-out", "0.05", "--store", str(store))
    return store


def train(tree: Tree, name: str, job: Job) -> Path:
    """Run a job without interruption, unless the tree's folder has its result; returns the run folder.

    A result counts if neither the arguments nor the modification times of the files that they name have changed.
    """
    run, done = tree.work / name, tree.work / f"{name}.key"
    inputs = [Path(word) for word in job.arguments if Path(word).exists()]
    key = "\n".join([*job.arguments, str(job.threads), *(f"{path}: {path.stat().st_mtime_ns}" for path in inputs)])
    if not (done.exists() and done.read_text() == key):
        shutil.rmtree(run, ignore_errors=True)
        tree.run(job.command, "--run", str(run), *job.arguments, "--threads", str(job.threads), threads=job.threads)
        done.write_text(key)
    return run


def read_records(run: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Return a run's records by kind and step, without timings."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        (record["kind"], record["step"]): {name: record[name] for name in record if name not in CLOCK_FIELDS}
        for record in records
    }


def compare(base: Path, present: Path) -> Difference:
    """Compare two runs' records (exact floats, as JSON preserves them) and final weights (all bits)."""
    old, new = read_records(base), read_records(present)
    unequal = [
        f"{kind} record of step {step}: {old.get((kind, step))}, now {new.get((kind, step))}"
        for kind, step in sorted(old.keys() | new.keys())
        if old.get((kind, step)) != new.get((kind, step))
    ]
    losses = [
        abs(value - new.get(key, {}).get(name, float("inf")))
        for key, record in old.items() for name, value in record.items() if "loss" in name
    ]  # fmt: skip
    before, after = (load_file(run / "model" / "model.safetensors") for run in (base, present))
    distances = {name: distance(before.get(name), after.get(name)) for name in sorted(before.keys() | after.keys())}
    changed = [name for name, value in distances.items() if value is not None]
    steps = sum(kind == "train" for kind, _ in old)
    largest = [float(np.max(values)) for values in (losses, [value or 0.0 for value in distances.values()])]
    return Difference(steps, unequal, changed, *largest)


def distance(before: Tensor | None, after: Tensor | None) -> float | None:
    """Return the largest difference of two weights; None if all their bits are equal."""
    if before is None or after is None or before.shape != after.shape:
        return float("inf")
    equal = torch.equal(before.view(torch.int32), after.view(torch.int32))
    return None if equal else float((before - after).abs().max())


def extract_commit(commit: str, folder: Path) -> Path:
    """Write the files of a commit of this repository into a folder; returns it."""
    if not (folder / "src").exists():
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
    return folder


def run_jobs(base: Tree, present: Tree, names: Sequence[str], data: Path) -> Iterator[tuple[str, Difference]]:
    """Run the jobs in both trees; yields each job's name and difference."""
    corpus = base.work / "corpus.txt"
    shutil.rmtree(present.work, ignore_errors=True)
    base_store, present_store = prepare(base, corpus), prepare(present, corpus)
    model = base.work / "pretrain" / "model"
    base_jobs = make_jobs(base_store, model, data, base.work / "data")
    present_jobs = make_jobs(present_store, model, data, base.work / "data")
    train(base, "pretrain", base_jobs["pretrain"])
    for name in names:
        yield name, compare(train(base, name, base_jobs[name]), train(present, name, present_jobs[name]))


def main() -> None:
    """Print the table; exit with status 1 if anything differs."""
    parser = make_parser(__doc__)
    parser.add_argument("--base", default="HEAD", help="the earlier commit (default: HEAD)")
    parser.add_argument("--work", type=Path, help="folder for the runs, to be reused (default: a temporary one)")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--jobs", nargs="+", help="names of the jobs to run (default: all)")
    parser.add_argument("--reference", action="store_true", help="reference implementations instead of native kernels")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (arguments.work or Path(temporary)).resolve()
        keep_printed(__file__)
        mode = "reference" if arguments.reference else "native"
        git = ["git", "-C", str(ROOT), "rev-parse", "--short", arguments.base]
        name = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        source = extract_commit(name, work / f"{name}-source")
        base = Tree(source, work / f"{name}-{mode}", arguments.reference)
        present = Tree(ROOT, work / f"present-{mode}", arguments.reference)
        base.work.mkdir(parents=True, exist_ok=True)
        names = arguments.jobs or list(make_jobs(base.work, base.work, arguments.data, base.work / "data"))
        print(f"{describe_machine(1)}; {mode} kernels, float32\n")
        print(
            "| job | steps compared | records equal | weights equal | max. difference, loss | max. difference, weight |"
        )
        print("|---|---:|---|---|---:|---:|")
        equal = True
        for name, (steps, records, weights, max_loss, max_weight) in run_jobs(base, present, names, arguments.data):
            answers = ("no" if records else "yes", "no" if weights else "yes")
            print(f"| {name} | {steps} | {' | '.join(answers)} | {max_loss:.1e} | {max_weight:.1e} |", flush=True)
            for different in [*records[:5], *weights[:5]]:
                print(f"  differs: {different}", file=sys.stderr)
            equal = equal and not records and not weights
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
