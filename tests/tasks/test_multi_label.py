"""Multi-label classification: forms of labels, scores and thresholds by hand, parity with scikit-learn, commands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import bertwright
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings
from bertwright.inference.evaluate import EvaluateSettings, evaluate
from bertwright.inference.predict import predict
from bertwright.inference.predict_settings import PredictSettings
from bertwright.metrics.example_scores import compute_scores
from bertwright.metrics.scores import multi_label_scores
from bertwright.tasks.classification import Classification
from bertwright.tasks.multi_label import LabelsPrediction, MultiLabel
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_types import TaskOptions
from bertwright.tasks.text_task import TextExample
from bertwright.training.optimizer_settings import OptimizerSettings
from bertwright.trials.grid import grid
from bertwright.trials.grid_settings import GridSettings
from helpers import CPU, read_output, text_reporter, write_file
from small_runs import save_random_bert

RATE = OptimizerSettings(learning_rate=1e-2, warmup_ratio=0.1, bias_correction=True)


def read(task: MultiLabel, folder: Path, name: str, content: str) -> tuple[MultiLabel, list[tuple[str, ...]]]:
    """Return the task with the labels of a file, and the labels of each row."""
    examples = list(task.read(write_file(folder, content, name)))
    task = task.with_labels_of(examples)
    return task, task.label_sets(examples)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", 'text,label\na,"3,15"\nb,25\nc,""\n', [("3", "15"), ("25",), ()]),
        ("a.tsv", "text\tlabel\na\tx | y\nb\ty,z|x|\n", [("x", "y"), ("y,z", "x")]),
        ("a.tsv", "text\tlabel\na\tx;y;x\nb\ty, z\n", [("x", "y"), ("y, z",)]),
        ("a.jsonl", '{"text": "a", "label": ["x", "y"]}\n{"text": "b", "label": []}\n', [("x", "y"), ()]),
        ("a.jsonl", '{"text": "a", "label": [1, 2.0]}\n{"text": "b", "label": 3}\n', [("1", "2"), ("3",)]),
        ("a.json", '[{"text": "a", "label": "x,y"}, {"text": "b", "label": ["z"]}]', [("x", "y"), ("z",)]),
        ("a.csv", "text,label\na,\"['x', 'y']\"\nb,\"['x' 'z']\"\nc,[]\n", [("x", "y"), ("x", "z"), ()]),
    ],
)
def test_labels_are_read_in_every_form(
    name: str, content: str, expected: list[tuple[str, ...]], tmp_path: Path
) -> None:
    task, labels = read(MultiLabel(), tmp_path, name, content)
    assert labels == expected
    assert set(task.labels) == {label for several in expected for label in several}


def test_numbers_are_sorted_as_numbers_and_a_given_separator_counts(tmp_path: Path) -> None:
    task, labels = read(MultiLabel(label_separator=" "), tmp_path, "a.tsv", "text\tlabel\na\t3 15,2\nb\t3\n")
    assert (labels, task.label_separator) == ([("3", "15,2"), ("3",)], " ")
    assert read(MultiLabel(), tmp_path, "a.csv", 'text,label\na,"10,9"\nb,2\n')[0].labels == ("2", "9", "10")


def test_columns_of_marks_are_labels(tmp_path: Path) -> None:
    task = MultiLabel(label_columns=("toxic", "threat"))
    content = "text,toxic,threat\na,1,0\nb,0,0\nc,True,1.0\n"
    learned, labels = read(task, tmp_path, "a.csv", content)
    assert labels == [("toxic",), (), ("toxic", "threat")]
    assert learned.labels == ("toxic", "threat")
    path = write_file(tmp_path, "text,toxic,threat\na,1,0\nb,-1,0\n", "bad.csv")
    with pytest.raises(ValueError, match=r"bad\.csv, line 3: expected 1 or 0 in 'toxic', got '-1'"):
        list(task.read(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text\tlabel\na\tx|y\nb\tz\n", r"dev\.tsv, line 3: label 'z' is not one of the training data: 'x', 'y'"),
        ("text\tlabel\na\t[x, y]\n", r"dev\.tsv, line 2: expected a list in 'label', got '\[x, y\]'"),
    ],
)
def test_wrong_labels_are_located(content: str, message: str, tmp_path: Path) -> None:
    task = MultiLabel(labels=("x", "y"), label_separator="|")
    with pytest.raises(ValueError, match=message):
        task.check(list(task.read(write_file(tmp_path, content, "dev.tsv"))))


def test_equal_labels_of_all_texts_and_wrong_settings_are_errors() -> None:
    with pytest.raises(ValueError, match=r"same 'label'"):
        MultiLabel().with_labels_of(
            [TextExample("a", None, ("x",), "line 1"), TextExample("b", None, ("x",), "line 2")]
        )
    for wrong in ({"threshold": 1.5}, {"label_separator": ""}, {"labels": ("x", "x")}, {"metric": "accuracy"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            MultiLabel(**wrong)  # type: ignore[arg-type]


def test_notices_name_the_other_type() -> None:
    combined = [TextExample("a", None, label, "") for label in ("3,15", "25", "3,15,26", "27")]
    assert any("'3,15'" in note and "multi-label" in note for note in Classification().warnings(combined))
    plain = [TextExample("a", None, label, "") for label in ("Food, drink", "Travel", "Smith, John", "a|b")]
    assert not any("multi-label" in note for note in Classification().warnings(plain))
    single = [TextExample("a", None, (label,), "") for label in "xy"]
    assert any("--task classification" in note for note in MultiLabel(labels=("x", "y")).warnings(single))
    with pytest.raises(ValueError, match=r"line 1: .*'intents'.* list of 2; .*--task multi-label"):
        Classification(label="intents").parse_label(["change", "price"], "line 1")


def test_scores_equal_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    y_true, y_pred = rng.random((50, 6)) < 0.3, rng.random((50, 6)) < 0.4
    scores = multi_label_scores(y_true, y_pred)
    for average in ("micro", "macro"):
        assert scores[f"{average}_f1"] == pytest.approx(f1_score(y_true, y_pred, average=average))
    assert scores["exact_match"] == pytest.approx(accuracy_score(y_true, y_pred))
    unused = np.zeros((50, 1), dtype=bool)
    assert multi_label_scores(np.hstack([y_true, unused]), np.hstack([y_pred, unused])) == pytest.approx(
        scores | {"exact_match": scores["exact_match"]}
    )


def test_threshold_maximizes_the_metric() -> None:
    task = MultiLabel(labels=("x", "y"))
    examples = [TextExample(t, None, label, t) for t, label in (("a", ("x",)), ("b", ("x", "y")), ("c", ()))]
    shares = [(0.4, 0.1), (0.35, 0.31), (0.295, 0.2)]
    predictions = [LabelsPrediction((), dict(zip("xy", row, strict=True))) for row in shares]
    tuned = task.with_threshold_from(examples, predictions)
    assert tuned.threshold == 0.3  # between 0.295 and 0.31; nothing is predicted above 0.5
    logits = np.log(np.array(shares) / (1 - np.array(shares))).astype(np.float32)
    decoded = tuned.decode(examples, None, logits)  # type: ignore[arg-type]
    assert [guess.labels for guess in decoded] == [("x",), ("x", "y"), ()]
    assert tuned.score(examples, decoded) == {"micro_f1": 1.0, "macro_f1": 1.0, "exact_match": 1.0}
    assert task.score_notes(examples, predictions) == ["best on these examples: micro f1 100.00, with --threshold 0.3"]


@pytest.mark.parametrize("metric", ["micro_f1", "exact_match"])
def test_bootstrap_statistics_give_the_metric(metric: str) -> None:
    task = MultiLabel(labels=("x", "y"), metric=metric)
    examples = [TextExample("a", None, label, "") for label in (("x",), ("x", "y"), ("y",))]
    predictions = [LabelsPrediction(labels, {}) for labels in (("x",), ("y",), ("x", "y"))]
    statistics = task.example_scores(examples, predictions)
    assert statistics is not None
    score = compute_scores(statistics, np.ones((1, 3)))[0]
    assert score == pytest.approx(task.score(examples, predictions)[metric])


def test_an_ensemble_has_the_mean_probabilities() -> None:
    task = MultiLabel(labels=("x", "y"))
    logits = [np.array([[30.0, -2.0]], np.float32), np.array([[-1.0, -100.0]], np.float32)]
    merged = task.merge_outputs([task, task], logits, None)  # type: ignore[arg-type]
    (guess,) = task.decode([], None, merged)  # type: ignore[arg-type]
    expected = np.mean([1 / (1 + np.exp(-one.astype(float))) for one in logits], axis=0)[0]
    assert [*guess.probabilities.values()] == pytest.approx(expected.tolist(), rel=1e-6)
    assert task.with_threshold(0.2).merge([task.with_threshold(0.4)]).threshold == pytest.approx(0.3)


WORDS = {"rain": "weather", "snow": "weather", "goal": "sport", "match": "sport", "tax": "money"}
FILLERS = "the a of in and was very".split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a random model, train.jsonl, dev.csv, and a model that was fine-tuned on them."""
    folder = tmp_path_factory.mktemp("labels")
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "intermediate_size": 64, "max_positions": 32}
    save_random_bert(folder / "bert", [*WORDS, *FILLERS], initializer_range=0.06, **sizes)
    rng = np.random.default_rng(0)
    rows: list[tuple[str, list[str]]] = []
    for _ in range(400):
        words = [*rng.choice([*WORDS], rng.integers(0, 4), replace=False), *rng.choice(FILLERS, 3)]
        rows.append((" ".join(rng.permutation(words)), sorted({WORDS[word] for word in words if word in WORDS})))
    lines = (json.dumps({"text": text, "label": labels}) for text, labels in rows[:340])
    write_file(folder, "\n".join(lines) + "\n", "train.jsonl")
    lists = (json.dumps({"text": text, "label": ";".join(labels)}) for text, labels in rows[340:])
    write_file(folder, "\n".join(lists) + "\n", "dev.jsonl")
    finetune(make_settings(folder, "run", epochs=12.0, tuning=TuningSettings(pooling="cls")), text_reporter())
    return folder


def make_settings(folder: Path, run: str, **changes: Any) -> FinetuneSettings:
    options = TaskOptions(label_separator=";", max_length=32)
    task = TaskSettings(
        "multi-label", train=(f"{folder}/train.jsonl",), dev=(f"{folder}/dev.jsonl",), overrides=options
    )
    shared: dict[str, Any] = {"batch_size": 16, "optimizer": RATE, "device": CPU, "model": str(folder / "bert")}
    return FinetuneSettings(folder / run, task=task, **shared | changes)


def test_it_is_learned_evaluated_and_predicted(folder: Path, tmp_path: Path) -> None:
    report = json.loads((folder / "run" / "report.json").read_text())
    assert report["scores"]["dev"]["micro_f1"] > 0.9
    run, dev, reporter = str(folder / "run"), str(folder / "dev.jsonl"), text_reporter()
    assert evaluate(EvaluateSettings(run, (dev,), device=CPU), reporter) == report["scores"]["dev"]
    assert "precision" in read_output(reporter)
    output = tmp_path / "out.jsonl"
    predict(PredictSettings(run, inputs=(dev,), output=output, device=CPU), text_reporter())
    records = [json.loads(line) for line in output.read_text().splitlines()]
    texts = [json.loads(line)["text"] for line in Path(dev).read_text().splitlines()]
    assert [tuple(record["labels"]) for record in records] == [
        guess.labels for guess in bertwright.load(run).classify(texts)
    ]
    everything = evaluate(EvaluateSettings(run, (dev,), threshold=0.0, device=CPU), text_reporter())
    assert everything["micro_f1"] < report["scores"]["dev"]["micro_f1"]


def test_transformers_opens_it_and_it_is_opened_from_transformers(folder: Path, tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder / "run" / "model")
    assert model.config.problem_type == "multi_label_classification"
    inputs = AutoTokenizer.from_pretrained(folder / "run" / "model")("rain in the match", return_tensors="pt")
    with torch.inference_mode():
        theirs = model(**inputs).logits.sigmoid()[0].tolist()
    ours = bertwright.load(folder / "run", "cpu").classify("rain in the match")
    assert [*ours.probabilities.values()] == pytest.approx(theirs, abs=1e-5)
    model.save_pretrained(tmp_path)
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / "run" / "model" / name).read_bytes())
    foreign = bertwright.load(tmp_path, "cpu")
    assert isinstance(foreign.task, MultiLabel)
    assert foreign.classify("rain in the match").probabilities == pytest.approx(ours.probabilities, abs=1e-6)


def test_a_grid_a_trained_head_and_an_ensemble(folder: Path, tmp_path: Path) -> None:
    continued = {
        "epochs": 0.2,
        "tuning": TuningSettings(keep_head=True),
        "optimizer": replace(RATE, learning_rate=1e-4),
    }
    settings = make_settings(folder, "again", model=str(folder / "run"), **continued)
    finetune(settings, text_reporter())
    report = json.loads((folder / "again" / "report.json").read_text())
    assert report["scores"]["dev"]["micro_f1"] > 0.9
    both = EvaluateSettings(
        str(folder / "run"), (f"{folder}/dev.jsonl",), ensemble=(str(folder / "again"),), device=CPU
    )
    assert evaluate(both, text_reporter())["micro_f1"] > 0.9
    grid(
        GridSettings(tmp_path / "grid", learning_rates=(1e-2,), batch_sizes=(16,), epochs=(1.0,), task=settings.task,
                     model=str(folder / "bert"), device=CPU),
        text_reporter(),
    )  # fmt: skip
    assert json.loads((tmp_path / "grid" / "report.json").read_text())["metric"] == "micro_f1"


def test_a_table_lists_the_worst_of_many_labels() -> None:
    labels = tuple(f"l{n}" for n in range(40))
    task: AnyTask = MultiLabel(labels=labels)
    examples = [TextExample("a", None, labels, "line 1")]
    (table,) = task.score_tables(examples, [LabelsPrediction(labels[3:], {})])
    assert [row[0] for row in table.rows][:3] == ["l0", "l1", "l2"]
    assert len(table.rows) == 10
    guess = LabelsPrediction(labels[3:], {})
    details = task.score_details(examples, [guess])["labels"]
    assert details["l0"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "examples": 1}
    assert details["l3"]["f1"] == 1.0
    assert task.gold_columns(examples[0])["gold"] == list(labels)
    assert not task.is_right(examples[0], guess)
    assert task.is_right(examples[0], LabelsPrediction(labels[::-1], {}))


def test_a_prediction_shows_its_most_probable_labels() -> None:
    guess = LabelsPrediction(("x",), {"w": 0.1, "x": 0.9, "y": 0.2, "z": 0.3})
    assert guess.top(2) == [("x", 0.9), ("z", 0.3)]
    assert repr(guess) == "LabelsPrediction(('x',), {'x': 0.9000, 'z': 0.3000, 'y': 0.2000, … 1 more})"


def test_columns_of_marks_are_pointed_at(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no column .label..*--label-columns"):
        read(MultiLabel(), tmp_path, "a.csv", "text,toxic,insult\na,1,0\n")
    task, _ = read(MultiLabel(label="toxic"), tmp_path, "a.csv", "text,toxic,insult\na,1,0\nb,0,1\n")
    examples = list(task.read(str(tmp_path / "a.csv")))
    assert any("--label-columns" in warning for warning in task.warnings(examples))
