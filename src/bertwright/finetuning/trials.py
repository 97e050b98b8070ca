"""Results of a grid's runs, their file, and which of them is best."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.finetuning import trial_log
from bertwright.finetuning.grid_settings import HyperParams, Trial
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds


class TrialResult(NamedTuple):
    """Result of one run."""

    trial: Trial
    scores: dict[str, dict[str, float]]
    """Scores of the run's best checkpoint by split ("dev", "test") and name. Empty for a run that failed."""
    failure: str | None = None
    """Reason of its divergence."""
    dev_evaluations: int | None = None
    """Number of evaluations on dev of which the best counts; None for a run that failed."""


class SettingSummary(NamedTuple):
    """Dev scores of a setting's runs."""

    setting: HyperParams
    scores: SeedSummary | None
    """The task's metric over the seeds; None if all runs failed."""
    failures: int
    best: TrialResult
    """The run with the best score; of equal ones the first."""


def rank_settings(results: Iterable[TrialResult], metric: str) -> list[SettingSummary]:
    """Return settings from best to worst by their mean on dev; of equal ones, the first comes first.

    Settings with a failed run come last: the mean of the remaining runs is biased upward.
    """
    by_setting: dict[HyperParams, list[TrialResult]] = {}
    for result in results:
        by_setting.setdefault(result.trial.setting, []).append(result)
    summaries = []
    for setting, runs in by_setting.items():
        finished = [run for run in runs if run.failure is None]
        scores = [run.scores["dev"][metric] for run in finished]
        best = finished[scores.index(max(scores))] if finished else runs[0]
        summary = summarize_seeds(scores) if scores else None
        summaries.append(SettingSummary(setting, summary, len(runs) - len(finished), best))
    return sorted(summaries, key=lambda one: (one.failures > 0, -one.scores.mean if one.scores else float("inf")))


def live_candidates(results: Sequence[TrialResult], metric: str, seeds: int) -> set[Trial]:
    """Return the runs that may yet be chosen: the best run of the best complete setting and of each incomplete one."""
    counts: dict[HyperParams, int] = {}
    for result in results:
        counts[result.trial.setting] = counts.get(result.trial.setting, 0) + 1
    complete = [result for result in results if counts[result.trial.setting] == seeds]
    incomplete = [result for result in results if counts[result.trial.setting] < seeds]
    return {one.best.trial for one in [*rank_settings(complete, metric)[:1], *rank_settings(incomplete, metric)]}


def to_record(result: TrialResult) -> dict[str, Any]:
    """Return a result as it is written to a file."""
    trial = result.trial
    finished = {"dev_evaluations": result.dev_evaluations, "scores": result.scores}
    outcome = finished if result.failure is None else {"failure": result.failure}
    return {"run": trial.name} | trial.setting._asdict() | {"seed": trial.seed} | outcome


def write_results(path: Path, results: Iterable[TrialResult]) -> None:
    """Write one line of JSON per run, atomically."""
    trial_log.write_results(path, map(to_record, results))


def read_results(path: Path, trials: Iterable[Trial]) -> list[TrialResult]:
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

    return sort_by_trial(trial_log.read_results(path, parse), by_name.values())


def sort_by_trial(results: Iterable[TrialResult], trials: Iterable[Trial]) -> list[TrialResult]:
    """Sort results by trial, not by completion: of equal scores, that of the first trial is chosen."""
    order = {trial: index for index, trial in enumerate(trials)}
    return sorted(results, key=lambda result: order[result.trial])
