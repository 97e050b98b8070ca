"""Fine-tuning runs: they learn, save the best checkpoint, resume to the bit, and reject input that does not fit."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from safetensors.torch import load_file, save_file

import bertwright
from bertwright.base.files import read_json
from bertwright.base.reporter import MUTE, SILENT
from bertwright.base.settings import from_table
from bertwright.cli.render.terminal import TerminalReporter
from bertwright.finetuning.finetune_state import open_run
from bertwright.finetuning.run import FinetuneRun, finetune
from bertwright.finetuning.settings import FinetuneSettings, check_inputs
from bertwright.inference.evaluate import EvaluateSettings, evaluate
from bertwright.interop.huggingface import load_task_model, start_task_model
from bertwright.models.head_spec import HeadSpec
from bertwright.tasks import task_folder
from bertwright.tasks.prediction import predict_chunks
from bertwright.tasks.presets import PRESETS, TaskSettings
from bertwright.tasks.task_folder import load_task
from bertwright.tasks.task_types import TaskOptions
from bertwright.training import checkpoint
from bertwright.training.context import execution_context
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.fit import train_until_stopped
from bertwright.training.layer_rates import layerwise_lr_scales
from bertwright.training.metrics_log import read_metrics
from bertwright.training.optimizer import OptimizerSettings
from bertwright.trials.grid_settings import GridSettings
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from harness import (
    check_interrupted_run,
    check_killed_runs,
    interrupt_at_step,
    load_weights,
    read_untimed,
    run_and_capture,
    run_on_ranks,
    same_weights,
)
from helpers import CPU

Make = Callable[..., FinetuneSettings]


run_finetune = partial(run_and_capture, finetune)


@contextmanager
def open_finetune(settings: FinetuneSettings) -> Iterator[tuple[FinetuneRun, io.StringIO]]:
    """Yield a run before its first step, and its output."""
    printed = io.StringIO()
    reporter = TerminalReporter(Console(file=printed, width=200))
    with execution_context(settings.device) as context:
        yield FinetuneRun(open_run(settings, context, reporter), settings, context, reporter), printed


def write_questions(path: Path, *rows: tuple[str, str | None]) -> str:
    """Write a file of contexts, each with an answer, which need not occur in it, or with none; return its path."""
    lines = [
        {"question": "sees", "context": text, "answers": [{"text": answer, "start": 0}] if answer else []}
        for text, answer in rows
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.mark.usefixtures("with_plots")
def test_run_learns_and_returns_the_best_checkpoint(tmp_path: Path, make_tuning: Make) -> None:
    settings = make_tuning(tmp_path / "run")
    printed = run_finetune(settings)
    report = read_json(settings.run / "report.json")
    evaluations = [record for record in read_metrics(settings.run) if record["kind"] == "dev"]
    assert [record["step"] for record in evaluations] == [20, 40, 60, 80]  # once per epoch of 320 examples, 16 per step
    assert report["scores"]["dev"]["accuracy"] == max(record["accuracy"] for record in evaluations) > 0.95
    assert report["scores"]["test"]["accuracy"] > 0.9
    best = {record["step"]: record["accuracy"] for record in evaluations}[report["best_step"]]
    assert best == report["scores"]["dev"]["accuracy"]
    assert report["dev_evaluations"] == 4
    assert f"Scores after step {report['best_step']}, the best of 4 evaluations on dev" in printed
    assert (settings.run / "scores.png").read_bytes().startswith(b"\x89PNG")
    assert "labels" in printed
    assert "bad, good" in printed

    model = bertwright.load(settings.run / "model")
    assert [answer.label for answer in model.classify(["the bear sees the river", "the lynx sees the river"])] == [
        "bad",
        "good",
    ]


def test_best_weights_are_the_result_if_they_are_not_the_last(
    tmp_path: Path, make_tuning: Make, review_files: Path
) -> None:
    swapped = {"good": "bad", "bad": "good"}
    header, *rows = (review_files / "dev.tsv").read_text().splitlines()
    turned = [f"{text}\t{swapped[label]}" for text, label in (row.split("\t") for row in rows)]
    (tmp_path / "dev.tsv").write_text("\n".join([header, *turned]) + "\n")  # dev scores fall while the model learns
    files = {"train": (str(review_files / "train.tsv"),), "dev": (str(tmp_path / "dev.tsv"),)}
    files["test"] = files["dev"]
    settings = make_tuning(tmp_path / "run", task=TaskSettings("classification", **files), epochs=4, eval_every=10)
    settings = replace(settings, keep_checkpoints=True)
    run_finetune(settings)
    report = read_json(settings.run / "report.json")
    assert report["best_step"] < report["steps"] == 80
    best = checkpoint.find_latest(settings.run / "best")
    last = checkpoint.find_latest(settings.run / "checkpoints")
    assert best is not None
    assert last is not None
    assert (checkpoint.step_of(best), checkpoint.step_of(last)) == (report["best_step"], 80)
    assert same_weights(settings.run / "model", best)
    assert not same_weights(settings.run / "model", last)
    assert report["scores"]["test"] == report["scores"]["dev"]


def test_threshold_chosen_on_dev_is_saved_and_used(tmp_path: Path, make_tuning: Make) -> None:
    locations = "forest river mountain valley meadow".split()
    answered = [(f"the {noun} sees the {name}", noun) for noun in ("bear", "wolf", "lynx") for name in locations]
    empty = [(f"the {name} meets the {other}", None) for name in locations for other in locations[:3]]
    files = {
        "train": (write_questions(tmp_path / "train.jsonl", *answered, *empty),),
        "dev": (write_questions(tmp_path / "dev.jsonl", *answered[::2], *empty[::2]),),
    }
    task = TaskSettings("squad_v2", **files, overrides=TaskOptions(max_length=32, max_query_length=4))
    settings = make_tuning(tmp_path / "run", task=task, epochs=2.0, batch_size=8)
    run_finetune(settings)
    found = load_task(settings.run / "model")
    assert found is not None
    tokenizer = Tokenizer.load(settings.run / "model")

    def scores(path: str, own: bool) -> tuple[float, dict[str, float]]:
        """Return τ and scores of a file, with the saved τ or with one chosen on the file itself."""
        examples = list(found.task.read(path))
        task = found.task
        if own:
            task = task.with_threshold_from(
                examples, next(predict_chunks(found.model, task, tokenizer, examples)).predictions
            )
        return task.threshold, task.score(
            examples, next(predict_chunks(found.model, task, tokenizer, examples)).predictions
        )

    (dev,) = files["dev"]
    assert found.task.threshold == scores(dev, own=True)[0] != 0
    assert read_json(settings.run / "report.json")["scores"]["dev"] == scores(dev, own=False)[1]
    other = write_questions(
        tmp_path / "other.jsonl", *((text, None) for text, _ in answered)
    )  # on which another τ is best
    by_dev, by_itself = scores(other, own=False)[1], scores(other, own=True)[1]
    assert evaluate(EvaluateSettings(str(settings.run), (other,), device=CPU), SILENT) == by_dev
    assert by_dev["f1"] < by_itself["f1"]


def test_run_in_bfloat16_learns(tmp_path: Path, make_tuning: Make) -> None:
    settings = make_tuning(tmp_path / "run", device=DeviceSettings("cpu", "bfloat16", 1))
    assert "bfloat16" in run_finetune(settings)
    assert read_json(settings.run / "report.json")["scores"]["dev"]["accuracy"] > 0.9
    assert {tensor.dtype for tensor in load_weights(settings.run / "model").values()} == {torch.float32}


# A first fine-tuning that is continued


@pytest.fixture(scope="module")
def task_model(tmp_path_factory: pytest.TempPathFactory, make_tuning: Make) -> Path:
    """A model for the reviews whose labels are not in sorted order, as in models of other libraries."""
    folder = tmp_path_factory.mktemp("task-model")
    run_finetune(make_tuning(folder / "first"))
    found = load_task(folder / "first/model")
    assert found is not None
    with torch.no_grad():
        for parameter in found.model.head.classifier.parameters():
            parameter.copy_(parameter.flip(0))
    task = replace(found.task, labels=("good", "bad"))
    task_folder.save_task_folder(folder / "tuned", found._replace(task=task), Tokenizer.load(folder / "first/model"))
    return folder / "tuned"


def test_keep_head_starts_with_the_weights_of_the_model(tmp_path: Path, make_tuning: Make, task_model: Path) -> None:
    with open_finetune(make_tuning(tmp_path / "run", model=str(task_model), keep_head=True, dropout=0.0)) as (
        run,
        printed,
    ):
        run.print_summary()
        assert f"head from {task_model}" in " ".join(printed.getvalue().split())
        expected = load_task_model(task_model).state_dict()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in run.state.model.state_dict().items())
        assert run.state.model.config.hidden_dropout == 0.0
        assert run.state.task.label_names == ("good", "bad")
        assert run.evaluate()["accuracy"] > 0.95


def test_unused_head_is_reported(tmp_path: Path, make_tuning: Make, task_model: Path, tiny_bert: Path) -> None:
    for model, expected in ((task_model, 1), (tiny_bert, 0)):
        with open_finetune(make_tuning(tmp_path / "run", model=str(model))) as (run, printed):
            run.print_summary()
            assert "head new" in " ".join(printed.getvalue().split())
            assert printed.getvalue().count("(see --keep-head)") == expected
            assert run.state.task.label_names == ("bad", "good")


def test_an_unused_pooled_head_is_reported(tmp_path: Path, make_tuning: Make) -> None:
    run_finetune(make_tuning(tmp_path / "first", pooling="mean", epochs=0.1))
    with open_finetune(make_tuning(tmp_path / "run", model=str(tmp_path / "first"))) as (run, printed):
        run.print_summary()
    assert printed.getvalue().count("(see --keep-head)") == 1
    assert "new, mean pooling (the model has no pooler;" in " ".join(printed.getvalue().split())


def test_run_with_keep_head_resumes_to_the_same_bits(
    tmp_path: Path, make_tuning: Make, task_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_tuning(tmp_path / "whole", model=str(task_model), keep_head=True, epochs=0.5)
    check_interrupted_run(run_finetune, settings, 6, monkeypatch)
    assert read_json(settings.run / "report.json")["scores"]["test"]["accuracy"] > 0.95


def test_head_that_does_not_fit_is_rejected_before_writing(
    tmp_path: Path, make_tuning: Make, task_model: Path, tiny_bert: Path, review_files: Path
) -> None:
    numbers = tmp_path / "numbers.tsv"
    numbers.write_text("text\tlabel\nthe bear\t1\nthe deer\t2\n")
    others = tmp_path / "others.tsv"
    others.write_text("text\tlabel\nthe bear\tgood\nthe deer\tso-so\n")
    for model, kind, train, message in (
        (tiny_bert, "classification", review_files / "train.tsv", r"fine-tuned on classification.*pre-training only"),
        (task_model, "regression", numbers, r"fine-tuned on regression.*got one of classification"),
        (task_model, "classification", others, r"\('good', 'so-so'\), got one for 'good', 'bad'"),
    ):
        task = TaskSettings(kind, train=(str(train),))
        settings = make_tuning(tmp_path / "run", model=str(model), task=task, keep_head=True)
        with pytest.raises(ValueError, match=rf"^{model}: .*{message}; omit --keep-head"):
            finetune(settings)
        assert not settings.run.exists()


@pytest.mark.parametrize(
    ("epochs", "items", "batch", "steps"), [(1.1, 100, 10, 11), (2.2, 3_200, 32, 220), (1, 33, 32, 2)]
)
def test_number_of_steps_has_no_rounding_error(
    tmp_path: Path, make_tuning: Make, epochs: float, items: int, batch: int, steps: int
) -> None:
    assert make_tuning(tmp_path, epochs=float(epochs), batch_size=batch).num_steps(items) == steps


# Resuming


@pytest.mark.slow
def test_run_killed_several_times_ends_with_the_same_bits(tmp_path: Path, make_tuning: Make) -> None:
    settings = make_tuning(tmp_path / "unbroken", epochs=3.0, eval_every=8, save_every=3, log_every=2)
    run_finetune(settings)
    chance = random.Random(1)

    def wait(process: BaseProcess, run: Path) -> None:
        """Return after a few more records, between two evaluations or checkpoints."""
        enough = len(read_metrics(run)) // 2 + chance.randint(2, 30)
        while process.is_alive() and len(read_metrics(run)) < enough:
            process.join(0.005)

    check_killed_runs(finetune, settings, wait, kills=20)


def test_run_killed_before_it_deleted_its_checkpoints_deletes_them_on_resume(tmp_path: Path, make_tuning: Make) -> None:
    settings = make_tuning(tmp_path / "run", epochs=0.2)
    run_finetune(settings)
    (settings.run / "best/step-00000004").mkdir(parents=True)
    run_finetune(replace(settings, resume=True))
    assert not (settings.run / "best").exists()
    (settings.run / "best/step-00000004").mkdir(parents=True)
    run_finetune(replace(settings, resume=True, keep_checkpoints=True))
    assert (settings.run / "best/step-00000004").exists()


def test_interrupted_run_logs_each_step_in_one_record(
    tmp_path: Path, make_tuning: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_tuning(tmp_path / "whole", epochs=0.5, log_every=4, save_every=1_000)
    broken = check_interrupted_run(run_finetune, settings, 6, monkeypatch)
    first, second, third, *_ = read_untimed(settings.run)
    first_again, begun, ended, third_again, *_ = read_untimed(broken.run)
    assert [one["step"] for one in (first, second, third, begun, ended)] == [4, 8, 10, 6, 8]
    assert (first_again, third_again) == (first, third)
    assert (begun["loss"] + ended["loss"]) / 2 == pytest.approx(second["loss"])


def test_two_ranks_compute_the_same_as_one(tmp_path: Path, make_tuning: Make) -> None:
    alone = make_tuning(tmp_path / "alone", epochs=0.5, log_every=1)
    run_finetune(alone)
    together = replace(alone, run=tmp_path / "together")
    run_on_ranks(2, finetune, together, MUTE)
    for one, two in zip(read_metrics(alone.run), read_metrics(together.run), strict=True):
        if one["kind"] == "train":
            assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
            assert two["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-3)


@pytest.mark.parametrize("spelled", ["train.tsv", "d[1]/train.tsv", "d[1]", "*.tsv", "d[[]1]/*.tsv", "~/train.tsv"])
def test_resume_with_changed_training_data_is_rejected(
    tmp_path: Path, make_tuning: Make, review_files: Path, spelled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each spelling of the file: the name of a folder may look like a glob."""
    monkeypatch.setenv("HOME", str(tmp_path))
    train = tmp_path / ("d[1]/train.tsv" if "1]" in spelled else "train.tsv")
    train.parent.mkdir(exist_ok=True)
    train.write_text((review_files / "train.tsv").read_text())
    pattern = spelled if spelled[0] == "~" else str(tmp_path / spelled)
    task = TaskSettings("classification", train=(pattern,), dev=(str(review_files / "dev.tsv"),))
    settings = make_tuning(tmp_path / "run", task=task, epochs=0.2)
    run_finetune(settings)
    (settings.run / "model").rename(tmp_path / "gone")
    train.write_text(train.read_text() + "the bear\tbad\n")
    with pytest.raises(ValueError, match=rf"{re.escape(pattern)}: changed since the run started"):
        finetune(replace(settings, resume=True))


@pytest.mark.parametrize("step", [1, 6])
def test_a_run_whose_inputs_have_moved_resumes_to_the_bit(
    tmp_path: Path, make_tuning: Make, review_files: Path, tiny_bert: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before its first checkpoint, which is after step 5; other content is refused with the way out."""
    shutil.copytree(review_files, tmp_path / "data")
    shutil.copytree(tiny_bert, tmp_path / "bert")
    task = TaskSettings(
        "classification", train=(str(tmp_path / "data/train.tsv"),), dev=(str(tmp_path / "data/*v.tsv"),)
    )
    settings = make_tuning(
        tmp_path / "whole", task=task, model=str(tmp_path / "bert"), epochs=0.5, save_every=5, keep_checkpoints=True
    )
    run_finetune(settings)
    broken = replace(settings, run=tmp_path / "broken")
    with interrupt_at_step(step, monkeypatch):
        run_finetune(broken)
    if step == 1:
        shutil.rmtree(broken.run / "checkpoints")
        (broken.run / "checkpoints").mkdir()
    (tmp_path / "data").rename(tmp_path / "moved")
    (tmp_path / "bert").rename(tmp_path / "elsewhere")
    resumed = replace(broken, resume=True)
    with pytest.raises(ValueError, match=r"data/train\.tsv: no such file.*--train NEW names it anew"):
        check_inputs(resumed)
    task = replace(task, train=(str(tmp_path / "moved/train.tsv"),), dev=(str(tmp_path / "moved/*v.tsv"),))
    resumed = replace(resumed, task=task, model=str(tmp_path / "elsewhere"))
    other = replace(task, train=(str(tmp_path / "moved/test.tsv"),))
    with pytest.raises(
        ValueError, match=r"moved/test\.tsv: changed since .*data/train\.tsv when it started.*start again"
    ):
        finetune(replace(resumed, task=other))
    with pytest.raises(ValueError, match=r"task\.dev was .* now"):
        finetune(replace(resumed, task=replace(task, dev=(*task.dev, *task.train))))
    check_inputs(resumed)
    with interrupt_at_step(8, monkeypatch):
        run_finetune(resumed)
    (tmp_path / "moved").rename(tmp_path / "again")
    task = replace(task, train=(str(tmp_path / "again/train.tsv"),), dev=(str(tmp_path / "again/*v.tsv"),))
    run_finetune(replace(resumed, task=task))
    assert same_weights(settings.run / "model", broken.run / "model")


def test_a_moved_model_of_other_weights_is_refused(
    tmp_path: Path, make_tuning: Make, tiny_bert: Path, task_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_tuning(tmp_path / "run", model=str(tiny_bert), epochs=0.2)
    with interrupt_at_step(2, monkeypatch):
        run_finetune(settings)
    with pytest.raises(ValueError, match=rf"{task_model}: changed since .*the initial weights when it started"):
        finetune(replace(settings, resume=True, model=str(task_model)))


def test_damaged_initial_weights_are_rejected_before_writing(
    tmp_path: Path, make_tuning: Make, tiny_bert: Path
) -> None:
    """Even if nothing computes with them: no text is long enough to use the damaged position."""
    shutil.copytree(tiny_bert, tmp_path / "damaged")
    (tmp_path / "damaged/checksums.json").unlink()
    weights = load_file(tmp_path / "damaged/model.safetensors")
    name = next(name for name in weights if name.endswith("position_embeddings.weight"))
    weights[name][-1, 0] = float("nan")
    save_file(weights, tmp_path / "damaged/model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"the initial weights are damaged: .*position.* not finite"):
        finetune(
            make_tuning(tmp_path / "run", model=str(tmp_path / "damaged")),
            TerminalReporter(Console(file=io.StringIO())),
        )
    assert not (tmp_path / "run").exists()


def test_missing_best_checkpoint_is_rejected(tmp_path: Path, make_tuning: Make) -> None:
    """Else the run would fail only after its last step."""
    settings = make_tuning(tmp_path / "run", epochs=1.0, keep_checkpoints=True)
    run_finetune(settings)
    (settings.run / "model").rename(tmp_path / "gone")
    (settings.run / "best").rename(tmp_path / "best")
    again = replace(settings, resume=True)
    with pytest.raises(ValueError, match=r"best/step-0000\d+: state.json is missing"):
        finetune(again)
    (tmp_path / "best").rename(settings.run / "best")
    finetune(again)
    assert (settings.run / "model").is_dir()


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_file_under_two_names_is_rejected(tmp_path: Path, make_tuning: Make, review_files: Path, split: str) -> None:
    train = str(review_files / "train.tsv")
    one, link = str(review_files / "dev.tsv"), tmp_path / "link.tsv"
    link.symlink_to(one)
    for other in (os.path.relpath(one), str(link), str(review_files / "d*.tsv")):
        task = TaskSettings("classification", **{"train": (train,)} | {split: (one, other)})
        with pytest.raises(ValueError, match=rf"{re.escape(other)}: named twice with --{split}"):
            finetune(make_tuning(tmp_path / "run", task=task))
    task = TaskSettings("classification", train=(train,), dev=(os.path.relpath(train),))
    with open_finetune(make_tuning(tmp_path / "run", task=task)) as (run, printed):
        run.print_summary()
    assert "train.tsv: used for training and for scoring" in printed.getvalue()


def test_examples_replace_files(tmp_path: Path, make_tuning: Make) -> None:
    settings = make_tuning(tmp_path / "files", epochs=0.2)
    run_finetune(settings)
    task = settings.task.build_task()
    examples = {split: list(task.read(*settings.task.files(split))) for split in ("train", "dev", "test")}
    given = replace(settings, run=tmp_path / "given", task=TaskSettings("classification"))
    finetune(given, SILENT, examples)
    assert same_weights(settings.run / "model", given.run / "model")
    assert read_untimed(settings.run) == read_untimed(given.run)
    assert read_json(settings.run / "report.json")["scores"] == read_json(given.run / "report.json")["scores"]
    odd = [examples["train"][0]._replace(label=label) for label in "xy"]
    with pytest.raises(ValueError, match=r"dev\.tsv, line 2: .*label .*training data: 'x', 'y'"):
        finetune(replace(given, run=tmp_path / "odd"), SILENT, examples | {"train": odd})


def test_resumed_run_verifies_each_checkpoint_once(
    tmp_path: Path, make_tuning: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_tuning(tmp_path / "run", epochs=0.2, keep_checkpoints=True)
    run_finetune(settings)
    shutil.rmtree(settings.run / "model")
    verify, verified = checkpoint.verify, []
    monkeypatch.setattr(checkpoint, "verify", lambda path: verified.append(path) or verify(path))
    run_finetune(replace(settings, resume=True))
    assert verified == [settings.run / folder / "step-00000004" for folder in ("checkpoints", "best")]


# Learning rates, evaluations, losses


def test_layerwise_lr_scales(tiny_bert: Path) -> None:
    model = start_task_model(tiny_bert, HeadSpec("sequence", 2), seed=0).model
    factors = layerwise_lr_scales(model, freeze_layers=None, decay=0.5)
    assert factors["head.classifier.weight"] == factors["head.pooler.dense.weight"] == 1.0
    assert factors["encoder.layers.1.qkv.weight"] == 0.5
    assert factors["encoder.layers.0.qkv.weight"] == 0.25
    assert factors["encoder.embeddings.word.weight"] == 0.125
    with pytest.raises(ValueError, match="this model has 2 layers"):
        layerwise_lr_scales(model, freeze_layers=3, decay=1.0)
    model.encoder.embeddings.position.weight.requires_grad_(False)  # as with fixed position encodings
    assert layerwise_lr_scales(model, None, 1.0)["encoder.embeddings.position.weight"] == 0


def test_frozen_layers_do_not_change_and_others_do(tmp_path: Path, make_tuning: Make, tiny_bert: Path) -> None:
    settings = make_tuning(tmp_path / "run", epochs=0.2, freeze_layers=1)
    run_finetune(settings)
    before = start_task_model(tiny_bert, HeadSpec("sequence", 2), seed=0).model.state_dict()
    after = load_task_model(settings.run / "model").state_dict()
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {name for name in before if name.startswith(("encoder.embeddings.", "encoder.layers.0."))}


def test_lower_layers_change_less_with_layerwise_lr_decay(tmp_path: Path, make_tuning: Make) -> None:
    def measure_change(decay: float) -> dict[str, torch.Tensor]:
        with open_finetune(make_tuning(tmp_path / "run", epochs=0.2, layerwise_lr_decay=decay)) as (run, _):
            before = {name: tensor.clone() for name, tensor in run.state.model.state_dict().items()}
            assert len(list(train_until_stopped(run.spec(), run.context, ()))) == 4
            return {name: (tensor - before[name]).abs().mean() for name, tensor in run.state.model.state_dict().items()}

    plain, decayed = measure_change(1.0), measure_change(0.1)
    share = {name: float(decayed[name] / plain[name]) for name in plain}
    assert share["head.classifier.weight"] == pytest.approx(1.0, rel=0.5)
    assert share["encoder.layers.1.qkv.weight"] == pytest.approx(0.1, rel=0.5)
    assert share["encoder.layers.0.qkv.weight"] == pytest.approx(0.01, rel=0.5)
    assert share["encoder.embeddings.word.weight"] == pytest.approx(0.001, rel=0.5)


@pytest.mark.parametrize(
    ("batch_size", "epochs", "eval_every", "due"),
    [
        (48, 3.0, None, [7, 14, 20]),
        (32, 2.0, None, [10, 20]),
        (320, 3.0, None, [1, 2, 3]),
        (500, 4.0, None, [1, 2, 3]),
        (32, 1.5, None, [10, 15]),
        (32, 0.5, None, [5]),
        (32, 1.0, 4, [4, 8, 10]),
    ],
)
def test_dev_is_scored_at_the_end_of_each_epoch(
    tmp_path: Path, make_tuning: Make, batch_size: int, epochs: float, eval_every: int | None, due: list[int]
) -> None:
    settings = make_tuning(tmp_path / "run", batch_size=batch_size, epochs=epochs, eval_every=eval_every)
    with open_finetune(settings) as (run, _):
        assert run.state.train.encoded.num_items == 320
        fit = run.fit_settings()
        assert [step for step in range(1, fit.steps + 1) if step == fit.steps or step in fit.eval_steps] == due


def test_label_smoothing_spreads_the_given_share(tmp_path: Path, make_tuning: Make) -> None:
    with open_finetune(make_tuning(tmp_path / "run", label_smoothing=0.4)) as (run, _), torch.inference_mode():
        run.state.model.eval()
        (batch,) = next(run.spec().batches(0))
        right = F.log_softmax(run.state.model(batch), 1).gather(1, batch.labels[:, None])
        wrong = (1 - right.exp()).log()
        assert float(run.spec().loss(batch).loss) == pytest.approx(float(-(0.8 * right + 0.2 * wrong).mean()))


def test_dropout_of_the_settings_is_used(tmp_path: Path, make_tuning: Make) -> None:
    with open_finetune(make_tuning(tmp_path / "run", dropout=0.3)) as (run, _):
        assert (run.state.model.config.hidden_dropout, run.state.model.config.attention_dropout) == (0.3, 0.3)
    first, second = (make_tuning(tmp_path / f"{rate}", epochs=0.1, dropout=rate) for rate in (0.0, 0.3))
    losses = []
    for settings in (first, second):
        with open_finetune(settings) as (run, _):
            losses.append(next(train_until_stopped(run.spec(), run.context, ())).sums["loss"])
    assert losses[0] != losses[1]


def test_result_depends_only_on_the_seed(tmp_path: Path, make_tuning: Make) -> None:
    runs = [make_tuning(tmp_path / name, epochs=0.3, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    for settings in runs:
        run_finetune(settings)
    assert same_weights(runs[0].run / "model", runs[1].run / "model")
    assert not same_weights(runs[0].run / "model", runs[2].run / "model")


def test_validation_fraction_splits_the_training_examples(
    tmp_path: Path, make_tuning: Make, review_files: Path
) -> None:
    task = TaskSettings("classification", train=(str(review_files / "train.tsv"),))
    printed = run_finetune(make_tuning(tmp_path / "run", task=task, epochs=0.2, validation_fraction=0.25))
    assert "240 examples" in printed
    assert "80 examples" in printed


def test_dev_split_that_cannot_select_is_rejected_or_reported(tmp_path: Path, make_tuning: Make) -> None:
    path = tmp_path / "few.tsv"
    path.write_text("text\tlabel\n" + "".join(f"the bear sees {number}\t{number}\n" for number in range(12)))
    task = TaskSettings("regression", train=(str(path),))
    with pytest.raises(
        ValueError,
        match=r"validation_fraction = 0\.1: .*choose a larger fraction.*"
        r"few\.tsv, line \d+: this number is \d+, and there is no other",
    ):
        finetune(make_tuning(tmp_path / "rejected", task=task, validation_fraction=0.1))
    assert not (tmp_path / "rejected").exists()
    (tmp_path / "train.tsv").write_text("text\tlabel\nthe bear\tgood\nthe wolf\tbad\n")
    (tmp_path / "dev.tsv").write_text("text\tlabel\nthe lynx\tbad\n")
    for metric, note in (
        ("f1", "dev: no example has the label 'good'"),
        ("matthews", "all examples have the label 'bad'"),
    ):
        files = {split: (str(tmp_path / f"{split}.tsv"),) for split in ("train", "dev")}
        task = TaskSettings("classification", **files, overrides=TaskOptions(metric=metric))
        assert note in run_finetune(make_tuning(tmp_path / metric, task=task, epochs=1, batch_size=2))


def test_token_without_a_vector_is_rejected_before_training(tmp_path: Path, make_tuning: Make, tiny_bert: Path) -> None:
    shutil.copytree(tiny_bert, tmp_path / "bert")
    (tmp_path / "bert/checksums.json").unlink()
    config = tmp_path / "bert" / "tokenizer_config.json"
    config.write_text(json.dumps(read_json(config) | {"additional_special_tokens": ["[E1]"]}))
    settings = make_tuning(tmp_path / "run", model=str(tmp_path / "bert"))
    with pytest.raises(ValueError, match=r"bert: .*tokenizer of at most \d+ tokens.*got \d+.*resize_token"):
        finetune(settings)
    assert not settings.run.exists()
    with pytest.raises(ValueError, match=r"bert: .*tokenizer"):
        bertwright.load(tmp_path / "bert")


def test_equal_texts_are_not_split(tmp_path: Path, make_tuning: Make) -> None:
    path = tmp_path / "copies.tsv"
    path.write_text("text\tlabel\n" + "the bear sees\tbad\nthe bear sees\tgood\n" * 20)
    task = TaskSettings("classification", train=(str(path),))
    with pytest.raises(ValueError, match=r"40 examples in 1 groups leave one split empty"):
        finetune(make_tuning(tmp_path / "other", task=task, validation_fraction=0.1))


@pytest.mark.parametrize(("copies", "others", "dev"), [(900, 100, 100), (50, 50, 10), (30, 2, 2), (3, 1, 1)])
def test_large_group_does_not_become_the_dev_split(
    tmp_path: Path, make_tuning: Make, copies: int, others: int, dev: int
) -> None:
    """The file has many copies of one text; the dev split should be a tenth."""
    texts = ["the lynx"] * copies + [f"the {number}" for number in range(others)]
    path = tmp_path / "copies.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{index % 2}\n" for index, text in enumerate(texts)))
    task = TaskSettings("classification", train=(str(path),))
    with open_finetune(make_tuning(tmp_path / "run", task=task, validation_fraction=0.1)) as (run, _):
        assert run.state.dev is not None
        assert (len(run.state.train.examples), len(run.state.dev.examples)) == (copies + others - dev, dev)


def test_dev_split_far_from_its_share_is_reported(tmp_path: Path, make_tuning: Make) -> None:
    path = tmp_path / "copies.tsv"
    path.write_text("text\tlabel\n" + "the bear sees\tbad\nthe lynx sees\tgood\n" * 20)
    task = TaskSettings("classification", train=(str(path),))
    printed = run_finetune(make_tuning(tmp_path / "run", task=task, epochs=0.2, validation_fraction=0.1))
    assert printed.count("20 examples") == 2
    assert "dev split: 20 of 40 examples (50.0%)" in printed
    limited = make_tuning(tmp_path / "limited", task=task, epochs=0.2, validation_fraction=0.1, limit=5)
    assert "dev split:" not in run_finetune(limited)  # the user asked for these numbers
    (tmp_path / "dev.tsv").write_text("text\tlabel\nthe bear sees\tbad\n")
    named = replace(task, dev=(str(tmp_path / "dev.tsv"),))
    assert "dev split:" not in run_finetune(
        make_tuning(tmp_path / "other", task=named, epochs=0.2, validation_fraction=0.1)
    )


def format_copy(number: int, copy: int, layout: str) -> str:
    """Return a copy of an example as text of a file; copies differ in label, question or document."""
    label, words = copy % 2, ["the", str(number)]
    tags = ["O", ("O", "B-X")[label]]
    return {
        "single": f"the {number}\t{label}\n",
        "pair": f"the\t{number}\t{label}\n",
        "choice": json.dumps({"prompt": f"the {number}", "endings": words[:: 1 - 2 * label], "label": label}) + "\n",
        "words": f"the O\n{number} {tags[1]}\n\n",
        "documents": f"-DOCSTART- O\n\nthe O\n\n{number} {tags[1]}\n\n",
        "rows": json.dumps({"words": words, "tags": tags}) + "\n",
        "question": json.dumps({"question": f"{copy}", "context": f"the {number}", "answers": [{"text": "the"}]})
        + "\n",
    }[layout]


# By layout: suffix of its files, kind of task, options to read them, and the fields in which all copies are equal.
LAYOUTS = {
    "single": (".tsv", "classification", TaskOptions(text="1", label="2", header=False), "text"),
    "pair": (".tsv", "regression", TaskOptions(text="1", text_pair="2", label="3", header=False), "text text_pair"),
    "choice": (".jsonl", "multiple-choice", TaskOptions(endings=("endings",)), "prompt"),
    "words": (".conll", "tagging", TaskOptions(), "words"),
    "documents": (".conll", "tagging", TaskOptions(context=True), "before words after"),
    "rows": (".jsonl", "tagging", TaskOptions(context=True), "words"),
    "question": (".jsonl", "question-answering", TaskOptions(max_query_length=4), "context"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_are_in_the_same_split(tmp_path: Path, make_tuning: Make, layout: str) -> None:
    suffix, kind, overrides, equal = LAYOUTS[layout]
    path = tmp_path / f"copies{suffix}"
    path.write_text("".join(format_copy(number, copy, layout) for copy in range(4) for number in range(9)))
    task = TaskSettings(kind, train=(str(path),), overrides=overrides)
    with open_finetune(make_tuning(tmp_path / "run", task=task, validation_fraction=0.25)) as (run, _):
        splits = [split.examples for split in (run.state.train, run.state.dev) if split]
    train, dev = ([tuple(getattr(example, name) for name in equal.split()) for example in split] for split in splits)
    assert 2 * len(train) == 7 * len(dev)  # nine groups of copies cannot come closer to a quarter
    assert not set(train) & set(dev)


# Notices


def test_examples_that_lose_tokens_are_reported_by_split(tmp_path: Path, make_tuning: Make) -> None:
    long = "the bear " * 40
    for split, texts in (("train", ["the bear"] * 4), ("dev", [long, "the bear"]), ("test", [long, long, long])):
        rows = "".join(f"{text}\t{('bad', 'good')[number % 2]}\n" for number, text in enumerate(texts))
        (tmp_path / f"{split}.tsv").write_text(f"text\tlabel\n{rows}")
    files = {split: (str(tmp_path / f"{split}.tsv"),) for split in ("train", "dev", "test")}

    def find_notices(**changes: Any) -> list[str]:
        task = TaskSettings("classification", **(files | changes))
        with open_finetune(make_tuning(tmp_path / "run", task=task)) as (run, printed):
            run.print_summary()
        return [line.strip() for line in printed.getvalue().splitlines() if "lose tokens" in line]

    full = "lose tokens: max_length is 64; the model has no more positions"
    assert find_notices() == [f"! dev: 1 of 2 examples (50.0%) {full}", f"! test: 3 of 3 examples (100.0%) {full}"]
    short = "lose tokens: max_length is 32; raise max_length to keep them whole"
    assert find_notices(train=files["test"], test=(), overrides=TaskOptions(max_length=32)) == [
        f"! train: 3 of 3 examples (100.0%) {short}",
        f"! dev: 1 of 2 examples (50.0%) {short}",
    ]


def test_report_lists_all_answers_that_are_not_in_their_context(tmp_path: Path, make_tuning: Make) -> None:
    lost = [("the bear sees the wolf", "hare")] * 7
    train = write_questions(tmp_path / "train.jsonl", ("the bear sees", "bear"), ("the wolf", "the"), *lost)
    task = TaskSettings("question-answering", train=(train,), dev=(train,), overrides=TaskOptions(max_query_length=4))
    printed = run_finetune(make_tuning(tmp_path / "run", task=task, epochs=1.0))
    notices = " ".join(printed.split()).replace(f"{tmp_path}/", "")
    assert "1 questions whose answer is not at the given start, but occurs once elsewhere" in notices
    assert "7 questions whose answer is not at the given start" in notices
    assert "not trained on" in notices
    assert "report.json" in notices
    assert "and 2 more)" in notices
    assert read_json(tmp_path / "run" / "report.json")["answers"] == {
        "moved": [f"{train}, line 1"],
        "left_out": [f"{train}, line {number}" for number in range(3, 10)],
        "unanswered": [],
    }


def test_questions_without_an_answer_are_counted(tmp_path: Path, make_tuning: Make) -> None:
    files = {
        split: (write_questions(tmp_path / f"{split}.jsonl", ("the bear sees", "the"), *[("the wolf", None)] * count),)
        for split, count in (("train", 7), ("dev", 2))
    }
    task = TaskSettings("question-answering", **files, overrides=TaskOptions(max_query_length=4))
    printed = run_finetune(make_tuning(tmp_path / "run", task=task, epochs=1.0))
    notices = " ".join(printed.split())
    assert "train: 7 questions without an answer in the file: not trained on" in notices
    assert "dev: 2 questions without an answer in the file" in notices
    report = read_json(tmp_path / "run" / "report.json")
    assert report["answers"]["unanswered"] == [f"{files['train'][0]}, line {number}" for number in range(2, 9)]
    assert report["scores"]["dev"]["no_answer_accuracy"] == 0


def test_capital_letters_and_an_uncased_vocabulary_are_reported(tmp_path: Path, make_tuning: Make) -> None:
    path = tmp_path / "train.conll"
    for word, is_reported in (("Bear", True), ("bear", False)):
        path.write_text(f"the O\n{word} B-ANI\n\nwolf B-ANI\nsees O\n")
        task = TaskSettings("tagging", train=(str(path),))
        with open_finetune(make_tuning(tmp_path / "run", task=task)) as (run, printed):
            run.print_summary()
        assert ("capital letters, such as 'Bear', but the vocabulary is uncased" in printed.getvalue()) == is_reported


def test_untrained_pooler_is_reported_if_the_head_reads_it(tmp_path: Path, make_tuning: Make, tiny_bert: Path) -> None:
    shutil.copytree(tiny_bert, tmp_path / "bert")
    settings = make_tuning(tmp_path / "run", model=str(tmp_path / "bert"), pooling="cls")
    with open_finetune(settings) as (_, printed):
        assert "pooler" not in printed.getvalue()
    weights = load_file(tmp_path / "bert/model.safetensors")
    weights["bert.pooler.dense.bias"].zero_()
    (tmp_path / "bert/checksums.json").unlink()
    save_file(weights, tmp_path / "bert/model.safetensors", {"format": "pt"})
    with open_finetune(settings) as (_, printed):
        assert "the model's pooler was never trained" in printed.getvalue()


def test_dry_run_prints_summary_and_cost_and_writes_nothing(tmp_path: Path, make_tuning: Make) -> None:
    printed = run_finetune(make_tuning(tmp_path / "run", epochs=2.0, dry_run=True))
    assert list(tmp_path.iterdir()) == []
    assert "320 examples" in printed
    fields = dict(re.findall(r"^  (steps|estimated time|memory|disk space)  +(\S.*?) *$", printed, re.MULTILINE))
    assert fields["steps"] == "40"
    assert re.fullmatch(r"\d+ s|\d+ min", fields["estimated time"])
    assert re.fullmatch(r"[\d.,]+ [MG]B per process", fields["memory"])
    assert re.fullmatch(r"[\d.]+ [kM]B or less for checkpoints and model", fields["disk space"])
    assert re.findall(r"(train|dev)\.tsv, line (\d+)", printed) == [("train", "2"), ("dev", "2")]


def test_dry_run_with_examples_only_looks_at_them(tmp_path: Path, make_tuning: Make) -> None:
    printed = run_finetune(make_tuning(tmp_path / "run", dry_run=True, show_examples=3))
    assert re.findall(r"(train|dev).tsv, line (\d)", printed) == [(s, n) for s in ("train", "dev") for n in "234"]
    assert re.search(r"^  gold answers +(good|bad): \d+, (good|bad): \d+ *$", printed, re.MULTILINE)
    assert "estimated time" not in printed


# Misuse


def test_input_that_does_not_fit_is_rejected_before_writing(
    tmp_path: Path, make_tuning: Make, review_files: Path
) -> None:
    train, dev = (str(review_files / name) for name in ("train.tsv", "dev.tsv"))
    unknown = tmp_path / "unknown.tsv"
    unknown.write_text("text\tlabel\nthe bear\tbad\nthe wolf\tugly\n")
    one_class = tmp_path / "one.tsv"
    one_class.write_text("text\tlabel\nthe bear\tbad\nthe wolf\tbad\n")
    empty = tmp_path / "empty.tsv"
    empty.write_text("text\tlabel\n")
    errors = {
        r"unknown\.tsv, line 3: .*ugly": TaskSettings("classification", train=(train,), dev=(str(unknown),)),
        r"one\.tsv, line 2: .*at least two different ones": TaskSettings("classification", train=(str(one_class),)),
        r"empty\.tsv: no rows": TaskSettings("classification", train=(train,), dev=(str(empty),)),
        "no train examples: name files with --train": TaskSettings("classification", dev=(dev,)),
        "the model has 64 positions": TaskSettings(
            "classification", train=(train,), overrides=TaskOptions(max_length=65)
        ),
    }
    for message, task in errors.items():
        with pytest.raises(ValueError, match=message):
            run_finetune(make_tuning(tmp_path / "run", task=task))
        assert not (tmp_path / "run" / "settings.toml").exists()


def test_skipped_rows_of_published_files_are_reported_by_split(tmp_path: Path, make_tuning: Make) -> None:
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    rows = [f"{n}\t1\t2\tthe bear sees\tthe {('wolf', 'bear')[n % 2]} sees\t{n % 2}\n" for n in range(8)]
    half = "8\t3\t4\tthe bear\n"
    (tmp_path / "train.tsv").write_text("".join([header, *rows[:4], half, "the wolf\t0\n", *rows[4:]]))
    (tmp_path / "dev.tsv").write_text("".join([header, half, *rows]))
    printed = run_finetune(make_tuning(tmp_path / "run", task=TaskSettings("qqp", data=tmp_path), epochs=1.0))
    notices = " ".join(printed.split()).replace(f"{tmp_path}/", "")
    assert "2 rows with too few columns skipped" in notices
    assert "1 row with too few columns skipped" in notices
    assert "train.tsv, line 6" in printed
    assert "dev.tsv, line 2" in printed
    examples = (str(tmp_path / "dev.tsv"),)
    scores = io.StringIO()
    evaluate(
        EvaluateSettings(str(tmp_path / "run"), examples, device=CPU),
        TerminalReporter(Console(file=scores, width=300)),
    )
    assert "8 examples" in scores.getvalue()
    assert "1 row with too few columns skipped" in scores.getvalue()


def test_task_settings_are_checked() -> None:
    with pytest.raises(ValueError, match='no task "mprc"; did you mean "mrpc"'):
        TaskSettings("mprc")
    with pytest.raises(ValueError, match="--doc-stride: not an option of classification"):
        TaskSettings("mrpc", overrides=TaskOptions(doc_stride=64))
    with pytest.raises(ValueError, match="name files with --train"):
        TaskSettings("classification", data=Path()).files("train")


@pytest.mark.parametrize(
    ("task", "changes", "expected"),
    [
        ("squad", {}, (5e-5, 32, 3.0)),
        ("squad_v2", {}, (5e-5, 48, 2.0)),
        ("swag", {}, (2e-5, 16, 3.0)),
        ("cola", {}, (3e-5, 32, 3.0)),
        ("nsmc", {}, (3e-5, 32, 3.0)),  # no task of the paper
        ("squad_v2", {"epochs": 4.0, "optimizer": {"beta2": 0.9}}, (5e-5, 48, 4.0)),
        ("squad_v2", {"optimizer": {"learning_rate": 1e-3}}, (1e-3, 48, 2.0)),
    ],
)
def test_published_task_has_the_settings_of_the_paper(
    task: str, changes: dict[str, Any], expected: tuple[float, int, float]
) -> None:
    settings = from_table(FinetuneSettings, {"run": "r", "task": {"task": task}} | changes, "table")
    assert (settings.optimizer.learning_rate, settings.batch_size, settings.epochs) == expected
    assert settings.optimizer.bias_correction  # other settings are those of fine-tuning


@pytest.mark.parametrize(
    ("task", "rates", "batch_size", "epochs"),
    [
        ("cola", (5e-5, 4e-5, 3e-5, 2e-5), 32, 3.0),
        ("squad_v2", GridSettings.learning_rates, 48, 2.0),  # the paper has a single rate, which is one of these
        ("swag", GridSettings.learning_rates, 16, 3.0),
    ],
)
def test_grid_of_a_published_task_has_the_batch_size_and_epochs_of_the_paper(
    task: str, rates: tuple[float, ...], batch_size: int, epochs: float
) -> None:
    grid = from_table(GridSettings, {"run": "r", "task": {"task": task}}, "table")
    assert (grid.learning_rates, grid.batch_sizes, grid.epochs) == (rates, (batch_size,), (epochs,))


def test_summary_has_the_settings_of_the_paper_beside_those_in_force() -> None:
    table = {"run": "r", "task": {"task": "squad_v2"}}
    own = from_table(FinetuneSettings, table, "table").describe_hyperparams()
    assert own == "batch size 48, 2 epochs, learning rate 5e-05 (paper, 4.3)"
    changed = from_table(FinetuneSettings, table | {"batch_size": 8}, "table").describe_hyperparams()
    assert changed == "batch size 8, 2 epochs, learning rate 5e-05 (paper, 4.3: 48, 2, 5e-05)"
    glue = from_table(FinetuneSettings, table | {"task": {"task": "rte"}}, "table").describe_hyperparams()
    assert "(paper, 4.1, where dev selects among 5e-05 or 4e-05 or 3e-05 or 2e-05)" in glue


def test_document_context_of_conll_2003_reaches_the_positions_of_the_model() -> None:
    task = TaskSettings("conll2003").build_task()
    assert [task.limited_to(positions).max_length for positions in (64, 512)] == [64, 512]


def test_presets_find_their_files(tmp_path: Path) -> None:
    (tmp_path / "en_ewt-ud-train.conllu").touch()
    assert TaskSettings("ud_pos", data=tmp_path).files("train") == (str(tmp_path / "en_ewt-ud-train.conllu"),)
    assert TaskSettings("ud_pos", data=tmp_path).files("dev") == ()
    for preset in PRESETS.values():
        assert preset.task.metric


def test_impossible_settings_are_rejected(make_tuning: Make, tmp_path: Path) -> None:
    for changes, message in (
        ({"epochs": 0.0}, "epochs: expected .*10,000, got 0.0"),
        ({"epochs": 1e300}, r"epochs: .*got 1e\+300"),
        ({"batch_size": 0}, "batch_size: expected 1 to 1,048,576, got 0"),
        ({"dropout": 1.0}, "dropout: .*got 1.0"),
        ({"layerwise_lr_decay": 0.0}, "layerwise_lr_decay: .*got 0.0"),
        ({"freeze_layers": -1}, "freeze_layers: expected at least 0, got -1"),
        ({"from_scratch": True, "keep_head": True}, "from_scratch and keep_head"),
    ):
        with pytest.raises(ValueError, match=message):
            make_tuning(tmp_path / "run", **changes)


# Baselines and trials


def test_dropout_defaults_to_the_models_own_and_is_printed(tmp_path: Path, make_tuning: Make, tiny_bert: Path) -> None:
    model = shutil.copytree(tiny_bert, tmp_path / "model")
    (model / "checksums.json").unlink()
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.0}))
    for dropout, expected, shown in (
        (None, 0.0, "0, of attention weights 0.1 (the model's own; --dropout overrides it)"),
        (0.25, 0.25, "0.25 (the model's own: 0, of attention weights 0.1)"),
    ):
        with open_finetune(make_tuning(tmp_path / "run", model=str(model), dropout=dropout)) as (run, printed):
            run.print_summary()
            assert run.state.model.config.hidden_dropout == expected
            (line,) = [line for line in printed.getvalue().splitlines() if line.strip().startswith("dropout")]
            assert line.strip().removeprefix("dropout").strip() == shown


def test_run_from_scratch_uses_configuration_and_tokenizer_only(
    tmp_path: Path, make_tuning: Make, tiny_bert: Path
) -> None:
    pretrained = start_task_model(tiny_bert, HeadSpec("sequence", 2), seed=0).model.state_dict()
    weights = []
    for seed in (3, 3, 4):
        with open_finetune(make_tuning(tmp_path / "run", from_scratch=True, dropout=0.0, seed=seed)) as (run, printed):
            run.print_summary()
            assert f"random weights, configuration of {tiny_bert}" in printed.getvalue()
            weights.append(run.state.model.state_dict())
            assert run.state.model.config.hidden_dropout == 0.0
    name = "encoder.layers.0.qkv.weight"
    assert pretrained.keys() == weights[0].keys()
    assert torch.equal(weights[0][name], weights[1][name])
    assert not torch.equal(weights[0][name], weights[2][name])
    assert not torch.equal(weights[0][name], pretrained[name])


def test_limit_uses_the_same_few_examples_of_each_split(tmp_path: Path, make_tuning: Make) -> None:
    chosen = []
    for seed in (0, 1):
        with open_finetune(make_tuning(tmp_path / "run", limit=70, seed=seed)) as (run, _):
            splits = [run.state.train, run.state.dev, run.state.test]
            assert [len(split.examples) for split in splits if split] == [70, 70, 60]
            chosen.append([example.location for split in splits if split for example in split.examples])
    assert chosen[0] == chosen[1]
    assert chosen[0][:70] != [f"train.tsv, line {number}" for number in range(2, 72)]
    with pytest.raises(ValueError, match="limit: expected at least 1, got 0"):
        make_tuning(tmp_path / "run", limit=0)


def test_predictions_of_a_single_class_are_reported(tmp_path: Path, make_tuning: Make) -> None:
    blind = OptimizerSettings(learning_rate=1e-9)
    settings = make_tuning(tmp_path / "run", epochs=0.1, eval_every=1, optimizer=blind)
    printed = " ".join(run_finetune(settings).split())
    assert printed.count("dev after step ") > 1
    assert len(re.findall(r"! dev: all predictions are '(?:good|bad)'", printed)) == 1
    learned = run_finetune(make_tuning(tmp_path / "learned"))
    assert "all predictions are" not in learned


@pytest.mark.parametrize("line", ['{"kind": "dev", "step": "0"}', '{"kind": ["dev"], "step": 1}', '{"kind": "dev"}'])
def test_metrics_of_other_content_are_named_by_line(tmp_path: Path, make_tuning: Make, line: str) -> None:
    settings = make_tuning(tmp_path / "run", epochs=0.2)
    run_finetune(settings)
    shutil.rmtree(settings.run / "model")
    log = settings.run / "metrics.jsonl"
    log.write_text(f"{line}\n{log.read_text()}")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1: not a record"):
        finetune(replace(settings, resume=True))


def test_dev_texts_that_are_training_texts_are_counted(tmp_path: Path, make_tuning: Make, review_files: Path) -> None:
    rows = (review_files / "dev.tsv").read_text().splitlines()
    copied = (review_files / "train.tsv").read_text().splitlines()[1:4]
    (tmp_path / "dev.tsv").write_text("\n".join([*rows[:3], *copied]) + "\n")
    task = TaskSettings("classification", train=(str(review_files / "train.tsv"),), dev=(str(tmp_path / "dev.tsv"),))
    with open_finetune(make_tuning(tmp_path / "run", task=task)) as (run, printed):
        run.print_summary()
    assert "dev: 3 of 5 examples have the text of a training example" in " ".join(printed.getvalue().split())


def test_patience_ends_a_run_early_and_says_so(tmp_path: Path, make_tuning: Make) -> None:
    made = make_tuning(tmp_path / "run", epochs=4, eval_every=5)
    settings = replace(made, tuning=replace(made.tuning, patience=2))
    printed = " ".join(run_finetune(settings).split())
    report = read_json(settings.run / "report.json")
    scores = {one["step"]: one["accuracy"] for one in read_metrics(settings.run) if one["kind"] == "dev"}
    assert report["stopped_early"] is True
    assert report["steps"] == max(scores) == report["best_step"] + 10 < 80
    assert scores[report["best_step"]] == max(scores.values())
    assert "stops early after 2 evaluations without a better score" in printed
    assert "training stopped early" in printed
    with pytest.raises(ValueError, match=r"patience = 2: expected dev"):
        run_finetune(replace(settings, run=tmp_path / "none", task=replace(settings.task, dev=())))


def test_a_finished_run_keeps_its_model_once(tmp_path: Path, make_tuning: Make) -> None:
    for keep in (True, False):
        settings = make_tuning(tmp_path / f"run-{keep}", epochs=1, keep_checkpoints=keep)
        run_finetune(settings)
        copies = 3 if keep else 1  # the newest and the best checkpoint, and the model
        assert len([*settings.run.rglob("model.safetensors")]) == copies
        assert bool([*settings.run.rglob("optimizer.safetensors")]) is keep
        assert "finished already" in run_finetune(replace(settings, resume=True))
