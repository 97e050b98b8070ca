"""The wheel with prebuilt kernels, in an environment without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from bertwright.kernels.compile import find_compilers
from bertwright.kernels.instruction_sets import INSTRUCTION_SETS, find_levels

ROOT = Path(__file__).parents[2]
SMOKE = """
import os, torch, bertwright
from bertwright.kernels import fused_ops, native_library, reference
assert "site-packages" in bertwright.__file__, bertwright.__file__
library = native_library.load_library("kernels")
assert native_library.load_library("wordpiece") is not None
x, bias = torch.randn(64, 96), torch.randn(96)
torch.testing.assert_close(fused_ops.bias_gelu(x, bias, False), reference.bias_gelu(x, bias, False))
print(os.path.basename(library._name))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of `make wheels` for this machine."""
    machine = os.uname().machine
    if machine not in INSTRUCTION_SETS or not any(find_compilers()):
        pytest.skip("no wheel can be built on this machine")
    bin_folder = Path(sys.executable).parent
    copy = tmp_path_factory.mktemp("source") / "bertwright"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    command = ["make", "wheels", f"MACHINES={machine}", f"BIN={bin_folder}", "--assume-old=install"]
    made = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=1200)
    assert made.returncode == 0, made.stderr
    (found,) = (copy / "dist").glob(f"*manylinux_2_*_{machine}.whl")
    return found


@pytest.mark.slow
def test_the_wheel_works_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    """Dependencies are those of this environment; the package itself comes from the wheel."""
    names = zipfile.ZipFile(wheel).namelist()
    for level in INSTRUCTION_SETS[os.uname().machine]:
        assert f"bertwright/kernels/prebuilt/kernels-{level.name}.so" in names
    assert "bertwright/recipes/demo.toml" in names
    assert not [name for name in names if "libgomp" in name]  # torch contains it
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (site_packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(site_packages), str(wheel)], check=True)
    (site_packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    python = str(tmp_path / "venv" / "bin" / "python")
    environment = {"PATH": str(tmp_path / "venv" / "bin"), "HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [python, *arguments], capture_output=True, text=True, timeout=300, env=environment | variables, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        return done

    assert "pretrain" in run("-m", "bertwright", "--help").stdout
    for level in find_levels():
        done = run("-c", SMOKE, BERTWRIGHT_ISA=level.name)
        assert done.stdout.strip() == f"kernels-{level.name}.so"
        assert done.stderr == ""
    assert not (tmp_path / "home").exists()  # nothing was compiled
