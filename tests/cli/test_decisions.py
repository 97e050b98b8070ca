"""Decisions from scores at the front door: evaluate --calibrate, --costs, --abstain-below, --slices; predict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from task_models import CLASSES, QUESTIONS, save_random_model

import bertwright
from bertwright.cli.main import run as run_command
from bertwright.tasks.multi_label import MultiLabel

CPU = ("--device", "cpu", "--dtype", "float32", "--threads", "1")


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory, review_files: Path) -> Path:
    """The dev file of the reviews with a column of sources, and every eighth label wrong."""
    lines = [line.split("\t") for line in (review_files / "dev.tsv").read_text().splitlines()[1:]]
    other = {"good": "bad", "bad": "good"}
    rows = [
        (text, label if n % 8 else other[label], "web" if n % 3 else "mail") for n, (text, label) in enumerate(lines)
    ]
    path = tmp_path_factory.mktemp("dev") / "dev.tsv"
    path.write_text("text\tlabel\tsource\n" + "".join("\t".join(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, make_tuning: Callable[..., Any]) -> Path:
    """A model that is right and sure."""
    return bertwright.finetune(make_tuning(tmp_path_factory.mktemp("sure") / "run"))


def evaluate(model: Path | str, *arguments: object) -> int:
    return run_command(["evaluate", str(model), *map(str, arguments), "--no-linear-floor", *CPU])


def test_calibration_lowers_the_error_and_is_used_once_it_is_saved(tmp_path: Path, trained: Path, dev: Path) -> None:
    model = Path(shutil.copytree(trained, tmp_path / "model"))
    assert evaluate(model, dev, "--calibrate", "--output", tmp_path / "a.json") == 0
    before, after = json.loads((tmp_path / "a.json").read_text())["calibration"]
    assert (before["temperature"], after["temperature"] > 1) == (1, True)
    assert after["calibration error"] < before["calibration error"] / 2
    text = "the bear sees the forest"
    sure = bertwright.load(model).classify(text)
    assert (model / "task.json").read_bytes() == (trained / "task.json").read_bytes()
    assert evaluate(model, dev, "--calibrate", "--save-decisions", "--max-length", 40) == 0
    fields, before_fields = (json.loads((folder / "task.json").read_text()) for folder in (model, trained))
    assert {name for name in fields if fields[name] != before_fields[name]} == {"temperature"}
    tempered = bertwright.load(model).classify(text)
    assert (tempered.label, tempered.probability < sure.probability) == (sure.label, True)
    assert evaluate(model, dev, "--calibrate", "--output", tmp_path / "b.json") == 0
    again = json.loads((tmp_path / "b.json").read_text())["calibration"]
    assert again[0] == pytest.approx(after | {"": "before"})
    assert [str(path.relative_to(model)) for path in model.glob("*.part*")] == []


def test_costs_of_two_labels_choose_a_threshold_that_predict_uses(tmp_path: Path, trained: Path, dev: Path) -> None:
    model = Path(shutil.copytree(trained, tmp_path / "model"))
    assert evaluate(model, dev, "--costs", 1, 50, "--save-decisions", "--output", tmp_path / "a.json") == 0
    (row,) = json.loads((tmp_path / "a.json").read_text())["thresholds"]
    assert row["label"] == "good"
    assert row["cost after"] <= row["cost before"]
    shares = [guess.probabilities["good"] for guess in bertwright.load(model).classify(["the bear", "the deer", "in"])]
    labels = [guess.label for guess in bertwright.load(model).classify(["the bear", "the deer", "in"])]
    assert labels == ["good" if share > row["threshold"] else "bad" for share in shares]


def test_costs_of_many_labels_come_from_a_file(tmp_path: Path, vocabulary_folder: Path) -> None:
    task = MultiLabel(labels=("land", "water"), label_separator="|")
    _, model = save_random_model(vocabulary_folder, task, tmp_path / "model")
    rows = [(noun, label) for noun, label in (("bear", "land"), ("fish", "water"), ("duck", "land|water"), ("in", ""))]
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows * 6))
    (tmp_path / "costs.json").write_text('{"water": [1, 1000]}')
    given = (
        "--label-costs",
        tmp_path / "costs.json",
        "--calibrate",
        "--save-decisions",
        "--output",
        tmp_path / "s.json",
    )
    assert evaluate(model, tmp_path / "a.tsv", *given) == 0
    land, water = json.loads((tmp_path / "s.json").read_text())["thresholds"]
    thresholds = bertwright.load(model).task.thresholds  # type: ignore[union-attr]
    assert thresholds == (land["threshold"], water["threshold"])
    assert all("water" in guess.labels for guess in bertwright.load(model).classify(["fish", "duck"]))


def test_improbable_labels_are_left_out_and_counted(
    tmp_path: Path, vocabulary_folder: Path, dev: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, model = save_random_model(vocabulary_folder, CLASSES, tmp_path / "model")
    assert evaluate(model, dev, "--abstain-below", 0.5, "--output", tmp_path / "a.json") == 0
    (row,) = json.loads((tmp_path / "a.json").read_text())["abstention"]
    assert row["answered"] == 1
    shares = sorted(guess.probability for guess in bertwright.load(model).classify(["bear", "deer", "fish", "wolf"]))
    bound = (shares[1] + shares[2]) / 2
    (tmp_path / "texts.tsv").write_text("text\nbear\ndeer\nfish\nwolf\n")
    output = tmp_path / "p.jsonl"
    command = ["predict", model, "--inputs", str(tmp_path / "texts.tsv"), "--output", str(output), *CPU]
    assert run_command([*command, "--abstain-below", str(bound)]) == 0
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [record["label"] == "" for record in records] == [record["probability"] < bound for record in records]
    assert "2 of 4 predictions have no label" in capsys.readouterr().out


def test_slices_divide_the_examples_by_length_label_and_column(tmp_path: Path, trained: Path, dev: Path) -> None:
    assert evaluate(trained, dev, "--slices", "length", "label", "source", "--output", tmp_path / "a.json") == 0
    written = json.loads((tmp_path / "a.json").read_text())
    for name in ("length", "label", "source"):
        assert sum(row["examples"] for row in written[f"by {name}"]) == 100
    assert [row["source"] for row in written["by source"]] == ["web", "mail"]
    total = sum(row["examples"] * row["accuracy"] for row in written["by source"])
    assert total / 100 == pytest.approx(written["accuracy"])


def test_decisions_are_not_saved_in_a_checkpoint(
    tmp_path: Path, trained: Path, dev: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its state.json holds the digests of its files."""
    model = Path(shutil.copytree(trained, tmp_path / "step-00000001"))
    (model / "state.json").write_text("{}")
    assert evaluate(model, dev, "--calibrate", "--save-decisions") == 2
    assert "--save-decisions: expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--calibrate",), "--calibrate"),
        (("--costs", "1", "2"), "--costs"),
        (("--abstain-below", "0.5"), "--abstain-below"),
        (("--slices", "source"), "--slices source"),
    ],
)
def test_a_task_without_such_a_decision_is_rejected(
    tmp_path: Path, vocabulary_folder: Path, arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, model = save_random_model(vocabulary_folder, QUESTIONS, tmp_path / "model")
    (tmp_path / "q.jsonl").write_text('{"question": "the bear", "context": "bear", "answers": [{"text": "bear"}]}\n')
    assert evaluate(model, tmp_path / "q.jsonl", *arguments) == 2
    assert f"{named}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--costs", "1"), "--costs 1: expected two numbers"),
        (("--costs", "0", "1"), "--costs 0 1: expected two numbers"),
        (("--save-decisions",), "--save-decisions"),
        (("--abstain-below", "2"), "abstain_below: expected"),
        (("--slices", "nowhere"), "'nowhere'"),
        (("--label-costs", "costs.json"), "costs.json: expected two numbers"),
    ],
)
def test_misuse_of_decisions_names_flag_and_value(
    tmp_path: Path,
    trained: Path,
    dev: Path,
    arguments: tuple[str, ...],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("costs.json").write_text('{"good": [1, "x"]}')
    assert evaluate(trained, dev, *arguments) == 2
    assert named in capsys.readouterr().err
