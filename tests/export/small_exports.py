"""Models with random weights, a folder of each kind and its exports, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import save_file

from bertwright.base.files import digest_file, read_json, write_json
from bertwright.inference.exported_folder import FILES
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
    "calibrated": Classification(
        max_length=24, labels=("no", "yes"), pooling=("mean",), temperature=3.0, threshold=0.9
    ),
    "calibrated-multi-label": MultiLabel(max_length=24, labels=LABELS, temperature=4.0, thresholds=(0.3, 0.5, 0.9)),
    "no-answer": QuestionAnswering(
        max_length=28, max_query_length=8, doc_stride=8, allow_no_answer=True, threshold=-1.0
    ),
    "never-answered": QuestionAnswering(max_length=28, max_query_length=8, allow_no_answer=True, threshold=1e3),
}


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


def rewrite(folder: Path, change: Callable[[Any], None]) -> None:
    """Change the graph of a folder, and its digest."""
    path = folder / FILES["onnx"]
    graph = onnx.load(str(path), load_external_data=False)
    change(graph)
    path.write_bytes(graph.SerializeToString())
    report = read_json(folder / "report.json")
    write_json(folder / "report.json", report | {"digests": {path.name: digest_file(path)}})
