"""Start-up time and speed of real `bertwright pretrain` runs on a GPU: with empty caches, then with compiled kernels.

python bench/gpu_pretrain.py STORE [--size base] [--batch-size 256] [--steps 150] [--device cuda]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from bertwright.training.metrics_log import read_metrics
from environment import RESULTS, describe_machine, format_range, keep_printed, make_parser


def pretrain(run: Path, cache: Path, chosen: argparse.Namespace, steps: int, log_every: int) -> tuple[float, float]:
    """Make a run; return the seconds to the first record of training, and to the end."""
    flags = {"store": chosen.store, "run": run, "size": chosen.size, "batch-size": chosen.batch_size}
    flags |= {"steps": steps, "log-every": log_every, "device": chosen.device}
    command = [sys.executable, "-m", "bertwright", "pretrain"]
    command += [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    started, first = time.perf_counter(), 0.0
    with (RESULTS / f"gpu-{run.name}.log").open("w") as log:
        environment = os.environ | {"TRITON_CACHE_DIR": str(cache)}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        while process.poll() is None:
            if not first and any(record["kind"] == "train" for record in read_metrics(run)):
                first = time.perf_counter() - started
            time.sleep(0.02)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}; see {log.name}")
    return first, time.perf_counter() - started


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--size", default="base")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    chosen = parser.parse_args()
    keep_printed(__file__, device=chosen.device)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        print(describe_machine(device="cuda" if torch.cuda.is_available() else "cpu"))
        first, _ = pretrain(work / "cold", work / "cache", chosen, steps=3, log_every=1)
        print(f"kernels not compiled yet: first step after {first:.1f} s from the command")
        first, _ = pretrain(work / "warm", work / "cache", chosen, steps=3, log_every=1)
        print(f"kernels compiled before: first step after {first:.1f} s from the command")
        _, whole = pretrain(work / "real", work / "cache", chosen, chosen.steps, log_every=10)
        records = [record for record in read_metrics(work / "real") if record["kind"] == "train"]
        for name, chosen_records in (("128", records[2 : int(0.9 * len(records))]), ("512", records[-1:])):
            speeds = [record["tokens_per_second"] for record in chosen_records]
            if speeds:
                print(f"length {name}, tokens/s: {format_range(speeds, ',.0f')}, {len(speeds)} records of 10 steps")
        print(f"{chosen.steps} steps with everything: {whole:.1f} s; last loss {records[-1]['loss']:.3f}")
        log = (RESULTS / "gpu-real.log").read_text(encoding="utf-8", errors="replace")
        print(f"lines with warnings: {sum('warn' in line.lower() for line in log.splitlines())}")


if __name__ == "__main__":
    main()
