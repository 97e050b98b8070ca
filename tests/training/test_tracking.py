"""Weights & Biases and MLflow get the records of metrics.jsonl, once each, and cannot end a training."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bertwright.base import optional
from bertwright.base.reporter import SILENT
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings, check_inputs
from bertwright.training import tracking
from bertwright.training.metrics_log import MetricLogger, read_metrics
from bertwright.training.tracking import MlflowTracker, WandbTracker


class StubTracker:
    """A tracker that notes its calls."""

    calls: list[Any]
    identifier = "run-1"

    def __init__(self, run: Path, identifier: str | None, settings: Mapping[str, Any]) -> None:
        self.calls.append((run.name, identifier, settings.get("optimizer.beta1")))

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.calls.append((step, dict(values)))

    def close(self, finished: bool) -> None:
        self.calls.append(finished)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(StubTracker, "calls", calls, raising=False)
    monkeypatch.setitem(tracking.TRACKERS, "wandb", StubTracker)
    return calls


def test_records_are_sent_once_also_after_a_resume(tmp_path: Path, calls: list[Any]) -> None:
    (tmp_path / "settings.toml").write_text("[optimizer]\nbeta1 = 0.9\n")
    log = MetricLogger(tmp_path, 0, track="wandb")
    log.write("train", 10, {"loss": 3.0})
    log.write("held_out", 10, {"loss": 2.5})
    log.write("train", 20, {"loss": 2.0})
    log.close(finished=False)
    sent = [(10, {"train/loss": 3.0}), (10, {"held_out/loss": 2.5}), (20, {"train/loss": 2.0})]
    assert calls == [(tmp_path.name, None, 0.9), *sent, False]
    calls.clear()
    log = MetricLogger(tmp_path, 10, track="wandb")  # step 20 is trained again and was sent before
    log.write("train", 20, {"loss": 2.0})
    log.write("held_out", 20, {"loss": 1.9})
    log.close()
    assert calls == [(tmp_path.name, "run-1", 0.9), (20, {"held_out/loss": 1.9}), True]


@pytest.mark.parametrize("method", ["__init__", "log", "close"])
def test_error_of_a_tracker_is_a_warning_and_training_goes_on(
    tmp_path: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(StubTracker, method, fail)
    with pytest.warns(UserWarning, match="^wandb: no route") as caught:  # noqa: PT031
        log = MetricLogger(tmp_path, 0, track="wandb")
        log.write("train", 10, {"loss": 3.0})
        log.write("train", 20, {"loss": 3.0})
        log.close()
    assert len(caught) == 1
    assert [record["step"] for record in read_metrics(tmp_path)] == [10, 20]


def test_missing_package_is_an_error_before_the_run(
    make_tuning: Callable[..., FinetuneSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optional, "is_installed", lambda name: False)
    with pytest.raises(ValueError, match=r"track = 'mlflow': .*'bertwright\[tracking\]'"):
        check_inputs(make_tuning(tmp_path / "run", track="mlflow"))
    check_inputs(make_tuning(tmp_path / "run"))


# The programs themselves.


@pytest.fixture
def mlflow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed (extra tracking)")
    before = mlflow.get_tracking_uri()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    yield mlflow.MlflowClient()
    mlflow.set_tracking_uri(before)


def test_mlflow_has_the_settings_and_every_record_of_a_run(
    mlflow_store: Any, make_tuning: Callable[..., FinetuneSettings], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    finetune(make_tuning(run, epochs=2.0, track="mlflow"), SILENT)
    identifier = json.loads((run / "tracking.json").read_text())["mlflow"]
    stored = mlflow_store.get_run(identifier)
    assert (stored.info.run_name, stored.info.status) == ("run", "FINISHED")
    assert stored.data.params["optimizer.learning_rate"] == "0.003"
    for kind, name in (("train", "loss"), ("dev", "accuracy")):
        expected = {record["step"]: record[name] for record in read_metrics(run) if record["kind"] == kind}
        history = mlflow_store.get_metric_history(identifier, f"{kind}/{name}")
        assert {point.step: point.value for point in history} == pytest.approx(expected)
    MlflowTracker(run, identifier, {}).log({"train/loss": 0.5}, 999)  # a resumed run
    assert mlflow_store.get_run(identifier).info.status == "RUNNING"
    assert mlflow_store.get_metric_history(identifier, "train/loss")[-1].step == 999


def test_wandb_writes_an_offline_run_into_the_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed (extra tracking)")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    tracker = WandbTracker(tmp_path, None, {"steps": 5})
    tracker.log({"train/loss": 3.0}, 10)
    tracker.close(finished=True)
    [written] = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"train/loss" in written.read_bytes()
    assert tracker.identifier in written.name
