"""Training speed on a machine that is not idle: ours and transformers, one and two trainings, beside a busy process.

    python bench/busy_machine.py [--sizes tiny mini] [--spins 300000 20000] [--rounds 3] [--seconds 3]

A thread that waits for others at the end of a parallel region spins before it sleeps. Where a foreign thread has taken
the CPU that it waits for, spinning keeps the CPU from both. `--spins` are the counts after which libgomp's threads
sleep: 300000 is libgomp's own default, the other one `bertwright`'s (`bertwright.SPIN_COUNT`). The busy process hashes
in as many threads as a training has. Contenders are processes of their own, warmed up, which train for some seconds in
turn; steps are those of `pretraining.py`. The table shows the medians over the rounds of the tokens per second of one
training, and of the ratio to the first spin count in the same round, with its range.

An "idle" machine is one on which nothing else runs: the share of the CPUs that other programs use is printed before and
after each table.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from pretraining import LENGTH, Child

Contender = tuple[str, int]  # side, spin count
Situation = tuple[int, int]  # threads of the busy process, trainings

BUSY = """
import hashlib, os, sys, threading
block = bytes(1 << 20)
def work():
    while True:
        hashlib.blake2b(block).digest()
for _ in range(int(sys.argv[1])):
    threading.Thread(target=work).start()
sys.stdin.read()  # until this benchmark ends, however it does
os._exit(0)
"""


@contextmanager
def busy_process(threads: int) -> Iterator[None]:
    """Keep a process busy in the background; 0 threads: none."""
    if threads == 0:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", BUSY, str(threads)], stdin=subprocess.PIPE)
    time.sleep(0.5)  # Python has started
    try:
        yield
    finally:
        process.kill()
        process.wait()


def foreign_load(seconds: float = 3) -> str:
    """Describe how busy all CPUs are while this program waits."""

    def read() -> tuple[int, int]:
        times = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(times), times[3] + times[4]  # idle, waiting for disks

    total, idle = read()
    time.sleep(seconds)
    total_after, idle_after = read()
    share = 1 - (idle_after - idle) / (total_after - total)
    return f"other programs use {share:.0%} of the CPUs, load average {os.getloadavg()[0]:.1f}"


def train(child: Child, seconds: float) -> float:
    """Let a contender train for at least `seconds` and one step; return its seconds per step."""
    started, steps = time.perf_counter(), 0
    while steps == 0 or time.perf_counter() - started < seconds:
        child.step(counted=False)
        steps += 1
    return (time.perf_counter() - started) / steps


def measure(size: str, chosen: argparse.Namespace) -> None:
    """Print one table."""
    before = foreign_load()
    sides = {"transformers": ["theirs"], "bertwright": ["ours"]}
    contenders = {
        (side, spins): [Child(size, chosen, sides[side], {"GOMP_SPINCOUNT": str(spins)}) for _ in range(2)]
        for side, spins in itertools.product(sides, chosen.spins)
    }
    for child in itertools.chain(*contenders.values()):
        for _ in range(2):
            child.step(counted=False)
    situations = list(itertools.product((0, chosen.threads), (1, 2)))
    speeds: dict[tuple[Contender, Situation], list[float]] = {}  # by round
    for _ in range(chosen.rounds):
        for situation in situations:
            busy, trainings = situation
            with busy_process(busy):
                for contender, pair in contenders.items():
                    with ThreadPoolExecutor(trainings) as pool:
                        taken = [*pool.map(lambda child: train(child, chosen.seconds), pair[:trainings])]
                    speed = LENGTH * chosen.sequences / statistics.mean(taken)
                    speeds.setdefault((contender, situation), []).append(speed)
    for child in itertools.chain(*contenders.values()):
        child.close()
    print(f"\n### {size}\n\nBefore: {before}; after: {foreign_load()}.\n")
    print_table(speeds, list(contenders), situations)


def print_table(
    speeds: dict[tuple[Contender, Situation], list[float]], contenders: list[Contender], situations: list[Situation]
) -> None:
    headings = [f"{('one', 'two at once')[number - 1]}, {'busy' if busy else 'idle'}" for busy, number in situations]
    print(f"| tokens/s of each training | {' | '.join(headings)} |\n|---|{'---:|' * len(headings)}")
    first = contenders[0][1]
    for side, spins in contenders:
        cells = []
        for situation in situations:
            own, reference = speeds[(side, spins), situation], speeds[(side, first), situation]
            ratios = [mine / other for mine, other in zip(own, reference, strict=True)]
            ratio = f" (**{statistics.median(ratios):.2f} ×**, {min(ratios):.2f} to {max(ratios):.2f})"
            cells.append(f"{statistics.median(own):,.0f}" + (ratio if spins != first else ""))
        print(f"| {side}, spin count {spins:,} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    from bertwright import SPIN_COUNT
    from bertwright.kernels.cpu import available_cpus

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["tiny", "mini"])
    parser.add_argument("--spins", nargs="+", type=int, default=[300_000, SPIN_COUNT])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3, help="of one measurement")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="of a training, and of the busy process")
    parser.add_argument("--sequences", type=int, default=16, help="of 128 tokens, in a step")
    chosen = parser.parse_args()
    chosen.device = "cpu"
    from environment import describe_machine

    print(f"{describe_machine(chosen.threads)}; {chosen.rounds} rounds of {chosen.seconds:g} s")
    for size in chosen.sizes:
        measure(size, chosen)


if __name__ == "__main__":
    main()
