"""Copies of each record of a run's metrics.jsonl: for TensorBoard, and for Weights & Biases or MLflow."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from bertwright.base.files import attach_filename, masked_crc32c, read_json, write_json
from bertwright.base.messages import first_line
from bertwright.base.optional import check_installed
from bertwright.base.settings import flatten, read_toml

TrackerName = Literal["wandb", "mlflow"]
TRACKING_FILE = "tracking.json"  # in the run folder: the tracker's id of the run, which a resumed run continues
PROJECT = "bertwright"  # unless WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME names another one
MAX_PARAMS = 100  # per request to MLflow


def check_tracker(name: TrackerName | None) -> None:
    """Raise ValueError if the tracker's package is not installed."""
    if name is not None:
        check_installed(name, "tracking", f"track = {name!r}")


class WandbTracker:
    """A run of Weights & Biases. WANDB_MODE=offline writes it into the run folder alone."""

    def __init__(self, run: Path, identifier: str | None, settings: Mapping[str, Any]) -> None:
        """Start a run, or continue the one with this identifier."""
        import wandb

        self.identifier = identifier or secrets.token_hex(8)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=run.name, id=self.identifier, resume="allow",
            dir=str(run), config=dict(settings),
        )  # fmt: skip

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def close(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


class MlflowTracker:
    """A run of MLflow, in the store that MLFLOW_TRACKING_URI names."""

    def __init__(self, run: Path, identifier: str | None, settings: Mapping[str, Any]) -> None:
        """Start a run, or continue the one with this identifier."""
        import mlflow
        from mlflow.entities import Metric, Param

        self.client, self.metric = mlflow.MlflowClient(), Metric
        if identifier is not None:
            self.identifier = identifier
            self.client.update_run(identifier, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self.client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self.client.create_experiment(name)
        self.identifier = self.client.create_run(experiment, run_name=run.name).info.run_id
        params = [Param(key, str(value)) for key, value in settings.items()]
        for start in range(0, len(params), MAX_PARAMS):
            self.client.log_batch(self.identifier, params=params[start : start + MAX_PARAMS])

    def log(self, values: Mapping[str, float], step: int) -> None:
        now = int(1000 * time.time())
        metrics = [self.metric(key, float(value), now, step) for key, value in values.items()]
        self.client.log_batch(self.identifier, metrics=metrics)

    def close(self, finished: bool) -> None:
        self.client.set_terminated(self.identifier, "FINISHED" if finished else "KILLED")


TRACKERS: dict[TrackerName, type[WandbTracker | MlflowTracker]] = {"wandb": WandbTracker, "mlflow": MlflowTracker}


class Tracking:
    """Forwards records to a tracker. After an error of the tracker it warns once and stops: training goes on."""

    def __init__(self, name: TrackerName | None, run: Path) -> None:
        """Start the tracker's run with the settings of settings.toml, or continue it; None: track nothing."""
        self.name, self.tracker = name, None
        if name is None:
            return
        with self._warn_of_errors():
            path, settings = run / TRACKING_FILE, run / "settings.toml"
            identifiers = read_json(path) if path.is_file() else {}
            table = dict(flatten(read_toml(settings))) if settings.is_file() else {}
            self.tracker = TRACKERS[name](run, identifiers.get(name), table)
            write_json(path, identifiers | {name: self.tracker.identifier})

    def log(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Forward a record: its metrics are named `kind/name`, as in TensorBoard."""
        if self.tracker is not None:
            with self._warn_of_errors():
                self.tracker.log({f"{kind}/{name}": value for name, value in values.items()}, step)

    def close(self, finished: bool) -> None:
        """End the tracker's run; `finished`: training has reached its last step."""
        if self.tracker is not None:
            with self._warn_of_errors():
                self.tracker.close(finished)

    @contextmanager
    def _warn_of_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the trackers' own errors, of the network above all
            text = f"{self.name}: {first_line(error)}; this run is no longer tracked; metrics.jsonl stays complete"
            warnings.warn(text, stacklevel=4)
            self.tracker = None


class TensorBoardWriter:
    """Writer of a run's numbers for TensorBoard.

    PyTorch's SummaryWriter is not used: it writes in a thread, so a full disk prints a traceback and raises an error
    without a file name at some later write; and if TensorFlow is installed, it loads it, with errors of its own types.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        """Start a file; TensorBoard then ignores the steps from `first_step` on in older files of the folder."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        self.event, self.summary = Event, Summary
        folder.mkdir(parents=True, exist_ok=True)
        started = time.time()
        self.path = folder / f"events.out.tfevents.{started:017.6f}.{socket.gethostname()}.{os.getpid()}"
        self.file = self.path.open("xb", buffering=0)
        self._add(Event(wall_time=started, file_version="brain.Event:2"))
        self._add(Event(wall_time=started, step=first_step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, values: Mapping[str, float], step: int) -> None:
        scalars = [self.summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(self.event(wall_time=time.time(), step=step, summary=self.summary(value=scalars)))

    def _add(self, event: Any) -> None:
        """Write an event as a record of TensorFlow: its length and its bytes, each followed by a checksum.

        TensorBoard's own writer would load half of TensorFlow's file systems first.
        """
        data = event.SerializeToString()
        parts = (struct.pack("<Q", len(data)), data)
        with attach_filename(self.path):
            self.file.write(b"".join(part + struct.pack("<I", masked_crc32c(part)) for part in parts))
