"""Reports: cells, averages and notes of results that are made by hand or that diverged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_experiments import Make, copy_results, is_pretraining, output, plan_of, run_experiment

from bertwright.base.files import read_json
from bertwright.training.loop import DivergedError
from bertwright.trials import jobs, report
from bertwright.trials.bootstrap import Estimate
from bertwright.trials.experiment_settings import ExperimentSettings
from bertwright.trials.job_runner import JobResult, JobRunner
from bertwright.trials.table_plan import FLOORS, FREQUENT, RANDOM, TablePlan, Trial


def test_the_rate_of_a_test_score_is_selected_on_dev() -> None:
    class Results:
        """Work in which the first rate is better on dev and the second one on test."""

        def result(self, job: Any) -> JobResult:
            return JobResult({"dev": 0.9 - job, "test_f1": 0.5 + job}, 0.0, None, {})

        def examples(self, *_: object) -> None:
            return None

    trials = [Trial("ours", "conll2003 test", 0, rate, rate, "test_f1", "dev") for rate in (0.1, 0.2)]  # type: ignore[arg-type]
    finished = [(trial, Results().result(trial.job)) for trial in trials]
    cell = report._read_cell(finished, Results())  # type: ignore[arg-type]
    assert (cell.learning_rate, cell.summary.mean) == (0.1, 0.6)


def test_an_average_is_over_the_seeds_that_all_columns_have() -> None:
    def cell(scores: dict[int, float]) -> report.Cell:
        return report.Cell({(0, seed): score for seed, score in scores.items()}, 0.1)

    average = report._average([cell({0: 0.5, 1: 0.6, 2: 0.7}), cell({0: 0.7, 2: 0.9})])
    assert average is not None
    assert average.scores == {(0, 0): pytest.approx(0.6), (0, 2): pytest.approx(0.8)}
    assert average.learning_rate is None
    assert report._average([cell({0: 0.5}), cell({1: 0.5})]) is None


def test_a_column_without_intervals_is_not_called_at_the_floor() -> None:
    """Scores on test have no single examples: with one run of each row, nothing says how sure a difference is."""

    def compare(draws: np.ndarray | None) -> report.FloorColumns:
        rows = {"ours": 0.8, FREQUENT: 0.0, RANDOM: 0.3}
        estimates = {
            (row, "stsb test"): Estimate(mean, None if draws is None else mean + draws * (1 if row == "ours" else -1))
            for row, mean in rows.items()
        }
        trials = [Trial(row, "stsb test", 0, 0.1, None, "spearman", "dev") for row in rows]  # type: ignore[arg-type]
        plan = TablePlan("table1", "", {"stsb test": "stsb ρ, test"}, tuple(rows), trials, [], {}, [])
        return report.find_columns_at_floor(plan, estimates)

    assert compare(None) == ((), (), ("stsb test",))
    assert compare(np.array([-0.1, 0.1])) == ((), (), ())
    assert compare(np.array([-0.9, 0.9])) == (("stsb test",), (), ())


def test_a_pretraining_that_learned_context_is_not_on_the_plateau() -> None:
    learned = JobResult({"loss": 5.0, jobs.ENTROPY: 6.8}, 1.0, None, {})
    assert not learned.is_on_plateau
    assert learned._replace(scores={"loss": 6.7, jobs.ENTROPY: 6.8}).is_on_plateau
    assert not learned._replace(scores={"dev": 0.5}).is_on_plateau


def test_a_diverged_pre_training_is_reported_and_its_fine_tunings_fail(
    finished_run: tuple[ExperimentSettings, str], make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(settings: Any, reporter: Any) -> None:
        if settings.data.objective == "ltr":
            raise DivergedError("step 3: not finite")
        pretrain(settings, reporter)

    pretrain = jobs.pretrain
    monkeypatch.setattr(jobs, "pretrain", diverge)
    settings = make(tmp_path / "work", seeds=1, tasks=("sst2",))
    copy_results(finished_run[0], settings, is_pretraining("ltr"))
    printed = run_experiment(settings, columns=140)
    assert "pre-train ltr, rate 0.001: diverged: step 3" in printed
    record = read_json(output(settings) / "report.json")
    assert {cell["row"] for cell in record["cells"]} == {
        "MLM + NSP", "MLM", "MLM, mean pooling", "random weights, mean pooling", *FLOORS
    }  # fmt: skip
    diverged = {one["row"]: one["diverged"] for one in record["without_results"]}
    assert diverged == {"LTR": 1, "LTR + BiLSTM": 1, "LTR + RTL": 1, "LTR, mean pooling": 1}
    assert printed.count("1 diverged") == 4
    failed = [job for job in plan_of(settings).jobs if "LTR on" in job.name]
    result = JobRunner(settings.work.resolve()).result(failed[0])
    assert result is not None
    assert result.failure == "pre-train ltr: pre-train ltr, rate 0.0005: step 3: not finite"


def test_report_only_without_results_says_so(make: Make, tmp_path: Path) -> None:
    assert "nothing to report" in run_experiment(make(tmp_path / "work", report_only=True))
