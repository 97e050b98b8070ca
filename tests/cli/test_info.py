"""`bertwright info`: folders of every kind, whole and damaged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from bertwright.base.files import write_text
from bertwright.inference.bert import Bert
from bertwright.inference.info import InfoSettings, info
from bertwright.tasks.classification import Classification
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_folder import TaskModel, write_task_folder
from bertwright.training import checkpoint
from bertwright.training.run_folder import delete_weights
from harness import run_and_capture

CLASSIFICATION = Classification(text_pair="second", labels=("yes", "no"), metric="f1", max_length=40)


def describe(folder: Path, verify: bool = False) -> str:
    """Return what `info` prints, several spaces as one."""
    printed = run_and_capture(info, InfoSettings(folder, verify), columns=120)
    return "".join(" ".join(line.split()) + "\n" for line in printed.splitlines())


def test_the_kind_of_a_folder_is_printed_first(
    one_layer_folder: Path, unfinished_run: Path, store: Path, vocabulary_folder: Path
) -> None:
    write_text(vocabulary_folder / "settings.toml", "")  # a vocabulary's and a store's settings make no run of them
    for path, kind in (
        (one_layer_folder, "model"),
        (unfinished_run, "pre-training run"),
        (unfinished_run / "checkpoints/step-00000007", "model"),
        (store, "token store"),
        (vocabulary_folder, "vocabulary"),
    ):
        assert describe(path).startswith(f"{path}: {kind}\n")
    assert "not finished" in describe(unfinished_run)


def test_verify_finds_an_altered_byte(unfinished_run: Path) -> None:
    describe(unfinished_run, verify=True)
    weights = unfinished_run / "checkpoints/step-00000007/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    describe(unfinished_run)
    with pytest.raises(ValueError, match=r"model\.safetensors: .*altered"):
        describe(unfinished_run, verify=True)


def test_a_model_is_verified_by_its_checksums(one_layer_folder: Path, vocabulary_folder: Path) -> None:
    assert "checked every byte, by checksums.json\n" in describe(one_layer_folder, verify=True)
    for name in ("config.json", "vocab.txt", "model.safetensors"):
        path = one_layer_folder / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ValueError, match=rf"{re.escape(name)}: expected crc32c"):
            describe(one_layer_folder, verify=True)
        path.write_bytes(content)
    (one_layer_folder / "checksums.json").unlink()
    assert "no checksums.json" in describe(one_layer_folder)
    for folder in (one_layer_folder, vocabulary_folder):
        with pytest.raises(ValueError, match="--verify"):
            describe(folder, verify=True)


def test_the_task_of_a_model_is_described(tmp_path: Path, make_task_model: Callable[[AnyTask], Bert]) -> None:
    bert = make_task_model(CLASSIFICATION)
    bert.save(tmp_path / "labels")
    printed = describe(tmp_path / "labels")
    assert f"{tmp_path}/labels: model for classification\n" in printed
    for row in ("labels 2: yes, no", "head sequence, 2 outputs", "metric f1", "longest sequence 40 tokens"):
        assert row in printed
    assert f"parameters {sum(parameter.numel() for parameter in bert.model.parameters()):,}\n" in printed

    make_task_model(QuestionAnswering(allow_no_answer=True, threshold=1.5)).save(tmp_path / "answers")
    printed = describe(tmp_path / "answers")
    assert "model for question-answering" in printed
    assert re.search(r"no answer .* 1\.500", printed)


def test_a_fine_tuning_run_is_described_from_its_start_on(
    tmp_path: Path, make_task_model: Callable[[AnyTask], Bert]
) -> None:
    run, bert = tmp_path / "run", make_task_model(CLASSIFICATION)
    (run / "checkpoints").mkdir(parents=True)
    write_text(run / "settings.toml", "[task]\ntask = 'mrpc'\n")
    assert describe(run).startswith(f"{run}: fine-tuning run\n")
    assert "checkpoints none yet" in describe(run)
    with pytest.raises(ValueError, match="--verify"):
        describe(run, verify=True)

    found = TaskModel(bert.model, CLASSIFICATION)  # type: ignore[arg-type]
    write = partial(write_task_folder, trained=found, tokenizer=bert.tokenizer)
    checkpoint.save(run / "checkpoints", 20, write, {"moment": torch.zeros(1)})
    records = [{"kind": "train", "step": 10, "loss": 1.0}]
    records += [{"kind": "dev", "step": step, "f1": f1} for step, f1 in ((10, 0.5), (15, 0.75), (20, 0.625))]
    write_text(run / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    printed = describe(run, verify=True)
    assert "best on dev f1 0.7500 after step 15\n" in printed
    assert "task classification\n" in printed

    delete_weights(run, with_model=True)  # as a grid search does with all runs but the best
    write_text(run / "report.json", '{"seconds_of_this_process": 3}')
    assert "state finished, weights deleted\n" in describe(run)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        *(("report.json", text, "not as it was written") for text in ("[]", "{}", "null", '"x"')),
        ("report.json", '{"seconds_of_this_process": "x"}', "not as it was written"),
        ("report.json", "{", "not valid JSON"),
        ("metrics.jsonl", '{"kind": "dev", "step": 1}\n', "not as it was written .*'f1'"),
        ("metrics.jsonl", '{"kind": "dev", "step": 1, "f1": "x"}\n', "line 1"),
        ("metrics.jsonl", '{"kind": "held_out", "step": 1}\n', "not as it was written .*'loss'"),
        ("model/model.safetensors", "", "model.safetensors"),
        ("model/model.safetensors", None, "model.safetensors"),
    ],
)
def test_a_damaged_file_of_a_run_is_named(
    tmp_path: Path, make_task_model: Callable[[AnyTask], Bert], name: str, text: str | None, expected: str
) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    write_text(run / "settings.toml", "[task]\ntask = 'mrpc'\n")
    make_task_model(CLASSIFICATION).save(run / "model")
    assert "state finished" in describe(run)
    (run / name).unlink(missing_ok=True)
    if text is not None:
        write_text(run / name, text)
    with pytest.raises(ValueError, match=rf"{re.escape(str(run))}/?.*{expected}"):
        info(InfoSettings(run))


@pytest.mark.parametrize("text", ['{"metric": 1}', "[1]", '{"metric": "f1", "chosen": {"run": "a", "scores": {}}}'])
def test_a_damaged_report_of_a_grid_is_named(tmp_path: Path, text: str) -> None:
    write_text(
        tmp_path / "settings.toml", "learning_rates = [1e-4]\nbatch_sizes = [8]\nepochs = [1.0, 2.0]\nseeds = 1\n"
    )
    for name in ("a-seed0", "b-seed0"):
        write_text(tmp_path / "runs" / name / "result.json", "{}")
    write_text(tmp_path / "report.json", text)
    with pytest.raises(ValueError, match=r"report\.json: not as it was written"):
        info(InfoSettings(tmp_path))
