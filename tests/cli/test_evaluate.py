"""`bertwright evaluate`: scores of labeled files, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from task_models import CLASSES, QUESTIONS, TAGGING, save_random_model, write_questions

from bertwright.cli.render.terminal import TerminalReporter
from bertwright.inference.evaluate import EvaluateSettings, evaluate
from bertwright.tasks.classification import Classification
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.task import AnyTask
from helpers import CPU, read_output


def test_evaluate_scores_an_answer_that_is_not_in_its_context(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    _, model = save_random_model(vocabulary_folder, QUESTIONS, tmp_path / "model")
    repeated = ("the bear sees", "the bear sees the bear", [{"text": "bear"}])
    absent = ("the bear sees", "the wolf sees", [{"text": "the deer"}])
    scores = evaluate(
        EvaluateSettings(
            model, (write_questions(tmp_path / "q.jsonl", repeated, absent),), tmp_path / "s.json", device=CPU
        ),
        reporter,
    )
    assert 0 <= scores["exact_match"] <= scores["f1"] <= 1
    assert json.loads((tmp_path / "s.json").read_text()) == scores
    assert "2 examples" in read_output(reporter)


def test_evaluate_checks_the_output_path_before_it_loads_the_model(
    tmp_path: Path, vocabulary_folder: Path, monkeypatch: pytest.MonkeyPatch, reporter: TerminalReporter
) -> None:
    _, model = save_random_model(vocabulary_folder, CLASSES, tmp_path / "model")
    monkeypatch.setattr("bertwright.inference.bert.load", lambda *_: pytest.fail("loaded the model"))
    (tmp_path / "s.json").touch()
    (tmp_path / "a.tsv").write_text("text\tlabel\nthe bear\tgood\n")
    for path, message in ((Path("/sys/s.json"), "denied|Read-only"), (tmp_path / "s.json", "already exists")):
        with pytest.raises((OSError, ValueError), match=message):
            evaluate(EvaluateSettings(model, (str(tmp_path / "a.tsv"),), path, device=CPU), reporter)


def test_evaluate_uses_the_threshold_of_the_model(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    task = QuestionAnswering(max_length=32, max_query_length=8, allow_no_answer=True, threshold=1e6)
    _, model = save_random_model(vocabulary_folder, task, tmp_path / "model")
    path = write_questions(tmp_path / "q.jsonl", ("the bear", "bear", [{"text": "bear"}]), ("the wolf", "wolf", []))
    scores = evaluate(EvaluateSettings(model, (path,), device=CPU), reporter)
    # Neither is answered. With the threshold that suits this file best, the first would be, and more would be right.
    assert (scores["exact_match"], scores["f1"]) == (0.5, 0.5)


def test_evaluate_warns_if_all_predictions_are_one_class(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    bert, model = save_random_model(vocabulary_folder, CLASSES, tmp_path / "model")
    (only,) = {one.label for one in bert.classify(["the bear", "the bear"])}
    (tmp_path / "a.tsv").write_text("text\tlabel\nthe bear\tgood\nthe bear\tbad\n")
    evaluate(EvaluateSettings(model, (str(tmp_path / "a.tsv"),), device=CPU), reporter)
    assert f"! all predictions are {only!r}" in read_output(reporter)


def test_evaluate_of_many_labels_names_the_worst_and_writes_all_of_them(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    labels = tuple(f"intent {number:02}" for number in range(40))
    bert, model = save_random_model(vocabulary_folder, Classification(labels=labels), tmp_path / "model")
    predicted = bert.classify("the bear").label
    gold = [predicted, "intent 07", "intent 07", "intent 08"]
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"the bear\t{label}\n" for label in gold))
    settings = EvaluateSettings(
        model, (str(tmp_path / "a.tsv"),), tmp_path / "s.json", errors=tmp_path / "e.tsv", device=CPU
    )
    evaluate(settings, reporter)
    report = json.loads((tmp_path / "s.json").read_text())
    assert report["labels"].keys() == set(labels)
    assert report["labels"][predicted] == {"precision": 0.25, "recall": 1.0, "f1": 0.4, "examples": 1}
    assert report["confusion_matrix"] == {
        predicted: {predicted: 1},
        "intent 07": {predicted: 2},
        "intent 08": {predicted: 1},
    }
    header, *rows = [line.split("\t") for line in (tmp_path / "e.tsv").read_text().splitlines()]
    assert header[:5] == ["location", "text", "gold", "label", "probability"]
    assert [row[1:4] for row in rows] == [["the bear", label, predicted] for label in gold[1:]]
    assert rows[0][0].endswith("a.tsv, line 3")
    shown = read_output(reporter)
    assert f"intent 07 {predicted} 2" in " ".join(shown.split())
    assert "intent 39" not in shown  # no example has it


@pytest.mark.parametrize("task", [QUESTIONS, TAGGING], ids=lambda task: task.kind)
def test_errors_of_other_tasks_have_the_gold_answer(
    tmp_path: Path, vocabulary_folder: Path, task: AnyTask, reporter: TerminalReporter
) -> None:
    bert, model = save_random_model(vocabulary_folder, task, tmp_path / "model")
    if task is QUESTIONS:
        right = bert.answer("the bear sees", "the bear").text
        path = write_questions(
            tmp_path / "q.jsonl",
            ("the bear sees", "the bear", [{"text": right}]),
            ("the wolf", "the bear", [{"text": "no such answer"}]),
        )
        gold: list[str] = ["no such answer"]
    else:
        (tag,) = bert.tag("bear").tags
        gold = ["B-PER" if tag == "O" else "O"]
        (tmp_path / "t.conll").write_text(f"bear {tag.replace('I-', 'B-')}\n\nbear {gold[0]}\n")
        path = str(tmp_path / "t.conll")
    evaluate(EvaluateSettings(model, (path,), errors=tmp_path / "e.jsonl", device=CPU), reporter)
    errors = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]
    assert [error["gold"] for error in errors][-1] == gold
    assert all(error["location"] for error in errors)


def test_errors_are_refused_for_numbers_and_other_suffixes(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    _, model = save_random_model(vocabulary_folder, Regression(), tmp_path / "model")
    (tmp_path / "a.tsv").write_text("text\tlabel\nthe bear\t1\nthe wolf\t2\n")
    with pytest.raises(ValueError, match="--errors: predictions of regression"):
        evaluate(EvaluateSettings(model, (str(tmp_path / "a.tsv"),), errors=tmp_path / "e.tsv", device=CPU), reporter)
    assert not (tmp_path / "e.tsv").exists()
    with pytest.raises(ValueError, match=r"--errors e\.xls: expected .*\.jsonl"):
        EvaluateSettings(model, ("a.tsv",), errors=Path("e.xls"))
    with pytest.raises(ValueError, match=r"both are s\.tsv"):
        EvaluateSettings(model, ("a.tsv",), Path("s.tsv"), errors=Path("s.tsv"))
