"""Ensembles: averaged probabilities of several models of one task."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from task_models import CLASSES, QUESTIONS, TAGGING, save_random_model

from bertwright.cli.render.terminal import TerminalReporter
from bertwright.inference.bert import Bert
from bertwright.inference.evaluate import EvaluateSettings, evaluate
from bertwright.inference.predict import predict
from bertwright.inference.predict_settings import PredictSettings
from bertwright.tasks.ensemble import merge_tasks, predict_ensemble
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.prediction import predict_logits
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import TagExample
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_types import TaskOptions
from helpers import CPU

TEXT = "the bear sees the wolf in the forest"
CHOICE = MultipleChoice(endings=("a", "b", "c"))
TASKS = [CLASSES, Regression(scale=4.0), TAGGING, CHOICE, replace(QUESTIONS, allow_no_answer=True, max_length=16)]


def make_examples(task: AnyTask) -> list[Any]:
    if task.kind == "tagging":
        return [TagExample(tuple(TEXT.split()[:count])) for count in (3, 8)]
    if task.kind == "multiple-choice":
        return task.examples_from_texts(["the bear", "sees", "the wolf", "the forest"], "here") * 2
    if task.kind == "question-answering":  # the context has several windows
        return task.examples_from_texts(["the wolf", f"{TEXT} {TEXT} {TEXT}"], "here") * 2
    return task.examples_from_texts([TEXT, "the wolf"], "here")


def predict_members(members: list[Bert], task: AnyTask) -> list[Any]:
    examples = make_examples(task)
    encoded = task.encode(examples, members[0].tokenizer, labeled=False)
    outputs = predict_ensemble([member.task_model for member in members], encoded)
    return task.decode(examples, encoded, outputs)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
def test_a_model_with_itself_predicts_the_same(task: AnyTask, tmp_path: Path, vocabulary_folder: Path) -> None:
    model, _ = save_random_model(vocabulary_folder, task, tmp_path / "model")
    (alone, both) = (predict_members([model] * count, task) for count in (1, 2))
    for one, other in zip(alone, both, strict=True):
        if task.kind == "question-answering":
            assert [(span.start, span.end) for span in one.candidates] == [
                (span.start, span.end) for span in other.candidates
            ]
            assert other.margin == pytest.approx(one.margin, abs=1e-4)
            assert other.probability == pytest.approx(one.probability, abs=1e-4)
        elif task.kind == "regression":
            assert other == pytest.approx(one, abs=1e-6)
        else:
            probabilities = [one.probabilities, other.probabilities]
            given, found = (list(p.values()) if isinstance(p, dict) else list(p) for p in probabilities)
            np.testing.assert_allclose(found, given, atol=1e-6)


def test_probabilities_of_labels_and_endings_are_means(tmp_path: Path, vocabulary_folder: Path) -> None:
    for task in (CLASSES, CHOICE):
        models = [save_random_model(vocabulary_folder, task, tmp_path / f"{task.kind}{n}", n)[0] for n in (1, 2, 3)]
        alone = [[one.probabilities for one in predict_members([model], task)] for model in models]
        together = [one.probabilities for one in predict_members(models, task)]
        if task is CLASSES:
            alone = [[tuple(one.values()) for one in predicted] for predicted in alone]
            together = [tuple(one.values()) for one in together]
        np.testing.assert_allclose(together, np.mean(alone, axis=0), atol=1e-6)


def test_numbers_are_means_in_original_units(tmp_path: Path, vocabulary_folder: Path) -> None:
    scales = (0.5, 8.0)
    models = [
        save_random_model(vocabulary_folder, Regression(scale=scale), tmp_path / str(scale), number)[0]
        for number, scale in enumerate(scales)
    ]
    alone = [predict_members([model], model.task_model.task) for model in models]
    assert predict_members(models, models[0].task_model.task) == pytest.approx(np.mean(alone, axis=0), abs=1e-5)


def test_span_outputs_are_logarithms_of_mean_probabilities_over_a_question(
    tmp_path: Path, vocabulary_folder: Path
) -> None:
    task = replace(QUESTIONS, max_length=16)
    models = [save_random_model(vocabulary_folder, task, tmp_path / str(n), n)[0] for n in (1, 2)]
    examples = make_examples(task)
    encoded = task.encode(examples, models[0].tokenizer, labeled=False)
    outputs = predict_ensemble([model.task_model for model in models], encoded)
    assert (np.bincount(encoded.example_ids) > 1).all()
    example_of = np.repeat(encoded.example_ids, encoded.position_counts)
    expected = []
    for model in models:
        exponentials = np.exp(predict_logits(model.task_model.model, encoded).astype(np.float64))
        totals = np.stack([exponentials[example_of == number].sum(0) for number in range(len(examples))])
        expected.append(exponentials / totals[example_of])
    np.testing.assert_allclose(np.exp(outputs), np.mean(expected, axis=0), rtol=1e-4)


def test_predict_and_evaluate_average_the_models(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    saved = [save_random_model(vocabulary_folder, CLASSES, tmp_path / f"m{number}", number) for number in (1, 2)]
    (tmp_path / "a.tsv").write_text(f"text\tlabel\n{TEXT}\tgood\nthe wolf\tbad\n")
    first, second = (name for _, name in saved)
    output = tmp_path / "o.jsonl"
    inputs = (str(tmp_path / "a.tsv"),)
    predict(PredictSettings(first, inputs=inputs, output=output, ensemble=(second,), device=CPU), reporter)
    found = [json.loads(line)["p(good)"] for line in output.read_text().splitlines()]
    alone = [[one.probabilities["good"] for one in model.classify([TEXT, "the wolf"])] for model, _ in saved]
    assert found == pytest.approx(np.mean(alone, axis=0), abs=1e-6)
    scores = evaluate(EvaluateSettings(first, inputs, ensemble=(second,), device=CPU), reporter)
    assert scores["accuracy"] == np.mean([(p > 0.5) == good for p, good in zip(found, (True, False), strict=True)])
    assert "2 models on 2 examples" in reporter.console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("first", "other", "message"),
    [
        (
            CLASSES,
            replace(CLASSES, labels=("bad", "fine")),
            "label_names = .*'good'.* as in the first model, got .*'fine'",
        ),
        (CLASSES, replace(CLASSES, max_length=64), "max_length = 128 as in the first model, got 64; set --max-length"),
        (CLASSES, replace(CLASSES, text_pair="b"), "text_pair = None as in the first model, got 'b'; set --text-pair"),
        (CLASSES, Regression(), "kind = 'classification' as in the first model, got 'regression'"),
        (TAGGING, replace(TAGGING, context=True), "context = False as in the first model, got True; set --context"),
        (QUESTIONS, replace(QUESTIONS, doc_stride=7), "doc_stride = .* got 7; set --doc-stride"),
        (QUESTIONS, replace(QUESTIONS, allow_no_answer=True), "allow_no_answer = False .* got True; set --allow-no-"),
    ],
)
def test_models_of_different_tasks_are_rejected(first: AnyTask, other: AnyTask, message: str) -> None:
    with pytest.raises(ValueError, match=f"model 3 of the ensemble: expected {message}"):
        merge_tasks([first, first, other])


def test_options_make_models_of_different_options_an_ensemble(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    tasks = (CLASSES, replace(CLASSES, max_length=64))
    names = [save_random_model(vocabulary_folder, task, tmp_path / f"{n}")[1] for n, task in enumerate(tasks)]
    settings = PredictSettings(names[0], (TEXT,), ensemble=(names[1],), device=CPU)
    with pytest.raises(ValueError, match="set --max-length for all models"):
        predict(settings, reporter)
    predict(replace(settings, overrides=TaskOptions(max_length=64)), reporter)


def test_threshold_of_an_ensemble_is_the_mean_until_evaluate_finds_its_own(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    tasks = [replace(QUESTIONS, allow_no_answer=True, threshold=threshold) for threshold in (-1e4, 3e4)]
    (first, *others) = (
        save_random_model(vocabulary_folder, task, tmp_path / f"{n}", n)[1] for n, task in enumerate(tasks)
    )
    dev = tmp_path / "dev.jsonl"
    questions = [(TEXT, "the wolf", ["the forest"]), (TEXT, "the bear", []), (f"{TEXT} .", "the fish", ["the bear"])]
    dev.write_text("".join(
        json.dumps({"question": question, "context": context, "answers": [{"text": text} for text in answers]}) + "\n"
        for context, question, answers in questions
    ))  # fmt: skip
    settings = EvaluateSettings(first, (str(dev),), ensemble=tuple(others), device=CPU)
    scores = evaluate(settings, reporter)
    printed = " ".join(reporter.console.file.getvalue().split())  # type: ignore[attr-defined]
    assert (scores["no_answer_accuracy"], scores["has_answer_f1"]) == (1, 0)  # no margin exceeds the mean, 10000
    assert "is the mean of its models' thresholds, 1e+04" in printed
    found = re.search(r"best on these examples: f1 ([\d.]+), with --threshold (\S+)", printed)
    assert found is not None
    assert 100 * evaluate(replace(settings, threshold=float(found[2])), reporter)["f1"] == pytest.approx(
        float(found[1]), abs=0.005
    )
    predict(PredictSettings(first, ("the wolf", TEXT), ensemble=tuple(others), threshold=-1e9, device=CPU), reporter)
    assert "(no answer)" not in reporter.console.file.getvalue().rpartition("the wolf")[2]  # type: ignore[attr-defined]


def test_threshold_of_a_task_without_one_is_an_error(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    for task, texts in ((CLASSES, (TEXT,)), (QUESTIONS, ("the wolf", TEXT))):
        _, name = save_random_model(vocabulary_folder, task, tmp_path / task.kind)
        with pytest.raises(ValueError, match=r"--threshold 0\.5: .*no answer"):
            predict(PredictSettings(name, texts, threshold=0.5, device=CPU), reporter)


def test_models_of_different_vocabularies_are_rejected(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    _, first = save_random_model(vocabulary_folder, CLASSES, tmp_path / "first")
    folder = tmp_path / "vocabulary"
    folder.mkdir()
    for path in vocabulary_folder.iterdir():
        if path.is_file():
            (folder / path.name).write_text(path.read_text().replace("wolf", "yak"))
    _, second = save_random_model(folder, CLASSES, tmp_path / "second")
    with pytest.raises(ValueError, match=r"second: .*vocabulary.*first"):
        predict(PredictSettings(first, (TEXT,), ensemble=(second,), device=CPU), reporter)
