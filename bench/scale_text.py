"""Bytes per second and peak memory of `vocabulary` and `prepare`, by workers: local processes and a Ray cluster.

    python bench/scale_text.py [--megabytes 256] [--rounds 1]

The text is generated: words by Zipf's law from a list of 300,000, in sentences and documents. Every command runs as a
user starts it. Its fixed cost (Python, Ray, learning of the tokens) is measured on a hundredth of the text; the rate is
(bytes - bytes of the hundredth) / (seconds - seconds of the hundredth). Memory is sampled every 0.1 s: the largest
resident set of the command's process, and of any of its workers. All results must have the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from environment import describe_machine

SIZES = 300_000  # distinct words
WORKERS = {
    "one process": [],
    "local, 1 worker": ["--workers", "1"],
    "local, 2 workers": ["--workers", "2"],
    "Ray, 1 worker": ["--executor", "ray", "--workers", "1"],
    "Ray, 2 workers": ["--executor", "ray", "--workers", "2"],
}
MB = 1_000_000


class Measured(NamedTuple):
    """One run of a command; memory in bytes."""

    seconds: float
    process: int
    worker: int


def write_text(path: Path, size: int) -> None:
    """Write a text of about `size` bytes."""
    rng = np.random.default_rng(36)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    lengths = rng.integers(2, 12, SIZES)
    words = np.array(["".join(rng.choice(letters, length)) for length in lengths], dtype=object)
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            ranks = np.minimum(rng.zipf(1.2, 200_000), SIZES) - 1
            chosen = words[ranks]
            ends = np.cumsum(rng.integers(5, 30, 12_000))
            sentences = [" ".join(part) + "." for part in np.split(chosen, ends[ends < len(chosen)])]
            breaks = rng.random(len(sentences)) < 0.1  # a document has ten sentences on average
            text = "".join(
                sentence + ("\n\n" if is_last else "\n") for sentence, is_last in zip(sentences, breaks, strict=True)
            )
            written += file.write(text)


def measure(arguments: list[str]) -> Measured:
    """Run a command of the package; raise CalledProcessError if it fails."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "bertwright", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    own = workers = 0
    while process.poll() is None:
        for pid, memory, is_worker in list_memory(process.pid):
            if pid == process.pid:
                own = max(own, memory)
            elif is_worker:
                workers = max(workers, memory)
        time.sleep(0.1)
    seconds = time.perf_counter() - started
    if process.returncode:
        assert process.stderr is not None
        sys.exit(f"{' '.join(arguments)}: {process.stderr.read().decode()}")
    return Measured(seconds, own, workers)


def list_memory(root: int) -> list[tuple[int, int, bool]]:
    """Return process id, resident bytes, and whether it is a worker, of a process and all below it."""
    processes: dict[int, tuple[int, int, bool]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_text()
        except OSError:  # it has just ended
            continue
        is_worker = "worker_main(" in command or (command.startswith("ray::") and "Agent" not in command)
        processes[int(stat.parent.name)] = int(fields[1]), int(fields[21]) * os.sysconf("SC_PAGE_SIZE"), is_worker
    below = {root}
    while more := {pid for pid, (parent, *_) in processes.items() if parent in below} - below:
        below |= more
    return [(pid, *processes[pid][1:]) for pid in below if pid in processes]


def digest(folder: Path) -> str:
    """Digest the files of a result, without the settings, which name the workers."""
    state = hashlib.blake2b()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in ("settings.toml", ".lock", "build.json"):
            state.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return state.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    print(describe_machine(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = {"small": folder / "small.txt", "large": folder / "large.txt"}
        write_text(texts["large"], given.megabytes * MB)
        with texts["large"].open("rb") as source:
            texts["small"].write_bytes(source.read(given.megabytes * MB // 100))
        size = texts["large"].stat().st_size - texts["small"].stat().st_size
        print(f"{texts['large'].stat().st_size / MB:.0f} MB of text; load {os.getloadavg()[0]:.1f}\n", flush=True)
        print("| command | workers | seconds | fixed cost, s | MB/s | memory, MB | of a worker, MB |")
        print("|---|---|---|---|---|---|---|", flush=True)
        vocabulary = folder / "vocabulary"
        for command in ("vocabulary", "prepare"):
            runs: dict[str, list[tuple[Measured, Measured]]] = {workers: [] for workers in WORKERS}
            digests = set[str]()
            for number in range(given.rounds):
                for workers, options in WORKERS.items():
                    if command == "prepare" and not options:
                        continue  # its default is one process per CPU
                    pair = []
                    for text in texts.values():
                        output = folder / f"{command}-{number}-{len(digests)}-{text.stem}-{workers.replace(' ', '')}"
                        arguments = ["--size", "8000", "--output", str(output)]
                        if command == "prepare":
                            arguments = ["--vocabulary", str(vocabulary), "--store", str(output)]
                        pair.append(measure([command, str(text), *arguments, *options]))
                    digests.add(digest(output))
                    if command == "vocabulary" and not vocabulary.exists():
                        output.rename(vocabulary)
                    runs[workers].append((pair[0], pair[1]))
            if len(digests) > 1:
                sys.exit(f"{command}: the results differ")
            for workers, measured in runs.items():
                if not measured:
                    continue
                fixed = statistics.median(small.seconds for small, _ in measured)
                rate = statistics.median(size / MB / (large.seconds - small.seconds) for small, large in measured)
                seconds = statistics.median(large.seconds for _, large in measured)
                own, worker = (max(run[1][field] for run in measured) / MB for field in (1, 2))
                print(
                    f"| {command} | {workers} | {seconds:.1f} | {fixed:.1f} | {rate:.1f} | {own:.0f} | {worker:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
