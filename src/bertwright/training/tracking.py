"""Trackers of experiments: Weights & Biases and MLflow get a copy of each record of a run's metrics.jsonl."""

from __future__ import annotations

import os
import secrets
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from bertwright.base.files import read_json, write_json
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
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            text = f"{self.name}: {reason}; this run is no longer tracked; metrics.jsonl stays complete"
            warnings.warn(text, stacklevel=4)
            self.tracker = None
