"""The wheel with prebuilt kernels, in an environment with the core's dependencies alone and without a compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import numpy as np
import polars
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bertwright.kernels.compile import find_compilers
from bertwright.kernels.instruction_sets import INSTRUCTION_SETS, find_levels
from helpers import list_repository
from test_extras import EXTRAS

ROOT = Path(__file__).parents[1]
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
    for name in list_repository():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
    command = ["make", "wheels", f"MACHINES={machine}", f"BIN={bin_folder}", "--assume-old=install"]
    made = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=1200)
    assert made.returncode == 0, made.stderr
    (found,) = (copy / "dist").glob(f"*manylinux_2_*_{machine}.whl")
    return found


def core_distributions() -> dict[str, Distribution]:
    """Return the core's dependencies and theirs by name, as this environment has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: dict[str, Distribution] = {}
    waiting = [Requirement(line) for line in project["dependencies"]]
    while waiting:
        needed = waiting.pop()
        name = canonicalize_name(needed.name)
        if name not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found[name] = distribution(name)
            waiting += map(Requirement, found[name].requires or ())
    return found


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel beside the core's dependencies alone, which are links to those of this environment.

    pip installs it without an index, so it fails if the wheel declares a dependency that the core has not.
    """
    folder = tmp_path_factory.mktemp("core") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site_packages,) = (folder / "lib").glob("python*/site-packages")
    for installed in core_distributions().values():
        for name in {path.parts[0] for path in installed.files or ()} - {"..", "__pycache__"}:
            if not (site_packages / name).exists():
                (site_packages / name).symlink_to(Path(str(installed.locate_file(name))).resolve())
    pip = [sys.executable, "-m", "pip", "--python", str(folder), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-index", str(wheel)], check=True)
    subprocess.run([*pip, "check"], check=True)
    return folder


@pytest.mark.slow
def test_the_wheel_works_without_a_compiler(wheel: Path, core: Path, tmp_path: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for level in INSTRUCTION_SETS[os.uname().machine]:
        assert f"bertwright/kernels/prebuilt/kernels-{level.name}.so" in names
    assert "bertwright/recipes/demo.toml" in names
    assert not [name for name in names if "libgomp" in name]  # torch contains it
    python = str(core / "bin" / "python")
    environment = {"PATH": str(core / "bin"), "HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}

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


@pytest.mark.slow
def test_the_wheel_with_core_dependencies_goes_from_raw_text_to_vectors(core: Path, tmp_path: Path) -> None:
    animals, places = ("bear", "wolf", "crow"), ("tree", "lake", "hill")
    lines = [f"the {one} sees the {other} near the {place}" for one in animals for other in animals for place in places]
    (tmp_path / "text.txt").write_text("\n\n".join("\n".join(lines[n:] + lines[:n]) for n in range(12)))
    rows = [f"{line}\t{'yes' if 'bear' in line else 'no'}\n" for line in lines]
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "".join(rows))
    environment = {"PATH": str(core / "bin"), "HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}

    def run(command: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        program = [str(core / "bin" / "bertwright"), *command.split()]
        done = subprocess.run(program, capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path)
        assert done.returncode == status, done.stdout + done.stderr
        return done

    run("vocabulary text.txt --output vocabulary --size 150 --min-frequency 1")
    assert {"bear", "wolf", "[MASK]"} <= set((tmp_path / "vocabulary" / "vocab.txt").read_text().split())
    run("prepare text.txt --vocabulary vocabulary --store store --held-out 0.2 --workers 1")
    assert (tmp_path / "store" / "held_out" / "header.json").is_file()
    run(
        "pretrain --store store --run run --steps 2 --batch-size 4 --max-length 24 --long-ratio 0 --num-layers 1 "
        "--hidden-size 16 --num-heads 2"
    )
    assert json.loads((tmp_path / "run" / "report.json").read_text())["steps"] == 2
    assert "probability" in run("fill-mask run the_[MASK]_sees").stdout
    run("finetune --task classification --train rows.tsv --dev rows.tsv --model run --run tuned --epochs 1")
    scores = json.loads((tmp_path / "tuned" / "report.json").read_text())["scores"]
    assert 0 <= scores["dev"]["accuracy"] <= 1
    run("predict tuned --inputs rows.tsv --output labels.csv")
    labels = polars.read_csv(tmp_path / "labels.csv")["label"]
    assert len(labels) == len(lines)
    assert set(labels) <= {"yes", "no"}
    run("embed run --inputs text.txt --output vectors.npy")
    vectors = np.load(tmp_path / "vectors.npy")
    assert vectors.shape == (12 * len(lines), 16)
    assert np.isfinite(vectors).all()
    assert "pip install 'bertwright[plot]'" in run("attention run bear --output a.png", status=2).stderr
    assert not list(tmp_path.glob("*/*.png"))
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert not (tmp_path / "home").exists()  # nothing was compiled


@pytest.mark.slow
def test_the_core_environment_has_no_package_of_an_extra(core: Path) -> None:
    program = f"""
from importlib.util import find_spec
import bertwright, polars, rich, tokenizers, torch
assert bertwright.__file__.startswith({str(core)!r}), bertwright.__file__
print([name for name in {EXTRAS} if find_spec(name.split(".")[0])])
"""
    done = subprocess.run([str(core / "bin" / "python"), "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
