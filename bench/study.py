"""Studies: systems trained with several seeds, results in a file of JSON lines, means and paired differences."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from scipy.stats import ttest_rel

import bertwright
from bertwright.base.files import read_json
from bertwright.base.reporter import SILENT
from bertwright.base.settings import from_table
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.metrics.scores import spearman
from bertwright.tables.text_roles import read_text_table
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_data import read_examples
from bertwright.tasks.text_task import TextExample
from environment import append_result, describe_machine

CPU = {"device": "cpu", "dtype": "float32", "threads": 1}
Record = dict[str, Any]


def finetune_table(table: Mapping[str, Any], examples: Mapping[str, Sequence[Any]] | None = None) -> Record:
    """Fine-tune with the settings of a table, in float32 on one thread; return the report. The model is deleted."""
    given = {"device": CPU, "run": "elsewhere"} | dict(table)
    return finetune_and_report(from_table(FinetuneSettings, given, "table"), examples)


def finetune_and_report(settings: FinetuneSettings, examples: Mapping[str, Sequence[Any]] | None = None) -> Record:
    """Fine-tune in a folder that is deleted; return the report."""
    with TemporaryDirectory() as folder:
        settings = replace(settings, run=Path(folder, "run"))
        finetune(settings, SILENT, examples, temporary=True)
        report: Record = read_json(settings.run / "report.json")
        return report


def read_splits(task: Mapping[str, Any], splits: Sequence[str]) -> dict[str, list[Any]]:
    """Read the examples of splits; `task`: the table of a task's settings."""
    settings = from_table(TaskSettings, dict(task), "task")
    return {split: read_examples(settings.build_task(), settings, split) for split in splits}


def score_sts(model: bertwright.Bert, data: Path, dims: int | None = None) -> float:
    """Compute Spearman's correlation on the test pairs of STS-B, in percent; `dims`: by the first numbers alone."""
    rows = read_text_table(str(data / "glue" / "STS-B" / "test.tsv")).rows
    sides = ([row.anchor for row in rows], [row.positives[0] for row in rows])
    first, second = (model.embed(texts, dims=dims) for texts in sides)
    return round(100 * spearman([row.score or 0.0 for row in rows], (first * second).sum(1).tolist()), 2)


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


def read_trec(path: Path, is_fine: bool = False) -> list[TextExample[str]]:
    """Read questions with their coarse label, or with the fine one, COARSE:fine."""
    lines = [line.partition(" ") for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        TextExample(text, None, label if is_fine else label.partition(":")[0], f"{path}, line {number}")
        for number, (label, _, text) in enumerate(lines, 1)
    ]


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
