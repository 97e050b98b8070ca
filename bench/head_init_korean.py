"""Compare the starts of the head on more than a thousand examples, with a small model of the Korean tour.

    python bench/head_init_korean.py RUN [--data korean] [--work DIR]

RUN is the pre-training run of README.ko.md's tour (H 128, 1,500 steps), `korean` the folder that demo/korean.py writes.
Each line is the dev score after the last step: sentiment (2,700 examples, accuracy) and entities (2,500, F1), three
epochs in batches of 16, two learning rates, two seeds. The rest are the defaults of `finetune`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from environment import describe_machine


def main() -> None:
    """Run all combinations and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", type=Path, default=Path("korean"))
    parser.add_argument("--work", type=Path, help="folder for the runs (default: a temporary one)")
    arguments = parser.parse_args()
    entities = arguments.data / "klue-ner" / "klue-ner-v1.1"
    tasks = {
        "sentiment": ["--task", "nsmc", "--data", str(arguments.data / "nsmc"), "--validation-fraction", "0.1"],
        "entities": [
            "--task",
            "tagging",
            "--train",
            f"{entities}_train.tsv",
            "--dev",
            f"{entities}_dev.tsv",
            "--comment-prefix",
            "##",
        ],
    }
    print(f"{describe_machine(1)}\n\n| task | rate | seed | random | fit |\n|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        for seed, (name, options), rate in itertools.product((0, 1), tasks.items(), ("3e-4", "1e-3")):
            scores = []
            for start in ("random", "fit"):
                run = work / f"{name}-{rate}-{start}-{seed}"
                command = [sys.executable, "-m", "bertwright", "finetune", *options, "--model", str(arguments.run)]
                command += ["--run", str(run), "--batch-size", "16", "--epochs", "3", "--learning-rate", rate]
                command += ["--head-init", start, "--seed", str(seed), "--threads", "1"]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
                last = [record for record in records if record["kind"] == "dev"][-1]
                scores.append(last["f1" if name == "entities" else "accuracy"])
            print(f"| {name} | {rate} | {seed} | {scores[0]:.2%} | {scores[1]:.2%} |", flush=True)


if __name__ == "__main__":
    main()
