"""Every script in bench/ starts: its modules can be imported, and --help exits with 0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
START_ALL = """
import runpy, sys
for path in sys.argv[1:]:
    sys.argv = [path, "--help"]
    try:
        runpy.run_path(path, run_name="__main__")
        print(path, "did not exit")
    except SystemExit as end:
        if end.code:
            print(path, "exit status", end.code)
    except Exception as error:
        print(path, repr(error))
"""


def test_every_script_of_bench_prints_its_help() -> None:
    scripts = [str(path) for path in sorted(BENCH.glob("*.py")) if "__main__" in path.read_text(encoding="utf-8")]
    if not scripts:
        pytest.skip(f"{BENCH}: not in this distribution")
    done = subprocess.run(
        [sys.executable, "-c", START_ALL, *scripts],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(BENCH)},
        check=False,
    )
    lines = done.stdout.splitlines()
    assert (done.returncode, [line for line in lines if line.startswith(str(BENCH))]) == (0, []), done.stderr
    assert sum(line.startswith("usage: ") for line in lines) == len(scripts)
