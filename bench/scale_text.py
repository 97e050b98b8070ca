"""Bytes per second, CPU time and peak memory of `survey`, `vocabulary` and `prepare` over generated text, by workers.

    python bench/scale_text.py --megabytes 1000 --workers local-1 local-2 ray-1 ray-2
    python bench/scale_text.py --megabytes 1000 4000 10000 --commands prepare --workers local-2 ray-2 --no-start

Several sizes show whether memory grows with the text. The text is words by Zipf's law from a list of 300,000, and one
word in 200 that occurs once, in sentences of 17 words and documents of ten sentences. It is written in files of at most
500 MB, and grows from size to size. Every command runs as a user starts it. Its start (Python, Ray) is measured on
1 MB: the rate is (bytes - 1 MB) / (seconds - seconds of 1 MB), and bytes / seconds with --no-start. Runs of a size are
interleaved in --rounds rounds, of which the table has medians. All results of a command on a size must have the same
bytes; they are deleted at once.

CPU seconds and memory are sampled five times per second, over the command's process and all processes below it. Memory
is the largest resident set of the command's own process and of any worker, and the largest sum over all processes, in
which shared pages count once (PSS).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np

from environment import describe_machine, keep_printed, make_parser

MB = 1_000_000
FILE_MB = 500
WORDS = 300_000
LETTERS = np.frombuffer(b"etaoinshrdlucmfwypvbgk", np.uint8)
RARE = 8  # letters of a word that occurs once
SAMPLE_S = 0.2
WORKERS = {
    "process": [],
    "local-1": ["--workers", "1"],
    "local-2": ["--workers", "2"],
    "ray-1": ["--executor", "ray", "--workers", "1"],
    "ray-2": ["--executor", "ray", "--workers", "2"],
}
COMMANDS = ("survey", "vocabulary", "prepare")
NOT_COMPARED = ("settings.toml", ".lock", "build.json")  # they name the workers and the folder


class TextWriter:
    """Writer of generated text."""

    def __init__(self) -> None:
        rng = np.random.default_rng(36)
        words = [LETTERS[rng.integers(len(LETTERS), size=length)].tobytes() for length in rng.integers(2, 12, WORDS)]
        words.append(b"?" * RARE)  # a word that occurs once
        variants = [word + end for end in (b" ", b".\n", b".\n\n") for word in words]
        self.lengths = np.array([len(variant) for variant in variants])
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.letters = np.frombuffer(b"".join(variants), np.uint8)
        mass = np.cumsum(1 / (np.arange(WORDS) + 3))
        self.ranks = np.searchsorted(mass, mass[-1] * (np.arange(1 << 22) + 0.5) / (1 << 22))  # quantiles

    def write(self, path: Path, size: int, seed: int) -> None:
        """Write about `size` bytes."""
        rng, count = np.random.default_rng(seed), 100_000
        with path.open("wb") as file:
            while file.tell() < size:
                words = self.ranks[rng.integers(len(self.ranks), size=count)]
                words[rng.random(count) < 1 / 200] = WORDS
                ends = (rng.random(count) < 1 / 17).astype(int)
                ends += ends * (rng.random(count) < 1 / 10)
                chosen = words + ends * (WORDS + 1)
                lengths = self.lengths[chosen]
                first = np.cumsum(lengths) - lengths
                text = self.letters[np.repeat(self.starts[chosen] - first, lengths) + np.arange(lengths.sum())]
                rare = first[words == WORDS][:, None] + np.arange(RARE)
                text[rare] = LETTERS[rng.integers(len(LETTERS), size=rare.shape)]
                file.write(text.tobytes())


@dataclass
class Run:
    """One run of a command; memory in bytes."""

    seconds: float = 0.0
    process: int = 0
    worker: int = 0
    total: int = 0
    cpu: dict[int, float] = field(default_factory=dict)
    """CPU seconds by process id, as last seen."""


def measure(arguments: Sequence[str]) -> Run:
    """Run a command of the package; exit with its message if it fails."""
    run, started = Run(), time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-m", "bertwright", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        while process.poll() is None:
            sample(process.pid, run)
            time.sleep(SAMPLE_S)
        run.seconds = time.perf_counter() - started
        if process.returncode:
            errors.seek(0)
            sys.exit(f"{' '.join(arguments)}: {errors.read().decode()}")
    return run


def sample(root: int, run: Run) -> None:
    """Update a run from /proc, with the process `root` and all below it."""
    parents = dict(filter(None, map(read_parent, Path("/proc").glob("[0-9]*/stat"))))
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    total = 0
    for pid in below:
        folder = Path("/proc", str(pid))
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_text()
            shared = next(line for line in (folder / "smaps_rollup").open() if line.startswith("Pss:"))
        except (OSError, StopIteration):  # it has just ended
            continue
        run.cpu[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        resident = int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        total += 1024 * int(shared.split()[1])
        if pid == root:
            run.process = max(run.process, resident)
        elif "worker_main(" in command or (command.startswith("ray::") and "Agent" not in command):
            run.worker = max(run.worker, resident)
    run.total = max(run.total, total)


def read_parent(stat: Path) -> tuple[int, int] | None:
    """Return the ids of a process and of its parent; None if it has ended."""
    try:
        return int(stat.parent.name), int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def digest(result: Path) -> str:
    """Digest a file, or the files of a folder."""
    state = hashlib.blake2b()
    for path in sorted(result.rglob("*")) if result.is_dir() else [result]:
        if path.is_file() and path.name not in NOT_COMPARED:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "blake2b").digest()
            state.update(path.name.encode() + content)
    return state.hexdigest()


@dataclass
class Bench:
    """Runs of commands in a folder."""

    folder: Path
    writer: TextWriter = field(default_factory=TextWriter)

    @property
    def text(self) -> Path:
        return self.folder / "text"

    def grow_text(self, megabytes: int) -> int:
        """Write more text, up to a size; return its size in bytes."""
        self.text.mkdir(exist_ok=True)
        files, size = sorted(self.text.iterdir()), self.size()
        while size < megabytes * MB:
            path = self.text / f"{len(files):03}.txt"
            self.writer.write(path, min(FILE_MB * MB, megabytes * MB - size), len(files))
            files.append(path)
            size += path.stat().st_size
        return size

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.text.iterdir())

    def learn_vocabulary(self) -> None:
        """Write the vocabulary that `prepare` uses, from the first 100 MB at most."""
        first = next(self.text.iterdir())
        if not (self.folder / "vocabulary").exists():
            sample = self.folder / "sample.txt"
            with first.open("rb") as source:
                sample.write_bytes(source.read(100 * MB))
            measure(["vocabulary", str(sample), "--output", str(self.folder / "vocabulary"), "--size", "8000"])
            sample.unlink()

    def run(self, command: str, text: Path, workers: str) -> tuple[Run, str]:
        """Run a command on a text; return what it took, and the digest of its result, which is deleted."""
        output = self.folder / "result"
        arguments = {
            "survey": ["--json", str(output)],
            "vocabulary": ["--size", "8000", "--output", str(output)],
            "prepare": ["--vocabulary", str(self.folder / "vocabulary"), "--store", str(output)],
        }[command]
        run = measure([command, str(text), *arguments, *WORKERS[workers]])
        result = digest(output)
        shutil.rmtree(output) if output.is_dir() else output.unlink()
        return run, result


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[256])
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=COMMANDS)
    parser.add_argument("--workers", nargs="+", choices=WORKERS, default=list(WORKERS)[1:])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--no-start", action="store_true", help="measure no start")
    given = parser.parse_args()
    ray = version("ray") if any(name.startswith("ray") for name in given.workers) else "not used"
    keep_printed(__file__)
    print(f"{describe_machine()}, Ray {ray}\n", flush=True)
    print("| command | MB | workers | seconds | of 1 MB | MB/s | CPU s | process, MB | a worker, MB | all, MB | load |")
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
    with tempfile.TemporaryDirectory(prefix="scale-text-") as name:
        bench = Bench(Path(name))
        small = bench.folder / "small.txt"
        bench.writer.write(small, MB, seed=-1 % 2**32)
        for megabytes in sorted(given.megabytes):
            size = bench.grow_text(megabytes)
            bench.learn_vocabulary()
            for command in given.commands:
                report(bench, command, size, small, given)


def report(bench: Bench, command: str, size: int, small: Path, given: argparse.Namespace) -> None:
    """Run a command in rounds with all workers; print a row for each."""
    starts: dict[str, list[float]] = {workers: [] for workers in given.workers}
    runs: dict[str, list[Run]] = {workers: [] for workers in given.workers}
    digests = set[str]()
    for _ in range(given.rounds):
        for workers in given.workers:
            if not given.no_start:
                starts[workers].append(bench.run(command, small, workers)[0].seconds)
            run, result = bench.run(command, bench.text, workers)
            runs[workers].append(run)
            digests.add(result)
    if len(digests) > 1:
        sys.exit(f"{command}: the results differ")
    load = os.getloadavg()[0]
    for workers, measured in runs.items():
        seconds = statistics.median(run.seconds for run in measured)
        start = statistics.median(starts[workers]) if starts[workers] else 0.0
        rate = (size - (MB if start else 0)) / MB / (seconds - start)
        cpu = statistics.median(sum(run.cpu.values()) for run in measured)
        memory = (max(getattr(run, kind) for run in measured) / MB for kind in ("process", "worker", "total"))
        cells = [command, f"{size / MB:,.0f}", workers, f"{seconds:.1f}", f"{start:.1f}" if start else ""]
        cells += [f"{rate:.1f}", f"{cpu:.0f}", *(f"{value:,.0f}" for value in memory), f"{load:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
