"""`info` and `convert` on what fine-tuning leaves: the task is told, and kept."""

from __future__ import annotations

import json
import re
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

import bertwright
from bertwright.commands import use
from bertwright.commands.use import ConvertSettings, InfoSettings
from bertwright.files import write_text
from bertwright.inference.model import Bert
from bertwright.models.config import BertConfig
from bertwright.models.heads import BertForTask
from bertwright.tasks.classification import Classification
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.task_io import AnyTask, TaskModel, write_task_folder
from bertwright.training import checkpoint
from bertwright.vocabulary.tokenizer import Tokenizer

CLASSIFICATION = Classification(text_pair="second", labels=("yes", "no"), metric="f1", max_length=40)


@pytest.fixture
def console() -> Console:
    return Console(file=StringIO(), width=120)


def shown(console: Console) -> str:
    """What was printed, runs of spaces as one."""
    return "".join(" ".join(line.split()) + "\n" for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def small(vocabulary_folder: Path, task: AnyTask) -> Bert:
    tokenizer = Tokenizer.load(vocabulary_folder)
    config = BertConfig(tokenizer.vocab_size, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
    return Bert(BertForTask(config, task.head, seed=1), tokenizer, task=task)


def test_info_tells_a_model_s_task(tmp_path: Path, vocabulary_folder: Path, console: Console) -> None:
    bert = small(vocabulary_folder, CLASSIFICATION)
    bert.save(tmp_path / "labels")
    use.info(InfoSettings(tmp_path / "labels"), console)
    assert f"{tmp_path}/labels: model for classification\n" in shown(console)
    for row in ("labels 2: yes, no", "head sequence, 2 outputs", "metric f1", "longest sequence 40 tokens"):
        assert row in shown(console)
    assert f"parameters {sum(parameter.numel() for parameter in bert.model.parameters()):,}\n" in shown(console)

    small(vocabulary_folder, QuestionAnswering(allow_no_answer=True, threshold=1.5)).save(tmp_path / "answers")
    use.info(InfoSettings(tmp_path / "answers"), console)
    assert "model for question-answering" in shown(console)
    assert "no answer if the best span leads by no more than 1.500" in shown(console)


def test_info_tells_a_fine_tuning_run_at_each_of_its_ages(
    tmp_path: Path, vocabulary_folder: Path, console: Console
) -> None:
    run, bert = tmp_path / "run", small(vocabulary_folder, CLASSIFICATION)
    (run / "checkpoints").mkdir(parents=True)
    write_text(run / "settings.toml", "[task]\ntask = 'mrpc'\n")
    use.info(InfoSettings(run), console)
    assert f"{run}: fine-tuning run\n" in shown(console)
    assert "checkpoints none yet" in shown(console)
    with pytest.raises(ValueError, match="--verify is for token stores and for runs that have checkpoints"):
        use.info(InfoSettings(run, verify=True), console)

    write = partial(write_task_folder, found=TaskModel(bert.model, CLASSIFICATION), tokenizer=bert.tokenizer)
    checkpoint.save(run / "checkpoints", 20, write, {"moment": torch.zeros(1)}, keep=1)
    records = [{"kind": "train", "step": 10, "loss": 1.0}]
    records += [{"kind": "dev", "step": step, "f1": f1} for step, f1 in ((10, 0.5), (15, 0.75), (20, 0.625))]
    write_text(run / "metrics.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    use.info(InfoSettings(run, verify=True), console)
    assert "best on dev f1 0.7500 after step 15\n" in shown(console)
    assert "task classification\n" in shown(console)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        *(("report.json", text, "not as it was written") for text in ("[]", "{}", "null", '"x"')),
        ("report.json", '{"seconds_of_this_process": "x"}', "not as it was written"),
        ("report.json", "{", "not valid JSON"),
        ("metrics.jsonl", '{"kind": "dev", "step": 1}\n', "not as it was written .*'f1'"),
        ("metrics.jsonl", '{"kind": "dev", "step": 1, "f1": "x"}\n', "not as it was written"),
        ("metrics.jsonl", '{"kind": "held_out", "step": 1}\n', "not as it was written .*'mlm_loss'"),
        ("model/model.safetensors", "", "model.safetensors"),
        ("model/model.safetensors", None, "model.safetensors"),
    ],
)
def test_info_names_the_file_of_a_run_that_is_not_as_it_was_written(
    tmp_path: Path, vocabulary_folder: Path, console: Console, name: str, text: str | None, said: str
) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    write_text(run / "settings.toml", "[task]\ntask = 'mrpc'\n")
    small(vocabulary_folder, CLASSIFICATION).save(run / "model")
    use.info(InfoSettings(run), console)
    assert "state finished" in shown(console)
    (run / name).unlink(missing_ok=True)
    if text is not None:
        write_text(run / name, text)
    with pytest.raises(ValueError, match=rf"{re.escape(str(run))}/?.*{said}"):
        use.info(InfoSettings(run), console)


@pytest.mark.parametrize("text", ['{"metric": 1}', "[1]", '{"metric": "f1", "chosen": {"run": "a", "scores": {}}}'])
def test_info_names_the_report_of_a_grid_that_is_not_as_it_was_written(
    tmp_path: Path, console: Console, text: str
) -> None:
    write_text(
        tmp_path / "settings.toml", "learning_rates = [1e-4]\nbatch_sizes = [8]\nepochs = [1.0, 2.0]\nseeds = 1\n"
    )
    write_text(tmp_path / "results.jsonl", "{}\n{}\n")
    write_text(tmp_path / "report.json", text)
    with pytest.raises(ValueError, match=r"report\.json: not as it was written"):
        use.info(InfoSettings(tmp_path), console)


def test_convert_keeps_head_and_task(tmp_path: Path, vocabulary_folder: Path, console: Console) -> None:
    bert = small(vocabulary_folder, CLASSIFICATION)
    bert.save(tmp_path / "m")
    use.convert(ConvertSettings(str(tmp_path / "m"), tmp_path / "new"), console)
    assert " parameters, for classification\n" in shown(console)
    for name in ("model.safetensors", "config.json", "task.json"):
        assert (tmp_path / "new" / name).read_bytes() == (tmp_path / "m" / name).read_bytes()
    pair = ("The bear .", "The deer sees the bear .")
    assert bertwright.load(tmp_path / "new", "cpu").classify(pair) == bert.classify(pair)


def test_what_asks_for_a_masked_token_head_says_what_the_folder_is_for(
    tmp_path: Path, vocabulary_folder: Path, console: Console
) -> None:
    small(vocabulary_folder, CLASSIFICATION).save(tmp_path / "m")
    settings = use.FillMaskSettings(str(tmp_path / "m"), ("The [MASK] .",))
    with pytest.raises(
        ValueError, match=r"fine-tuned for classification, .* needs the checkpoint that it started from"
    ):
        use.fill_mask(settings, console)
