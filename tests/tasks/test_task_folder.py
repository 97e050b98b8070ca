"""The task of a folder, from task.json or config.json, and errors in either."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertwright.inference.bert import load
from bertwright.inference.load_task_models import load_for_task
from bertwright.interop.head_config import HeadRecord
from bertwright.interop.huggingface import load_task_model, save_model
from bertwright.models.head_spec import HeadSpec
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.tasks.classification import Classification
from bertwright.tasks.embedding import Embedding
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.reranking import Reranking
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_folder import (
    TaskModel,
    infer_task,
    load_task,
    load_to_continue,
    read_task,
    save_task_folder,
    write_task,
)
from bertwright.tasks.task_types import TASK_TYPES, TaskOptions
from bertwright.vocabulary.wordpiece_tokenizer import SPECIAL_TOKENS, Tokenizer
from helpers import CPU_CONTEXT

TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz"], lowercase=True)
CONFIG = BertConfig(
    TOKENIZER.vocab_size, hidden_size=12, num_layers=1, num_heads=3, intermediate_size=20, max_positions=64
)
TASKS = {
    "classification": Classification(
        text="2", text_pair="3", header=False, quotes=True, metric="f1", pos_label="ja", labels=("ja", 'ne"in\n')
    ),
    "multi-label": MultiLabel(label_columns=("a b", "c"), metric="macro_f1", threshold=0.25, labels=("a b", "c")),
    "regression": Regression(text="sätze", max_length=7, metric="pearson"),
    "multiple-choice": MultipleChoice(prompt="sent1", start="sent2", endings=("a", "b"), first_label=1),
    "tagging": Tagging(words="form", scheme="none", context=True, metric="accuracy", labels=("NOUN", "VERB", "X")),
    "question-answering": QuestionAnswering(allow_no_answer=True, threshold=-1.25, n_best_size=3, max_length=200),
    "reranking": Reranking(columns=("anchor=q", "positive=a"), ranking_loss="margin", metric="map", max_length=50),
}
OF_VECTORS = {"embedding", "distillation"}  # folders of sentence-transformers: finetuning/test_embedding_runs.py


def save(folder: Path, task: AnyTask) -> Path:
    """Save a model without checksums, so that tests can change its files."""
    save_task_folder(folder, TaskModel(EncoderForTask(BertEncoder(CONFIG), task.head), task), TOKENIZER)
    (folder / "checksums.json").unlink()
    return folder


def test_every_task_type_is_tested_here():
    assert set(TASK_TYPES) - OF_VECTORS == set(TASKS)
    assert all(type(task) is TASK_TYPES[name] and task.kind == name for name, task in TASKS.items())


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_every_field_of_a_task_survives_a_round_trip(tmp_path, task):
    save(tmp_path / "m", task)
    assert read_task(tmp_path / "m") == task
    found = load_task(tmp_path / "m")
    assert (found.task, found.model.head.spec, found.inferred) == (task, task.head, False)


def test_a_task_without_a_metric_survives_a_round_trip(tmp_path):
    write_task(tmp_path, Embedding())  # trained without dev examples, which would decide the metric
    assert read_task(tmp_path) == Embedding()


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (HeadRecord(HeadSpec("sequence", 2), ("n", "p"), False), Classification(labels=("n", "p"), max_length=64)),
        (
            HeadRecord(HeadSpec("sequence", 1), ("p",), False, multi_label=True),
            MultiLabel(labels=("p",), max_length=64),
        ),
        (HeadRecord(HeadSpec("sequence", 1), (), True), Regression(max_length=64)),
        (HeadRecord(HeadSpec("choice", 1), (), False), MultipleChoice(max_length=64)),
        (HeadRecord(HeadSpec("span", 2), (), False), QuestionAnswering(max_length=64, max_query_length=16)),
        (
            HeadRecord(HeadSpec("token", 3), ("I-X", "O", "B-X"), False),
            Tagging(labels=("I-X", "O", "B-X"), scheme="iob1", max_length=64),
        ),
        (
            HeadRecord(HeadSpec("token", 5), ("O", "B-X", "I-X", "L-X", "U-X"), False),
            Tagging(labels=("O", "B-X", "I-X", "E-X", "S-X"), scheme="bioes", max_length=64),
        ),
        (
            HeadRecord(HeadSpec("token", 2), ("NN", "VB"), False),
            Tagging(labels=("NN", "VB"), scheme="none", metric="accuracy", max_length=64),
        ),
    ],
    ids=lambda value: value.head.kind if isinstance(value, HeadRecord) else "",
)
def test_task_is_inferred_from_head_and_positions(tmp_path, record, expected):
    assert infer_task(record, max_positions=64) == expected
    save(tmp_path / "m", expected)
    (tmp_path / "m/task.json").unlink()
    assert read_task(tmp_path / "m").head == expected.head
    found = load_task(tmp_path / "m")
    assert found.inferred
    save_task_folder(tmp_path / "again", found, TOKENIZER)
    assert not (tmp_path / "again/task.json").exists()
    assert load_task(tmp_path / "again").task == found.task


def test_bilou_labels_of_a_transformers_folder_become_bioes(tmp_path):
    task = Tagging(labels=("O", "B-X", "I-X", "E-X", "S-X"), scheme="bioes", max_length=64)
    save(tmp_path / "m", task)
    (tmp_path / "m/task.json").unlink()
    config = (tmp_path / "m/config.json").read_text()
    (tmp_path / "m/config.json").write_text(config.replace("E-X", "L-X").replace("S-X", "U-X"))
    found = load_task(tmp_path / "m")
    assert found.task == task
    save_task_folder(tmp_path / "again", found, TOKENIZER)
    load(tmp_path / "m").save(tmp_path / "third")
    for folder in ("again", "third"):
        assert load_task(tmp_path / folder).task == task
        names = json.loads((tmp_path / folder / "config.json").read_text())["id2label"]
        assert [*names.values()] == ["O", "B-X", "I-X", "L-X", "U-X"]


def test_inferred_question_answering_has_the_windows_of_the_paper():
    assert infer_task(HeadRecord(HeadSpec("span", 2), (), False), max_positions=512) == QuestionAnswering()


def test_folder_without_a_task_has_none(tmp_path):
    save_model(tmp_path / "m", BertForPretraining(CONFIG), TOKENIZER)
    assert read_task(tmp_path / "m") is None
    assert load_task(tmp_path / "m") is None
    with pytest.raises(ValueError, match=r"no config\.json"):
        read_task(tmp_path)


def test_labels_in_another_order_than_the_weights_are_rejected(tmp_path):
    task = Classification(labels=("bad", "good"))
    save_task_folder(
        tmp_path / "m", TaskModel(EncoderForTask(BertEncoder(CONFIG, seed=1), task.head, 1), task), TOKENIZER
    )
    (tmp_path / "m/checksums.json").unlink()
    values = json.loads((tmp_path / "m/task.json").read_text())
    (tmp_path / "m/task.json").write_text(json.dumps(values | {"labels": ["good", "bad"]}))
    with pytest.raises(ValueError, match=r"task\.json: .*labels of config\.json .*, got good, bad …"):
        load_task(tmp_path / "m")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", 'expected an object with the "kind" of a task'),
        ('{"labels": ["a", "b"]}', 'expected an object with the "kind" of a task'),
        ('{"kind": ["tagging"]}', 'expected an object with the "kind" of a task'),
        ('{"kind": "taging"}', 'no task type "taging"; did you mean "tagging"'),
        ('{"kind": "tagging", "color": 3}', "unknown fields: color"),
        ('{"kind": "tagging", "max_length": 1}', "max_length = 1"),
        ('{"kind": "classification", "labels": ["a", "a"]}', "labels = 'a', 'a'"),
        ('{"kind": "tagging",\n', "line 2: not valid JSON"),
        ('{"kind": "tagging", "labels": ["O"], "scheme": null}', "scheme is empty; restore"),
        ('{"kind": "classification", "labels": [0, 1]}', r"task\.json: labels\[0\]: expected str, got 0"),
        ('{"kind": "classification", "labels": "ab"}', "task.json: labels: expected a list, got 'ab'"),
        ('{"kind": "classification", "max_length": 16.0}', "task.json: max_length: expected int, got 16.0"),
        ('{"kind": "classification", "header": "no"}', "task.json: header: expected bool, got 'no'"),
    ],
)
def test_damaged_task_file_is_named(tmp_path, content, message):
    (tmp_path / "task.json").write_text(content)
    with pytest.raises(ValueError, match=message) as error:
        read_task(tmp_path)
    assert str(error.value).startswith(str(tmp_path / "task.json"))


@pytest.mark.parametrize("name", ["crf.transitions", "lstm.weight_ih_l0", "dense.weight", "loss_fct.weight"])
def test_layers_beyond_a_head_are_named_and_no_answer_is_given_without_them(tmp_path, name):
    folder = save(tmp_path / "m", TASKS["tagging"])
    tensors = load_file(folder / "model.safetensors") | {name: torch.ones(3, 3)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=rf"m: not computed: {name}"):
        model = load(folder)
    model.embed("the")
    if name.startswith("loss"):  # it is no part of the answer
        model.tag("the")
        return
    calls = (
        lambda: model.tag("the"),
        lambda: model.save(tmp_path / "copy"),
        lambda: load_for_task([str(folder)], TaskOptions(), None, CPU_CONTEXT),
        lambda: load_to_continue(folder, TASKS["tagging"], None),
    )
    for call in calls:
        with pytest.raises(ValueError, match=rf"answers depend on {name}.*bertwright finetune"):
            call()


def test_task_of_another_model_is_rejected(tmp_path):
    folder = save(tmp_path / "m", TASKS["tagging"])
    for other, message in (
        (
            Tagging(labels=("O", "B-X"), scheme="iob2"),
            "expected a token head with 2 outputs, got a model with a token head with 3",
        ),
        (TASKS["question-answering"], "expected a span head with 2 outputs, got a model with a token head"),
    ):
        write_task(folder, other)
        with pytest.raises(ValueError, match=rf"task\.json: {message}"):
            load_task(folder)
    assert load_task_model(folder).head.spec == HeadSpec("token", 3)


def test_labels_are_written_to_config_json(tmp_path):
    folder = save(tmp_path / "m", TASKS["classification"])
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["id2label"] == {"0": "ja", "1": 'ne"in\n'}
    assert config["problem_type"] == "single_label_classification"
    assert (
        json.loads((save(tmp_path / "r", TASKS["regression"]) / "config.json").read_text())["problem_type"]
        == "regression"
    )
