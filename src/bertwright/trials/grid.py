"""Grid of fine-tuning runs: each rate, batch size and number of epochs, with each seed; dev selects (paper, A.3).

RUN/settings.toml   all settings                   RUN/results.jsonl   one line per finished run
RUN/runs/NAME/      each run, as `finetune` writes it, with log.txt; weights that cannot be chosen any more are deleted
RUN/report.json     scores of all settings         RUN/model/          the chosen model
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.files import atomic_folder, lock_folder, open_to_append, read_json, remove_stale_parts, write_json
from bertwright.base.messages import format_duration
from bertwright.base.reporter import SILENT, Fields, Heading, Line, LogReporter, Outputs, Reporter, Rows
from bertwright.base.settings import write_settings
from bertwright.finetuning.finetune_cost import CostEstimator, open_timed
from bertwright.finetuning.run import FinetuneRun, finetune
from bertwright.interop.model_files import digest_model
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds
from bertwright.tasks.score_formats import format_score, format_scores, make_score_table
from bertwright.tasks.task_data import digest_files
from bertwright.training.context import execution_context
from bertwright.training.cost import CostEstimate
from bertwright.training.distributed import check_single_process
from bertwright.training.interrupt import until_stopped
from bertwright.training.loop import DivergedError
from bertwright.training.run_folder import INITIAL_WEIGHTS, check_data_unchanged, check_run_directory, delete_weights
from bertwright.trials.grid_results import (
    RESULTS_FILE,
    SettingSummary,
    pending_trials,
    rank_settings,
    read_results,
    write_results,
)
from bertwright.trials.grid_settings import RESUME_OVERRIDES, GridSettings, HyperParams, Trial


class TrialResult(NamedTuple):
    """Result of one run."""

    trial: Trial
    scores: dict[str, dict[str, float]]
    """Scores of the run's best checkpoint by split ("dev", "test") and name. Empty for a run that failed."""
    failure: str | None = None
    """Reason of its divergence."""
    dev_evaluations: int | None = None
    """Number of evaluations on dev; the best one counts. None for a run that failed."""


RunSummary = SettingSummary[HyperParams, TrialResult]


def grid(settings: GridSettings, reporter: Reporter = SILENT) -> Path | None:
    """Run or resume a grid; return the chosen model's folder, or None if only the estimate was requested.

    Ctrl-C and SIGTERM save the current run, then raise KeyboardInterrupt. A run that diverges is recorded as such, and
    the grid continues. Raises ValueError and OSError as `finetune` does, DivergedError if all runs diverged.
    """
    check_single_process("a grid", "start one grid per GPU, each with some of the --learning-rates")
    if settings.dry_run:
        check_run_directory(settings, RESUME_OVERRIDES)
        run = GridRun(settings, reporter)
        run.print_summary(run.pending())
        return None
    with lock_folder(settings.run):
        check_run_directory(settings, RESUME_OVERRIDES)
        run = GridRun(settings, reporter)
        pending = run.pending()
        run.print_summary(pending)
        # Also on resume, since --keep-all may have changed.
        started = replace(settings, resume=False)
        write_settings(settings.run / "settings.toml", started, "bertwright grid: all settings, defaults included")
        try:
            return run.run(pending)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"{len(run.results)} of {len(settings.trials())} runs are finished; resume with: "
                f"bertwright grid --run {shlex.quote(str(settings.run))} --resume"
            ) from None


class GridRun:
    """A grid and the results of its finished runs."""

    def __init__(self, settings: GridSettings, reporter: Reporter) -> None:
        self.settings = settings
        self.reporter = reporter
        self.path = settings.run / RESULTS_FILE
        self.results = read_trial_results(self.path, settings.trials())

    @property
    def metric(self) -> str:
        """Metric that selects, as the runs report it: for tags without spans it is accuracy, not f1."""
        finished = next((result for result in self.results if result.failure is None), None)
        if finished is None:
            return self.settings.task.build_task().metric
        metric: str = read_json(self.settings.finetune_settings(finished.trial).run / "report.json")["metric"]
        return metric

    def pending(self) -> list[Trial]:
        """Return the runs that are not finished."""
        return pending_trials(self.settings.trials(), (result.trial for result in self.results))

    def print_summary(self, pending: list[Trial]) -> None:
        """Print what will be run and how long it will take."""
        settings = self.settings
        if not pending:
            self.reporter.record(Line(f"{settings.run}: all {len(self.results)} runs are finished"))
            return
        self.reporter.record(Heading(f"Grid of {len(settings.trials())} runs; the first pending one:"))
        cost = estimate_cost(settings, pending, self.reporter)
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

    def run(self, pending: list[Trial]) -> Path:
        """Run all pending trials, then choose."""
        self.prune()
        trials = self.settings.trials()
        with self.reporter.progress("runs", len(pending)) as advance:
            for trial in until_stopped(pending):
                self.check_data_unchanged()
                result = self.run_trial(trial)
                self.results = sort_by_trial([*self.results, result], trials)
                write_results(self.path, map(to_record, self.results))
                self.prune()
                count = f"{len(self.results)} of {len(trials)}"
                failure = f"diverged: {result.failure}"
                scores = failure if result.failure else f"dev {format_scores(result.scores['dev'])}"
                self.reporter.record(Line(f"{count:>9}  {trial.name}  {scores}"))
                advance(1)
        return self.finish()

    def run_trial(self, trial: Trial) -> TrialResult:
        """Start or resume one run, which prints into a file of its folder."""
        settings = self.settings.finetune_settings(trial)
        settings.run.mkdir(parents=True, exist_ok=True)
        settings = replace(settings, resume=(settings.run / "settings.toml").is_file())
        with open_to_append(settings.run / "log.txt") as log:
            try:
                finetune(settings, LogReporter(log))
            except DivergedError as error:
                return TrialResult(trial, {}, str(error))
        report = read_json(settings.run / "report.json")
        return TrialResult(trial, report["scores"], dev_evaluations=report["dev_evaluations"])

    def check_data_unchanged(self) -> None:
        """Raise ValueError if files or weights changed since the first run: scores would not be comparable."""
        for result in self.results[:1]:
            now = digest_files(self.settings.task) | {INITIAL_WEIGHTS: digest_model(self.settings.model)}
            check_data_unchanged(self.settings.finetune_settings(result.trial).run, now)

    def prune(self) -> None:
        """Delete what no later step reads: checkpoints of finished runs, and models that cannot be chosen."""
        settings = self.settings
        if settings.keep_all:
            return
        finished = (settings.run / "model").is_dir()
        candidates = set() if finished else live_candidates(self.results, self.metric, settings.seeds)
        for result in self.results:
            delete_weights(settings.finetune_settings(result.trial).run, with_model=result.trial not in candidates)

    def finish(self) -> Path:
        """Choose a model, write it and the report, and print the table; return the model's folder."""
        settings, reporter = self.settings, self.reporter
        ranked = rank_runs(self.results, self.metric)
        chosen = ranked[0].best
        if chosen.failure is not None:
            raise DivergedError(f"all runs diverged; the first one: {chosen.failure}")
        write_json(settings.run / "report.json", self.make_report(ranked))
        folder = settings.run / "model"
        if not folder.is_dir():  # written last: the folder exists if and only if the grid is finished
            remove_stale_parts(settings.run)
            with atomic_folder(folder) as temporary:
                model = settings.finetune_settings(chosen.trial).run / "model"
                shutil.copytree(model, temporary, dirs_exist_ok=True)
        self.prune()
        metric = self.metric.replace("_", " ")
        reporter.record(Heading(f"dev {metric}, of each run the best evaluation; best setting first"))
        reporter.record(setting_table(ranked))
        count = chosen.dev_evaluations or 1
        best_of = f", the best of {count} evaluations on dev" if count > 1 else ""
        reporter.record(Heading(f"Chosen: {chosen.trial.name}{best_of}"))
        table = make_score_table(chosen.scores, self.metric)
        reporter.record(Rows(table.columns, table.rows, texts=(0,)))
        test = self.summarize_test(chosen.trial.setting).get(self.metric)
        if test and settings.seeds > 1:
            reporter.record(Line(f"test {metric} over the setting's seeds: {test}"))
        if failures := sum(summary.failures for summary in ranked):
            reporter.note(f"{failures} of {len(self.results)} runs diverged; {RESULTS_FILE} has the reasons")
        reporter.record(Outputs({"model": folder, "all metrics": self.path}))
        return folder

    def summarize_test(self, setting: HyperParams) -> dict[str, SeedSummary]:
        """Return a setting's test scores over its seeds; they are reported, and do not select."""
        results = [result for result in self.results if result.trial.setting == setting]
        runs = [result.scores["test"] for result in results if "test" in result.scores]
        return {name: summarize_seeds([scores[name] for scores in runs]) for name in (runs[0] if runs else ())}

    def make_report(self, ranked: list[RunSummary]) -> dict[str, Any]:
        """Return the content of report.json."""
        chosen = ranked[0].best
        return {
            "task": self.settings.task.task,
            "metric": self.metric,
            "chosen": to_record(chosen),
            "test": {name: summary._asdict() for name, summary in self.summarize_test(chosen.trial.setting).items()},
            "settings": [
                setting._asdict()
                | {
                    "diverged": failures,
                    "dev": scores._asdict() if scores else None,
                    "dev_evaluations": best.dev_evaluations,
                    "best": best.trial.name,
                }
                for setting, _, scores, failures, best in ranked
            ],
        }


def estimate_cost(settings: GridSettings, trials: Sequence[Trial], reporter: Reporter) -> CostEstimate:
    """Estimate the cost of trials by a few steps and predictions on the real data; print a summary of the first one.

    Nothing is written. Raises ValueError as `finetune` does for unusable settings and files, and if there is no dev
    split to select by.
    """
    with execution_context(settings.device) as context:
        first = replace(settings.finetune_settings(trials[0]), run=settings.run)  # a folder without checkpoints
        state, opening = open_timed(first, context, reporter)
        if state.dev is None:
            raise ValueError("no dev split to select by: name labeled files with --dev, or set --validation-fraction")
        FinetuneRun(state, first, context, reporter).print_summary()
        estimator = CostEstimator(state, context)
        costs = [estimator.estimate(settings.finetune_settings(trial)) for trial in trials]
    return CostEstimate(sum(cost.steps for cost in costs), sum(opening + cost.seconds for cost in costs))


def rank_runs(results: Iterable[TrialResult], metric: str) -> list[RunSummary]:
    """Return settings from best to worst by their mean on dev."""
    return rank_settings(
        results,
        lambda result: result.trial.setting,
        lambda result: None if result.failure is not None else result.scores["dev"][metric],
    )


def live_candidates(results: Sequence[TrialResult], metric: str, seeds: int) -> set[Trial]:
    """Return the runs that may yet be chosen: the best run of the best complete setting and of each incomplete one."""
    ranked = rank_runs(results, metric)
    incomplete = [summary for summary in ranked if len(summary.trials) < seeds]
    complete = [summary for summary in ranked if len(summary.trials) == seeds]
    return {summary.best.trial for summary in [*complete[:1], *incomplete]}


def to_record(result: TrialResult) -> dict[str, Any]:
    """Return a result for a JSON file."""
    trial = result.trial
    finished = {"dev_evaluations": result.dev_evaluations, "scores": result.scores}
    outcome = finished if result.failure is None else {"failure": result.failure}
    return {"run": trial.name} | trial.setting._asdict() | {"seed": trial.seed} | outcome


def read_trial_results(path: Path, trials: Iterable[Trial]) -> list[TrialResult]:
    """Read the results of finished trials, in the order of the trials; none if the file does not exist.

    Raises ValueError for a line that is no result of these trials.
    """
    by_name = {trial.name: trial for trial in trials}

    def parse(record: Any) -> TrialResult:
        outcome = record.get("scores", {}), record.get("failure"), record.get("dev_evaluations")
        result = TrialResult(by_name[record["run"]], *outcome)
        if result.failure is None and not isinstance(result.scores["dev"], dict):
            raise TypeError("the scores on dev are no object")
        return result

    return sort_by_trial(read_results(path, parse), by_name.values())


def sort_by_trial(results: Iterable[TrialResult], trials: Iterable[Trial]) -> list[TrialResult]:
    """Sort results by trial, not by completion, because of equal scores the first counts."""
    order = {trial: index for index, trial in enumerate(trials)}
    return sorted(results, key=lambda result: order[result.trial])


def setting_table(ranked: Iterable[RunSummary]) -> Rows:
    """Return a table with one row per setting; the first, which is chosen, is marked."""
    rows = []
    for rank, (setting, _, dev, _, best) in enumerate(ranked):
        count = "" if best.dev_evaluations is None else str(best.dev_evaluations)
        scores = (str(dev), format_score(dev.min), format_score(dev.max), count) if dev else ("diverged", "", "", "")
        varied = (f"{setting.learning_rate:g}", str(setting.batch_size), f"{setting.epochs:g}")
        rows.append(("" if rank else "*", *varied, *scores))
    return Rows(("", "rate", "batch", "epochs", "mean ± sd", "min", "max", "best of"), rows)
