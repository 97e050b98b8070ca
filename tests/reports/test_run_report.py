"""`bertwright report`, as a user types it: one file without scripts, with what the runs have left."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from bertwright.base.files import read_json
from bertwright.cli.main import run as run_command
from bertwright.finetuning.run import finetune
from bertwright.pretraining.run import pretrain
from bertwright.reports.page import make_chart
from bertwright.tasks.presets import TaskSettings
from bertwright.training import run_folder
from helpers import CPU

CELLS = [("bear", "bad", "mail"), ("duck", "good", "mail"), ("wolf", "bad", "web"), ("seal", "good", "web")]
HOSTILE = "<script>alert(1)</script> <img src=http://evil.example/x.png> \x1b[31m"


class Page(HTMLParser):
    """The elements of a page, its text, and the addresses that a browser would load."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "data", "srcset")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, make_tuning: Callable[..., Any], review_files: Path) -> list[Path]:
    """Two seeds of one recipe and one of another, on a dev file with a hostile text."""
    folder = tmp_path_factory.mktemp("runs")
    rows = (review_files / "dev.tsv").read_text().splitlines()
    (folder / "dev.tsv").write_text("\n".join([*rows[:40], f"{HOSTILE}\tbad", f"{HOSTILE}\tgood"]) + "\n")
    task = TaskSettings("classification", train=(str(review_files / "train.tsv"),), dev=(str(folder / "dev.tsv"),))
    for seed, epochs in ((0, 1.0), (1, 1.0), (0, 2.0)):
        finetune(make_tuning(folder / f"{seed}-{epochs:g}", task=task, seed=seed, epochs=epochs))
    return [folder / name for name in ("0-1", "1-1", "0-2")]


def report(output: Path, *runs: Path) -> Page:
    assert run_command(["report", *map(str, runs), "--output", str(output), "--device", "cpu", "--threads", "1"]) == 0
    return Page(output)


def test_report_of_a_run_shows_scores_errors_time_and_settings(tmp_path: Path, runs: list[Path]) -> None:
    page = report(tmp_path / "report.html", runs[0])
    assert (tmp_path / "report.html").stat().st_size < 2_000_000
    assert {"script", "img", "link", "iframe"} & {*page.tags} == set()
    assert page.addresses == []
    assert HOSTILE.replace("\x1b", "\\x1b") in page.text  # among the errors: one of its two labels is wrong
    assert page.tags.count("svg") == 5  # loss, accuracy, learning rate, gradient norm, calibration
    for heading in ("Where the time went", "On dev", "Calibration", "Worst of", "Training labels", "Settings", "Data"):
        assert heading in page.text
    assert read_origins(tmp_path / "report.html")["epochs"] == "stated"


def read_origins(page: Path) -> dict[str, str]:
    """Return the origin of each setting on a page."""
    row = r"<tr><td[^>]*>([\w.]+)</td><td[^>]*>[^<]*</td><td[^>]*>([^<]+)</td></tr>"
    return dict(re.findall(row, page.read_text(encoding="utf-8")))


def test_report_says_where_each_setting_is_from(
    tmp_path: Path, tiny_bert: Path, review_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.toml").write_text(
        "epochs = 0.2\nlog_every = 4\nkeep_checkpoints = true\n[tuning]\nhead_init = 'random'\n"
    )
    files = [f"--{split}={review_files / f'{split}.tsv'}" for split in ("train", "dev")]
    command = ["finetune", "--config", str(tmp_path / "short.toml"), "--run", str(tmp_path / "run"), "--log-every", "2"]
    command += ["--task", "classification", *files, "--model", str(tiny_bert), "--device", "cpu", "--threads", "1"]
    assert run_command(command) == 0
    shutil.rmtree(tmp_path / "run" / "model")  # as if the run was not finished
    assert run_command(["finetune", "--run", str(tmp_path / "run"), "--resume", "--no-keep-checkpoints"]) == 0
    report(tmp_path / "report.html", tmp_path / "run")
    origins = read_origins(tmp_path / "report.html")
    expected = {
        "epochs": f"--config {tmp_path / 'short.toml'}",
        "tuning.head_init": f"--config {tmp_path / 'short.toml'}",
        "log_every": "flag",
        "task.train": "flag",
        "keep_checkpoints": "flag",  # of the command that resumed the run
        "optimizer.learning_rate": "by model",  # whose states are narrow
        "optimizer.weight_decay": "default",
    }
    assert {name: origins[name] for name in expected} == expected
    (tmp_path / "run" / "origins.json").write_text("[]")
    assert run_command(["report", str(tmp_path / "run"), "--output", str(tmp_path / "again.html"), "--no-errors"]) == 2
    assert f"{tmp_path / 'run' / 'origins.json'}: expected an object" in capsys.readouterr().err


def test_report_of_a_grid_shows_its_table_and_the_errors_of_the_chosen_model(
    tmp_path: Path, tiny_bert: Path, review_files: Path
) -> None:
    files = [f"--{split}={review_files / f'{split}.tsv'}" for split in ("train", "dev")]
    command = ["grid", "--run", str(tmp_path / "grid"), "--task", "classification", *files, "--model", str(tiny_bert)]
    command += ["--learning-rates", "1e-4", "3e-3", "--batch-sizes", "16", "--epochs", "1", "--seeds", "2"]
    assert run_command([*command, "--limit", "60", "--device", "cpu", "--threads", "1"]) == 0
    page = report(tmp_path / "report.html", tmp_path / "grid")
    for cell in read_json(tmp_path / "grid" / "report.json")["cells"]:
        assert cell["row"] in page.text
    assert "Worst of" in page.text
    origins = read_origins(tmp_path / "report.html")
    assert (origins["learning_rates"], origins["optimizer.beta1"]) == ("flag", "default")
    inner = [*tmp_path.glob("grid/runs/*/run/settings.toml")]
    assert inner
    assert not [path for path in inner if (path.parent / "origins.json").exists()]  # they have no options


def test_a_folder_is_no_run_before_the_origins_of_its_settings_are_written(
    tmp_path: Path, tiny_bert: Path, review_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [f"--{split}={review_files / f'{split}.tsv'}" for split in ("train", "dev")]
    command = ["finetune", "--run", str(tmp_path / "run"), "--task", "classification", *files, "--epochs", "0.1"]
    command += ["--model", str(tiny_bert), "--device", "cpu", "--threads", "1", "--no-linear-floor"]
    real = run_folder.write_json

    def fail_at_origins(path: Path, content: Any) -> None:
        if path.name == "origins.json":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_json", fail_at_origins)
        assert run_command(command) == 1
    assert not (tmp_path / "run" / "settings.toml").exists()
    assert run_command(command) == 0  # so that the same command starts it
    assert read_json(tmp_path / "run" / "origins.json")["epochs"] == "flag"


@pytest.mark.parametrize("places", [["forest"], ["forest", "river"]])
def test_report_has_each_decision_from_scores(
    tmp_path: Path, make_tuning: Callable[..., Any], places: list[str]
) -> None:
    rows = [f"the {noun} in the {place}\t{label}\t{source}" for place in places for noun, label, source in CELLS * 4]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("\n".join(["text\tlabel\tsource", *rows]) + "\n")
    files = {split: (str(tmp_path / f"{split}.tsv"),) for split in ("train", "dev")}
    finetune(make_tuning(tmp_path / "run", task=TaskSettings("classification", **files), epochs=1.0))
    command = ["report", str(tmp_path / "run"), "--device", "cpu", "--costs", "1", "10", "--slices", "length", "label"]
    assert run_command([*command, "source", "--output", str(tmp_path / "page.html")]) == 0
    text = Page(tmp_path / "page.html").text
    for part in ("calibration error", "costs 1 and 10", "label at least as probable as"):
        assert part in text
    for part in ("by length", "by label", "by source"):
        assert part in text
    assert ("Training labels" in text) == (len(places) > 1)  # four different texts are too few to find wrong labels
    assert run_command([*command, "nothing", "--output", str(tmp_path / "none.html")]) == 2
    assert not (tmp_path / "none.html").exists()


def test_parts_of_the_time_add_up_to_the_whole(runs: list[Path]) -> None:
    written = read_json(runs[0] / "report.json")
    parts = written["seconds_by_part"]
    assert {"read", "forward", "backward", "optimizer", "wait", "checkpoint", "evaluation"} <= parts.keys()
    assert sum(parts.values()) == pytest.approx(written["seconds_of_this_process"], rel=0.03)


def test_report_of_several_runs_compares_recipes_over_their_seeds(tmp_path: Path, runs: list[Path]) -> None:
    text = report(tmp_path / "report.html", *runs).text
    assert "epochs 1" in text
    assert re.search(r"epochs 2 minus epochs 1, on dev: [-+]\d+\.\d\d, 95 % interval", text)
    assert "±" in text


def test_report_without_the_dev_file_says_so(tmp_path: Path, runs: list[Path]) -> None:
    shutil.copytree(runs[0], tmp_path / "run")
    settings = tmp_path / "run" / "settings.toml"
    settings.write_text(settings.read_text().replace(str(runs[0].parent / "dev.tsv"), str(tmp_path / "gone.tsv")))
    page = report(tmp_path / "report.html", tmp_path / "run")
    assert "No errors are shown" in page.text
    assert "Worst of" not in page.text


def test_report_of_a_pretraining_shows_its_loss(tmp_path: Path, make_settings: Callable[..., Any]) -> None:
    pretrain(make_settings(tmp_path / "run", steps=4, eval_every=2))
    page = report(tmp_path / "report.html", tmp_path / "run")
    assert "held-out" in page.text
    assert page.tags.count("svg") == 3
    assert "Worst of" not in page.text


def test_report_rejects_folders_that_are_no_runs_and_replaces_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["report", str(tmp_path), "--output", str(tmp_path / "a.html"), "--device", CPU.device]) == 2
    assert f"{tmp_path}: expected a run folder" in capsys.readouterr().err
    (tmp_path / "b.html").write_text("mine")
    assert run_command(["report", str(tmp_path), "--output", str(tmp_path / "b.html")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["b.html"]


@pytest.mark.parametrize(
    "values",
    [
        {"scores": 5},
        {"scores": {"dev": 0.5}},
        {"linear_floor": []},
        {"linear_floor": {"word counts": {"dev": 1}}},
        {"held_out_after": 2.5},
        {"seconds_by_part": 3},
        {"cells": {}},
        {"cells": [{"row": "a"}]},
        [],
    ],
    ids=str,
)
def test_report_names_a_damaged_file(tmp_path: Path, values: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "settings.toml").write_text('run = "a"\n')
    (tmp_path / "report.json").write_text(json.dumps(values))
    assert run_command(["report", str(tmp_path), "--output", str(tmp_path / "page.html")]) == 2
    assert f"{tmp_path / 'report.json'}: " in capsys.readouterr().err


def test_report_names_damaged_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "settings.toml").write_text("task = 3\n")
    assert run_command(["report", str(tmp_path), "--output", str(tmp_path / "page.html")]) == 2
    assert f"{tmp_path / 'settings.toml'}: expected a table as task, got 3" in capsys.readouterr().err


def write_run(folder: Path, settings: str, *losses: float) -> Path:
    """Write what `report` reads of a run of pre-training whose held-out losses are these."""
    folder.mkdir()
    (folder / "settings.toml").write_text(settings)
    records = [{"kind": "held_out", "step": step, "loss": loss} for step, loss in enumerate(losses, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "report.json").write_text(json.dumps({"held_out_after": records[-1], "scores": {"dev": {"loss": 2.5}}}))
    return folder


def test_report_leaves_out_points_that_are_no_numbers_and_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "steps = 9\n", 3.0, float("nan"), 2.5, float("inf"), -float("inf"), 2.0)
    text = report(tmp_path / "report.html", run).text
    assert "loss by step (3 points left out: infinite or not a number)" in text
    others = write_run(tmp_path / "diverged", "steps = 9\n", float("nan"))
    assert "(1 points left out" in report(tmp_path / "other.html", others).text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, -1e308])
def test_chart_draws_the_other_points(value: float) -> None:
    page = make_chart("loss", {"a": [(1, 2.0), (2, value), (value, 1.0)], "b": [(1, value)]})
    assert "loss (3 points left out: infinite or not a number)" in page
    assert page.count("<circle") == 1
    assert "nan" not in page.replace("not a number", "")


def test_report_names_recipes_that_differ_in_late_digits(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"{n}", f"rate = {rate}\n", 2.0) for n, rate in enumerate((0.123451, 0.123452))]
    text = report(tmp_path / "report.html", *runs).text
    assert "rate 0.123452 minus rate 0.123451, on dev" in text
