"""`bertwright convert`: checkpoints of every kind, as Hugging Face folders."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import run_and_capture

import bertwright
from bertwright.commands.convert import ConvertSettings, convert
from bertwright.inference.model import Bert
from bertwright.models.heads import BertForPretraining
from bertwright.tasks.classification import Classification
from bertwright.tasks.task import AnyTask

GOOGLE = Path(__file__).parent.parent / "interop" / "test_google.py"


def test_an_unfinished_run_gives_its_newest_checkpoint(
    tmp_path: Path, one_layer_folder: Path, unfinished_run: Path
) -> None:
    convert(ConvertSettings(str(unfinished_run), tmp_path / "new"))
    expected = (one_layer_folder / "model.safetensors").read_bytes()
    assert (tmp_path / "new/model.safetensors").read_bytes() == expected
    assert {path.name for path in (tmp_path / "new").iterdir()} == {path.name for path in one_layer_folder.iterdir()}


def test_a_run_without_a_checkpoint_is_rejected(tmp_path: Path, unfinished_run: Path) -> None:
    (unfinished_run / "checkpoints/step-00000007").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"run.*checkpoint"):
        convert(ConvertSettings(str(unfinished_run), tmp_path / "other"))


def test_a_release_of_google_fills_masks_as_its_source(
    tmp_path: Path, one_layer_folder: Path, one_layer_model: BertForPretraining, vocabulary_folder: Path
) -> None:
    source = tmp_path / "uncased_L-1"
    source.mkdir()
    runpy.run_path(str(GOOGLE))["write_release"](source, one_layer_model)
    (source / "vocab.txt").write_bytes((vocabulary_folder / "vocab.txt").read_bytes())
    with pytest.raises(ValueError, match="lowercase"):
        convert(ConvertSettings(str(source), tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    convert(ConvertSettings(str(source), tmp_path / "new", lowercase=True))
    text = "The [MASK] sees the bear ."
    assert bertwright.load(tmp_path / "new").fill_mask(text) == bertwright.load(one_layer_folder).fill_mask(text)


def test_a_model_for_a_task_keeps_head_and_task(tmp_path: Path, make_task_model: Callable[[AnyTask], Bert]) -> None:
    bert = make_task_model(Classification(text_pair="second", labels=("yes", "no"), metric="f1", max_length=40))
    bert.save(tmp_path / "m")
    printed = run_and_capture(convert, ConvertSettings(str(tmp_path / "m"), tmp_path / "new"))
    assert " parameters, for classification\n" in printed
    for name in ("model.safetensors", "config.json", "task.json"):
        assert (tmp_path / "new" / name).read_bytes() == (tmp_path / "m" / name).read_bytes()
    pair = ("The bear .", "The deer sees the bear .")
    assert bertwright.load(tmp_path / "new", "cpu").classify(pair) == bert.classify(pair)


def test_warning_is_one_line_on_stderr(tmp_path: Path, unfinished_run: Path) -> None:
    command = [sys.executable, "-m", "bertwright", "convert", str(unfinished_run), str(tmp_path / "new")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = f"{unfinished_run}: this run is unfinished; using its newest checkpoint, step-00000007"
    assert done.stderr == f"bertwright: warning: {expected}\n"
