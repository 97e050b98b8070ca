"""Every script in bench/ starts: its modules can be imported, and --help exits with 0."""

from __future__ import annotations

import json
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


@pytest.mark.slow
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


def test_every_script_keeps_its_figures_with_their_commit() -> None:
    """Each writes by one of the functions of bench/environment.py and bench/study.py that add commit and machine."""
    keepers = ("append_result(", "write_result(", "keep_printed(", "run_missing(", "commit()")
    scripts = [path for path in BENCH.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")]
    lost = [path.name for path in scripts if not any(name in path.read_text(encoding="utf-8") for name in keepers)]
    assert sorted(lost) == ["parity_table.py"]  # reads results of others


def test_the_output_of_a_script_is_written_unless_it_fails(tmp_path: Path) -> None:
    script = "import sys; from environment import keep_printed; keep_printed('x/a.py', 1); print('| b | 2 |'); sys.exit"
    paths = f"{BENCH}:{BENCH.parent / 'src'}"
    environment = os.environ | {"PYTHONPATH": paths, "OUT": str(tmp_path)}
    for end in ("(0)", "(1 / 0)"):
        subprocess.run([sys.executable, "-c", script + end], env=environment, capture_output=True, check=False)
    (line,) = (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()
    record = json.loads(line)
    assert record["printed"] == ["| b | 2 |"]
    assert record.keys() == {"options", "printed", "machine", "commit"}
