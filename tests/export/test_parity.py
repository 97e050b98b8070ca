"""What `bertwright export` compares before it writes a folder, and the parts of `run.py` that need no graph."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertwright
from bertwright.exporting import parity
from bertwright.exporting.export_graph import TaskGraph, make_graph
from bertwright.exporting.run_program import make_runner
from bertwright.inference.bert import Bert
from bertwright.inference.exported_folder import LOGITS, SCORES
from export.small_exports import TEXTS, Folders, make_model


@pytest.fixture
def calibrated(tmp_path: Path) -> Bert:
    make_model(tmp_path / "calibrated", "calibrated")
    return bertwright.load(tmp_path / "calibrated", device="cpu")


def test_scores_of_a_graph_are_the_calibrated_probabilities(calibrated: Bert) -> None:
    graph = make_graph(calibrated)
    assert isinstance(graph, TaskGraph)
    found = graph.activate(torch.tensor([[0.0, 3.0]]), torch.ones(1, 1))
    np.testing.assert_allclose(found, [[1 / (1 + np.e), np.e / (1 + np.e)]], rtol=1e-6)
    assert [guess.label for guess in calibrated.classify(TEXTS)] != [
        max(guess.probabilities, key=guess.probabilities.__getitem__) for guess in calibrated.classify(TEXTS)
    ]  # the threshold of the model decides otherwise than the larger probability


@pytest.mark.parametrize("output", [LOGITS, SCORES])
@pytest.mark.parametrize("value", [float("nan"), 0.25])
def test_parity_misses_no_altered_output(
    calibrated: Bert, monkeypatch: pytest.MonkeyPatch, output: str, value: float
) -> None:
    """Of the graph's outputs, a single number in the first batch is altered; the later batches are equal."""
    compute, calls = parity.compute_outputs, list[int]()

    def alter(bert: Bert, kind: str, batch: Any) -> dict[str, Any]:
        outputs = {name: np.array(values) for name, values in compute(bert, kind, batch).items()}
        calls.append(1)
        if len(calls) == 2:  # the model, then the graph
            outputs[output][0, 0] += value
        return outputs

    monkeypatch.setattr(parity, "compute_outputs", alter)
    monkeypatch.setattr(parity, "open_model", lambda *_: calibrated)
    with pytest.raises(ValueError, match=f"a difference of {'nan' if np.isnan(value) else '0.'}"):
        parity.check_parity(calibrated, Path("nowhere"), make_graph(calibrated))


@pytest.mark.parametrize(
    ("lowercase", "expected"), [(True, "see {mask}: the bear \u03c3"), (False, "SEE {mask}: The BEAR \u03a3")]
)
def test_run_py_lowers_prompt_and_text_as_the_model_does(folders: Folders, lowercase: bool, expected: str) -> None:
    bert = bertwright.load(folders("embedding", "openvino")[0], device="cpu")
    assert bert.sentence_modules is not None
    modules = replace(bert.sentence_modules, prompts={"query": "SEE {mask}: "}, default_prompt="query")
    bert.sentence_modules = replace(modules, lowercase=lowercase)
    program = make_runner(bert, "embedding", "onnx", 32)
    names: dict[str, Any] = {"run": lambda texts, _: (None, np.array(texts))}
    exec("def predict" + program.partition("def predict")[2].partition("if __name__")[0], names)
    assert names["predict"]("The BEAR \u03a3") == [expected]


def test_run_py_has_no_answer_for_a_context_without_tokens(tmp_path: Path) -> None:
    make_model(tmp_path / "model", "question-answering")
    program = make_runner(bertwright.load(tmp_path / "model", device="cpu"), "question-answering", "onnx", 28)

    class Encoded:
        sequence_ids, offsets = (None, 0, None, None), ((0, 0), (0, 3), (0, 0), (0, 0))

    names: dict[str, Any] = {"run": lambda *_: ((Encoded,), (np.zeros((4, 2)),)), "np": np}
    exec("def predict" + program.partition("def predict")[2].partition("if __name__")[0], names)
    assert names["predict"]("who", "") == ""
