"""A kernel test that is skipped for no accepted reason fails in `make test`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest
@pytest.mark.skipif(True, reason="no GPU")
def test_of_a_gpu(): pass
def test_of_a_compiler(): pytest.skip("no clang++ on this machine")
@pytest.mark.skipif(True, reason="no native kernels")
def test_of_kernels(): pass
@pytest.fixture
def fixture(): pytest.skip("no g++ on this machine")
def test_with_a_fixture(fixture): pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="kernels are required on Linux only")
@pytest.mark.parametrize(
    ("required", "expected"), [("1", "2 skipped, 2 errors"), pytest.param("0", "4 skipped", marks=pytest.mark.slow)]
)
def test_skips_fail_where_kernels_are_required(required: str, expected: str, tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_examples.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    environment = os.environ | {"BERTWRIGHT_REQUIRE_NATIVE": required}
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert expected in result.stdout.splitlines()[-1]
    assert ("no native kernels" in result.stdout and "no g++ on this machine" in result.stdout) == (required == "1")
