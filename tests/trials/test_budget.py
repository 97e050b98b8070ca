"""Budgets: sizes follow from measured times, are measured once, and are recorded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_experiments import Make, plan_of, run_experiment

from bertwright.base.reporter import SILENT, Reporter
from bertwright.trials import experiment as command
from bertwright.trials.budget import Cost, fit_budget
from bertwright.trials.experiment import choose_level, experiment
from bertwright.trials.experiment_settings import ExperimentSettings
from bertwright.trials.levels import ExperimentLevel
from bertwright.trials.pretrain_trials import Pretrain
from bertwright.trials.task_trials import Finetune, Probe
from bertwright.trials.trial import Trial, all_trials

FREE: dict[str, Any] = {"steps": None, "limit": None, "word_task_limit": None}  # sizes that a budget chooses


def test_dry_run_prints_jobs_and_time_and_writes_nothing(make: Make, tmp_path: Path) -> None:
    printed = run_experiment(make(tmp_path / "work", dry_run=True))
    assert [line.split()[:2] for line in printed.splitlines() if line.startswith(("  pre-t", "  fine-t"))][:2] == [
        ["pre-training", "8"],
        ["fine-tuning", "30"],
    ]
    assert "estimated time: " in printed
    assert not (tmp_path / "work").exists()


def test_dry_run_of_table8_measures_heads(make: Make, tmp_path: Path) -> None:
    printed = run_experiment(make(tmp_path / "work", "table8", seeds=1, dry_run=True))
    assert re.search(r"heads on frozen features +7 +0 ", printed)


def cost_of(job: Any, examples: int | None = None) -> Cost:
    """Return 3 + 100 s for a pre-training; for others 2 s to open it and 10 s for its limit, or 1,500 examples."""
    if isinstance(job, Pretrain):
        return Cost(3.0, 100.0)
    if not isinstance(job, Finetune | Probe):
        return Cost(0.0)
    limit = job.settings.limit if isinstance(job, Probe) else job.settings.tuning.limit
    return Cost(2.0, 10.0, examples or limit or 1_500, limit)


def fit(settings: ExperimentSettings, examples: int | None = None) -> ExperimentLevel:
    jobs = all_trials(plan_of(settings).ordered)
    return fit_budget(settings, choose_level(settings), jobs, {job.key: cost_of(job, examples) for job in jobs})


def test_budget_scales_steps_and_examples(make: Make, tmp_path: Path) -> None:
    """Eight pre-trainings of 3 + 100 s and 30 fine-tunings of 2 + 10 s in 10.4 minutes: 312 s for each kind."""
    settings = make(tmp_path / "work", **FREE, budget=10.4)
    level, fitted = choose_level(settings), fit(settings)
    assert (level.steps, level.limit, level.word_task_limit) == (2_000, 1_000, 1_500)
    assert (fitted.steps, fitted.limit, fitted.word_task_limit) == (720, 860, 1_200)


def test_budget_scales_heads_on_frozen_features(make: Make, tmp_path: Path, tiny_bert: Path) -> None:
    """Four fine-tunings and one probe of 2 + 10 s in 18 s: 1.6 s for the examples of each."""
    model = {"model": str(tiny_bert), "store": None}
    settings = make(tmp_path / "work", "table7", **FREE, budget=0.3, **model)
    assert fit(settings).word_task_limit == 240


def test_budget_reduces_the_limit_below_the_examples_of_small_tasks(make: Make, tmp_path: Path) -> None:
    """18 fine-tunings of 2 + 10 s in 127.5 s: the time of a task of 100 examples falls only with a lower limit."""
    settings = make(tmp_path / "work", **FREE, tasks=("sst2",), budget=4.25)
    assert fit(settings, examples=100).limit == 50


def test_budget_of_a_level_without_limits(make: Make, tmp_path: Path) -> None:
    settings = make(tmp_path / "work", level="paper", **FREE, tasks=("sst2",))
    assert fit(replace(settings, budget=80.0), examples=100).limit is None
    assert fit(replace(settings, budget=18.0), examples=100).limit == 55


def test_budget_is_measured_once_for_the_same_inputs(
    make: Make, tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def estimate_costs(jobs: Sequence[Trial], _: Reporter) -> dict[str, Cost]:
        measured.append(len([job for job in jobs if job.kind == "finetune"]))
        return {job.key: cost_of(job) for job in jobs}

    monkeypatch.setattr(command, "estimate_costs", estimate_costs)
    settings = make(tmp_path / "work", **FREE, budget=10.4)

    def sizes(**changes: Any) -> tuple[int, int | None]:
        changed = replace(settings, **changes)
        level = command.apply_budget(changed, choose_level(changed), plan_of(changed), SILENT)
        return level.steps, level.limit

    assert sizes() == sizes() == sizes(report_only=True) == (720, 860)
    assert measured == [30]
    assert sizes(tasks=("sst2",)) == (720, 1_500)
    assert sizes(seeds=1) == (720, 1_800)
    assert sizes(budget=20.4) == (1_400, 1_800)
    assert measured == [30, 18, 15, 30]
    sizes(experiment="table7", model=str(tiny_bert), store=None)
    sizes(experiment="table7")
    assert len(measured) == 6


def test_damaged_sizes_of_a_budget_are_named(make: Make, tmp_path: Path) -> None:
    settings = make(tmp_path / "work", **FREE, budget=10.0, report_only=True)
    path = command.budget_file(settings, plan_of(settings))
    path.parent.mkdir(parents=True)
    path.write_text('{"steps": 100}')
    with pytest.raises(ValueError, match=r"budget\.json: damaged; delete it"):
        experiment(settings)


def test_report_only_of_an_unknown_budget_is_rejected(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--budget 10: .* has no sizes"):
        experiment(make(tmp_path / "work", report_only=True, **FREE, budget=10.0))


def test_a_budget_that_is_too_small_is_rejected(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "estimate_costs", lambda jobs, _: {job.key: cost_of(job) for job in jobs})
    settings = make(tmp_path / "work", **FREE, budget=0.1)
    with pytest.raises(ValueError, match=r"--budget 0\.1: too little for 51 runs"):
        experiment(settings)
