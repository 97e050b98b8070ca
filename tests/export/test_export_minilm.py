"""Exports of a real model: parity on a thousand texts, memory over many calls, environments of their own."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertwright
from bertwright.base.reporter import MUTE
from bertwright.exporting.export import export
from bertwright.exporting.export_settings import ExportSettings
from bertwright.interop.huggingface import save_model
from bertwright.models.encoder import EncoderModel
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from helpers import uncased_vocabulary

pytestmark = pytest.mark.slow
WORDS = "the a bear deer sees hears in forest river , was old new small tall red blue and or unbelievably".split()


@pytest.fixture(scope="module", params=["onnx", "openvino"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("minilm") / str(request.param)
    export(ExportSettings(str(uncased_vocabulary().parent), folder, to=request.param), MUTE)
    return folder


def random_texts(number: int, longest: int) -> list[str]:
    rng = np.random.default_rng(0)
    sizes = np.round(np.exp(rng.uniform(0, np.log(longest), size=number))).astype(int)
    return [" ".join(rng.choice(WORDS, size=size)) for size in sizes]


def test_vectors_of_a_thousand_texts_equal_the_model_in_any_batch(exported: Path) -> None:
    model, texts = bertwright.load(exported), random_texts(1000, 500)
    expected = bertwright.load(uncased_vocabulary().parent, device="cpu").embed(texts, max_length=512)
    for size in (64, 7, 2, 1):
        some = texts if size == 64 else texts[:50]
        batches = (some[start : start + size] for start in range(0, len(some), size))
        found = np.concatenate([model.embed(batch, max_length=512) for batch in batches])
        np.testing.assert_allclose(found, expected[: len(some)], atol=1e-4)


def resident() -> int:
    """Return the kilobytes of memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


@pytest.mark.parametrize("to", ["onnx", "openvino"])
def test_memory_stays_over_many_calls_of_random_shape(to: Any, tmp_path: Path) -> None:
    """A tiny model, because what the runtimes keep depends on the shapes."""
    config = BertConfig(30_522, hidden_size=64, num_layers=2, num_heads=2, intermediate_size=256, max_positions=512)
    tokenizer = bertwright.load(uncased_vocabulary().parent, device="cpu").tokenizer
    save_model(tmp_path / "model", EncoderModel(BertEncoder(config)), tokenizer)
    export(ExportSettings(str(tmp_path / "model"), tmp_path / "exported", to=to), MUTE)
    model, rng = bertwright.load(tmp_path / "exported"), np.random.default_rng(0)
    calls = int(20_000 * float(os.environ.get("BERTWRIGHT_CAMPAIGN_SCALE", "1")))
    after_warmup = 0
    for call in range(calls):
        size, length = int(rng.integers(1, 5)), int(np.exp(rng.uniform(0, np.log(500))))
        model.embed([" ".join(rng.choice(WORDS, size=length)) for _ in range(size)], max_length=512)
        if call == calls // 10:
            after_warmup = resident()
    assert resident() <= 1.1 * after_warmup


def test_run_py_works_in_an_environment_without_torch(exported: Path, tmp_path: Path) -> None:
    """The environment sees the packages that the program needs, and no others."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    for package in ("numpy", "numpy.libs", "tokenizers", "huggingface_hub", "onnxruntime", "openvino", "flatbuffers"):
        source = Path(np.__file__).parents[1] / package
        if source.exists():
            (site / package).symlink_to(source)
    done: Any = subprocess.run([python, exported / "run.py", "the bear"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = bertwright.load(uncased_vocabulary().parent, device="cpu").embed("the bear")
    np.testing.assert_allclose(json.loads(done.stdout)[0], expected, atol=1e-4)
    assert subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 1


BACKEND = """
import json, sys
from sentence_transformers import SentenceTransformer
exact = {"ov_config": {"INFERENCE_PRECISION_HINT": "f32"}} if sys.argv[2] == "openvino" else {}  # else bf16, if it can
model = SentenceTransformer(sys.argv[1], backend=sys.argv[2], device="cpu", model_kwargs=exact)
print(json.dumps(model.encode(json.load(sys.stdin)).tolist()))
"""


@pytest.fixture(scope="module")
def python_of_sentence_transformers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the back ends of sentence-transformers: optimum, which they need, excludes transformers 5."""
    folder = tmp_path_factory.mktemp("peer")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    packages = ["sentence-transformers[onnx,openvino]==5.4.1", f"torch=={version('torch').partition('+')[0]}"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-compile", *packages], check=True)
    return python


def test_sentence_transformers_opens_the_folder(exported: Path, python_of_sentence_transformers: Path) -> None:
    texts = random_texts(20, 100)
    command = [python_of_sentence_transformers, "-c", BACKEND, exported, exported.name]
    environment = {**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, input=json.dumps(texts), capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(json.loads(done.stdout), bertwright.load(exported).embed(texts), atol=1e-5)
