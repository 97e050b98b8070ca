"""Exported folders: every task in both runtimes, the program without torch, and the gate of int8."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np
import onnx
import pytest

import bertwright
from bertwright.base.files import read_json
from bertwright.base.reporter import MUTE
from bertwright.exporting.export import export
from bertwright.exporting.export_settings import ExportSettings
from bertwright.exporting.int8_graph import FULL, HALF, has_vnni
from bertwright.inference.bert import Bert
from bertwright.inference.exported_folder import FILES, LENGTHS, OpenVinoSession
from export.small_exports import (
    FIRST,
    SECOND,
    TEXTS,
    WORDS,
    Folders,
    check_equal,
)
from helpers import read_output, text_reporter

EXPORT = "bertwright.exporting.export"
USES: dict[str, Callable[[Bert], Any]] = {
    **dict.fromkeys(("classification", "multi-label", "regression"), lambda bert: bert.classify(TEXTS)),
    **dict.fromkeys(("calibrated", "calibrated-multi-label"), lambda bert: bert.classify(TEXTS)),
    **dict.fromkeys(("no-answer", "never-answered"), lambda bert: bert.answer(SECOND, FIRST)),
    "pairs": lambda bert: bert.classify([(FIRST, SECOND), ("a", "the")]),
    "multiple-choice": lambda bert: bert.choose("the bear", TEXTS[:3]),
    "tagging": lambda bert: bert.tag(TEXTS),
    "question-answering": lambda bert: bert.answer(SECOND, FIRST),
    "reranking": lambda bert: bert.rank(SECOND, TEXTS),
    "embedding": lambda bert: bert.embed(TEXTS),
    "masked-lm": lambda bert: bert.fill_mask(["the [MASK] sees", "a [MASK] and a [MASK] , red [MASK]"]),
}
FAST = {
    "classification": "onnx",
    "embedding": "openvino",
    "masked-lm": "onnx",
    "calibrated": "onnx",
    "no-answer": "onnx",
}
CASES = [
    pytest.param(kind, to, marks=[] if FAST.get(kind) == to else pytest.mark.slow, id=f"{kind}-{to}")
    for kind in USES
    for to in FILES
]


@pytest.mark.parametrize(("kind", "to"), CASES)
def test_exported_folder_gives_the_answers_of_its_model(folders: Folders, kind: str, to: str) -> None:
    model, exported = folders(kind, to)
    bert = bertwright.load(exported)
    check_equal(USES[kind](bert), USES[kind](bertwright.load(model, device="cpu")))
    report = read_json(exported / "report.json")
    assert report["graph"] == to
    assert report["parity"]["difference"] < 1e-4
    assert not list(exported.rglob("*.safetensors")) or kind == "embedding"  # Dense stays readable for other poolings


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_other_poolings_of_an_exported_embedding_equal_the_model(folders: Folders, pooling: str) -> None:
    model, exported = folders("embedding", "openvino")
    found = bertwright.load(exported).embed(TEXTS, pooling=pooling)
    np.testing.assert_allclose(found, bertwright.load(model, device="cpu").embed(TEXTS, pooling=pooling), atol=1e-4)


def test_many_texts_are_read_in_several_runs_of_the_graph(folders: Folders) -> None:
    model, exported = folders("classification", "onnx")
    texts = [" ".join(WORDS[n % 7 : n % 19]) or "a" for n in range(90)]
    check_equal(bertwright.load(exported).classify(texts), bertwright.load(model, device="cpu").classify(texts))


def test_openvino_sees_few_shapes() -> None:
    seen = {OpenVinoSession.round_up(None, rows, length, 512) for rows in range(1, 33) for length in range(1, 513)}  # type: ignore[arg-type]
    assert len(seen) == 6 * len(LENGTHS)
    assert OpenVinoSession.round_up(None, 3, 20, 24) == (4, 24)  # type: ignore[arg-type]  # never beyond the positions


WITHOUT_TORCH = """
import runpy, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "bertwright", "nncf", "onnx"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ARGUMENTS = {
    "pairs": [FIRST, SECOND],
    "multiple-choice": ["the bear", *TEXTS[:3]],
    "tagging": [FIRST],
    **{kind: [SECOND, FIRST] for kind in ("question-answering", "no-answer", "never-answered")},
    "reranking": [SECOND, *TEXTS],
    "masked-lm": ["the [MASK] sees a [MASK]"],
}
ANSWERS: dict[str, Callable[[Bert], Any]] = {
    **dict.fromkeys(
        ("classification", "calibrated"),
        lambda bert: [(guess.label, guess.probability) for guess in bert.classify(TEXTS)],
    ),
    "pairs": lambda bert: [(guess.label, guess.probability) for guess in bert.classify([(FIRST, SECOND)])],
    **dict.fromkeys(
        ("multi-label", "calibrated-multi-label"),
        lambda bert: [guess.labels for guess in bert.classify(TEXTS)],
    ),
    "regression": lambda bert: bert.classify(TEXTS),
    "multiple-choice": lambda bert: bert.choose("the bear", TEXTS[:3]).probabilities,
    "tagging": lambda bert: list(zip(FIRST.split(), bert.tag(FIRST).tags, strict=True)),
    **dict.fromkeys(
        ("question-answering", "no-answer", "never-answered"), lambda bert: bert.answer(SECOND, FIRST).text
    ),
    "reranking": lambda bert: [one.score for one in sorted(bert.rank(SECOND, TEXTS), key=lambda one: one.position)],
    "embedding": lambda bert: bert.embed(TEXTS),
    "masked-lm": lambda bert: bert.fill_mask("the [MASK] sees a [MASK]").masks,
}


@pytest.mark.parametrize(("kind", "to"), CASES)
def test_run_py_gives_the_answers_without_torch(folders: Folders, kind: str, to: str, tmp_path: Path) -> None:
    model, exported = folders(kind, to)
    program = exported / "run.py"
    assert len(program.read_text(encoding="utf-8").splitlines()) <= 30
    command = [sys.executable, "-c", WITHOUT_TORCH, str(program), *ARGUMENTS.get(kind, TEXTS)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    for folder in (model, exported):
        check_equal(json.loads(done.stdout), ANSWERS[kind](bertwright.load(folder, device="cpu")))
    assert not list(tmp_path.iterdir())  # the runtimes leave files there when they report to their makers


def test_info_describes_an_exported_folder(folders: Folders) -> None:
    from bertwright.inference.info import InfoSettings, info

    reporter = text_reporter()
    info(InfoSettings(folders("classification", "onnx")[1], verify=True), reporter)
    printed = read_output(reporter)
    assert "exported model for classification" in printed
    assert "float32" in printed


# ---- int8


@pytest.fixture
def exported_once(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, whose graph in float32 is not traced again."""
    model, exported = folders("classification", "onnx")
    graph = exported / FILES["onnx"]
    monkeypatch.setattr(f"{EXPORT}.write_onnx", lambda _, path, __: copyfile(graph, path))
    return model


def dev_file(folder: Path, model: Path) -> Path:
    """Write texts with the model's own labels, so that its score is 1."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS[:16], size=int(rng.integers(2, 12)))) for _ in range(200)]
    guesses = bertwright.load(model, device="cpu").classify(texts)
    surest = sorted(zip(texts, guesses, strict=True), key=lambda pair: -pair[1].probability)[:80]
    lines = [f"{text}\t{guess.label}" for text, guess in surest]
    path = folder / "dev.tsv"
    path.write_text("text\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("to", [pytest.param("onnx", marks=pytest.mark.slow), "openvino"])
def test_int8_passes_the_gate_and_says_what_it_measured(exported_once: Path, tmp_path: Path, to: Any) -> None:
    dev = dev_file(tmp_path, exported_once)
    settings = ExportSettings(str(exported_once), tmp_path / "new", to=to, int8=True, dev=str(dev))
    export(settings, MUTE)
    report = read_json(tmp_path / "new" / "report.json")
    assert report["numbers"] == "int8"
    assert report["int8"]["agreement"] >= 0.99
    assert report["int8"]["weights"] == (FULL if has_vnni() else HALF)
    assert bertwright.load(tmp_path / "new").classify("the bear").label


def damage(name: str) -> Callable[..., None]:
    """Return a quantization that turns and enlarges the weights of layer 0 if a layer is among the int8 ones."""

    def write(source: Path, target: Path, calibration: Any, layers: Sequence[str], half_range: bool) -> None:
        graph = onnx.load(str(source))
        for tensor in graph.graph.initializer:
            if name in layers and tensor.name.endswith("layers.0.output.weight"):
                tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * -10, tensor.name))
        onnx.save(graph, str(target))

    return write


def test_the_layer_that_costs_most_goes_back_to_float32(
    exported_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{EXPORT}.quantize_graph", damage("layer 0"))
    export(
        ExportSettings(str(exported_once), tmp_path / "new", int8=True, dev=str(dev_file(tmp_path, exported_once))),
        MUTE,
    )
    gate = read_json(tmp_path / "new" / "report.json")["int8"]
    assert gate["layers"] == ["embeddings", "layer 1"]
    assert gate["costs"]["layer 0"] > 0.01 > gate["costs"]["layer 1"]


def test_a_missed_gate_writes_nothing_and_names_the_layers(
    exported_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def write(source: Path, target: Path, calibration: Any, layers: Sequence[str], half_range: bool) -> None:
        damage("layer 0")(source, target, calibration, ["layer 0"], half_range)  # whatever is put back

    monkeypatch.setattr(f"{EXPORT}.quantize_graph", write)
    dev = dev_file(tmp_path, exported_once)
    reporter = text_reporter()
    with pytest.raises(ValueError, match=r"--int8: .*points lower.*nothing was written.*layer 0"):
        export(ExportSettings(str(exported_once), tmp_path / "new", int8=True, dev=str(dev)), reporter)
    assert "layer 0" in read_output(reporter)
    assert [path.name for path in tmp_path.iterdir()] == ["dev.tsv"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"int8": True}, "--dev FILE"),
        ({"dev": "a.tsv"}, "--dev: an option of --int8"),
        ({"half_range": True}, "--half-range: an option of --int8"),
        ({"int8": True, "dev": "a.tsv", "max_drop": -1.0}, "max_drop"),
    ],
)
def test_settings_that_do_not_fit_are_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        ExportSettings("model", tmp_path / "new", **values)


@pytest.mark.slow
def test_int8_of_a_masked_lm_is_refused(folders: Folders, tmp_path: Path) -> None:
    model, _ = folders("masked-lm", "onnx")
    (tmp_path / "dev.tsv").write_text("text\tlabel\na\tb\n", encoding="utf-8")
    with pytest.raises(ValueError, match="masked LM, which no dev"):
        export(ExportSettings(str(model), tmp_path / "new", int8=True, dev=str(tmp_path / "dev.tsv")), MUTE)
    assert not (tmp_path / "new").exists()


def test_an_exported_folder_is_not_saved_and_has_no_other_layers(folders: Folders, tmp_path: Path) -> None:
    bert = bertwright.load(folders("embedding", "openvino")[1])
    with pytest.raises(ValueError, match="copy its folder"):
        bert.save(tmp_path / "new")
    with pytest.raises(ValueError, match="the last layer alone"):
        bert.features("the bear", layers=(0,))
    assert bert.features("the bear").shape == (2, 1, 32)
