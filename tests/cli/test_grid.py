"""Grids: each run equals that of `finetune`, dev selects, and an interrupted grid loses nothing."""

from __future__ import annotations

import io
import os
import shutil
import signal
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bertwright.base.files import read_json, remove_folder, write_json
from bertwright.base.settings import from_table, read_toml, write_settings
from bertwright.cli.render.terminal import TerminalReporter
from bertwright.finetuning import finetune_cost
from bertwright.finetuning.run import FinetuneRun, finetune
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings
from bertwright.interop.model_files import model_folder
from bertwright.tasks.presets import TaskSettings
from bertwright.training.loop import DivergedError
from bertwright.training.optimizer import Optimizer, OptimizerSettings
from bertwright.training.run_folder import read_run_settings
from bertwright.trials import grid as grids
from bertwright.trials import runner, task_trials
from bertwright.trials.grid import GridRun, Outcome, best_seed, grid, live_candidates, rank_rows
from bertwright.trials.grid_settings import GridSettings
from harness import read_weight_file, run_and_capture, same_weights
from helpers import CPU

Make = Callable[..., GridSettings]


@pytest.fixture(scope="module")
def make(tiny_bert: Path, review_files: Path) -> Make:
    """Return a function from changed fields to the settings of a grid of four short runs on the reviews."""

    def make_settings(run: Path, **changes: Any) -> GridSettings:
        files = {split: (str(review_files / f"{split}.tsv"),) for split in ("train", "dev", "test")}
        fields: dict[str, Any] = {
            "run": run,
            "task": TaskSettings("classification", **files),
            "model": str(tiny_bert),
            "learning_rates": (1e-4, 3e-3),
            "batch_sizes": (16,),
            "epochs": (4.0,),
            "seeds": 2,
            "device": CPU,
        }
        return GridSettings(**(fields | changes))

    return make_settings


run_grid = partial(run_and_capture, grid)


@pytest.mark.parametrize(("hidden_size", "rates"), [
    (768, (5e-5, 4e-5, 3e-5, 2e-5)),
    (384, (2e-4, 1.6e-4, 1.2e-4, 8e-5)),  # the third is the default of finetune
    (128, (5e-4, 4e-4, 3e-4, 2e-4)),  # whose default has a limit, 3e-4
])  # fmt: skip
def test_a_narrower_encoder_has_higher_rates_to_try(hidden_size: int, rates: tuple[float, ...], tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "bert", "hidden_size": hidden_size})
    table = {"model": str(tmp_path), "run": "run", "task": {"task": "mrpc", "data": "MRPC"}}
    assert from_table(GridSettings, table, "table").learning_rates == rates


@pytest.fixture(scope="module")
def finished_grid(make: Make, tmp_path_factory: pytest.TempPathFactory) -> tuple[GridSettings, str]:
    """Return an uninterrupted grid and its output."""
    settings = make(tmp_path_factory.mktemp("grid") / "run")
    return settings, run_grid(settings)


def read_rows(settings: GridSettings) -> list[dict[str, Any]]:
    """Return the results of the finished runs with their names, in the order of the runs."""
    paths = [settings.run / "runs" / point.name / "result.json" for point in settings.points()]
    untimed = ("name", "scores", "failure")
    return [{name: read_json(path)[name] for name in untimed} for path in paths if path.is_file()]


# Results


def test_table_and_report_agree_with_the_runs(finished_grid: tuple[GridSettings, str]) -> None:
    settings, printed = finished_grid
    names = [f"lr{rate}-bs16-ep4-seed{seed}" for rate in ("0.0001", "0.003") for seed in (0, 1)]
    assert [row["name"] for row in read_rows(settings)] == names
    reported = {name: read_json(settings.run / "runs" / name / "run" / "report.json")["scores"] for name in names}
    assert {row["name"]: row["scores"]["dev"] for row in read_rows(settings)} == {
        name: scores["dev"]["accuracy"] for name, scores in reported.items()
    }
    report = read_json(settings.run / "report.json")
    cells = {(cell["row"], cell["column"]): cell for cell in report["cells"]}
    rows = ["lr0.003-bs16-ep4", "lr0.0001-bs16-ep4"]
    for row, of_it in zip(rows, (names[2:], names[:2]), strict=True):
        scores = [reported[name]["dev"]["accuracy"] for name in of_it]
        cell = cells[row, "dev"]
        assert cell["mean"] == pytest.approx(statistics.mean(scores))
        assert cell["std"] == pytest.approx(statistics.stdev(scores))
        assert (cell["min"], cell["max"]) == (min(scores), max(scores))
        shown = f"{100 * statistics.mean(scores):.1f} ± {100 * statistics.stdev(scores):.1f} (2)"
        line = next(line for line in printed.splitlines() if shown in line)
        assert row in line
        assert line.split()[-1] == "4"  # evaluations of which the best counts
        assert report["details"]["best of"][row] == "4"
    assert printed.index(f" {rows[0]} ") < printed.index(f" {rows[1]} ")
    floor = cells["linear model", "dev"]
    assert floor["scores"] == [read_json(settings.run / "runs" / "linear-model-floor" / "result.json")["scores"]["dev"]]
    assert f"{100 * floor['mean']:.1f} (1)" in next(line for line in printed.splitlines() if "linear model" in line)
    best = max(names[2:], key=lambda name: reported[name]["dev"]["accuracy"])
    assert report["chosen"]["run"] == best
    tests = [reported[name]["test"]["accuracy"] for name in names[2:]]
    assert report["test"]["accuracy"]["mean"] == pytest.approx(statistics.mean(tests))
    assert f"Chosen: {best}, the best of 4 evaluations on dev" in printed
    assert f"test accuracy over the setting's seeds: {100 * statistics.mean(tests):.1f} ± " in printed


def test_chosen_model_equals_that_of_finetune(tmp_path: Path, finished_grid: tuple[GridSettings, str]) -> None:
    settings, _ = finished_grid
    chosen = read_json(settings.run / "report.json")["chosen"]
    (trial,) = [trial for trial in settings.points() if trial.name == chosen["run"]]
    alone = finetune(
        replace(settings.finetune_settings(trial), run=tmp_path / "alone"),
        TerminalReporter(Console(file=io.StringIO())),
    )
    assert same_weights(alone, settings.run / "model")
    assert (alone / "task.json").read_bytes() == (settings.run / "model" / "task.json").read_bytes()


def test_only_the_chosen_weights_and_all_metrics_remain(finished_grid: tuple[GridSettings, str]) -> None:
    settings, _ = finished_grid
    assert [path.parent for path in settings.run.rglob("*.safetensors")] == [settings.run / "model"]
    for trial in settings.points():
        names = {path.name for path in (settings.run / "runs" / trial.name).iterdir()}
        assert {"log.txt", "result.json", "run"} <= names
        in_run = {path.name for path in (settings.run / "runs" / trial.name / "run").iterdir()}
        assert {"settings.toml", "metrics.jsonl", "report.json"} <= in_run


def test_summary_of_the_data_is_printed_once(finished_grid: tuple[GridSettings, str]) -> None:
    settings, printed = finished_grid
    assert printed.count("320 examples") == 1
    assert "320 steps in total" in printed  # four runs of four epochs, each of 320 / 16 steps
    assert all(f"{number} of 4  {trial.name}" in printed for number, trial in enumerate(settings.points(), 1))
    log = (settings.run / "runs" / settings.points()[0].name / "log.txt").read_text()
    assert "320 examples" in log
    assert "dev after step 20" in log


def test_resumed_finished_grid_prints_its_table_again(
    finished_grid: tuple[GridSettings, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, printed = finished_grid
    monkeypatch.setattr(task_trials, "finetune", lambda *_: pytest.fail("run again"))
    before = read_weight_file(settings.run / "model")
    again = run_grid(replace(settings, resume=True))
    assert "all 4 runs are finished" in again
    assert again.endswith(printed[printed.index("accuracy, of each run") :])
    assert read_weight_file(settings.run / "model") == before
    assert read_run_settings(GridSettings, settings.run) == replace(settings, resume=True)


# Interrupted and resumed


def test_ctrl_c_during_a_run_loses_nothing(
    tmp_path: Path, make: Make, finished_grid: tuple[GridSettings, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make(tmp_path / "run", learning_rates=(3e-3,))
    begun: list[str] = []

    def interrupt_second(tuning: Any, reporter: TerminalReporter) -> Path:
        begun.append(tuning.run.parent.name)
        if len(begun) == 2:
            step = Optimizer.step

            def with_signal(optimizer: Optimizer, learning_rate: float, norm: float) -> None:
                if optimizer.steps == 3:  # the current step is the fourth of eighty
                    os.kill(os.getpid(), signal.SIGINT)
                step(optimizer, learning_rate, norm)

            with monkeypatch.context() as patch:
                patch.setattr(Optimizer, "step", with_signal)
                return finetune(tuning, reporter)
        return finetune(tuning, reporter)

    monkeypatch.setattr(task_trials, "finetune", interrupt_second)
    with pytest.raises(
        KeyboardInterrupt, match=r"1 of 2 runs are finished; resume with: bertwright grid --run .* --resume"
    ):
        run_grid(settings)
    stopped = settings.run / "runs" / begun[1] / "run"
    assert [path.name for path in (stopped / "checkpoints").glob("step-*")] == ["step-00000004"]
    assert not (settings.run / "model").exists()

    run_grid(read_run_settings(GridSettings, settings.run))
    whole, _ = finished_grid
    first, second = (trial.name for trial in settings.points())
    assert begun == [first, second, second]
    assert read_rows(settings) == read_rows(whole)[2:]
    assert same_weights(settings.run / "model", whole.run / "model")


def test_kill_between_a_run_and_its_record_repeats_nothing(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make(tmp_path / "run", learning_rates=(1e-3,), epochs=(0.2,), seeds=1, linear_floor=False)

    def die(*_: Any) -> None:
        raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr(runner, "write_json", die)
        with pytest.raises(SystemExit):
            run_grid(settings)
    before = read_weight_file(settings.run / "runs" / settings.points()[0].name / "run" / "model")
    monkeypatch.setattr(FinetuneRun, "make_report", lambda *_: pytest.fail("run again"))
    run_grid(replace(settings, resume=True))
    assert read_weight_file(settings.run / "model") == before
    assert len(read_rows(settings)) == 1


def test_resumed_grid_with_other_settings_or_files_is_rejected(tmp_path: Path, make: Make) -> None:
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "the bear\tbad\nthe seal\tgood\n" * 8)
    task = TaskSettings("classification", train=(str(tmp_path / "train.tsv"),))
    one = {"task": task, "tuning": TuningSettings(validation_fraction=0.25), "epochs": (1.0,), "seeds": 1}
    settings = make(tmp_path / "run", **one)
    run_grid(settings)
    with pytest.raises(ValueError, match="already holds a run; resume it with --resume"):
        run_grid(settings)
    with pytest.raises(ValueError, match=r"seeds was 1, now 2"):
        run_grid(replace(settings, seeds=2, resume=True))

    first, second = (settings.run / "runs" / point.name for point in settings.points())
    (second / "result.json").unlink()  # as if the second run were not finished
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "the bear\tgood\nthe seal\tbad\n" * 8)
    with pytest.raises(ValueError, match=r"train\.tsv: changed since the run started"):
        run_grid(replace(settings, resume=True))
    remove_folder(second)  # a run that has not started has no digests of its own
    with pytest.raises(ValueError, match=r"train\.tsv: changed since the run started"):
        run_grid(replace(settings, resume=True))
    (first / "result.json").write_text("{}")
    with pytest.raises(ValueError, match=r"seed0/result\.json: damaged; delete"):
        run_grid(replace(settings, resume=True))


def test_a_grid_of_an_earlier_version_is_refused(tmp_path: Path, make: Make) -> None:
    settings = make(tmp_path / "run")
    write_settings(settings.run / "settings.toml", settings, "bertwright grid")
    (settings.run / "results.jsonl").touch()
    with pytest.raises(ValueError, match=r"results\.jsonl: .*earlier version; .*--run"):
        run_grid(replace(settings, resume=True))


def test_grid_with_changed_initial_weights_is_rejected(tmp_path: Path, tiny_bert: Path, make: Make) -> None:
    shutil.copytree(tiny_bert, tmp_path / "bert")
    settings = make(tmp_path / "run", model=str(tmp_path / "bert"), epochs=(0.2,), seeds=1)
    run_grid(settings)
    (settings.run / "runs" / settings.points()[1].name / "result.json").unlink()  # as if it were not finished
    (tmp_path / "bert/checksums.json").unlink()
    content = (tmp_path / "bert/model.safetensors").read_bytes()
    (tmp_path / "bert/model.safetensors").write_bytes(content[:-4] + b"\0\0\0\0")
    with pytest.raises(ValueError, match="the initial weights: changed since the run started"):
        run_grid(replace(settings, resume=True))


def test_settings_changed_on_resume_are_saved(tmp_path: Path, make: Make) -> None:
    settings = make(tmp_path / "run", learning_rates=(1e-3,), epochs=(0.2,), seeds=1)
    run_grid(settings)
    run_grid(replace(settings, keep_all=True, resume=True))
    written = from_table(GridSettings, read_toml(settings.run / "settings.toml"), "there")
    assert written == replace(settings, keep_all=True)


def test_tags_without_spans_are_selected_by_accuracy(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "pos.conll"
    path.write_text("the DT\nbear NN\n\nwolf NN\nsees VB\n")
    task = TaskSettings("tagging", train=(str(path),), dev=(str(path),))  # whose metric is f1 until it has seen them
    settings = make(tmp_path / "run", task=task, learning_rates=(1e-3,), epochs=(1.0,))
    run_grid(settings)
    report = read_json(settings.run / "report.json")
    assert report["metric"] == "accuracy"
    assert model_folder(settings.run) == settings.run / "model"


# Failures


def test_diverged_run_is_recorded_and_the_grid_continues(tmp_path: Path, make: Make) -> None:
    settings = make(tmp_path / "run", learning_rates=(1e30, 1e-3), epochs=(0.5,), seeds=1, keep_all=True)
    printed = run_grid(settings)
    failed, ended = read_rows(settings)
    assert "not finite" in failed["failure"]
    assert failed["scores"] == {}
    assert "1 of 2 runs diverged" in printed
    report = read_json(settings.run / "report.json")
    assert report["chosen"]["run"] == ended["name"]
    assert {cell["row"] for cell in report["cells"]} == {"lr0.001-bs16-ep0.5", "linear model"}
    assert report["without_results"] == [{"row": "lr1e+30-bs16-ep0.5", "column": "dev", "diverged": 1}]
    chosen = settings.run / "runs" / ended["name"] / "run"
    assert same_weights(chosen / "model", settings.run / "model")
    assert list((chosen / "checkpoints").glob("step-*"))  # keep_all


def test_grid_whose_runs_all_diverge_fails(tmp_path: Path, make: Make) -> None:
    settings = make(tmp_path / "run", learning_rates=(1e30,), epochs=(0.5,), seeds=1)
    with pytest.raises(DivergedError, match="all runs diverged; the first one: step"):
        run_grid(settings)
    assert not (settings.run / "model").exists()


# Estimate


def test_dry_run_prints_the_estimate_and_writes_nothing(tmp_path: Path, make: Make) -> None:
    settings = make(tmp_path / "run", batch_sizes=(16, 32), epochs=(1.0, 2.0), seeds=3, dry_run=True)
    printed = run_grid(settings)
    assert not list(tmp_path.iterdir())
    assert "Grid of 24 runs" in printed
    assert "24, 540 steps in total" in printed  # 2 rates × 3 seeds × (20 + 40 + 10 + 20) steps
    assert "estimated time" in printed
    with pytest.raises(ValueError, match=r"no model given"):
        run_grid(replace(settings, model=None))


def test_estimate_counts_steps_evaluations_and_openings(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter([16.0, 32.0])  # per step of each batch size, which is timed once
    monkeypatch.setattr(finetune_cost, "time_steps", lambda *_: next(seconds))
    monkeypatch.setattr(
        finetune_cost, "time_evaluation", lambda _, split: {"dev": 1_000.0, "test": 100_000.0}[split.name]
    )
    settings = make(tmp_path / "run", batch_sizes=(16, 32), epochs=(1.5,))
    planned = GridRun(settings, TerminalReporter(Console(file=io.StringIO()))).trials
    plan = grids.estimate_cost(settings.run, planned, TerminalReporter(Console(file=io.StringIO())))
    # 30 steps of 16 seconds, 15 of 32; dev after an epoch and at the end; test once; 8 runs
    assert plan.steps == 4 * (30 + 15)
    assert plan.seconds == pytest.approx(4 * (30 * 16 + 15 * 32) + 8 * (2 * 1_000 + 100_000), abs=300)


# Selection, worked by hand


def test_setting_with_the_best_mean_is_first() -> None:
    runs = [Outcome("a", 0, 0.9), Outcome("a", 1, 0.5), Outcome("b", 0, 0.7), Outcome("b", 1, 0.8)]
    assert rank_rows(runs) == ["b", "a"]
    assert [best_seed(runs, row) for row in "ba"] == [1, 0]


def test_setting_with_a_failed_run_is_last() -> None:
    scores = {"a": (0.9, None), "b": (None, None), "c": (0.1, 0.1)}
    assert rank_rows([Outcome(row, seed, dev) for row, both in scores.items() for seed, dev in enumerate(both)]) == [
        "c", "a", "b"
    ]  # fmt: skip


def test_of_equal_settings_the_first_is_chosen() -> None:
    runs = [Outcome(row, seed, 0.5) for row in "ba" for seed in (0, 1)]
    assert rank_rows(runs) == ["b", "a"]
    assert best_seed(runs, "b") == 0


def test_live_candidates_are_the_runs_that_may_yet_be_chosen() -> None:
    scores = [("a", 0, 0.5), ("a", 1, 0.6), ("b", 0, 0.7), ("b", 1, 0.1), ("c", 0, 0.2)]
    runs = [Outcome(*score) for score in scores]
    assert [{f"{row}{seed}" for row, seed in live_candidates(runs[:n], 2)} for n in range(6)] == [
        set(),
        {"a0"},
        {"a1"},
        {"a1", "b0"},  # the second setting is incomplete, and may yet be the best
        {"a1"},  # its mean is 0.4
        {"a1", "c0"},
    ]


# Misuse


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rates": ()}, "learning_rates: expected one or more values"),
        ({"epochs": (3.0, 2.0, 3.0)}, "epochs: .*each only once, got 3 2 3"),
        ({"batch_sizes": (10**9,)}, "batch_size: expected 1 to 1,048,576, got 1000000000"),
        ({"seeds": 0}, "seeds: expected 1 to 1,000, got 0"),
        ({"seeds": 10**40}, f"seeds: expected 1 to 1,000, got {10**40}"),
        ({"optimizer": OptimizerSettings(learning_rate=1e-5)}, r"learning_rate = 1e-05: .*--learning-rates 1e-05"),
    ],
)
def test_impossible_settings_are_rejected(tmp_path: Path, make: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(tmp_path, **changes)


def test_grid_without_dev_split_is_rejected(tmp_path: Path, make: Make, review_files: Path) -> None:
    task = TaskSettings("classification", train=(str(review_files / "train.tsv"),))
    with pytest.raises(ValueError, match="no dev split"):
        run_grid(make(tmp_path / "run", task=task))
    assert not (tmp_path / "run").exists()


def test_grid_under_torchrun_is_rejected(tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="single process"):
        run_grid(make(tmp_path / "run"))


def test_an_unknown_setting_of_a_run_names_file_and_table(tmp_path: Path) -> None:
    settings = FinetuneSettings(tmp_path / "run", TaskSettings("sst2", train=("a.tsv",)), "model")
    write_settings(tmp_path / "run" / "settings.toml", settings, "bertwright finetune")
    path = tmp_path / "run" / "settings.toml"
    written = path.read_text()
    assert read_run_settings(FinetuneSettings, tmp_path / "run").optimizer == settings.optimizer
    path.write_text(written.replace("[optimizer]", '[optimizer]\nalgorithm = "muon"'))
    with pytest.raises(ValueError, match=r'settings\.toml: optimizer: unknown setting "algorithm"'):
        read_run_settings(FinetuneSettings, tmp_path / "run")
