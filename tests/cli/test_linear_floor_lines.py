"""The line of the linear floor beside a score: `finetune`, and `evaluate` of the model afterwards."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from bertwright.base.files import read_json
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.inference.evaluate import EvaluateSettings, evaluate
from bertwright.tasks.presets import TaskSettings
from harness import run_and_capture, same_weights
from helpers import CPU

LINE = re.compile(r"linear model \(words and bigrams\): accuracy (.+)")
run_finetune, run_evaluate = partial(run_and_capture, finetune), partial(run_and_capture, evaluate)


@pytest.fixture
def files(tmp_path: Path, review_files: Path) -> Path:
    """A copy of the reviews, which a test may change."""
    return Path(shutil.copytree(review_files, tmp_path / "files"))


@pytest.fixture
def settings(tmp_path: Path, files: Path, tiny_bert: Path) -> FinetuneSettings:
    paths = {split: (str(files / f"{split}.tsv"),) for split in ("train", "dev", "test")}
    return FinetuneSettings(
        tmp_path / "run", TaskSettings("classification", **paths), model=str(tiny_bert), epochs=1.0, device=CPU
    )


def find_line(printed: str) -> str | None:
    """Return the scores of the printed line."""
    found = LINE.search(printed)
    return found.group(1).strip() if found else None


def test_finetune_and_evaluate_print_the_same_scores_of_the_linear_model(
    settings: FinetuneSettings, files: Path, tmp_path: Path
) -> None:
    printed = run_finetune(settings)
    ((name, floor),) = read_json(settings.run / "report.json")["linear_floor"].items()
    assert name == "linear model (words and bigrams)"
    shown = {split: f"{100 * scores['accuracy']:.2f}" for split, scores in floor.items()}
    assert find_line(printed) == f"{shown['dev']} on dev, {shown['test']} on test"
    assert floor["test"]["accuracy"] > 0.6
    for number, model in enumerate((settings.run, settings.run / "model")):
        output = tmp_path / f"{number}.json"
        printed = run_evaluate(EvaluateSettings(str(model), (str(files / "test.tsv"),), output, device=CPU))
        assert find_line(printed) == shown["test"]
        assert read_json(output)["linear_floor"] == {name: floor["test"]}


def test_no_linear_floor_leaves_out_the_line_and_changes_no_bit(settings: FinetuneSettings, tmp_path: Path) -> None:
    run_finetune(settings)
    without = replace(settings, run=tmp_path / "without", linear_floor=False)
    assert find_line(run_finetune(without)) is None
    assert read_json(without.run / "report.json")["linear_floor"] == {}
    assert same_weights(settings.run / "model", without.run / "model")
    inputs = settings.task.files("test")
    assert find_line(run_evaluate(EvaluateSettings(str(settings.run), inputs, linear_floor=False, device=CPU))) is None


def test_evaluate_says_that_changed_training_files_give_no_floor(settings: FinetuneSettings, files: Path) -> None:
    run_finetune(settings)
    inputs = (str(files / "test.tsv"),)
    with (files / "train.tsv").open("a", encoding="utf-8") as file:
        file.write("a new one\tgood\n")
    printed = run_evaluate(EvaluateSettings(str(settings.run), inputs, device=CPU))
    assert find_line(printed) is None
    assert "--floor-train" in printed
    given = EvaluateSettings(str(settings.run), inputs, floor_train=(str(files / "train.tsv"),), device=CPU)
    assert find_line(run_evaluate(given)) is not None
