"""Studies: systems trained with several seeds, results in a file of JSON lines, means and paired differences.

    python bench/study.py bench/results/ladder_trec.jsonl "+ word vectors" CoVe ELMo TagLM
    python bench/study.py bench/results/taglm_findings.jsonl TagLM "TagLM, forward direction alone" …

As a script, compare the test scores of the first system with those of the others, on the seeds that both have, by
paired intervals. A line of the file has `system` or `tagger`, `seed`, and the test score: `test` in percent, or a share
in `scores`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from scipy.stats import ttest_rel

from bertwright.base.files import read_json
from bertwright.base.reporter import SILENT
from bertwright.base.settings import from_table
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_data import read_examples
from environment import append_result, describe_machine, make_parser

CPU = {"device": "cpu", "dtype": "float32", "threads": 1}
Record = dict[str, Any]


def finetune_table(table: Mapping[str, Any], examples: Mapping[str, Sequence[Any]] | None = None) -> Record:
    """Fine-tune with the settings of a table, in float32 on one thread; return the report. The model is deleted."""
    with TemporaryDirectory() as folder:
        settings = from_table(FinetuneSettings, {"device": CPU} | dict(table) | {"run": f"{folder}/run"}, "table")
        finetune(settings, SILENT, examples, temporary=True)
        report: Record = read_json(settings.run / "report.json")
        return report


def read_splits(task: Mapping[str, Any], splits: Sequence[str]) -> dict[str, list[Any]]:
    """Read the examples of splits; `task`: the table of a task's settings."""
    settings = from_table(TaskSettings, dict(task), "task")
    return {split: read_examples(settings.build_task(), settings, split) for split in splits}


def read_records(path: Path) -> list[Record]:
    """Read a file of results; empty if there is none."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def find_records(path: Path, runs: Iterable[Record]) -> list[Record]:
    """Return the results of the runs that a file has: the first line with all fields of the run."""
    records = read_records(path)
    found = (next((record for record in records if run.items() <= record.items()), None) for run in runs)
    return [record for record in found if record is not None]


def run_missing(
    path: Path, runs: Iterable[Record], execute: Callable[[Record], Record], threads: int = 1
) -> list[Record]:
    """Execute every run that the file lacks, and append its result at once; return the results of all runs."""
    records = list[Record]()
    print(describe_machine(threads), flush=True)
    for run in runs:
        records += (known := find_records(path, [run]))
        if known:
            continue
        started, cpu = time.perf_counter(), time.process_time()
        result = execute(run)
        spent = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
        append_result(path, run | result | {name: round(value, 1) for name, value in spent.items()}, threads)
        records += find_records(path, [run])
        print(json.dumps(run | result, ensure_ascii=False), flush=True)
    return records


def read_trec(path: Path) -> list[tuple[str, str]]:
    """Read questions and their fine labels."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(text, label) for label, _, text in (line.partition(" ") for line in lines)]


def by_seed(records: Iterable[Record], score: str, **fields: Any) -> dict[int, float]:
    """Map the seed of each record with these fields to its score."""
    return {record["seed"]: record[score] for record in records if fields.items() <= record.items()}


def format_mean(values: Sequence[float]) -> str:
    """Format mean and standard deviation; empty without a value."""
    if not values:
        return ""
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def compare(before: Mapping[int, float], after: Mapping[int, float]) -> tuple[str, str]:
    """Format the mean difference over the seeds that both have, and its 95 % interval (paired, Student's t).

    The interval is of these checkpoints: seeds are not pre-trainings.
    """
    seeds = sorted(before.keys() & after.keys())
    if not seeds:
        return "", ""
    lower, higher = ([scores[seed] for seed in seeds] for scores in (before, after))
    if len(seeds) < 2:
        return f"{mean(higher) - mean(lower):+.2f}", ""
    interval = ttest_rel(higher, lower).confidence_interval(0.95)
    return f"{mean(higher) - mean(lower):+.2f}", f"{interval.low:+.2f} to {interval.high:+.2f}"


def print_row(cells: Iterable[object]) -> None:
    """Print a row of a Markdown table."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def print_heading(cells: Sequence[str]) -> None:
    """Print the heading of a Markdown table: a column of names, then numbers."""
    print_row(cells)
    print(f"|---|{'---:|' * (len(cells) - 1)}")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("first")
    parser.add_argument("others", nargs="+")
    chosen = parser.parse_args()
    systems: dict[str, dict[int, float]] = {}
    for run in read_records(chosen.results):
        score = run["test"] if "test" in run else 100 * run["scores"]["test"]
        systems.setdefault(run.get("system") or run["tagger"], {})[run["seed"]] = score
    for name in (chosen.first, *chosen.others):
        if name not in systems:
            parser.error(f"{chosen.results}: no system {name!r}; it has {', '.join(systems)}")
    for name in chosen.others:
        difference, interval = compare(systems[chosen.first], systems[name])
        seeds = len(systems[chosen.first].keys() & systems[name].keys())
        print(f"{chosen.first} → {name}: {difference} ({interval}), {seeds} seeds")


if __name__ == "__main__":
    main()
