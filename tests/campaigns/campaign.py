"""Helpers of the campaigns: commands in forks, a small project of every kind of file, snapshots, and summaries.

BERTWRIGHT_CAMPAIGN_SCALE multiplies the number of trials (default 1), BERTWRIGHT_CAMPAIGN_SEED selects others.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.training.metrics_log import METRICS_FILE

SCALE = float(os.environ.get("BERTWRIGHT_CAMPAIGN_SCALE", "1"))
SEED = int(os.environ.get("BERTWRIGHT_CAMPAIGN_SEED", "0"))
TIMEOUT = 120.0  # seconds; the longest command of a campaign takes about three on an idle machine
MEMORY = 12 << 30  # address space, of which torch reserves some without using it
MAX_RSS = 2 << 30  # bytes in memory; a small project takes less than one
TIMINGS = (
    "tokens_per_second", "sequences_per_second", "utilization", "seconds", "seconds_of_this_process", "seconds_by_part",
    "finished",
)  # fmt: skip
SUMMARIES: list[str] = []  # one line per campaign, printed when pytest ends


def scale(count: int) -> int:
    """Return a number of trials at the scale of this session."""
    return max(1, round(count * SCALE))


def summarize(text: str) -> None:
    """Add a line to the summary that is printed when pytest ends."""
    SUMMARIES.append(text)


class Outcome(NamedTuple):
    """Result of one command."""

    command: str
    code: int
    """Exit code; -9 after a kill."""
    out: str
    err: str
    seconds: float
    operations: int
    """File operations in its folder; 0 after a kill."""
    memory: int
    """Largest resident memory in bytes."""
    timed_out: bool

    @property
    def problem(self) -> str | None:
        """Behaviour that no input and no fault may cause: a traceback, a hang, a crash, an error of several lines."""
        if self.timed_out:
            return "hangs"
        if self.memory > MAX_RSS:
            return f"takes {self.memory >> 20:,} MB"
        if "Traceback" in self.err or self.code == 70:
            return "traceback"
        if self.code < 0:
            return f"ended by signal {-self.code}"
        errors = [line for line in self.err.splitlines() if not re.match("bertwright: (note|warning): ", line)]
        if self.code not in (0, 1, 2):
            return f"exit code {self.code}"
        if self.code and not (len(errors) == 1 and re.match("bertwright: error: .{10,}", errors[0])):
            return f"exit code {self.code} without a message of one line"
        return None

    def __str__(self) -> str:
        return f"{self.command}\n  → {self.code}, {self.seconds:.1f} s, {self.err.strip()[-3000:]}"


class Commands:
    """Client of `fork_server`: runs command lines one after the other."""

    def __init__(self) -> None:
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "POLARS_MAX_THREADS": "1",
            "COLUMNS": "80",
            "BERTWRIGHT_NATIVE": "1",
        }
        self.server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_server.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == "ready\n"

    def __call__(self, command: str, folder: Path, **fault: Any) -> Outcome:
        """Run a command line in a folder; `fault` is what `fork_server` causes in it."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        request = {
            "arguments": shlex.split(command),
            "folder": str(folder),
            "fault": fault,
            "timeout": TIMEOUT,
            "memory": MEMORY,
        }
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return Outcome(command, **json.loads(self.server.stdout.readline()))

    def check(self, command: str, folder: Path) -> Outcome:
        """Run a command line that must succeed."""
        outcome = self(command, folder)
        assert outcome.code == 0, str(outcome)
        return outcome

    def close(self) -> None:
        """End the server."""
        assert self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait()
        assert self.server.stdout is not None
        self.server.stdout.close()


# Results


def read_results(folder: Path) -> dict[str, bytes]:
    """Read all files that a command has written, without what a clock decides, by their paths.

    Logs for people and for TensorBoard are left out, and so are digests of records that contain timings.
    """
    results = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not path.is_file() or path.name in (".lock", "log.txt") or "tensorboard" in path.parts:
            continue
        content = path.read_bytes()
        if path.name in (METRICS_FILE, "results.jsonl"):
            records = [_without_timings(json.loads(line)) for line in content.splitlines()]
            content = json.dumps(records).encode()
        elif path.name in ("report.json", "result.json", "state.json"):
            value = _without_timings(json.loads(content))
            value.pop("metrics", None)
            content = json.dumps(value).encode()
        results[name] = content
    return results


def _without_timings(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in TIMINGS}


def find_differences(found: Mapping[str, bytes], expected: Mapping[str, bytes]) -> list[str]:
    """Return the names of files that differ or are only on one side."""
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))


def find_temporaries(folder: Path) -> list[str]:
    """Return the names of temporaries that are left in a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*.part-*"))


def read_files(folder: Path) -> dict[str, bytes]:
    """Read all files in a folder by their paths."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }
