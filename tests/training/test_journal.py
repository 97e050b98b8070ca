"""The journal: no step twice, no torn line read, a plot to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertwright.training.journal import Journal, plot_metrics, read_metrics


def test_a_resumed_run_forgets_what_lies_beyond_its_checkpoint(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0)
    for step in (10, 20, 30):
        journal.write("train", step, {"mlm_loss": 10.0 - step})
    journal.write("held_out", 20, {"mlm_loss": 9.0})
    journal.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # a kill in the middle of a line
    resumed = Journal(tmp_path, 20)
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


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "kind"\n{"step": 2, "kind": "train"}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 1: not valid JSON"):
        read_metrics(tmp_path)


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0)
    journal.write("train", 1, {"mlm_loss": 2.0, "nsp_accuracy": 0.5})
    journal.write("held_out", 1, {"mlm_loss": 2.5, "nsp_accuracy": 0.5})
    journal.close()
    plot_metrics(tmp_path, tmp_path / "loss.png", (("mlm_loss", "loss"), ("nsp_accuracy", "accuracy")))
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
