"""The journal: no step twice, no torn line read, a plot to look at."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bertwright.training.metrics_log import MetricLogger, plot_metrics, read_metrics


def test_a_resumed_run_forgets_what_lies_beyond_its_checkpoint(tmp_path: Path) -> None:
    journal = MetricLogger(tmp_path, 0)
    for step in (10, 20, 30):
        journal.write("train", step, {"mlm_loss": 10.0 - step})
    journal.write("held_out", 20, {"mlm_loss": 9.0})
    journal.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # a kill in the middle of a line
    resumed = MetricLogger(tmp_path, 20)
    assert resumed.evaluations == {20: {"kind": "held_out", "step": 20, "mlm_loss": 9.0}}
    resumed.write("train", 30, {"mlm_loss": -1.0})
    resumed.close()
    assert [(record["kind"], record["step"]) for record in read_metrics(tmp_path)] == [
        ("train", 10),
        ("train", 20),
        ("held_out", 20),
        ("train", 30),
    ]
    assert read_metrics(tmp_path)[-1]["mlm_loss"] == -1.0


def test_tensorboard_shows_every_step_once(tmp_path: Path) -> None:
    for first, steps in ((0, (10, 20, 30)), (20, (30, 40))):  # killed after step 30, gone on with after 20
        journal = MetricLogger(tmp_path, first)
        for step in steps:
            journal.write("train", step, {"loss": step + first / 100})
        journal.close()
    shown = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Scalars("train/loss")
    assert [(event.step, round(event.value, 3)) for event in shown] == [(10, 10.0), (20, 20.0), (30, 30.2), (40, 40.2)]


@pytest.mark.parametrize("file", ["metrics.jsonl", "tensorboard"])
def test_a_full_disk_is_named_with_the_file(tmp_path: Path, file: str, capfd: pytest.CaptureFixture[str]) -> None:
    journal = MetricLogger(tmp_path, 0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    written = (tmp_path / "metrics.jsonl") if file == "metrics.jsonl" else next((tmp_path / "tensorboard").iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (written.stat().st_size, before[1]))  # as a full disk would be
    try:
        with pytest.raises(OSError, match="File too large") as failure:
            journal.write("train", 1, {"loss": 1.0}) if file == "metrics.jsonl" else journal.board.write({"a": 1.0}, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert failure.value.filename == str(written)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("line", [b'{"step": 1, "kind"', b"[1]", b'{"step": 1}', b"\xff", b"7"])
def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(line + b'\n{"step": 2, "kind": "train"}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 1: not a record of a run"):
        read_metrics(tmp_path)


@pytest.mark.parametrize("name", ["run", "R$_$", r"R$\a$"])  # the last two are no formulas that could be typeset
def test_the_plot_is_a_png(tmp_path: Path, name: str) -> None:
    run = tmp_path / name
    run.mkdir()
    journal = MetricLogger(run, 0)
    journal.write("train", 1, {"mlm_loss": 2.0, "nsp_accuracy": 0.5})
    journal.write("held_out", 1, {"mlm_loss": 2.5, "nsp_accuracy": 0.5})
    journal.close()
    plot_metrics(run, run / "loss.png", (("mlm_loss", "loss"), ("nsp_accuracy", "accuracy")))
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
