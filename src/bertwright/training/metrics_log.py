"""What a run leaves to read: metrics as JSON lines and for TensorBoard, a live progress line, a loss plot."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from bertwright.files import atomic_file, attach_filename, write_text

METRICS_FILE = "metrics.jsonl"


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Every record of a run, in order. A last line that a killed process left half-written is left out."""
    path = run / METRICS_FILE
    return list(_records(path)) if path.exists() else []


def _records(path: Path) -> Iterator[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            if line:
                record = json.loads(line)
                _ = record["kind"], record["step"]
                yield record
        except (ValueError, TypeError, KeyError) as error:
            if number < len(lines):  # only the last line can be torn by a kill
                raise ValueError(f"{path}, line {number}: no record of a run ({error!r})") from None


class MetricLogger:
    """Writes a run's records. A resumed run first forgets what lies beyond its checkpoint, so no step stands twice."""

    def __init__(self, run: Path, first_step: int, evaluation: str = "held_out") -> None:
        """`evaluation`: the kind of record that `evaluations` collects by step."""
        kept = [record for record in read_metrics(run) if record["step"] <= first_step]
        self.evaluation = evaluation
        self.evaluations = {record["step"]: record for record in kept if record["kind"] == evaluation}
        write_text(run / METRICS_FILE, "".join(json.dumps(record) + "\n" for record in kept))
        self.path = run / METRICS_FILE
        self.file = self.path.open("a", encoding="utf-8", buffering=1)
        self.board = TensorBoardWriter(run / "tensorboard", first_step + 1)

    def write(self, kind: str, step: int, values: dict[str, float]) -> None:
        """One record: what it tells ("train", "held_out", "dev"), the steps done, and its numbers by name."""
        record = {"kind": kind, "step": step} | values
        with attach_filename(self.path):
            self.file.write(json.dumps(record) + "\n")
        if kind == self.evaluation:
            self.evaluations[step] = record
        self.board.write({f"{kind}/{name}": value for name, value in values.items()}, step)

    def flush(self) -> None:
        """On disk before a checkpoint is: a record must not be lost that no later run will write again."""
        with attach_filename(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())

    def close(self) -> None:
        self.flush()
        self.file.close()
        self.board.close()


class TensorBoardWriter:
    """A run's numbers for TensorBoard. PyTorch's writer has a thread, whose errors reach the terminal alone."""

    def __init__(self, folder: Path, first_step: int) -> None:
        """What older files of the folder say of steps from `first_step` on is forgotten."""
        folder.mkdir(parents=True, exist_ok=True)
        begun = time.time()
        self.path = folder / f"events.out.tfevents.{begun:017.6f}.{socket.gethostname()}.{os.getpid()}"
        self.file = self.path.open("wb", buffering=0)
        self.records = RecordWriter(self.file)
        self._add(Event(wall_time=begun, file_version="brain.Event:2"))
        self._add(Event(wall_time=begun, step=first_step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, values: dict[str, float], step: int) -> None:
        """Numbers by tag."""
        scalars = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(Event(wall_time=time.time(), step=step, summary=Summary(value=scalars)))

    def close(self) -> None:
        self.file.close()

    def _add(self, event: Event) -> None:
        with attach_filename(self.path):
            self.records.write(event.SerializeToString())


def progress(console: Console) -> Progress:
    """The live line of a long command: share done, steps, the latest figures, time left; it fits 80 columns."""
    return Progress(
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    )


def plot_metrics(run: Path, path: Path, panels: Sequence[tuple[str, str]]) -> None:
    """Draw a run's figures over its steps as a PNG: for each panel, the figure's name and what its axis says."""
    from matplotlib.figure import Figure  # not pyplot: a notebook's own backend and figures stay as they are

    records = read_metrics(run)
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for panel, (name, label) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for kind in dict.fromkeys(record["kind"] for record in records):
            style = {"alpha": 0.45, "linewidth": 1.0} if kind == "train" else {"marker": "o", "markersize": 4}
            points = [(record["step"], record[name]) for record in records if record["kind"] == kind and name in record]
            if points:
                panel.plot(*zip(*points, strict=True), label=kind.replace("_", " "), **style)
        panel.set_xlabel("step")
        panel.set_ylabel(label)
        panel.grid(alpha=0.3)
        if panel.lines:
            panel.legend()
    figure.suptitle(run.name, parse_math=False)  # two $ in a folder's name are no formula
    with atomic_file(path) as part:
        figure.savefig(part, dpi=130, format="png")
