"""The core alone: what the extras install is imported on use, and a command that misses it names the extra."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bertwright
from bertwright.base.optional import MissingPackageError, is_installed, needs

ROOT = Path(__file__).parents[1]
EXTRAS = ["h5py", "gcsfs", "google.cloud", "matplotlib", "mlflow", "mwparserfromhell", "nanotoken", "ray", "s3fs"]
EXTRAS += ["nncf", "onnx", "onnxruntime", "onnxscript", "openvino"]
EXTRAS += ["sacrebleu", "seqeval", "sklearn", "tensorboard", "transformers", "wandb", "zstandard"]
EXTRAS += ["msgspec", "prometheus_client", "starlette", "uvicorn"]
# Modules that exist for an extra, and import it at once.
OF_EXTRAS = {"estimators", "systems.bert.modeling_pooled_bert"}
WITHOUT_EXTRAS = f"""
import importlib.util, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.split(".")[0] in {EXTRAS} else find_spec(name, *rest)
sys.meta_path.insert(0, Missing())
"""
CORE = """
from bertwright.cli.main import run
animals, places = ("bear", "wolf", "crow"), ("tree", "lake", "hill")
lines = [f"the {a} sees the {b} near the {c} ." for a in animals for b in places for c in "xyz"]
open("text.txt", "w").write("\\n\\n".join("\\n".join(lines[n:] + lines[:n]) for n in range(12)))
rows = [f"{line}\\t{'yes' if 'bear' in line else 'no'}\\n" for line in lines]
open("rows.tsv", "w").write("text\\tlabel\\n" + "".join(rows))
words = ["\\n".join(f"{word}\\t{'B-A' if word == 'bear' else 'O'}" for word in line.split()) for line in lines]
open("tags.conll", "w").write("\\n\\n".join(words))
small = "--device cpu --threads 1"
for command in (
    "vocabulary text.txt --output vocabulary --size 150 --min-frequency 1",
    "prepare text.txt --vocabulary vocabulary --store store --held-out 0.2 --workers 1",
    f"pretrain --store store --run run --steps 2 --batch-size 4 --max-length 24 --long-ratio 0 --num-layers 1 "
    f"--hidden-size 16 --num-heads 2 {small}",
    f"fill-mask run the_[MASK]_sees {small}",
    f"finetune --task classification --train rows.tsv --dev rows.tsv --model run --run c --epochs 1 {small}",
    f"finetune --task tagging --train tags.conll --dev tags.conll --model run --run t --epochs 1 {small}",
    f"evaluate c rows.tsv --output scores.json {small}",
    f"predict c --inputs rows.tsv --output labels.csv {small}",
    f"embed run --inputs text.txt --output vectors.npy {small}",
):
    assert run(command.split()) == 0, command
assert run(["attention", "run", "the bear", "--output", "a.png", *small.split()]) == 2
assert not [name for name in sys.modules if name.split(".")[0] in EXTRAS]
"""


def run_without_extras(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a process in which the packages of the extras cannot be imported."""
    code = f"EXTRAS = {EXTRAS}\n{WITHOUT_EXTRAS}\n{program}"
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=600)


def test_the_core_goes_from_raw_text_to_vectors_and_imports_all_modules_but_those_of_extras(tmp_path: Path) -> None:
    root = Path(bertwright.__file__).parent
    names = [".".join(path.relative_to(root).with_suffix("").parts) for path in sorted(root.rglob("*.py"))]
    core = [name for name in names if name not in OF_EXTRAS and "triton" not in name and name != "__main__"]
    core = [name for name in core if not name.startswith("serving.") or name == "serving.serve_settings"]
    imports = f"for name in {core}: __import__('bertwright.' + name.removesuffix('.__init__'))"
    done = run_without_extras(f"{CORE}\n{imports}", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pip install 'bertwright[plot]'" in done.stderr
    assert not (tmp_path / "run" / "loss.png").exists()


def test_the_estimators_name_their_extra(tmp_path: Path) -> None:
    done = run_without_extras("import bertwright; bertwright.BertClassifier", tmp_path)
    assert "pip install 'bertwright[sklearn]'" in done.stderr


def test_a_missing_package_is_named_with_its_extra() -> None:
    message = r"a file: needs the package no_such, .*'bertwright\[plot\]'"
    with pytest.raises(MissingPackageError, match=message), needs("plot", "a file"):
        import no_such  # type: ignore[import-not-found]  # noqa: F401
    assert is_installed("numpy")
    assert not is_installed("no_such")


def test_extras_that_messages_name_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = set()
    for path in Path(bertwright.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        named |= {part.split("]")[0] for part in text.split("bertwright[")[1:] if "{" not in part.split("]")[0]}
        named |= {part.split('"')[0] for part in text.split('needs("')[1:]}
    assert named <= extras.keys()
