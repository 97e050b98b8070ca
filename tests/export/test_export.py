"""Exported folders: every task in both runtimes, the program without torch, the gate of int8, and hostile folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copyfile, copytree
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import save_file

import bertwright
from bertwright.base.files import digest_file, read_json, write_json
from bertwright.base.reporter import MUTE
from bertwright.exporting.export import export
from bertwright.exporting.export_settings import ExportSettings
from bertwright.exporting.int8_graph import FULL, HALF, has_vnni
from bertwright.inference.bert import Bert
from bertwright.inference.exported_folder import FILES, LENGTHS, OpenVinoSession
from bertwright.inference.search_index import describe_model
from bertwright.interop.huggingface import save_model
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.tasks.classification import Classification
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.reranking import Reranking
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_folder import TaskModel, save_task_folder
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from helpers import read_output, text_reporter

EXPORT = "bertwright.exporting.export"
WORDS = "the a bear deer sees hears in forest river . , was old new small tall red blue and or".split()
TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *WORDS], lowercase=True)
CONFIG = BertConfig(len(WORDS) + 5, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=64, max_positions=32)
TEXTS = ["the bear", "a", "the old deer sees the small bear in the forest , and the river was tall .", "red or blue"]
FIRST, SECOND = TEXTS[2], "a bear hears the deer"
LABELS = ("blue", "red", "tall")
TASKS: dict[str, AnyTask] = {
    "classification": Classification(max_length=24, labels=LABELS, pooling=("mean",)),
    "pairs": Classification(max_length=32, labels=LABELS, text="a", text_pair="b"),
    "multi-label": MultiLabel(max_length=24, labels=LABELS, threshold=0.5),
    "regression": Regression(max_length=24, scale=4.0),
    "multiple-choice": MultipleChoice(max_length=24),
    "tagging": Tagging(max_length=24, labels=("noun", "verb", "other"), scheme="none", metric="accuracy"),
    "question-answering": QuestionAnswering(max_length=28, max_query_length=8, doc_stride=8),
    "reranking": Reranking(max_length=32),
}
USES: dict[str, Callable[[Bert], Any]] = {
    **dict.fromkeys(("classification", "multi-label", "regression"), lambda bert: bert.classify(TEXTS)),
    "pairs": lambda bert: bert.classify([(FIRST, SECOND), ("a", "the")]),
    "multiple-choice": lambda bert: bert.choose("the bear", TEXTS[:3]),
    "tagging": lambda bert: bert.tag(TEXTS),
    "question-answering": lambda bert: bert.answer(SECOND, FIRST),
    "reranking": lambda bert: bert.rank(SECOND, TEXTS),
    "embedding": lambda bert: bert.embed(TEXTS),
    "masked-lm": lambda bert: bert.fill_mask(["the [MASK] sees", "a [MASK] and a [MASK] , red [MASK]"]),
}
FAST = {"classification": "onnx", "embedding": "openvino", "tagging": "openvino", "masked-lm": "onnx"}
CASES = [
    pytest.param(kind, to, marks=[] if FAST.get(kind) == to else pytest.mark.slow, id=f"{kind}-{to}")
    for kind in USES
    for to in FILES
]


def draw_weights(model: torch.nn.Module) -> None:
    """Draw weights with which answers depend on the words of a text, and little on rounding."""
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            large = "embeddings.word" in name or name.startswith("head.")
            torch.nn.init.normal_(parameter, std=0.0 if name.endswith("bias") else 1.0 if large else 0.05)


def make_model(folder: Path, kind: str) -> None:
    """Save a model with random weights of this kind."""
    torch.manual_seed(0)
    if kind in TASKS:
        encoder, task = BertEncoder(CONFIG), TASKS[kind]
        model = EncoderForTask(encoder, task.head_builder(encoder) if task.head_builder else task.head)
        draw_weights(model)
        save_task_folder(folder, TaskModel(model, task), TOKENIZER)
        return
    network = BertForPretraining(CONFIG)
    draw_weights(network)
    save_model(folder, network, TOKENIZER)
    if kind == "embedding":  # as sentence-transformers writes it, with a Dense layer
        kinds = ("Transformer", "Pooling", "Dense", "Normalize")
        paths = ("", "1_Pooling", "2_Dense", "3_Normalize")
        rows = [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{name}"}
            for n, (name, path) in enumerate(zip(kinds, paths, strict=True))
        ]
        write_json(folder / "modules.json", rows)
        for path in paths[1:3]:
            (folder / path).mkdir()
        write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": 32, "pooling_mode_max_tokens": True})
        activation = "torch.nn.modules.activation.Tanh"
        values = {"in_features": 32, "out_features": 8, "bias": True, "activation_function": activation}
        write_json(folder / "2_Dense/config.json", values)
        weights = {"linear.weight": torch.randn(8, 32), "linear.bias": torch.randn(8)}
        save_file(weights, folder / "2_Dense/model.safetensors")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, Path]]:
    """Return a function of a kind and a format to the folders of a model and of its export, made once."""
    root = tmp_path_factory.mktemp("export")

    def make(kind: str, to: str) -> tuple[Path, Path]:
        model, exported = root / kind, root / f"{kind}-{to}"
        if not model.exists():
            make_model(model, kind)
        if not exported.exists():
            export(ExportSettings(str(model), exported, to=to), MUTE)  # type: ignore[arg-type]
        return model, exported

    return make


Folders = Callable[[str, str], tuple[Path, Path]]


def numbers(value: Any) -> list[Any]:
    """Flatten results: numbers for comparison up to rounding, all else as it is."""
    if isinstance(value, np.ndarray):
        return [float(number) for number in value.ravel()]
    if isinstance(value, dict):
        return [*value, *numbers(tuple(value.values()))]
    if isinstance(value, list | tuple):
        return [number for one in value for number in numbers(one)]
    return [value]


def check_equal(found: Any, expected: Any) -> None:
    for one, other in zip(numbers(found), numbers(expected), strict=True):
        assert one == (pytest.approx(other, abs=1e-4) if isinstance(other, float) else other)


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
    "question-answering": [SECOND, FIRST],
    "reranking": [SECOND, *TEXTS],
    "masked-lm": ["the [MASK] sees a [MASK]"],
}
ANSWERS: dict[str, Callable[[Bert], Any]] = {
    "classification": lambda bert: [(guess.label, guess.probability) for guess in bert.classify(TEXTS)],
    "pairs": lambda bert: [(guess.label, guess.probability) for guess in bert.classify([(FIRST, SECOND)])],
    "multi-label": lambda bert: [sorted(guess.labels, key=LABELS.index) for guess in bert.classify(TEXTS)],
    "regression": lambda bert: bert.classify(TEXTS),
    "multiple-choice": lambda bert: bert.choose("the bear", TEXTS[:3]).probabilities,
    "tagging": lambda bert: list(zip(FIRST.split(), bert.tag(FIRST).tags, strict=True)),
    "question-answering": lambda bert: bert.answer(SECOND, FIRST).text,
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
    check_equal(json.loads(done.stdout), ANSWERS[kind](bertwright.load(model, device="cpu")))
    assert not list(tmp_path.iterdir())  # the runtimes leave files there when they report to their makers


def test_info_describes_an_exported_folder(folders: Folders) -> None:
    from bertwright.inference.info import info
    from bertwright.inference.info_settings import InfoSettings

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


def test_int8_of_a_masked_lm_is_refused(folders: Folders, tmp_path: Path) -> None:
    model, _ = folders("masked-lm", "onnx")
    (tmp_path / "dev.tsv").write_text("text\tlabel\na\tb\n", encoding="utf-8")
    with pytest.raises(ValueError, match="masked LM, which no dev"):
        export(ExportSettings(str(model), tmp_path / "new", int8=True, dev=str(tmp_path / "dev.tsv")), MUTE)
    assert not (tmp_path / "new").exists()


# ---- Folders from elsewhere


@pytest.fixture
def foreign(folders: Folders, tmp_path: Path) -> Path:
    """Return a copy of an exported folder, without checksums."""
    folder = copytree(folders("classification", "onnx")[1], tmp_path / "foreign")
    (folder / "checksums.json").unlink()
    return folder


def rewrite(folder: Path, change: Callable[[Any], None]) -> None:
    """Change the graph of a folder, and its digest."""
    path = folder / FILES["onnx"]
    graph = onnx.load(str(path), load_external_data=False)
    change(graph)
    path.write_bytes(graph.SerializeToString())
    report = read_json(folder / "report.json")
    write_json(folder / "report.json", report | {"digests": {path.name: digest_file(path)}})


def point_outside(graph: Any) -> None:
    tensor = graph.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../../../etc/passwd")


def hide_in_a_node(graph: Any) -> None:
    inner = onnx.helper.make_graph([], "inner", [], [])
    tensor = inner.initializer.add(name="hidden", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    graph.graph.node[0].attribute.append(onnx.helper.make_attribute("then_branch", inner))


@pytest.mark.parametrize("change", [point_outside, hide_in_a_node])
def test_numbers_in_other_files_are_refused(foreign: Path, change: Callable[[Any], None]) -> None:
    rewrite(foreign, change)
    with pytest.raises(ValueError, match=r"model\.onnx: .*external data in .*etc/passwd"):
        bertwright.load(foreign)


def test_an_index_knows_the_graph_of_its_vectors(folders: Folders, foreign: Path) -> None:
    def weights(folder: Path) -> str:
        return str(describe_model(bertwright.load(folder))["weights"])

    original = folders("classification", "onnx")[1]
    assert weights(foreign) == weights(original)
    rewrite(foreign, lambda graph: setattr(graph, "doc_string", "of the same outputs"))
    assert weights(foreign) != weights(original)


def test_operations_of_other_libraries_are_refused(foreign: Path) -> None:
    rewrite(foreign, lambda graph: graph.opset_import.add(domain="evil", version=1))
    with pytest.raises(ValueError, match=r"ONNX Runtime, got \['evil'\]"):
        bertwright.load(foreign)


def test_a_graph_that_is_no_graph_is_refused(foreign: Path) -> None:
    path = foreign / FILES["onnx"]
    path.write_bytes(b"not a graph")
    with pytest.raises(ValueError, match=r"model\.onnx: damaged"):
        bertwright.load(foreign)
    report = read_json(foreign / "report.json")
    write_json(foreign / "report.json", report | {"digests": {path.name: digest_file(path)}})
    with pytest.raises(ValueError, match=r"model\.onnx: "):
        bertwright.load(foreign)


def test_a_graph_that_is_a_link_out_of_the_folder_is_refused(foreign: Path, tmp_path: Path) -> None:
    path = foreign / FILES["onnx"]
    path.rename(tmp_path / "elsewhere.onnx")
    path.symlink_to(tmp_path / "elsewhere.onnx")
    with pytest.raises(ValueError, match="got a link"):
        bertwright.load(foreign)


def test_a_report_of_another_form_is_refused(foreign: Path) -> None:
    write_json(foreign / "report.json", {"graph": "../x", "kind": "classification"})
    with pytest.raises(ValueError, match=r"report\.json: .*onnx or openvino"):
        bertwright.load(foreign)


def test_an_exported_folder_is_not_saved_and_has_no_other_layers(folders: Folders, tmp_path: Path) -> None:
    bert = bertwright.load(folders("embedding", "openvino")[1])
    with pytest.raises(ValueError, match="copy its folder"):
        bert.save(tmp_path / "new")
    with pytest.raises(ValueError, match="the last layer alone"):
        bert.features("the bear", layers=(0,))
    assert bert.features("the bear").shape == (2, 1, 32)
