"""Metrics of a run: each step once, damaged lines, TensorBoard, the plot."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bertwright.training.metrics_log import MetricLogger, PlotPanel, plot_metrics, read_metrics
from helpers import full_disk


def test_resumed_log_drops_records_after_the_checkpoint(tmp_path: Path) -> None:
    log = MetricLogger(tmp_path, 0)
    for step in (10, 20, 30):
        log.write("train", step, {"loss": 10.0 - step})
    log.write("held_out", 20, {"loss": 9.0})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # a kill in the middle of a line
    resumed = MetricLogger(tmp_path, 20)
    assert resumed.evaluations == {20: {"kind": "held_out", "step": 20, "loss": 9.0}}
    resumed.write("train", 30, {"loss": -1.0})
    resumed.close()
    assert [(record["kind"], record["step"]) for record in read_metrics(tmp_path)] == [
        ("train", 10),
        ("train", 20),
        ("held_out", 20),
        ("train", 30),
    ]
    assert read_metrics(tmp_path)[-1]["loss"] == -1.0


def test_tensorboard_shows_each_step_once(tmp_path: Path) -> None:
    for first, steps in ((0, (10, 20, 30)), (20, (30, 40))):  # killed after step 30, resumed after 20
        log = MetricLogger(tmp_path, first)
        for step in steps:
            log.write("train", step, {"loss": step + first / 100})
        log.close()
    shown = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("train/loss")
    assert [(event.step, round(event.value, 3)) for event in shown] == [(10, 10.0), (20, 20.0), (30, 30.2), (40, 40.2)]


@pytest.mark.parametrize("file", ["metrics.jsonl", "tensorboard"])
def test_full_disk_raises_an_error_with_the_file(tmp_path: Path, file: str, capfd: pytest.CaptureFixture[str]) -> None:
    log = MetricLogger(tmp_path, 0)
    written = (tmp_path / "metrics.jsonl") if file == "metrics.jsonl" else next((tmp_path / "tensorboard").iterdir())
    with full_disk(written.stat().st_size), pytest.raises(OSError, match="File too large") as failure:
        log.write("train", 1, {"loss": 1.0}) if file == "metrics.jsonl" else log.board.write({"a": 1.0}, 1)
    assert failure.value.filename == str(written)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["metrics.jsonl", "tensorboard"])
def test_log_that_is_a_link_is_refused_and_its_target_is_untouched(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "mine").mkdir()
    target = tmp_path / "mine" if name == "tensorboard" else tmp_path / "mine" / "data.jsonl"
    if name != "tensorboard":
        target.write_text("precious")
    (tmp_path / "run" / name).symlink_to(target)
    with pytest.raises(ValueError, match=rf"run/{name}: .*link to"):
        MetricLogger(tmp_path / "run", 0)
    assert [path.read_text() for path in (tmp_path / "mine").iterdir()] == ["precious"] * (name != "tensorboard")


@pytest.mark.parametrize("line", [b'{"step": 1, "kind"', b"[1]", b'{"step": 1}', b"\xff", b"7"])
def test_damaged_line_raises_an_error_with_its_number(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(line + b'\n{"step": 2, "kind": "train"}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 1: not a record"):
        read_metrics(tmp_path)


@pytest.mark.parametrize("name", ["run", "R$_$", r"R$\a$", "한글"])  # two are no formulas that could be typeset
def test_plot_is_a_png(tmp_path: Path, name: str) -> None:
    run = tmp_path / name
    run.mkdir()
    log = MetricLogger(run, 0)
    log.write("train", 1, {"loss": 2.0, "nsp_accuracy": 0.5})
    log.write("held_out", 1, {"loss": 2.5, "nsp_accuracy": 0.5})
    log.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_metrics(run, run / "loss.png", (PlotPanel("loss", "loss"), PlotPanel("nsp_accuracy", "accuracy")))
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_plot_shows_the_long_curve_the_marks_and_percent_but_no_short_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("bertwright.training.metrics_log.save_figure", lambda figure, _: drawn.append(figure))
    log = MetricLogger(tmp_path, 0)
    for step in (10, 20, 21, 31):
        log.write("train", step, {"loss": float(step)})
    log.write("held_out", 20, {"loss": 2.5, "accuracy": 0.25})
    log.write("held_out", 31, {"loss": 2.0, "long_loss": 3.0, "accuracy": 0.5})
    log.close()
    panels = (PlotPanel("loss", "loss"), PlotPanel("accuracy", "accuracy (%)", 100))
    plot_metrics(tmp_path, tmp_path / "loss.png", panels, {20: "length 128"})
    left, right = (
        {line.get_label(): [list(map(float, values)) for values in line.get_data()] for line in axes.lines}
        for axes in drawn[0].axes
    )
    assert left == {
        "train": [[10, 20, 31], [10, 20, 31]],
        "held out": [[20, 31], [2.5, 2]],
        "held out, long sequences": [[31], [3]],
        "length 128": [[20, 20], [0, 1]],
    }
    assert right["held out"] == [[20, 31], [25, 50]]


def test_records_of_an_earlier_version_have_todays_names_also_after_a_resume(tmp_path: Path) -> None:
    lines = ['{"kind": "train", "step": 1, "mlm_loss": 3.0}', '{"kind": "held_out", "step": 1, "long_mlm_loss": 2.5}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    expected = [{"kind": "train", "step": 1, "loss": 3.0}, {"kind": "held_out", "step": 1, "long_loss": 2.5}]
    assert read_metrics(tmp_path) == expected
    resumed = MetricLogger(tmp_path, first_step=1)
    resumed.write("train", 2, {"loss": 1.0})
    resumed.close()
    assert resumed.evaluations == {1: expected[1]}
    assert [*map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())][:2] == expected
