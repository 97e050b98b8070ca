"""Regression: labels of any magnitude are learned at the usual rates, and files predict in original units."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from bertwright.interop.huggingface import load_task_model
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.tasks.collation import collate
from bertwright.tasks.prediction import predict_chunks
from bertwright.tasks.regression import Regression
from bertwright.tasks.task_folder import TaskModel, continue_task, load_task, load_to_continue, save_task_folder
from bertwright.tasks.text_task import TextExample
from bertwright.vocabulary.wordpiece_tokenizer import SPECIAL_TOKENS, Tokenizer

TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *"abcdefgh"], lowercase=True)
CONFIG = BertConfig(13, 16, 1, 2, 32, max_positions=16, hidden_dropout=0.0, attention_dropout=0.0)


def examples(*labels: float) -> list[TextExample[float]]:
    texts = ["a b", "c", "d e f", "g h", "b b a", "h"]
    return [TextExample(texts[n % 6], None, label, f"line {n}") for n, label in enumerate(labels)]


@pytest.mark.parametrize(
    ("labels", "mean", "scale"),
    [
        ((0.0, 5.0, 2.5, 2.5), 2.5, 2.0),
        ((90_000.0, 110_000.0), 100_000.0, 8_192.0),
        ((1e-3, 3e-3), 2e-3, 2.0**-10),
        ((-3e38, 3e38), 0.0, 2.0**100),
        ((1e-45, 2e-45), 1.5e-45, 2.0**-100),
    ],
)
def test_scale_is_a_power_of_two_near_the_standard_deviation(
    labels: tuple[float, ...], mean: float, scale: float
) -> None:
    task = Regression(max_length=16).with_labels_of(examples(*labels))
    assert (task.mean, task.scale) == (pytest.approx(mean), scale)
    assert task.encode_labels(examples(*labels)).tolist() == [np.float32(label / scale) for label in labels]


def test_initial_predictions_are_near_the_mean_of_the_labels() -> None:
    given = examples(3.0, 4.0, 3.5, 2.5)
    task = Regression(max_length=16).with_labels_of(given)
    model = EncoderForTask(BertEncoder(CONFIG), task.head)
    task.initialize_head(model.head)
    (chunk,) = predict_chunks(model.eval(), task, TOKENIZER, given)
    assert chunk.predictions == pytest.approx([3.25] * 4, abs=0.5)


def test_labels_of_large_magnitude_are_learned_in_few_steps() -> None:
    given = examples(90_000.0, 110_000.0, 95_000.0, 105_000.0, 99_000.0, 120_000.0)
    task = Regression(max_length=16).with_labels_of(given)
    model = EncoderForTask(BertEncoder(CONFIG), task.head)
    task.initialize_head(model.head)
    batch = collate(task.encode(given, TOKENIZER), np.arange(6))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        (task.loss(model(batch), batch) / 6).backward()
        optimizer.step()
    (chunk,) = predict_chunks(model.eval(), task, TOKENIZER, given)
    labels = np.array([example.label for example in given])
    residual = ((labels - chunk.predictions) ** 2).sum() / ((labels - labels.mean()) ** 2).sum()
    assert residual < 0.5  # R² above 0.5


def make_model() -> tuple[list[TextExample[float]], Regression, EncoderForTask]:
    """Return examples with large labels, the task with their scale, and a random model for it."""
    given = examples(90_000.0, 110_000.0, 95_000.0)
    task = Regression(max_length=16).with_labels_of(given)
    model = EncoderForTask(BertEncoder(CONFIG, seed=3), task.head, 3)
    task.initialize_head(model.head)
    return given, task, model


def test_model_folder_predicts_in_original_units_and_loads_to_the_same_bits(tmp_path: Path) -> None:
    given, task, model = make_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (chunk,) = predict_chunks(model.eval(), task, TOKENIZER, given)
    save_task_folder(tmp_path / "m", TaskModel(model, task), TOKENIZER)
    found = load_task(tmp_path / "m")
    assert found is not None
    assert found.task == task
    for after in (model.state_dict(), found.model.state_dict()):
        assert all(torch.equal(after[name], before[name]) for name in before)
    raw = load_task_model(tmp_path / "m").head.classifier.weight
    assert torch.equal(raw, before["head.classifier.weight"] * task.scale)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    with torch.inference_mode():
        expected = [theirs(**tokenizer(one.text, return_tensors="pt")).logits.item() for one in given]
    assert chunk.predictions == pytest.approx(expected, rel=1e-6)


def test_writing_leaves_the_head_as_other_threads_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, task, model = make_model()
    (before,) = predict_chunks(model.eval(), task, TOKENIZER, given)
    predictions: list[float] = []

    def predict_meanwhile(*_args: object, **_options: object) -> None:
        for chunk in predict_chunks(model, task, TOKENIZER, given):
            predictions.extend(chunk.predictions)

    monkeypatch.setattr(Tokenizer, "save", predict_meanwhile)
    save_task_folder(tmp_path / "m", TaskModel(model, task), TOKENIZER)
    assert predictions == before.predictions


def test_continued_head_predicts_the_same_numbers_on_labels_of_another_scale(tmp_path: Path) -> None:
    given, task, model = make_model()
    (before,) = predict_chunks(model.eval(), task, TOKENIZER, given)
    save_task_folder(tmp_path / "m", TaskModel(model, task), TOKENIZER)
    other = continue_task(tmp_path / "m", Regression(max_length=16).with_labels_of(examples(1.0, 2.0)))
    assert other.scale != task.scale
    (after,) = predict_chunks(load_to_continue(tmp_path / "m", other, None), other, TOKENIZER, given)
    assert after.predictions == pytest.approx(before.predictions, rel=1e-6)


@pytest.mark.parametrize("values", [{"scale": 3.0}, {"scale": 0.0}, {"scale": float("nan")}, {"mean": float("inf")}])
def test_scale_and_mean_are_checked(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"scale = .*, mean = "):
        Regression(**values)
