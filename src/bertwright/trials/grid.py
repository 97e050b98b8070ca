"""Grid of fine-tuning runs: each rate, batch size and number of epochs, with each seed; dev selects (paper, A.3).

RUN/settings.toml   all settings                   RUN/runs/NAME/result.json   scores of a finished run
RUN/runs/NAME/run/  each run, as `finetune` writes it; weights that cannot be chosen any more are deleted
RUN/report.json     scores of all settings         RUN/model/                  the chosen model
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.description import Description, describe_progress, name_damaged_file, read_settings_with
from bertwright.base.files import atomic_folder, lock_folder, read_json, remove_stale_parts, write_json
from bertwright.base.messages import format_duration
from bertwright.base.reporter import MUTE, SILENT, Fields, Heading, Line, Outputs, Reporter, Rows
from bertwright.finetuning.finetune_cost import CostEstimator, open_timed
from bertwright.finetuning.run import FinetuneRun
from bertwright.interop.model_files import digest_model
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds
from bertwright.tasks.score_formats import format_score, make_score_table
from bertwright.tasks.task_data import digest_files
from bertwright.training.context import execution_context
from bertwright.training.cost import CostEstimate
from bertwright.training.distributed import check_single_process
from bertwright.training.loop import DivergedError
from bertwright.training.run_folder import (
    INITIAL_WEIGHTS,
    check_data_unchanged,
    check_run_directory,
    delete_weights,
    write_run_settings,
)
from bertwright.trials.floors import linear_floors
from bertwright.trials.grid_settings import RESUME_OVERRIDES, GridSettings
from bertwright.trials.runner import Result, Runner, count_results
from bertwright.trials.table import Table
from bertwright.trials.task_trials import Finetune, digest_task_inputs

LEGEND = "Mean ± standard deviation over the seeds (number of seeds), in percent; best of: evaluations on dev."


@dataclass(frozen=True)
class GridTrial(Finetune):
    """A run whose model may be chosen; its row is the setting."""

    def prune(self, folder: Path) -> None:
        """Keep the weights: the grid deletes them when the model cannot be chosen any more."""


class Outcome(NamedTuple):
    """What a finished run contributes to the choice."""

    row: str
    seed: int
    dev: float | None
    """None for a run that diverged."""


def grid(settings: GridSettings, reporter: Reporter = SILENT) -> Path | None:
    """Run or resume a grid; return the chosen model's folder, or None if only the estimate was requested.

    Ctrl-C and SIGTERM save the current run, then raise KeyboardInterrupt. A run that diverges is recorded as such, and
    the grid continues. Raises ValueError and OSError as `finetune` does, DivergedError if all runs diverged.
    """
    check_single_process("a grid", "start one grid per GPU, each with some of the --learning-rates")
    if settings.dry_run:
        check_run_directory(settings, RESUME_OVERRIDES)
        GridRun(settings, reporter).print_summary()
        return None
    with lock_folder(settings.run):
        check_run_directory(settings, RESUME_OVERRIDES)
        run = GridRun(settings, reporter)
        run.print_summary()
        write_run_settings(settings, "grid")  # also on resume, since --keep-all may have changed
        return run.run()


class GridRun:
    """A grid and the results of its finished runs."""

    def __init__(self, settings: GridSettings, reporter: Reporter) -> None:
        self.settings, self.reporter = settings, reporter
        self.runner = Runner.of_series(settings.run, "grid")
        self.trials = [
            GridTrial(point.name, (), (), settings.finetune_settings(point), point.setting, "dev", point.seed)
            for point in settings.points()
        ]
        self.floors = linear_floors(self.trials[0].settings) if settings.linear_floor else []

    @property
    def results(self) -> list[tuple[GridTrial, Result]]:
        """The finished runs in the order of the trials, because of equal scores the first counts."""
        return self.runner.results(self.trials)

    @property
    def outcomes(self) -> list[Outcome]:
        return [Outcome(trial.row, trial.seed, result.scores.get("dev")) for trial, result in self.results]

    def report_of(self, trial: GridTrial) -> dict[str, Any]:
        report: dict[str, Any] = read_json(self.runner.run_folder(trial) / "report.json")
        return report

    def print_summary(self) -> None:
        settings, pending = self.settings, [trial for trial in self.trials if not self.runner.result(trial)]
        if not pending:
            self.reporter.record(Line(f"{settings.run}: all {len(self.trials)} runs are finished"))
            return
        self.reporter.record(Heading(f"Grid of {len(self.trials)} runs; the first pending one:"))
        cost = estimate_cost(settings.run, pending, self.reporter)
        self.reporter.record(
            Fields(
                {
                    "rates": ", ".join(f"{rate:g}" for rate in settings.learning_rates),
                    "batch sizes": ", ".join(map(str, settings.batch_sizes)),
                    "epochs": ", ".join(f"{epochs:g}" for epochs in settings.epochs),
                    "seeds": str(settings.seeds),
                    "pending runs": f"{len(pending)}, {cost.steps:,} steps in total",
                    "estimated time": format_duration(cost.seconds),
                }
            )
        )

    def run(self) -> Path:
        self.prune()
        if len(finished := self.results) < len(self.trials):
            task, model = self.settings.task, self.settings.model
            for trial, _ in finished[:1]:  # scores of other files or weights would not be comparable
                now = digest_files(task) | {INITIAL_WEIGHTS: digest_model(model)}
                check_data_unchanged(self.runner.run_folder(trial), now)
            digests = digest_task_inputs(task, model)
            self.trials = [replace(trial, digests=digests) for trial in self.trials]
            self.runner.run_all([replace(floor, digests=digests) for floor in self.floors], MUTE)
            with closing(self.runner.run_each(self.trials, self.reporter)) as completed:
                for _ in completed:
                    self.prune()
        return self.finish()

    def prune(self) -> None:
        """Delete what no later step reads: checkpoints of finished runs, and models that cannot be chosen."""
        if self.settings.keep_all:
            return
        finished = (self.settings.run / "model").is_dir()
        candidates = set() if finished else live_candidates(self.outcomes, self.settings.seeds)
        for trial, _ in self.results:
            is_candidate = (trial.row, trial.seed) in candidates
            delete_weights(self.runner.run_folder(trial), with_model=not is_candidate)

    def finish(self) -> Path:
        """Choose a model, write it and the report, and print the table; return the model's folder."""
        settings, reporter = self.settings, self.reporter
        outcomes, results = self.outcomes, {(trial.row, trial.seed): (trial, result) for trial, result in self.results}
        rows = rank_rows(outcomes)
        best = {row: results[row, best_seed(outcomes, row)] for row in rows}
        chosen, result = best[rows[0]]
        if result.failure:
            raise DivergedError(f"all runs diverged; the first one: {result.failure}")
        reports = {row: self.report_of(trial) for row, (trial, outcome) in best.items() if not outcome.failure}
        # As the runs report it: for tags without spans, the metric is accuracy, not f1.
        scores, evaluations, metric = (reports[chosen.row][name] for name in ("scores", "dev_evaluations", "metric"))
        tests = self.summarize_test(chosen.row)
        point = next(point for point in settings.points() if point.name == chosen.name)
        record = {"run": chosen.name, **point._asdict(), "dev_evaluations": evaluations, "scores": scores}
        table = self.make_table(rows, reports, metric)
        report = {"task": settings.task.task, "metric": metric, "chosen": record}
        report |= {"test": {name: one._asdict() for name, one in tests.items()}}
        write_json(settings.run / "report.json", report | table.to_record())
        folder = settings.run / "model"
        if not folder.is_dir():  # written last: the folder exists if and only if the grid is finished
            remove_stale_parts(settings.run)
            with atomic_folder(folder) as temporary:
                shutil.copytree(self.runner.run_folder(chosen) / "model", temporary, dirs_exist_ok=True)
        self.prune()
        table.show(reporter)
        best_of = f", the best of {evaluations} evaluations on dev" if evaluations > 1 else ""
        reporter.record(Heading(f"Chosen: {chosen.name}{best_of}"))
        shown = make_score_table(scores, metric)
        reporter.record(Rows(shown.columns, shown.rows, texts=(0,)))
        if metric in tests and settings.seeds > 1:
            reporter.record(Line(f"test {metric.replace('_', ' ')} over the setting's seeds: {tests[metric]}"))
        if failures := sum(outcome.dev is None for outcome in outcomes):
            reporter.note(f"{failures} of {len(outcomes)} runs diverged; result.json of each has the reason")
        reporter.record(Outputs({"model": folder, "all metrics": settings.run / "report.json"}))
        return folder

    def make_table(self, rows: Sequence[str], reports: dict[str, dict[str, Any]], metric: str) -> Table:
        """Return the table of the settings. `reports`: the report of the best run of each."""
        title = f"{metric.replace('_', ' ')}, of each run the best evaluation; best setting on dev first"
        floors = self.runner.results(self.floors)
        results = [*self.results, *floors]
        table = Table.of_series(title, [*rows, *(floor.row for floor, _ in floors)], results, LEGEND)
        summaries = {row: table.cells[row, "dev"].summary for row in rows if (row, "dev") in table.cells}
        details = {
            "min on dev": {row: format_score(one.min) for row, one in summaries.items()},
            "max on dev": {row: format_score(one.max) for row, one in summaries.items()},
            "best of": {row: str(report["dev_evaluations"]) for row, report in reports.items()},
        }
        return replace(table, details=details)

    def summarize_test(self, row: str) -> dict[str, SeedSummary]:
        """Return a setting's test scores over its seeds; they are reported, and do not select."""
        reports = [self.report_of(trial) for trial, result in self.results if trial.row == row and not result.failure]
        runs = [report["scores"]["test"] for report in reports if "test" in report["scores"]]
        return {name: summarize_seeds([scores[name] for scores in runs]) for name in (runs[0] if runs else ())}


def estimate_cost(run: Path, trials: Sequence[GridTrial], reporter: Reporter) -> CostEstimate:
    """Estimate the cost of trials by a few steps and predictions on the real data; print a summary of the first one.

    `run`: a folder without checkpoints. Nothing is written. Raises ValueError as `finetune` does for unusable settings
    and files, and if there is no dev split to select by.
    """
    first = replace(trials[0].settings, run=run)
    with execution_context(first.device) as context:
        state, opening = open_timed(first, context, reporter)
        if state.dev is None:
            raise ValueError("no dev split to select by: name labeled files with --dev, or set --validation-fraction")
        FinetuneRun(state, first, context, reporter).print_summary()
        estimator = CostEstimator(state, context)
        costs = [estimator.estimate(trial.settings) for trial in trials]
    return CostEstimate(sum(cost.steps for cost in costs), sum(opening + cost.seconds for cost in costs))


def rank_rows(outcomes: Sequence[Outcome]) -> list[str]:
    """Return settings from best to worst by their mean on dev; of equal means, the first comes first.

    Settings with fewer scores come last: if runs diverged, the mean of the remaining ones is biased upward, and a mean
    of few scores is uncertain.
    """
    scores: dict[str, list[float]] = {row: [] for row, _, _ in outcomes}
    for row, _, dev in outcomes:
        scores[row] += [] if dev is None else [dev]
    return sorted(scores, key=lambda row: (-len(scores[row]), -sum(scores[row]) / max(1, len(scores[row]))))


def best_seed(outcomes: Sequence[Outcome], row: str) -> int:
    """Return the seed of a setting's best run; of equal scores the first."""
    runs = [outcome for outcome in outcomes if outcome.row == row]
    return max(runs, key=lambda run: -float("inf") if run.dev is None else run.dev).seed


def live_candidates(outcomes: Sequence[Outcome], seeds: int) -> set[tuple[str, int]]:
    """Return the runs that may yet be chosen: the best run of the best complete setting and of each incomplete one."""
    counts = Counter(outcome.row for outcome in outcomes)
    ranked = rank_rows(outcomes)
    complete = [row for row in ranked if counts[row] == seeds]
    incomplete = [row for row in ranked if counts[row] < seeds]
    return {(row, best_seed(outcomes, row)) for row in [*complete[:1], *incomplete]}


def describe(folder: Path, verify: bool) -> Description | None:
    """Describe the finished runs of a grid and its choice; None for another folder."""
    report = folder / "report.json"
    if (settings := read_settings_with(folder, "learning_rates", "batch_sizes", "epochs", "seeds")) is None:
        return None
    points = prod(len(settings[name]) for name in ("learning_rates", "batch_sizes", "epochs"))
    fields = describe_progress(folder, count_results(folder, "*-seed*"), points * int(settings["seeds"]))
    if fields["state"] == "finished":
        with name_damaged_file(report):
            record = read_json(report)
            metric, chosen = record["metric"], record["chosen"]
            fields |= {"chosen": str(chosen["run"]), "best on dev": f"{metric} {chosen['scores']['dev'][metric]:.4f}"}
    return Description("grid of fine-tuning runs", fields)
