"""Whole experiments: the report says what the jobs found, a kill costs nothing, processes share the jobs.

All tests that read the finished experiment are in this file: a worker of pytest-xdist computes it once.
"""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import time
import weakref
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from small_experiments import Make, copy_results, is_pretraining, output, plan_of, results, run_experiment

from bertwright.base.files import read_json
from bertwright.base.reporter import SILENT, Reporter
from bertwright.base.settings import to_table
from bertwright.finetuning.run import finetune
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.tasks.linear_floor import LOOKUP
from bertwright.training.loop import DivergedError
from bertwright.trials import pretrain_trials, task_trials
from bertwright.trials.composed_model import Compose
from bertwright.trials.experiment import experiment
from bertwright.trials.experiment_settings import ExperimentSettings
from bertwright.trials.levels import LEVELS
from bertwright.trials.paper_table import FLOORS, FREQUENT, RANDOM
from bertwright.trials.pretrain_trials import BestRate, InitialModel, Pretrain
from bertwright.trials.runner import Runner
from bertwright.trials.task_trials import Finetune
from bertwright.trials.trial import all_trials
from harness import kill_processes, run_and_capture, run_on_ranks, same_weights, start_process


def test_table5_reports_every_cell_beside_the_paper(finished_run: tuple[ExperimentSettings, str]) -> None:
    settings, printed = finished_run
    record = read_json(output(settings) / "report.json")
    cells = {(cell["row"], cell["column"]): cell for cell in record["cells"]}
    pooled = {"MLM, mean pooling", "LTR, mean pooling", "random weights, mean pooling"}
    rows = {"MLM + NSP", "MLM", "LTR", "LTR + BiLSTM", "LTR + RTL", *FLOORS}
    named = {(row, name) for row in rows for name in ("sst2", "conll2003")} | {(row, "sst2") for row in pooled}
    assert {*cells} == named - {(LOOKUP, "sst2")}
    assert all(
        cell["seeds"] == (2 if row in ({*rows} - {*FLOORS}) | pooled | {RANDOM} else 1)
        for (row, _), cell in cells.items()
    )
    assert cells[FREQUENT, "conll2003"]["mean"] == 0.0
    assert cells["LTR", "sst2"]["paper"] == 92.1
    assert cells["MLM", "sst2"]["mean"] > 0  # tagging learns nothing in so few steps
    assert record["finished"] == record["total"] == 35
    assert "LTR" in printed
    assert "[92.1]" in printed
    markdown = (output(settings) / "report.md").read_text()
    assert "| MLM + NSP |" in markdown
    assert "mimetic" in markdown  # the initialization is named in every table
    for name, value in to_table(LEVELS["demo"].optimizer).items():
        assert (f"{name} {value}" in record["setup"]["optimizer"]) == (name != "learning_rate")
    assert "peak rate 0.0005 or 0.001" in record["setup"]["pre-training"]
    assert "uncased, digest" in record["setup"]["vocabulary"]
    assert record["setup"]["store"].startswith("digest ")
    assert (output(settings) / "plot.png").stat().st_size > 1_000


def test_each_claim_has_a_sentence_per_task_above_the_floor(finished_run: tuple[ExperimentSettings, str]) -> None:
    settings, printed = finished_run
    record = read_json(output(settings) / "report.json")
    usable = {"sst2", "conll2003"} - {*record["at_floor"]}
    claims = record["claims"]
    assert {column for claim in claims for column in claim["columns"]} <= usable
    text = "The bidirectional model is better than the left-to-right one"
    assert {tuple(claim["columns"]) for claim in claims if claim["text"] == text} >= {(column,) for column in usable}
    for claim in claims:
        low, mean, high = (claim["difference"][name] for name in ("low", "mean", "high"))
        assert low <= mean <= high
        assert f"could show {50 * (high - low):.1f} or more" in printed
        assert claim["verdict"] == "no verdict"
        where = claim["columns"][0] if len(claim["columns"]) == 1 else f"mean of {', '.join(claim['columns'])}"
        assert f"{claim['text']}, {where}: {claim['verdict']} at this budget" in printed
    if claims:
        assert "; one pre-training each" in printed
        assert ": a verdict needs 3)" in printed
    for column in record["at_floor"]:
        assert f"At the floor: {', '.join(record['at_floor'])}." in printed
        assert f"| *{column} " in (output(settings) / "report.md").read_text()


def test_the_report_has_both_rates_of_each_pre_training(finished_run: tuple[ExperimentSettings, str]) -> None:
    settings, printed = finished_run
    runs = {run["name"]: run for run in read_json(output(settings) / "report.json")["pretrainings"]}
    assert {*runs} == {"mlm+nsp", "mlm", "ltr", "rtl"}
    for run in runs.values():
        assert {*run["losses"]} == {"0.0005", "0.001"}
        assert run["losses"][f"{run['learning_rate']:g}"] == min(run["losses"].values())
        assert run["perplexity"] == pytest.approx(math.exp(min(run["losses"].values())))
        assert f"{run['perplexity']:.1f}" in printed
    assert 0 < runs["mlm+nsp"]["next_sentence"] <= 1
    assert runs["mlm"]["next_sentence"] is None


def test_the_report_has_the_differences_of_all_rows_from_the_first(
    finished_run: tuple[ExperimentSettings, str],
) -> None:
    settings, _ = finished_run
    record = read_json(output(settings) / "report.json")
    rows = ["MLM", "LTR", "LTR + BiLSTM", "LTR + RTL"]
    assert [(one["row"], one["from"], one["column"]) for one in record["differences"]][:12] == [
        (row, "MLM + NSP", column) for row in rows for column in ("sst2", "conll2003", "mean")
    ]
    means = {(cell["row"], cell["column"]): cell["mean"] for cell in record["cells"]}
    one, other, mean = record["differences"][:3]
    assert one["mean"] == pytest.approx(means["MLM", "sst2"] - means["MLM + NSP", "sst2"])
    assert mean["mean"] == pytest.approx((one["mean"] + other["mean"]) / 2)
    assert all(one["low"] <= one["mean"] <= one["high"] for one in record["differences"])
    markdown = (output(settings) / "report.md").read_text()
    assert "Differences from MLM + NSP:" in markdown
    assert f"| MLM | {100 * one['mean']:+.1f} ({100 * one['low']:+.1f} to {100 * one['high']:+.1f})" in markdown


def test_a_pretraining_that_learned_token_frequencies_alone_is_reported(
    finished_run: tuple[ExperimentSettings, str],
) -> None:
    settings, printed = finished_run
    found = results(settings)
    chosen = {job.name: found[job.key] for job in all_trials(plan_of(settings).ordered) if isinstance(job, BestRate)}
    warned = {note.split(":")[0] for note in read_json(output(settings) / "report.json")["notes"] if "entropy" in note}
    assert {"pre-train mlm", "pre-train mlm+nsp"} <= warned <= {*chosen}
    for name in warned:
        assert f"{name}: the held-out loss of {chosen[name]['loss']:.2f}" in printed
    assert "near that of the token frequencies" in printed


def test_report_only_prints_what_is_finished(finished_run: tuple[ExperimentSettings, str], make: Make) -> None:
    settings, _ = finished_run
    printed = run_experiment(make(settings.work, seeds=3, report_only=True), columns=140)
    assert "Incomplete: 35 of 50 results" in printed
    run_experiment(settings)


@pytest.mark.slow
def test_a_second_experiment_shares_the_pre_trainings(
    finished_run: tuple[ExperimentSettings, str], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = finished_run

    def fail(*_: object) -> None:
        raise AssertionError("a pre-training that exists is done again")

    monkeypatch.setattr(pretrain_trials, "pretrain", fail)
    figure = make(settings.work, "figure5", seeds=1, tasks=("sst2",))
    printed = run_experiment(figure)
    assert "shown" not in printed  # a single seed has no verdict
    record = read_json(output(figure) / "report.json")
    assert [cell["row"] for cell in record["cells"]][:2] == ["MLM, 1 steps", "MLM, 2 steps"]
    assert record["finished"] == record["total"] == 23
    assert {claim["verdict"] for claim in record["claims"]} <= {"no verdict"}
    last = {cell["row"]: cell["scores"][0] for cell in record["cells"]}["LTR, 10 steps"]
    table5 = read_json(output(settings) / "report.json")["cells"]
    assert last == next(c["scores"][0] for c in table5 if (c["row"], c["column"]) == ("LTR", "sst2"))


def test_the_report_says_what_an_uncased_vocabulary_and_an_untrained_pooler_cost(
    finished_run: tuple[ExperimentSettings, str],
) -> None:
    settings, _ = finished_run
    notes = read_json(output(settings) / "report.json")["notes"]
    assert any("cannot see the capital letters of conll2003" in note for note in notes)
    assert any("Only next-sentence prediction trains the pooler" in note for note in notes)


def test_a_diverged_pre_training_is_reported_and_its_fine_tunings_fail(
    finished_run: tuple[ExperimentSettings, str], make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverge(settings: Any, reporter: Any) -> None:
        if settings.data.objective == "ltr":
            raise DivergedError("step 3: not finite")
        pretrain(settings, reporter)

    pretrain = pretrain_trials.pretrain
    monkeypatch.setattr(pretrain_trials, "pretrain", diverge)
    settings = make(tmp_path / "work", seeds=1, tasks=("sst2",))
    copy_results(finished_run[0], settings, is_pretraining("ltr"))
    printed = run_experiment(settings, columns=140)
    assert "pre-train ltr, rate 0.001: diverged: step 3" in printed
    record = read_json(output(settings) / "report.json")
    assert {cell["row"] for cell in record["cells"]} == {
        "MLM + NSP", "MLM", "MLM, mean pooling", "random weights, mean pooling", *FLOORS
    } - {LOOKUP}  # fmt: skip
    diverged = {one["row"]: one["diverged"] for one in record["without_results"]}
    assert diverged == {"LTR": 1, "LTR + BiLSTM": 1, "LTR + RTL": 1, "LTR, mean pooling": 1}
    assert printed.count("1 diverged") == 4
    failed = [job for job in plan_of(settings).ordered if "LTR on" in job.name]
    result = Runner(settings.work.resolve()).result(failed[0])
    assert result is not None
    assert result.failure == "pre-train ltr: pre-train ltr, rate 0.0005: step 3: not finite"


def test_a_finished_experiment_runs_nothing(
    finished_run: tuple[ExperimentSettings, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = finished_run
    before = (output(settings) / "report.json").read_bytes()
    monkeypatch.setattr(pretrain_trials, "pretrain", None)
    monkeypatch.setattr(task_trials, "finetune", None)
    run_experiment(settings)
    assert (output(settings) / "report.json").read_bytes() == before


@pytest.mark.slow
def test_killed_experiments_end_with_the_same_bits(
    finished_run: tuple[ExperimentSettings, str], make: Make, tmp_path: Path
) -> None:
    unbroken, _ = finished_run
    broken = make(tmp_path / "work", seeds=1, tasks=("sst2",))
    copy_results(unbroken, broken, is_pretraining("rtl"))
    rng = random.Random(0)

    def wait(process: BaseProcess) -> None:
        """Wait until one more job is finished, and a part of the next one is done."""
        before = len(list(broken.work.glob("jobs/*/result.json")))
        while process.is_alive() and len(list(broken.work.glob("jobs/*/result.json"))) <= before:
            time.sleep(0.01)
        process.join(rng.random())

    assert kill_processes(lambda: start_process(experiment, broken), wait, max_kills=3)
    assert results(broken).items() <= results(unbroken).items()
    for job in all_trials(plan_of(broken).ordered):
        if isinstance(job, Pretrain):
            folders = [Runner(settings.work.resolve()).run_folder(job) / "model" for settings in (unbroken, broken)]
            assert same_weights(*folders)
    assert not list(broken.work.rglob(".*.part-*"))


def test_a_begun_job_of_a_moved_work_folder_starts_again(
    finished_run: tuple[ExperimentSettings, str], make: Make, tmp_path: Path
) -> None:
    unbroken, _ = finished_run
    first = make(tmp_path / "first", seeds=1, tasks=("sst2",))
    job = next(job for job in plan_of(first).ordered if isinstance(job, Finetune))
    copy_results(unbroken, first, lambda copied: copied.key == job.key)
    work = Runner(first.work.resolve())
    settings = replace(job.settings, run=work.run_folder(job), model=str(work.run_folder(job.parents[0]) / "model"))
    finetune(settings, SILENT)  # as if killed before its result was written
    first.work.rename(tmp_path / "second")
    second = make(tmp_path / "second", seeds=1, tasks=("sst2",))
    run_experiment(second)
    assert results(second).items() <= results(unbroken).items()


def test_a_begun_pre_training_continues_with_a_moved_store(
    finished_run: tuple[ExperimentSettings, str],
    make: Make,
    tmp_path: Path,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unbroken, _ = finished_run
    moved = make(tmp_path / "work", seeds=1, tasks=("sst2",), store=tmp_path / "store")
    shutil.copytree(store, tmp_path / "store")
    job = next(job for job in all_trials(plan_of(moved).ordered) if isinstance(job, Pretrain))
    run = Runner(moved.work.resolve()).run_folder(job)
    pretrain(replace(job.settings, run=run, store=store), SILENT)  # as if killed before its result
    resumed = []

    def record(settings: PretrainSettings, reporter: Reporter) -> None:
        resumed.append(settings.resume)
        pretrain(settings, reporter)

    monkeypatch.setattr(pretrain_trials, "pretrain", record)
    Runner(moved.work.resolve()).run_all([job], SILENT)
    assert resumed == [True]
    assert results(moved)[job.key] == results(unbroken)[job.key]


def test_ctrl_c_outside_of_training_always_stops_the_experiment(
    finished_run: tuple[ExperimentSettings, str], make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python ignores an exception in a callback of a weak reference, so Ctrl-C must not raise one there."""
    finished, _ = finished_run
    settings = make(shutil.copytree(finished.work, tmp_path / "work", symlinks=True), seeds=4)
    score, scored = task_trials.evaluate_examples, []

    class Owner:
        pass

    def interrupt(*arguments: Any) -> Any:
        owner = Owner()
        reference = weakref.ref(owner, lambda _: os.kill(os.getpid(), signal.SIGINT))
        del owner
        scored.append(reference)
        return score(*arguments)

    monkeypatch.setattr(task_trials, "evaluate_examples", interrupt)
    with pytest.raises(KeyboardInterrupt, match="runs are finished; the same command resumes"):
        experiment(settings, SILENT)
    assert len(scored) == 1


def check_started_once(settings: ExperimentSettings) -> None:
    """Assert that each fine-tuning of an experiment was started once."""
    for job in plan_of(settings).ordered:
        if isinstance(job, Finetune):
            log = (Runner(settings.work.resolve()).folder(job) / "log.txt").read_text()
            assert log.count("Scores after step") == 1


@pytest.mark.slow
def test_two_processes_share_the_jobs(finished_run: tuple[ExperimentSettings, str], make: Make, tmp_path: Path) -> None:
    unbroken, _ = finished_run
    settings = make(tmp_path / "work", seeds=1, tasks=("sst2",))
    copy_results(unbroken, settings, lambda job: isinstance(job, Finetune) and "LTR" in job.name)
    processes = [start_process(experiment, settings) for _ in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert results(settings).items() <= results(unbroken).items()
    check_started_once(settings)


@pytest.mark.slow
def test_the_processes_of_torchrun_share_the_jobs(
    finished_run: tuple[ExperimentSettings, str], make: Make, tmp_path: Path
) -> None:
    unbroken, _ = finished_run
    settings = make(tmp_path / "work", seeds=1, tasks=("sst2",))
    copy_results(unbroken, settings, is_pretraining("mlm"))
    printed = "".join(run_on_ranks(2, run_and_capture, experiment, settings).values())
    assert results(settings).items() <= results(unbroken).items()
    assert printed.count("Table 5: pre-training objectives: 26 runs") == 1
    assert printed.count("report.json") == 1
    check_started_once(settings)


def test_what_a_killed_process_left_is_deleted(finished_run: tuple[ExperimentSettings, str], tmp_path: Path) -> None:
    settings, _ = finished_run
    work = Runner(shutil.copytree(settings.work, tmp_path / "work"))
    job = next(one for one in plan_of(settings).ordered if isinstance(one, Finetune))
    left = work.run_folder(job) / ".model.part-1-1"
    left.mkdir()
    run_experiment(replace(settings, work=work.path))
    assert not left.exists()


def test_finished_jobs_keep_scores_of_the_last_step_but_no_fine_tuned_weights(
    finished_run: tuple[ExperimentSettings, str],
) -> None:
    settings, _ = finished_run
    runner = Runner(settings.work.resolve())
    for job in all_trials(plan_of(settings).ordered):
        run = runner.run_folder(job)
        assert bool([*run.rglob("*.safetensors")]) == isinstance(job, Pretrain | Compose | InitialModel)
        if isinstance(job, Finetune):
            report, result = read_json(run / "report.json"), runner.result(job)
            assert report["best_step"] == report["steps"]
            assert result is not None
            assert result.scores["dev"] == report["scores"]["dev"][report["metric"]]
            assert result.environment["dtype"] == "float32"
