"""Print the table of docs/evidence.md from the rows of pretraining_parity.jsonl and finetuning_parity.jsonl.

python bench/parity_table.py [bench/results/pretraining_parity.jsonl bench/results/finetuning_parity.jsonl]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
FILES = [RESULTS / "pretraining_parity.jsonl", RESULTS / "finetuning_parity.jsonl"]
COLUMNS = (
    "training", "steps", "loss", "gradient", "update", "float32's rounding of it", "losses", "weights",
    "weights of the peer", "equal predictions",
)  # fmt: skip


def read_runs(path: Path) -> dict[str, list[Mapping[str, Any]]]:
    """Return the rows of each run, in the order of its steps."""
    runs: dict[str, list[Mapping[str, Any]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        runs.setdefault(f"`{row['size']}`" if "size" in row else row["task"], []).append(row)
    return runs


def format_run(name: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the cells of a run: the worst step from the same weights, the end of the free run, the predictions."""
    measured = [row for row in rows if "same_weights" in row]
    parts = [row["same_weights"] for row in measured]
    worst = parts[int(np.argmax([one["update"] for one in parts]))]  # the first NaN, if there is one
    shown = [float(np.max([one[part] for one in parts])) for part in ("loss", "gradient")]
    shown += [worst["update"], worst["rounding"]]
    free = measured[-1]["free_run"]
    shown += [free["loss"], free["weights"], measured[-1]["peer_on_two_threads"]]
    ends = [row for row in rows if "equal_predictions" in row]
    shares = ends[-1]["equal_predictions"] if ends else []
    equal = " and ".join(f"{share:.2%}" for share in (shares if isinstance(shares, list) else [shares]))
    return [name, str(rows[-1]["step"]), *(f"{value:.0e}" for value in shown), equal]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*", default=FILES)
    print(f"| {' | '.join(COLUMNS)} |\n|---|{'---:|' * (len(COLUMNS) - 1)}")
    for path in parser.parse_args().files:
        for name, rows in read_runs(path).items():
            print(f"| {' | '.join(format_run(name, rows))} |")


if __name__ == "__main__":
    main()
