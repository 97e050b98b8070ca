"""`bertwright evaluate`: scores of labeled files, and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console
from task_models import CLASSES, CPU, QUESTIONS, save_random_model, write_questions

from bertwright.inference.evaluate import EvaluateSettings, evaluate
from bertwright.tasks.question_answering import QuestionAnswering
from helpers import read_output


def test_evaluate_scores_an_answer_that_is_not_in_its_context(
    tmp_path: Path, vocabulary_folder: Path, console: Console
) -> None:
    _, model = save_random_model(vocabulary_folder, QUESTIONS, tmp_path / "model")
    repeated = ("the bear sees", "the bear sees the bear", [{"text": "bear"}])
    absent = ("the bear sees", "the wolf sees", [{"text": "the deer"}])
    scores = evaluate(
        EvaluateSettings(
            model, (write_questions(tmp_path / "q.jsonl", repeated, absent),), tmp_path / "s.json", device=CPU
        ),
        console,
    )
    assert 0 <= scores["exact_match"] <= scores["f1"] <= 1
    assert json.loads((tmp_path / "s.json").read_text()) == scores
    assert "2 examples" in read_output(console)


def test_evaluate_rejects_an_unknown_label(tmp_path: Path, vocabulary_folder: Path, console: Console) -> None:
    _, model = save_random_model(vocabulary_folder, CLASSES, tmp_path / "model")
    (tmp_path / "a.tsv").write_text("text\tlabel\nthe bear\tgood\nthe wolf\tugly\n")
    with pytest.raises(ValueError, match=r"a\.tsv, line 3: label 'ugly'"):
        evaluate(EvaluateSettings(model, (str(tmp_path / "a.tsv"),), device=CPU), console)


def test_evaluate_checks_the_output_path_before_it_loads_the_model(
    tmp_path: Path, vocabulary_folder: Path, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    _, model = save_random_model(vocabulary_folder, CLASSES, tmp_path / "model")
    monkeypatch.setattr("bertwright.inference.model.load", lambda *_: pytest.fail("loaded the model"))
    (tmp_path / "s.json").touch()
    (tmp_path / "a.tsv").write_text("text\tlabel\nthe bear\tgood\n")
    for path, message in ((Path("/sys/s.json"), "denied|Read-only"), (tmp_path / "s.json", "already exists")):
        with pytest.raises((OSError, ValueError), match=message):
            evaluate(EvaluateSettings(model, (str(tmp_path / "a.tsv"),), path, device=CPU), console)


def test_evaluate_uses_the_threshold_of_the_model(tmp_path: Path, vocabulary_folder: Path, console: Console) -> None:
    task = QuestionAnswering(max_length=32, max_query_length=8, allow_no_answer=True, threshold=1e6)
    _, model = save_random_model(vocabulary_folder, task, tmp_path / "model")
    path = write_questions(tmp_path / "q.jsonl", ("the bear", "bear", [{"text": "bear"}]), ("the wolf", "wolf", []))
    scores = evaluate(EvaluateSettings(model, (path,), device=CPU), console)
    # Neither is answered. With the threshold that suits this file best, the first would be, and more would be right.
    assert (scores["exact_match"], scores["f1"]) == (0.5, 0.5)


def test_evaluate_warns_if_all_predictions_are_one_class(
    tmp_path: Path, vocabulary_folder: Path, console: Console
) -> None:
    bert, model = save_random_model(vocabulary_folder, CLASSES, tmp_path / "model")
    (only,) = {one.label for one in bert.classify(["the bear", "the bear"])}
    (tmp_path / "a.tsv").write_text("text\tlabel\nthe bear\tgood\nthe bear\tbad\n")
    evaluate(EvaluateSettings(model, (str(tmp_path / "a.tsv"),), device=CPU), console)
    assert f"! all predictions are {only!r}" in read_output(console)
