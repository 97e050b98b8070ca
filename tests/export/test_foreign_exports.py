"""Exported folders from elsewhere: damaged, hostile, and without what is asked of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import bertwright
from bertwright.base.files import digest_file, read_json, write_json
from bertwright.cli.main import run as run_command
from bertwright.inference.bert import load_in
from bertwright.inference.exported_folder import FILES, find_export
from bertwright.inference.search_index import describe_model
from bertwright.training.context import ExecutionContext
from export.small_exports import (
    Folders,
    rewrite,
)


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


@pytest.mark.parametrize(
    "values", [{"graph": []}, {"graph": {}}, {"kind": 5}, {"digests": "none"}, {"summary": [1]}], ids=str
)
def test_a_report_with_other_types_is_refused(foreign: Path, values: dict[str, Any]) -> None:
    write_json(foreign / "report.json", read_json(foreign / "report.json") | values)
    with pytest.raises(ValueError, match=r"report\.json: .*export the model again"):
        find_export(foreign)


def name_an_unknown_operation(graph: Any) -> None:
    graph.graph.node[0].op_type = "NoSuchOperation"


def cut_an_edge(graph: Any) -> None:
    graph.graph.node[-1].input[0] = "nowhere"


@pytest.mark.parametrize("change", [name_an_unknown_operation, cut_an_edge])
def test_the_graph_that_a_runtime_cannot_open_is_named(foreign: Path, change: Callable[[Any], None]) -> None:
    rewrite(foreign, change)
    with pytest.raises(ValueError, match=r"model\.onnx: no graph .* \(.+\); export"):
        bertwright.load(foreign)


def test_a_graph_that_fails_on_a_text_is_named(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

    def fail(*_: Any) -> Any:
        raise InvalidArgument("Got invalid dimensions\nfor input")

    bert = bertwright.load(foreign)
    monkeypatch.setattr("bertwright.inference.exported_folder.OnnxSession.run", fail)
    with pytest.raises(ValueError, match=r"model\.onnx: .*\(Got invalid dimensions\); export"):
        bert.classify("the bear")


def test_a_graph_with_other_inputs_is_refused(foreign: Path) -> None:
    def add_input(graph: Any) -> None:
        graph.graph.input.add().CopyFrom(graph.graph.input[0])
        graph.graph.input[-1].name = "pixels"

    rewrite(foreign, add_input)
    with pytest.raises(ValueError, match=r"model\.onnx: expected inputs among .*, got .*pixels"):
        bertwright.load(foreign)


def test_a_graph_with_other_outputs_than_the_task_is_refused(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bert = bertwright.load(foreign)
    name = "bertwright.inference.exported_folder.OnnxSession.run"
    monkeypatch.setattr(name, lambda _, given, __: np.zeros((len(given["input_ids"]), 7)))
    with pytest.raises(ValueError, match=r"model\.onnx: expected 3 outputs"):
        bert.classify("the bear")


# ---- Devices and dtypes


@pytest.mark.parametrize(
    "values", [{"dtype": "int8"}, {"dtype": "bfloat16"}, {"compute_dtype": torch.bfloat16}], ids=str
)
def test_a_dtype_that_the_graph_lacks_is_refused(foreign: Path, values: Any) -> None:
    with pytest.raises(ValueError, match=r"exported graph in float32 for the CPU.*bertwright export --int8"):
        bertwright.load(foreign, **values)
    assert bertwright.load(foreign, "cpu", dtype="float32").classify("the bear").label


def test_an_int8_graph_is_not_computed_in_float32(foreign: Path) -> None:
    write_json(foreign / "report.json", read_json(foreign / "report.json") | {"numbers": "int8"})
    assert bertwright.load(foreign, dtype="int8").classify("the bear").label
    with pytest.raises(ValueError, match=r"exported graph in int8.*device auto and dtype float32"):
        bertwright.load(foreign, dtype="float32")


def test_another_device_is_refused(foreign: Path) -> None:
    report = find_export(foreign)
    assert report is not None
    report.check_asked("cpu:0", "auto")
    with pytest.raises(ValueError, match="got device cuda:1"):
        report.check_asked("cuda:1", "auto")


@pytest.mark.parametrize(("dtype", "code"), [("auto", 0), ("float32", 0), ("bfloat16", 2), ("int8", 2)])
@pytest.mark.parametrize("verb", ["predict", "embed"])
def test_verbs_accept_no_dtype_that_the_graph_lacks(
    folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, dtype: str, code: int
) -> None:
    kind, to, suffix = {"predict": ("classification", "onnx", "tsv"), "embed": ("embedding", "openvino", "npy")}[verb]
    (tmp_path / "texts.tsv").write_text("text\nthe bear\n", encoding="utf-8")
    command = [verb, str(folders(kind, to)[1]), "--inputs", str(tmp_path / "texts.tsv"), "--threads", "1"]
    assert run_command([*command, "--output", str(tmp_path / f"out.{suffix}"), "--dtype", dtype]) == code
    assert ("exported graph in float32" in capsys.readouterr().err) == (code == 2)


def test_what_this_machine_prefers_is_not_asked_of_a_graph(foreign: Path) -> None:
    context = ExecutionContext(torch.device("cpu"), torch.bfloat16, threads=1)  # as of --dtype auto
    assert load_in(context, foreign).classify("the bear").label
    with pytest.raises(ValueError, match="dtype bfloat16"):
        load_in(replace(context, asked=("auto", "bfloat16")), foreign)
