"""Differences of an experiment's rows from its floors, with 95 % intervals. docs/experiments.md quotes some of them.

    python bench/floor_differences.py table5 --store store --data DATA --work work [options of the experiment]

The options are those of the `bertwright experiment` whose finished jobs lie in the work folder; nothing is run. The
report of the command prints differences from its first row alone, and decides by these which columns are at the floor.
"""

from __future__ import annotations

import sys

from bertwright.cli.options import read_settings
from bertwright.trials.bootstrap import difference
from bertwright.trials.experiment import choose_level, plan_experiment
from bertwright.trials.experiment_settings import ExperimentSettings
from bertwright.trials.job_runner import JobRunner
from bertwright.trials.report import make_report
from bertwright.trials.table_plan import FLOORS


def main() -> None:
    settings = read_settings(ExperimentSettings, "experiment", sys.argv[1:], "")
    if settings is None:
        return
    plan = plan_experiment(settings, choose_level(settings))
    estimates = make_report(plan, JobRunner(settings.work.resolve())).estimates
    print("| row | column | floor | difference | 95 % interval |")
    print("|---|---|---|---:|---:|")
    for (row, column), estimate in estimates.items():
        for (floor, floor_column), floor_estimate in estimates.items():
            if row.startswith(FLOORS) or not floor.startswith(FLOORS) or floor_column != column:
                continue
            compared = difference([(estimate, floor_estimate)])
            interval = compared.interval
            shown = "" if interval is None else f"{100 * interval.low:+.1f} to {100 * interval.high:+.1f}"
            print(f"| {row} | {plan.columns[column]} | {floor} | {100 * compared.mean:+.1f} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
