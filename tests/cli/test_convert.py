"""`bertwright convert`: checkpoints of every kind, as Hugging Face folders and in Google's format."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import bertwright
from bertwright.inference.bert import Bert
from bertwright.inference.convert import ConvertSettings, convert
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.tasks.classification import Classification
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.task import AnyTask
from harness import run_and_capture

GOOGLE = Path(__file__).parents[1] / "systems" / "test_google.py"


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


def test_classifier_and_span_head_of_google_become_models_for_their_tasks(
    tmp_path: Path, make_task_model: Callable[[AnyTask], Bert], vocabulary_folder: Path
) -> None:
    write_release = runpy.run_path(str(GOOGLE))["write_release"]
    for name, task in (("classifier", Classification(labels=("no", "yes"))), ("squad", QuestionAnswering())):
        source = tmp_path / name
        source.mkdir()
        write_release(source, make_task_model(task).model)
        (source / "vocab.txt").write_bytes((vocabulary_folder / "vocab.txt").read_bytes())
    with pytest.raises(ValueError, match=r"expected 2 labels.*--labels"):
        convert(ConvertSettings(str(tmp_path / "classifier"), tmp_path / "new", lowercase=True))
    convert(ConvertSettings(str(tmp_path / "classifier"), tmp_path / "new", lowercase=True, labels=("no", "yes")))
    expected = make_task_model(Classification(labels=("no", "yes"), max_length=512)).classify("The bear .")
    assert bertwright.load(tmp_path / "new", "cpu").classify("The bear .") == expected
    convert(ConvertSettings(str(tmp_path / "squad"), tmp_path / "answers", lowercase=True))
    question = ("The bear .", "The deer sees the bear .")
    expected = make_task_model(QuestionAnswering()).answer(*question)
    assert bertwright.load(tmp_path / "answers", "cpu").answer(*question) == expected


def test_pooler_of_a_span_model_is_reported_as_ignored(
    tmp_path: Path, make_task_model: Callable[[AnyTask], Bert], vocabulary_folder: Path
) -> None:
    model = make_task_model(QuestionAnswering()).model
    model.head.pooler = make_task_model(
        Classification(labels=("no", "yes"))
    ).model.head.pooler  # run_squad.py saves it, too
    runpy.run_path(str(GOOGLE))["write_release"](tmp_path, model)
    (tmp_path / "vocab.txt").write_bytes((vocabulary_folder / "vocab.txt").read_bytes())
    printed = run_and_capture(convert, ConvertSettings(str(tmp_path), tmp_path / "new", lowercase=True))
    expected = "ignored, not used in question-answering: bert.pooler.dense.bias, bert.pooler.dense.weight"
    assert expected in " ".join(printed.split())


def test_google_s_format_and_back_changes_no_byte_of_the_weights(
    tmp_path: Path, one_layer_folder: Path, make_task_model: Callable[[AnyTask], Bert]
) -> None:
    make_task_model(Classification(labels=("yes", "no"), max_length=40)).save(tmp_path / "classifier")
    make_task_model(QuestionAnswering(allow_no_answer=True, threshold=1.5)).save(tmp_path / "answers")
    flags = "for Google's scripts: --do_lower_case=True"
    for folder, expected in (
        (one_layer_folder, flags),
        (tmp_path / "classifier", flags),
        (tmp_path / "answers", f"{flags} --version_2_with_negative=True --null_score_diff_threshold=-1.5"),
    ):
        google = tmp_path / f"google-{folder.name}"
        printed = run_and_capture(convert, ConvertSettings(str(folder), google, format="google"))
        assert f"{expected}\n" in printed
        convert(ConvertSettings(str(google), tmp_path / f"{folder.name}-again"))
        for name in ("model.safetensors", "config.json", "tokenizer.json", "vocab.txt"):
            assert (tmp_path / f"{folder.name}-again" / name).read_bytes() == (folder / name).read_bytes()
        assert {path.name for path in google.iterdir()} == {
            "bert_config.json", "bert_model.ckpt.data-00000-of-00001", "bert_model.ckpt.index", "vocab.txt",
            "tokenizer_config.json",
        }  # fmt: skip


def test_task_without_a_head_in_google_s_code_is_rejected(
    tmp_path: Path, make_task_model: Callable[[AnyTask], Bert]
) -> None:
    make_task_model(Regression()).save(tmp_path / "m")
    with pytest.raises(ValueError, match=r"new: expected a classifier .*got a regression"):
        convert(ConvertSettings(str(tmp_path / "m"), tmp_path / "new", format="google"))
    assert not (tmp_path / "new").exists()


def test_labels_for_other_files_than_google_s_are_rejected(tmp_path: Path, one_layer_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"--labels: .*model has no bert_config\.json; omit it"):
        convert(ConvertSettings(str(one_layer_folder), tmp_path / "new", labels=("a", "b")))


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
