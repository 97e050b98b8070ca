"""Class weights: losses by hand and against torch, balanced ones against scikit-learn, files, runs, estimators."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight
from torch import Tensor

from bertwright.base.files import read_json
from bertwright.base.settings import from_table
from bertwright.estimators import BertClassifier, BertRegressor
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.models.heads import TaskBatch
from bertwright.tables.tag_example import TagExample
from bertwright.tasks.class_weights import with_class_weights
from bertwright.tasks.classification import Classification
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import UNSEEN, Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.text_task import TextExample
from bertwright.trials.grid_settings import GridSettings
from helpers import read_output, text_reporter, write_file
from small_runs import save_random_bert

LABELS = ["ham"] * 6 + ["spam"] * 2 + ["news"]
EXAMPLES = [TextExample(f"a cat {n}", None, label, "toy") for n, label in enumerate(LABELS)]
LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 0.0], [0.0, 1.0, 3.0]])


def batch_of(labels: Tensor) -> TaskBatch:
    return TaskBatch(None, torch.arange(len(labels)), labels=labels, num_labels=len(labels))  # type: ignore[arg-type]


def test_weighted_cross_entropy_by_hand() -> None:
    task = Classification(labels=("ham", "news", "spam"), class_weights=(0.5, 3.0, 1.0))
    shares = LOGITS.softmax(1)
    expected = -(0.5 * shares[0, 0].log() + 3.0 * shares[1, 1].log() + 3.0 * shares[2, 1].log())
    assert task.loss(LOGITS, batch_of(torch.tensor([0, 1, 1]))).item() == pytest.approx(expected.item())
    tagging = Tagging(scheme="none", labels=("O", "A", "B"), class_weights=(0.5, 3.0, 1.0))
    unseen = tagging.loss(LOGITS, batch_of(torch.tensor([0, 1, UNSEEN])))
    assert unseen.item() == pytest.approx(-(0.5 * shares[0, 0].log() + 3.0 * shares[1, 1].log()).item())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_weighted_losses_equal_torch(smoothing: float) -> None:
    weights = (0.5, 3.0, 1.0)
    task = Classification(labels=("a", "b", "c"), class_weights=weights)
    labels = torch.tensor([2, 1, 0])
    reference = torch.nn.CrossEntropyLoss(torch.tensor(weights), label_smoothing=smoothing, reduction="sum")
    assert task.loss(LOGITS, batch_of(labels), smoothing).item() == pytest.approx(reference(LOGITS, labels).item())


def test_positive_weights_of_several_labels_by_hand() -> None:
    task = MultiLabel(labels=("x", "y", "z"), class_weights=(4.0, 1.0, 0.5))
    targets = torch.tensor([[1.0, 0.0, 1.0]])
    yes = F.logsigmoid(LOGITS[:1])[0]
    no = F.logsigmoid(-LOGITS[:1])[0]
    expected = -(4.0 * yes[0] + no[1] + 0.5 * yes[2]) / 3
    assert task.loss(LOGITS[:1], batch_of(targets)).item() == pytest.approx(expected.item())


def test_balanced_weights() -> None:
    classification = with_class_weights(Classification().with_labels_of(EXAMPLES), "balanced", EXAMPLES)
    expected = compute_class_weight("balanced", classes=np.unique(LABELS), y=LABELS)
    assert classification.class_weights == pytest.approx(expected)  # type: ignore[attr-defined]
    tagged = [TagExample(("a", "cat", "sees"), ("O", "B-X", "O")), TagExample(("cat",), ("O",))]
    tagging = with_class_weights(Tagging().with_labels_of(tagged), "balanced", tagged)
    assert tagging.class_weights == pytest.approx((4 / (2 * 3), 4 / 2))  # type: ignore[attr-defined]
    # A label without an example, which the dev split has all of, and one that every example has.
    sets = [TextExample("a", None, labels, "toy") for labels in (("x", "y"), ("y",), ("y",))]
    multi = with_class_weights(MultiLabel(labels=("x", "y", "z")), "balanced", sets)
    assert multi.class_weights == (2.0, 1 / 3, 3.0)  # type: ignore[attr-defined]


def test_a_file_names_some_labels(tmp_path: Path) -> None:
    task = Classification().with_labels_of(EXAMPLES)
    path = write_file(tmp_path, '{"spam": 5, "ham": 0.5}', "weights.json")
    weighted = with_class_weights(task, path, EXAMPLES)
    assert weighted == replace(task, class_weights=(0.5, 1.0, 5.0))  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"Spam": 2}', "label 'Spam' is not one of the training data: 'ham', 'news', 'spam'"),
        ('{"spam": 0}', "expected a number above 0 for 'spam', got 0"),
        ('{"spam": true}', "expected a number above 0 for 'spam', got True"),
        ('{"spam": "2"}', "expected a number above 0 for 'spam', got '2'"),
        ('{"spam": Infinity}', "expected a number above 0 for 'spam', got inf"),
        ('["spam"]', 'expected an object such as {"ham": 2.5}, got list'),
        ('{"spam": 2', "line 1: not valid JSON"),
    ],
)
def test_an_unusable_file_is_an_error_that_names_it(content: str, message: str, tmp_path: Path) -> None:
    path = write_file(tmp_path, content, "weights.json")
    with pytest.raises(ValueError, match=rf"^{path}") as error:
        with_class_weights(Classification().with_labels_of(EXAMPLES), path, EXAMPLES)
    assert message in str(error.value)


@pytest.mark.parametrize("task", [Regression(), QuestionAnswering()])
def test_a_task_without_classes_has_no_weights(task: AnyTask, tmp_path: Path) -> None:
    for given in ("balanced", write_file(tmp_path, "{}", "weights.json")):
        with pytest.raises(ValueError, match=f"class_weights: expected a task type with classes, got {task.kind}"):
            with_class_weights(task, given, [])


def test_a_misspelled_choice_is_no_file() -> None:
    with pytest.raises(ValueError, match='class_weights = "balancd": expected balanced, or a JSON file'):
        with_class_weights(Classification().with_labels_of(EXAMPLES), "balancd", EXAMPLES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a random model, a file of 90 labeled texts, and weights."""
    folder = tmp_path_factory.mktemp("weights")
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32, "max_positions": 16}
    save_random_bert(folder / "bert", ["cat", "dog", "a"], **sizes)
    rows = [{"text": "a cat" if n % 9 else "a dog", "label": 0 if n % 9 else 1} for n in range(90)]
    write_file(folder, "".join(json.dumps(row) + "\n" for row in rows), "train.jsonl")
    write_file(folder, '{"1": 4}', "weights.json")
    return folder


def make_table(folder: Path, run: Path, **tuning: Any) -> dict[str, Any]:
    return {
        "run": str(run), "model": str(folder / "bert"), "epochs": 1.0, "batch_size": 8, "tuning": tuning,
        "task": {"task": "classification", "train": [str(folder / "train.jsonl")]},
        "device": {"device": "cpu", "dtype": "float32", "threads": 1},
    }  # fmt: skip


def test_a_run_shows_saves_and_resumes_with_its_weights(folder: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.json"
    weights.write_bytes((folder / "weights.json").read_bytes())
    settings = from_table(FinetuneSettings, make_table(folder, tmp_path / "run", class_weights=str(weights)), "test")
    reporter = text_reporter(160)
    model = finetune(replace(settings, keep_checkpoints=True), reporter)
    assert "class weights 0 1, 1 4" in " ".join(read_output(reporter).split())
    assert read_json(model / "task.json")["class_weights"] == [1.0, 4.0]
    weights.unlink()  # the checkpoint has them
    finetune(replace(settings, keep_checkpoints=True, resume=True), text_reporter())
    plain = finetune(from_table(FinetuneSettings, make_table(folder, tmp_path / "plain"), "test"), text_reporter())
    assert read_json(plain / "task.json")["class_weights"] == []
    assert (plain / "model.safetensors").read_bytes() != (model / "model.safetensors").read_bytes()


def test_a_grid_takes_class_weights(folder: Path, tmp_path: Path) -> None:
    table = make_table(folder, tmp_path / "grid", class_weights="balanced")
    grid = from_table(
        GridSettings, {name: table[name] for name in ("run", "model", "task", "tuning", "device")}, "test"
    )
    assert grid.finetune_settings(grid.points()[0]).tuning.class_weights == "balanced"


def test_estimators_take_scikit_learns_class_weight(folder: Path) -> None:
    texts, labels = ["a cat"] * 16 + ["a dog"] * 2, np.array([0] * 16 + [1] * 2)
    options: dict[str, Any] = {"epochs": 1.0, "batch_size": 6, "device": "cpu", "dtype": "float32", "threads": 1}

    def weights_of(class_weight: Any) -> Any:
        fitted = BertClassifier(folder / "bert", class_weight=class_weight, **options).fit(texts, labels)
        return fitted.model_.task.class_weights  # type: ignore[union-attr]

    assert weights_of("balanced") == pytest.approx((18 / 32, 18 / 4))
    assert weights_of({np.int64(1): np.float32(2.5)}) == (1.0, 2.5)
    with pytest.raises(ValueError, match=r"class_weight\.json.*'2'.*'0', '1'"):
        weights_of({2: 3.0})
    with pytest.raises(ValueError, match=r"class_weights.*with classes, got regression"):
        BertRegressor(folder / "bert", class_weight="balanced", **options).fit(texts, labels)
