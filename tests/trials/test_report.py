"""Reports: cells, averages and notes of results that are made by hand or that diverged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from small_experiments import Make, run_experiment

from bertwright.metrics.statistics import Estimate
from bertwright.trials import report
from bertwright.trials.cells import Cell, Score, average, read_cells
from bertwright.trials.experiment_plan import Plan
from bertwright.trials.paper_table import FREQUENT, RANDOM
from bertwright.trials.runner import Result
from bertwright.trials.trial import ENTROPY


def test_the_rate_of_a_test_score_is_selected_on_dev() -> None:
    """The first rate is better on dev and the second one on test."""
    cells = read_cells(
        Score("ours", "conll2003 test", 0.5 + rate, 0, rate, selected_by=0.9 - rate) for rate in (0.1, 0.2)
    )
    cell = cells["ours", "conll2003 test"]
    assert (cell.learning_rate, cell.summary.mean) == (0.1, 0.6)


def test_an_average_is_over_the_seeds_that_all_columns_have() -> None:
    def cell(scores: dict[int, float]) -> Cell:
        return Cell({(0, seed): score for seed, score in scores.items()}, 0.1)

    mean = average([cell({0: 0.5, 1: 0.6, 2: 0.7}), cell({0: 0.7, 2: 0.9})])
    assert mean is not None
    assert mean.scores == {(0, 0): pytest.approx(0.6), (0, 2): pytest.approx(0.8)}
    assert mean.learning_rate is None
    assert average([cell({0: 0.5}), cell({1: 0.5})]) is None


def test_a_column_without_intervals_is_not_called_at_the_floor() -> None:
    """Scores on test have no single examples: with one run of each row, nothing says how sure a difference is."""

    def compare(draws: np.ndarray | None) -> report.FloorColumns:
        rows = {"ours": 0.8, FREQUENT: 0.0, RANDOM: 0.3}
        estimates = {
            (row, "stsb test"): Estimate(mean, None if draws is None else mean + draws * (1 if row == "ours" else -1))
            for row, mean in rows.items()
        }
        floors = [SimpleNamespace(row=row, column="stsb test") for row in rows]
        plan = Plan("table1", "", {"stsb test": "stsb ρ, test"}, tuple(rows), floors)  # type: ignore[arg-type]
        return report.find_columns_at_floor(plan, estimates)

    assert compare(None) == ((), (), ("stsb test",))
    assert compare(np.array([-0.1, 0.1])) == ((), (), ())
    assert compare(np.array([-0.9, 0.9])) == (("stsb test",), (), ())


def test_a_pretraining_that_learned_context_is_not_on_the_plateau() -> None:
    learned = Result({"loss": 5.0, ENTROPY: 6.8}, 1.0, None, {})
    assert not learned.is_on_plateau
    assert learned._replace(scores={"loss": 6.7, ENTROPY: 6.8}).is_on_plateau
    assert not learned._replace(scores={"dev": 0.5}).is_on_plateau


def test_report_only_without_results_says_so(make: Make, tmp_path: Path) -> None:
    assert "nothing to report" in run_experiment(make(tmp_path / "work", report_only=True))
