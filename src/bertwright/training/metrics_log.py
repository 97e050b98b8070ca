"""Metrics of a run: records as JSON lines and for TensorBoard, and a plot."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.files import attach_filename, open_to_append, read_bytes, save_figure, write_text
from bertwright.base.foreign import check_no_link
from bertwright.base.messages import escape_control
from bertwright.base.optional import is_installed
from bertwright.base.reporter import Outputs
from bertwright.training.tracking import TensorBoardWriter, TrackerName, Tracking

METRICS_FILE = "metrics.jsonl"
MAX_POINTS = 100  # of a curve of training
FORMER_NAMES = {"mlm_loss": "loss", "long_mlm_loss": "long_loss"}  # of metrics, in records of earlier versions


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Read all records of a run, in order; drop a last line that a killed process left incomplete."""
    path, records = run / METRICS_FILE, list[dict[str, Any]]()
    lines = read_bytes(path).decode(errors="replace").split("\n") if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            if line:
                _check_record(record := json.loads(line))
                records.append(with_current_names(record))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if number < len(lines):  # only the last line can be incomplete
                raise ValueError(
                    f"{path}, line {number}: not a record of a run ({type(error).__name__}: {error}); restore the file"
                ) from None
    return records


def with_current_names(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record of metrics or scores, which an earlier version may have written, with today's names."""
    return {FORMER_NAMES.get(name, name): value for name, value in record.items()}


def total_work(run: Path) -> dict[str, float]:
    """Return the tokens that a run has read in all its processes, and the seconds of its steps."""
    records = [record for record in read_metrics(run) if record["kind"] == "train"]
    names = [name for name in ("tokens", "seconds") if all(name in record for record in records)]
    return {name: sum(record[name] for record in records) for name in names}


def _check_record(record: Any) -> None:
    kind, step, *values = record["kind"], record["step"], *(record[name] for name in record.keys() - {"kind", "step"})
    if type(kind) is not str or type(step) is not int or not all(type(value) in (int, float) for value in values):
        raise TypeError("expected a text as kind, a whole number as step, and numbers as all other values")


class MetricLogger:
    """Writer of a run's records. On resume it first drops the records after the checkpoint: no step is logged twice."""

    def __init__(
        self, run: Path, first_step: int, evaluation: str = "held_out", track: TrackerName | None = None
    ) -> None:
        """Open the log of a run that has finished `first_step` steps.

        `evaluation` is the kind of the records that `evaluations` collects by step. `track`: a program that gets a copy
        of each record; a resumed run sends no record again.
        """
        self.path = run / METRICS_FILE
        for path in (self.path, run / "tensorboard"):
            check_no_link(path)
        records = read_metrics(run)
        remaining = [record for record in records if record["step"] <= first_step]
        self._tracked = {(record["kind"], record["step"]) for record in records}
        self.evaluation = evaluation
        self.evaluations = {record["step"]: record for record in remaining if record["kind"] == evaluation}
        write_text(self.path, "".join(json.dumps(record) + "\n" for record in remaining))
        self._file = open_to_append(self.path)
        self.board = TensorBoardWriter(run / "tensorboard", first_step + 1) if is_installed("tensorboard") else None
        self._tracking = Tracking(track, run)

    def write(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Write one record: its kind ("train", "held_out", "dev"), the finished steps, and numbers by name."""
        record = {"kind": kind, "step": step} | dict(values)
        with attach_filename(self.path):
            self._file.write(json.dumps(record) + "\n")
        if kind == self.evaluation:
            self.evaluations[step] = record
        if self.board is not None:
            self.board.write({f"{kind}/{name}": value for name, value in values.items()}, step)
        if (kind, step) not in self._tracked:
            self._tracking.log(kind, step, values)

    def flush(self) -> None:
        """Flush the records to the disk; required before a checkpoint, after which no run writes them again."""
        with attach_filename(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self, finished: bool = True) -> None:
        """Close the files; `finished`: the run has made its last step."""
        self._tracking.close(finished)
        self.flush()
        self._file.close()
        if self.board is not None:
            self.board.file.close()


class PlotPanel(NamedTuple):
    """A metric of a plot."""

    metric: str
    label: str
    """Of its axis."""
    scale: float = 1.0
    """Factor of the values: 100 for shares in percent."""


def plot_metrics(run: Path, path: Path, panels: Sequence[PlotPanel], marks: Mapping[int, str] | None = None) -> None:
    """Plot metrics over the steps of a run as a PNG file, if matplotlib (extra "plot") is installed.

    `marks`: steps with a vertical line, and its text in the legend. A metric `long_X` is a second curve of X: the
    scores on the long phase's sequences.
    """
    if not is_installed("matplotlib"):
        return
    from matplotlib.figure import Figure  # not pyplot, which would change a notebook's backend and figures

    records = read_metrics(run)
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    kinds = dict.fromkeys(record["kind"] for record in records)
    for panel, (metric, label, scale) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for kind, name in product(kinds, (metric, f"long_{metric}")):
            style = {"alpha": 0.45, "linewidth": 1.0} if kind == "train" else {"marker": "o", "markersize": 4}
            points = [
                (record["step"], scale * record[name])
                for record in records
                if record["kind"] == kind and name in record
            ]
            if kind == "train":
                points = smooth(drop_short_windows(points))
                style |= {"marker": "o", "markersize": 3} if len(points) == 1 else {}
            if points:
                curve = kind.replace("_", " ") + (", long sequences" if name != metric else "")
                panel.plot(*zip(*points, strict=True), label=curve, **style)
        for step, text in (marks or {}).items():
            panel.axvline(step, color="gray", linestyle="--", linewidth=1.0, label=text)
        panel.set_xlabel("step")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
        if panel.lines:
            panel.legend()
    figure.suptitle(escape_control(run.name), parse_math=False)  # a folder name with two $ is no formula
    save_figure(figure, path)


def list_outputs(run: Path, plot: str, example: str, plot_name: str = "plot") -> Outputs:
    """Return the files of a finished run by name, and a command that uses its model. `plot`: its file, if written."""
    plots = {plot_name: run / plot} if (run / plot).is_file() else {}
    return Outputs({"model": run / "model"} | plots | {"all metrics": run / METRICS_FILE, "try it": example})


def smooth(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return means of neighbouring points, at most MAX_POINTS, so that a noisy curve shows its course.

    >>> smooth([(step, step % 2) for step in range(1, 401)])[:3]
    [(4, 0.5), (8, 0.5), (12, 0.5)]
    """
    size = max(1, -(-len(points) // MAX_POINTS))
    groups = [points[first : first + size] for first in range(0, len(points), size)]
    return [(group[-1][0], sum(value for _, value in group) / len(group)) for group in groups]


def drop_short_windows(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Drop the means over few steps, such as of a record that a checkpoint has ended: they make kinks in a curve.

    >>> drop_short_windows([(10, 2.0), (20, 1.5), (21, 9.0), (31, 1.2)])
    [(10, 2.0), (20, 1.5), (31, 1.2)]
    """
    steps = [step for step, _ in points]
    sizes = [step - before for before, step in zip([0, *steps], steps, strict=False)]
    return [point for point, size in zip(points, sizes, strict=True) if 2 * size >= max(sizes)]
