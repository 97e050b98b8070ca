"""Pre-training beside busy programs: the fair share of the speed, and what sharing costs while nothing else runs.

    python bench/busy_machine.py [--store STORE] [--loads 2 4 6] [--rounds 3] [--seconds 2.5]

The training is that of `make demo` (--config demo, size tiny), with real batches. A load of L is L processes that spin.
C CPUs divided fairly among T threads of ours and L others give each thread C / (T + L) of a CPU, so the fair speed is
that on a quiet machine times min(1, C / (T + L)). The share of it can exceed 1: the speed on a quiet machine contains
waits, and beside other programs those are time in which a thread does not use up its turn. Tokens per CPU second, as a
share of those on a quiet machine, show what spinning wastes.

Contenders are processes of their own that take turns: "adapting" is the package, "spinning" the package without
`share_cpus` (kernels/cpu_sharing.py), as it was before. A turn begins with --settle seconds that do not count. Quiet
turns are also made with size mini. The speed of shared machines drifts: compare the ratios within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from contenders import Child

ROOT = Path(__file__).resolve().parents[1]
CONTENDERS = ("adapting", "spinning")


def make_store(folder: Path) -> Path:
    """Make the token store of `make demo`."""
    bertwright = [sys.executable, "-m", "bertwright"]
    corpus, vocabulary, store = folder / "corpus.txt", folder / "vocabulary", folder / "store"
    prepare = ["prepare", str(corpus), "--vocabulary", str(vocabulary), "--held-out", "0.05", "--store", str(store)]
    for command in (
        [sys.executable, str(ROOT / "demo" / "corpus.py"), str(corpus)],
        [*bertwright, "vocabulary", str(corpus), "--size", "6000", "--output", str(vocabulary)],
        [*bertwright, *prepare],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return store


def serve(arguments: argparse.Namespace) -> None:
    """For each number read, train so many seconds; print the tokens, the seconds and the CPU seconds."""
    from bertwright.base.reporter import MUTE
    from bertwright.cli.options import read_settings
    from bertwright.cli.verbs import VERBS
    from bertwright.pretraining.run import open_run
    from bertwright.training.context import execution_context
    from bertwright.training.loop import train_steps
    from bertwright.training.prefetch import prefetch

    verb = next(verb for verb in VERBS if verb.name == "pretrain")
    run = str(arguments.store.parent / f"run-{os.getpid()}")
    options = ["--config", "demo", "--size", arguments.size, "--store", str(arguments.store), "--run", run]
    options += ["--steps", "1000000", "--threads", str(arguments.threads)]
    settings = read_settings(verb.load_settings(), "pretrain", options, verb.example, verb.usual.split())
    with ExitStack() as stack:
        if arguments.serve == "spinning":
            stack.enter_context(patch("bertwright.training.context.share_cpus", lambda _: nullcontext()))
        context = stack.enter_context(execution_context(settings.device))
        spec = open_run(settings, context, MUTE).spec()
        results = train_steps(spec.loss, prefetch(spec.batches(0)), spec.optimizer, spec.schedule)
        for line in sys.stdin:
            started, cpu_started, tokens = time.perf_counter(), time.process_time(), 0.0
            while (seconds := time.perf_counter() - started) < float(line):
                tokens += next(results).sums["tokens"]
            print(json.dumps([tokens, seconds, time.process_time() - cpu_started]), flush=True)


class Contender(Child):
    """The process of one contender."""

    def __init__(self, name: str, size: str, chosen: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--serve", name, "--size", size, "--store", str(chosen.store)]
        super().__init__([*command, "--threads", str(chosen.threads)], {})

    def train(self, seconds: float) -> tuple[float, float]:
        """Train for some seconds; return the tokens per second and the tokens per CPU second."""
        self.ask(seconds)
        tokens, taken, cpu = self.read()
        return tokens / taken, tokens / cpu


@contextmanager
def spinning_processes(count: int) -> Iterator[None]:
    """Keep some processes busy until the block ends; if this process is killed, they end after ten minutes."""
    spin = f"import time\nwhile time.monotonic() < {time.monotonic() + 600}: pass"
    processes = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(count)]
    time.sleep(0.5)  # Python has started
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


Turns = dict[tuple[int, str], list[tuple[float, float]]]
"""Tokens per second and per CPU second of each round, by load and contender."""


def take_turns(size: str, loads: list[int], rounds: int, chosen: argparse.Namespace) -> Turns:
    """Let the contenders train in turns under each load."""
    turns: Turns = defaultdict(list)
    with ExitStack() as stack:
        children = {name: Contender(name, size, chosen) for name in CONTENDERS}
        for child in children.values():
            stack.callback(child.close)
            child.train(1.0)
        for number in range(rounds):
            for load in loads:
                with spinning_processes(load):
                    for name in CONTENDERS[:: 1 if number % 2 else -1]:
                        children[name].train(chosen.settle)
                        turns[load, name].append(children[name].train(chosen.seconds))
    return turns


def main() -> None:
    from bertwright.kernels.cpu import available_cpus
    from environment import RESULTS, append_result, describe_machine, format_range, format_ratio, make_parser

    parser = make_parser(__doc__)
    parser.add_argument("--store", type=Path, help="a token store; default: that of `make demo` is made")
    parser.add_argument("--loads", nargs="+", type=int, default=[2, 4, 6])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quiet-rounds", type=int, default=8, help="of each size, without a load")
    parser.add_argument("--seconds", type=float, default=2.5, help="of a turn")
    parser.add_argument("--settle", type=float, default=2.5, help="seconds of a turn that do not count")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="of a training")
    parser.add_argument("--serve", choices=CONTENDERS, help=argparse.SUPPRESS)
    parser.add_argument("--size", default="tiny", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        serve(chosen)
        return
    print(describe_machine(chosen.threads))
    with TemporaryDirectory() as folder:
        chosen.store = chosen.store or make_store(Path(folder))
        quiet = {size: take_turns(size, [0], chosen.quiet_rounds, chosen) for size in ("tiny", "mini")}
        loaded = take_turns("tiny", chosen.loads, chosen.rounds, chosen)
    for size, turns in quiet.items():
        speeds = {name: [speed for speed, _ in turns[0, name]] for name in CONTENDERS}
        ratio = format_ratio([1 / speed for speed in speeds["spinning"]], [1 / speed for speed in speeds["adapting"]])
        print(f"{size}, quiet: {format_range(speeds['adapting'], ',.0f')} tokens/s, {ratio} × spinning")
    print_shares(loaded, quiet["tiny"], chosen.threads)
    measured = {
        f"{size}, load {load}, {name}": values
        for size, turns in [*quiet.items(), ("tiny", loaded)]
        for (load, name), values in turns.items()
    }
    options = {name: getattr(chosen, name) for name in ("rounds", "quiet_rounds", "seconds", "settle", "threads")}
    result = {"options": options, "tokens_per_s_and_per_cpu_s": measured}
    append_result(RESULTS / "busy_machine.jsonl", result, chosen.threads)


def print_shares(loaded: Turns, quiet: Turns, threads: int) -> None:
    """Print the shares of the fair speed, which is that of the fastest contender on a quiet machine, divided."""
    from bertwright.kernels.cpu import available_cpus
    from environment import format_range

    full, full_per_cpu = (
        max(statistics.median(turn[index] for turn in quiet[0, name]) for name in CONTENDERS) for index in (0, 1)
    )
    print("\n| load | contender | tokens/s | share of the fair speed | tokens per CPU second, of quiet |")
    print("|---:|---|---:|---:|---:|")
    for (load, name), turns in loaded.items():
        fair = full * min(1, available_cpus() / (threads + load))
        speeds, per_cpu = zip(*turns, strict=True)
        shares = format_range([speed / fair for speed in speeds])
        efficiency = format_range([one / full_per_cpu for one in per_cpu])
        print(f"| {load} | {name} | {format_range(speeds, ',.0f')} | {shares} | {efficiency} |", flush=True)


if __name__ == "__main__":
    main()
