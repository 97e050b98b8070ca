"""Check that training is bit-equal to an earlier commit: the loss of every step and the final weights.

    python bench/refactoring_parity.py [--base DIR] [--tree DIR] [--work DIR] [--jobs NAME ...] [--reference]
    python bench/refactoring_parity.py --speed 5 [--work DIR]

Both source trees run the same jobs as command lines, in processes of their own: they learn a vocabulary, prepare a
token store, pre-train BERT-mini for 20 steps (with one and two threads), and fine-tune the pre-trained model on four
tasks for at least 20 steps each. Three of the jobs are repeated while they are killed twice (SIGKILL) and resumed: the
earlier commit runs them until the first kill, the present tree from there. The table names the job, the steps that were
compared, whether all records and weights are equal to the last bit, and the largest differences. The exit status is 1
if anything differs.

`--speed ROUNDS` instead compares tokens per second of both trees, each with the kernels that it compiles itself; each
step counts with its highest speed in all rounds.

All comparisons of bits use float32 on the CPU. `--reference` sets BERTWRIGHT_NATIVE=0 for both trees, so that only the
reference implementations compute: use it when a native kernel was changed on purpose. With `--work DIR` the runs of the
earlier commit are saved and reused the next time. Data: ../shared/data (environment variable BERTWRIGHT_DATA).
"""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from environment import DATA, describe_machine, keep_printed, make_parser, sample

BASE_COMMIT = "ab34771"
ROOT = Path(__file__).resolve().parents[1]
CLOCK_FIELDS = ("tokens_per_second", "sequences_per_second", "utilization", "seconds")
RENAMED = {"mlm_loss": "loss", "long_mlm_loss": "long_loss"}  # metrics of the earlier commit
NUM_STEPS = 20
SPEED_JOBS = ("pretrain-2-threads", "sst2")
SPEED_STEPS = 60
WARM_UP_STEPS = 10
KILL_AFTER = (7, 13)  # steps in the log when the process is killed; checkpoints are at 5, 10, 15, 20


@dataclass(frozen=True)
class Job:
    """A training run as a command line, without `--run`."""

    command: str
    arguments: tuple[str, ...]
    threads: int = 1


class Tree(NamedTuple):
    """A source tree and the folder for what it computes."""

    source: Path
    work: Path
    reference: bool

    def environment(self, threads: int, own_kernels: bool = False) -> dict[str, str]:
        """Return the environment variables of its processes. `own_kernels`: compiled as the tree does itself."""
        own = {"PYTHONPATH": str(self.source / "src"), "OMP_NUM_THREADS": str(threads)}
        if own_kernels:
            return os.environ | own
        own |= {"CXX": str(Path(__file__).parent / "native_g++"), "BERTWRIGHT_NATIVE": "compile"}
        if self.reference:
            own["BERTWRIGHT_NATIVE"] = "0"
        return os.environ | own

    def paper_options(self, job: Job) -> tuple[str, ...]:
        """Return the options by which a fine-tuning starts its head at random, if the tree has another start, too."""
        settings = self.source / "src/bertwright/finetuning/settings.py"
        has_choice = settings.exists() and "head_init" in settings.read_text(encoding="utf-8")
        if job.command != "finetune" or not has_choice:
            return ()
        return ("--head-init", "random")

    def run(self, command: str, *arguments: str, threads: int = 1, own_kernels: bool = False) -> None:
        """Run one command to its end. Raises SystemExit with its output if it fails."""
        words = command_line(command, *arguments)
        done = subprocess.run(
            words, env=self.environment(threads, own_kernels), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}\nexit status {done.returncode}\n{done.stdout}{done.stderr}")


def command_line(command: str, *arguments: str) -> list[str]:
    """Return the words of a bertwright command."""
    return [sys.executable, "-m", "bertwright", command, *arguments]


class Difference(NamedTuple):
    """Differences between two runs of a job."""

    steps: int
    records: list[str]
    weights: list[str]
    max_loss: float
    max_weight: float


def make_jobs(store: Path, model: Path, data: Path, folder: Path, steps: int = NUM_STEPS) -> dict[str, Job]:
    """Return all jobs by name. `folder` receives the data files, which are cut down to the first examples."""
    common = ("--log-every", "1", "--save-every", "5", "--device", "cpu", "--dtype", "float32")
    mini = (
        "--store", str(store), "--steps", str(steps), "--size", "mini", "--max-positions", "128",
        "--batch-size", "16", "--long-ratio", "0.2", "--long-length", "128", "--learning-rate", "5e-4",
        "--warmup-ratio", "0.1", "--bias-correction", "--eval-every", "10", "--eval-sequences", "32", *common,
    )  # fmt: skip
    tuning = ("--model", str(model), "--epochs", "1", "--learning-rate", "3e-4", "--eval-every", "10", *common)
    examples, dev_examples = 32 * steps, 64
    document_marks = 40  # blocks of CoNLL files that are no examples

    def files(train: Path, dev: Path, number: int = examples) -> tuple[str, ...]:
        chosen = sample(train, number, folder), sample(dev, dev_examples, folder)
        return ("--train", str(chosen[0]), "--dev", str(chosen[1]))

    glue, squad = data / "glue", data / "squad"
    conll = files(data / "conll2003/train.txt", data / "conll2003/valid.txt", examples + document_marks)
    return {
        "pretrain": Job("pretrain", mini),
        "pretrain-2-threads": Job("pretrain", mini, threads=2),
        "sst2": Job("finetune", ("--task", "sst2", *files(glue / "SST-2/train.tsv", glue / "SST-2/dev.tsv"), *tuning)),
        "conll2003": Job(
            "finetune", ("--task", "conll2003", *conll, *tuning)
        ),
        "rte": Job(
            "finetune",
            (
                "--task", "rte", *files(glue / "RTE/train.tsv", glue / "RTE/dev.tsv"), *tuning,
                "--layerwise-lr-decay", "0.9", "--freeze-layers", "1",
            ),
        ),
        "squad": Job(
            "finetune",
            (
                "--task", "squad", *files(squad / "train-v1.1.json", squad / "dev-v1.1.json"), *tuning,
                "--max-length", "128", "--doc-stride", "64",
            ),
        ),
    }  # fmt: skip


KILLED = ("pretrain", "sst2", "conll2003")


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
        arguments = (*tree.paper_options(job), *job.arguments)
        tree.run(job.command, "--run", str(run), *arguments, "--threads", str(job.threads), threads=job.threads)
        done.write_text(key)
    return run


def train_killed(tree: Tree, base: Tree, name: str, job: Job) -> Path:
    """Run a job that is killed after each of the steps KILL_AFTER, the first time in the earlier commit's code.

    Returns the run folder.
    """
    run = tree.work / f"{name}-killed"
    shutil.rmtree(run, ignore_errors=True)
    arguments = (*tree.paper_options(job), *job.arguments)
    words = command_line(job.command, "--run", str(run), *arguments, "--threads", str(job.threads))
    for step, source in zip(KILL_AFTER, (base, tree), strict=True):
        process = subprocess.Popen(
            words, env=source.environment(job.threads), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None and last_step(run) < step:
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            raise SystemExit(f"{name}: expected a kill after step {step}, got exit status {process.returncode} before")
        words = command_line(job.command, "--run", str(run), "--resume", "--threads", str(job.threads))
    tree.run(job.command, "--run", str(run), "--resume", "--threads", str(job.threads), threads=job.threads)
    return run


def last_step(run: Path) -> int:
    """Return the last logged step of a run, 0 if there is none."""
    log = run / "metrics.jsonl"
    whole = log.read_text().rpartition("\n")[0] if log.exists() else ""
    return max((json.loads(line)["step"] for line in whole.split("\n") if line), default=0)


def read_records(run: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """Return a run's records by kind and step, without timings."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        (record["kind"], record["step"]): {
            RENAMED.get(name, name): record[name] for name in record if name not in CLOCK_FIELDS
        }
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
        expected = train(base, name, base_jobs[name])
        yield name, compare(expected, train(present, name, present_jobs[name]))
        if name in KILLED:
            yield f"{name}, killed twice", compare(expected, train_killed(present, base, name, present_jobs[name]))


def measure_speed(trees: Sequence[Tree], names: Sequence[str], data: Path, rounds: int) -> None:
    """Print the speed of both trees, each with its own kernels, in turn.

    Step n of every round reads the same tokens, and what else the machine does only slows a step down. So each step
    counts with its highest speed in all rounds, and the ratio is the median over the steps. The ratios of single
    rounds show the noise.
    """
    base = trees[0]
    stores = [prepare(tree, base.work / "corpus.txt") for tree in trees]
    model = train(base, "pretrain", make_jobs(stores[0], base.work, data, base.work / "data")["pretrain"]) / "model"
    jobs = [make_jobs(store, model, data, base.work / "data", SPEED_STEPS) for store in stores]
    print("| job | dtype | tokens/s before | now | ratio (single rounds) |\n|---|---|---:|---:|---:|")
    for name, dtype in itertools.product(names, ("float32", "bfloat16")):
        speeds = np.zeros((rounds, len(trees), SPEED_STEPS - WARM_UP_STEPS))
        for number in range(rounds):
            for index in (0, 1) if number % 2 else (1, 0):  # the first run has the cooler processor
                tree, job = trees[index], jobs[index][name]
                run = tree.work / "speed"
                shutil.rmtree(run, ignore_errors=True)
                words = [dtype if word == "float32" else word for word in job.arguments]
                words = [*tree.paper_options(job), *words, "--threads", "2"]
                tree.run(job.command, "--run", str(run), *words, threads=2, own_kernels=True)
                records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
                rates = [record["tokens_per_second"] for record in records if record["kind"] == "train"]
                speeds[number, index] = rates[WARM_UP_STEPS:SPEED_STEPS]
        singles = np.median(speeds[:, 1] / speeds[:, 0], axis=1)
        best = speeds.max(axis=0)
        before, now = np.median(best, axis=1)
        ratio = f"**{np.median(best[1] / best[0]):.2f}** ({singles.min():.2f} to {singles.max():.2f})"
        print(f"| {name} | {dtype} | {before:,.0f} | {now:,.0f} | {ratio} |", flush=True)


def main() -> None:
    """Print the table; exit with status 1 if anything differs."""
    parser = make_parser(__doc__)
    parser.add_argument("--base", type=Path, help=f"checkout of the earlier commit (default: extract {BASE_COMMIT})")
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout to compare with it (default: this one)")
    parser.add_argument("--work", type=Path, help="folder for the runs, to be reused (default: a temporary one)")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument(
        "--jobs", nargs="+", help=f"names of the jobs to run (default: all; with --speed {' and '.join(SPEED_JOBS)})"
    )
    parser.add_argument(
        "--speed", type=int, metavar="ROUNDS", help="instead, time both trees in turn, two threads each"
    )
    parser.add_argument("--reference", action="store_true", help="reference implementations instead of native kernels")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = (arguments.work or Path(temporary)).resolve()
        keep_printed(__file__)
        mode = "reference" if arguments.reference else "native"
        source = arguments.base or extract_commit(BASE_COMMIT, work / "base-source")
        base = Tree(source.resolve(), work / f"base-{mode}", arguments.reference)
        present = Tree(arguments.tree.resolve(), work / f"present-{mode}", arguments.reference)
        base.work.mkdir(parents=True, exist_ok=True)
        if arguments.speed:
            print(f"{describe_machine(2)}\n")
            names = arguments.jobs or SPEED_JOBS
            return measure_speed((base, present), names, arguments.data, arguments.speed)
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
