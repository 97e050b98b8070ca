"""Pre-training runs: they learn, write what is documented, survive kills, and reject input that does not fit."""

from __future__ import annotations

import json
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file

import bertwright
from bertwright.base.files import lock_folder, read_json
from bertwright.base.settings import write_settings
from bertwright.cli.render.terminal import TerminalReporter
from bertwright.corpus.documents import CorpusSettings
from bertwright.inference.info import InfoSettings, info
from bertwright.interop.huggingface import load_config, load_model, save_model
from bertwright.objectives.data import StoreExamples
from bertwright.objectives.data_settings import DataSettings
from bertwright.pretraining import run as run_module
from bertwright.pretraining.evaluation import evaluate
from bertwright.pretraining.run import PretrainRun, open_run, pretrain
from bertwright.pretraining.settings import LongPhase, ModelSettings, PretrainSettings
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.tokenstore.store import TokenStore
from bertwright.training.context import ExecutionContext
from bertwright.training.cost import CostEstimate, format_bytes
from bertwright.training.loop import DivergedError
from bertwright.training.metrics_log import plot_metrics, read_metrics
from bertwright.training.optimizer import OptimizerSettings
from bertwright.training.run_folder import read_run_settings
from bertwright.training.throughput import measure_peak_flops
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from harness import check_killed_runs, load_weights, run_and_capture, same_weights, start_process
from helpers import full_disk

Make = Callable[..., PretrainSettings]


run_pretrain = partial(run_and_capture, pretrain, columns=120)


@pytest.fixture(scope="session")
def finished_run(make_settings: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests copy it."""
    settings = make_settings(tmp_path_factory.mktemp("finished") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertwright.pretraining.run.plot_metrics", plot_metrics)
        patch.setattr("bertwright.pretraining.run.measure_peak_flops", measure_peak_flops)
        run_pretrain(settings)
    return settings.run


@pytest.fixture
def finished(make_settings: Make, finished_run: Path, tmp_path: Path) -> PretrainSettings:
    """Settings to resume a copy of the finished run."""
    return make_settings(shutil.copytree(finished_run, tmp_path / "run"), resume=True)


@pytest.fixture
def unfinished(finished: PretrainSettings) -> PretrainSettings:
    """Settings to resume a copy of the run whose model has not been written yet."""
    shutil.rmtree(finished.run / "model")
    return finished


def open_cpu(settings: PretrainSettings, reporter: TerminalReporter | None = None, **ranks: int) -> PretrainRun:
    """Open a run on the CPU."""
    context = ExecutionContext(torch.device("cpu"), torch.float32, threads=1, **ranks)
    return open_run(settings, context, reporter or TerminalReporter(Console(file=StringIO())))


def read_evaluations(run: Path) -> list[dict[str, Any]]:
    """Read the records of the evaluations on held-out documents."""
    return [record for record in read_metrics(run) if record["kind"] == "held_out"]


def context_settings(make_settings: Make, run: Path, steps: int) -> PretrainSettings:
    """Return settings with which a tiny model learns to use context after some hundred steps."""
    return make_settings(
        run,
        steps=steps,
        eval_every=steps,
        model=ModelSettings(
            size="tiny", hidden_size=64, num_heads=2, max_positions=64, hidden_dropout=0.0, attention_dropout=0.0
        ),
        long=LongPhase(long_ratio=0),
        data=DataSettings(max_length=32, batch_size=32),
        optimizer=OptimizerSettings(learning_rate=3e-3, warmup_ratio=0.1, bias_correction=True),
    )


def test_validation_loss_falls_within_a_hundred_steps(tmp_path: Path, make_settings: Make) -> None:
    settings = context_settings(make_settings, tmp_path / "run", steps=100)
    printed = run_pretrain(settings)
    before, *_, after = read_evaluations(settings.run)
    assert after["loss"] < before["loss"] - 0.5
    assert "next-sentence accuracy" in printed
    assert re.search(r"^[\d,]+ examples per epoch; [\d,]+ steps are ", printed, re.MULTILINE)


@pytest.mark.slow
def test_model_learns_from_context_and_fills_masks(tmp_path: Path, make_settings: Make) -> None:
    # After 800 steps, each seed predicts the location with 0.9; after 500, some still guess.
    settings = context_settings(make_settings, tmp_path / "run", steps=800)
    run_pretrain(settings)
    before, *_, after = read_evaluations(settings.run)
    assert after["loss"] < before["loss"] / 2
    # Five of the nine tokens per sentence are always the same; the others are one of five each, without context.
    assert after["mlm_accuracy"] > (5 + 4 * 0.2) / 9 + 0.1
    model = bertwright.load(settings.run / "model")
    # In this grammar, "the fish ... the wolf" occur at the river only, and so on.
    for one, other, location in (("bear", "deer", "forest"), ("fish", "wolf", "river"), ("lynx", "mole", "meadow")):
        text = f"The {one} sees the {other} in the [MASK] . The {one} fears the {other} in the {location} ."
        assert model.fill_mask(text).masks[0][0].token == location


def test_run_folder_has_the_documented_files(finished: PretrainSettings) -> None:
    settings = finished
    names = {path.name for path in settings.run.iterdir()}
    assert names >= {"settings.toml", "checkpoints", "metrics.jsonl", "tensorboard", "loss.png", "report.json", "model"}
    assert [path.name for path in sorted((settings.run / "checkpoints").iterdir())] == [
        "step-00000008",
        "step-00000012",
    ]
    assert replace(read_run_settings(PretrainSettings, settings.run), run=settings.run) == settings
    train = [record for record in read_metrics(settings.run) if record["kind"] == "train"]
    assert [record["step"] for record in train] == [
        3,
        4,
        6,
        8,
        9,
        12,
    ]  # a record also ends at each checkpoint, every 4 steps
    assert all(record["tokens_per_second"] > 0 and 0 < record["utilization"] < 2 for record in train)
    report = read_json(settings.run / "report.json")
    tokens = sum(record["tokens_per_second"] * record["seconds"] for record in train)
    assert report["tokens"] == sum(record["tokens"] for record in train) == pytest.approx(tokens)
    assert report["seconds"] == sum(record["seconds"] for record in train) < report["seconds_of_this_process"]
    described = " ".join(run_and_capture(info, InfoSettings(settings.run)).split())
    assert f"trained on {report['tokens']:,.0f} tokens" in described
    assert [record["step"] for record in read_evaluations(settings.run)] == [0, 6, 12]
    assert list((settings.run / "tensorboard").glob("events.*"))


def test_checkpoints_of_keep_every_remain(tmp_path: Path, make_settings: Make) -> None:
    settings = make_settings(tmp_path / "run", save_every=2, keep_every=4, keep_last=1)
    run_pretrain(settings)
    names = sorted(path.name for path in (settings.run / "checkpoints").iterdir())
    assert names == ["step-00000004", "step-00000008", "step-00000012"]
    with pytest.raises(ValueError, match="keep_every = 5: expected a multiple of save_every = 2"):
        replace(settings, keep_every=5)


def test_dry_run_under_torchrun_is_rejected(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="single process"):
        pretrain(make_settings(tmp_path / "run", dry_run=True))


@pytest.mark.parametrize("changes", [{"long_length": 3}, {"long_batch_size": 0}, {"long_mlm_probability": 2.0}])
def test_errors_of_the_long_phase_name_its_options(changes: dict[str, Any], make_settings: Make) -> None:
    with pytest.raises(ValueError, match=r"long phase \(--long-length"):
        make_settings(Path("run"), long=LongPhase(**({"long_length": 64} | changes)))


@pytest.mark.parametrize(("objective", "command"), [("mlm", "fill-mask"), ("ltr", "info")])
def test_the_example_at_the_end_of_a_run_works(
    objective: Any, command: str, tmp_path: Path, make_settings: Make
) -> None:
    data = DataSettings(32, 4, objective)
    printed = run_pretrain(make_settings(tmp_path / "run", steps=2, data=data, long=LongPhase(long_ratio=0)))
    example = re.search(r"bertwright (\S+) (\S+/run/model)", printed)
    assert example is not None
    assert example[1] == command


def test_dry_run_prints_plan_and_cost_and_writes_nothing(tmp_path: Path, make_settings: Make) -> None:
    settings = make_settings(tmp_path / "run", dry_run=True, steps=1_000, save_every=100, keep_every=500)
    printed = run_pretrain(settings)
    assert list(tmp_path.iterdir()) == []
    assert "Steps 750 to 1,000, length 64" in printed
    fields = dict(re.findall(r"^  (steps|tokens|estimated time|memory|disk space)  +(\S.*?) *$", printed, re.MULTILINE))
    assert fields["steps"] == "1,000"
    assert 8 * 32 * 500 < int(fields["tokens"].replace(",", "")) < 8 * (32 * 750 + 64 * 250)
    assert re.fullmatch(r"\d+ s|\d+ min", fields["estimated time"])
    assert "per process" in fields["memory"]
    weights = 4 * sum(
        weight.numel() for weight in BertForPretraining(settings.model.config(28, causal=False)).parameters()
    )
    assert fields["disk space"].startswith(format_bytes((3 * 5 + 1) * weights))


def test_estimate_counts_the_steps_and_evaluations_of_each_phase(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {0: 1.0, 9: 100.0}  # per step, by the first step of the phase
    monkeypatch.setattr(run_module, "time_steps", lambda _training, _context, first: seconds[first])
    monkeypatch.setattr(PretrainRun, "time_evaluation", lambda _, data: {32: 1e4, 64: 1e6}[data.settings.max_length])
    settings = make_settings(tmp_path / "run", eval_every=5)  # at 0, 5, 10 and 12, of which two are in the long phase
    run = open_cpu(settings)
    evaluations = 4 * 1e4 + 2 * 1e6
    assert run.estimate_cost() == CostEstimate(12, 9 * 1.0 + 3 * 100.0 + evaluations, evaluations)


@pytest.mark.parametrize(
    ("every", "steps", "expected"),
    [(99, 300, [0, 99, 198, 297]), (100, 300, [0, 10, 100, 200]), (1_000, 2_000, [0, 100, 1_000]), (1_000, 100, [0])],
)
def test_one_evaluation_follows_the_first_steps(
    every: int, steps: int, expected: list[int], tmp_path: Path, make_settings: Make
) -> None:
    assert make_settings(tmp_path / "run", steps=steps, eval_every=every).eval_steps == expected


def test_only_the_main_process_watches_for_a_plateau(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_cpu(make_settings(tmp_path / "run"), rank=1, world_size=2)
    monkeypatch.setattr(StoreExamples, "measure_baseline", lambda _: pytest.fail("read the store"))
    assert run.spec().diagnose is None


def test_micro_batches_change_the_result_only_by_rounding(tmp_path: Path, make_settings: Make) -> None:
    for name, size in (("whole", 8), ("split", 3)):
        run_pretrain(make_settings(tmp_path / name, micro_batch_size=size))
    whole, split = load_weights(tmp_path / "whole" / "model"), load_weights(tmp_path / "split" / "model")
    for name, tensor in whole.items():
        torch.testing.assert_close(split[name], tensor, rtol=2e-3, atol=2e-4)


def test_padded_batches_change_the_result_only_by_rounding(tmp_path: Path, make_settings: Make) -> None:
    for name, pads in (("packed", False), ("padded", True)):
        run_pretrain(make_settings(tmp_path / name, micro_batch_size=3, pad_batches=pads))
    packed, padded = load_weights(tmp_path / "packed" / "model"), load_weights(tmp_path / "padded" / "model")
    for name, tensor in packed.items():
        torch.testing.assert_close(padded[name], tensor, rtol=2e-3, atol=2e-4)
    for one, other in zip(read_metrics(tmp_path / "packed"), read_metrics(tmp_path / "padded"), strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)


def test_last_phase_is_evaluated_at_both_lengths(tmp_path: Path, make_settings: Make) -> None:
    settings = make_settings(tmp_path / "run", eval_every=3)
    assert [(phase.first, phase.end, phase.data.max_length) for phase in settings.phases] == [(0, 9, 32), (9, 12, 64)]
    printed = run_pretrain(settings)
    records = {record["step"]: record for record in read_evaluations(settings.run)}
    assert [step for step, record in records.items() if "long_loss" in record] == [12]
    run = open_cpu(replace(settings, resume=True))
    for prefix, data in zip(("", "long_"), run.held_out, strict=True):
        expected = evaluate(settings.objective, run.model, data.validation_batches(settings.eval_sequences))
        assert records[12][f"{prefix}loss"] == pytest.approx(expected["loss"], rel=1e-6)
    assert records[12]["loss"] != records[12]["long_loss"]
    (line,) = [line for line in printed.splitlines() if "masked-LM loss (nats), length 64" in line]
    assert line.split()[-1] == f"{records[12]['long_loss']:.3f}"


@pytest.mark.parametrize("objective", ["mlm", "ltr", "rtl"])
def test_run_with_another_objective(tmp_path: Path, make_settings: Make, objective: str) -> None:
    data = DataSettings(max_length=32, batch_size=8, objective=objective)  # type: ignore[arg-type]
    settings = make_settings(tmp_path / "run", data=data)
    printed = run_pretrain(settings)
    assert "next-sentence accuracy" not in printed
    assert ("masked-LM" in printed) == (objective == "mlm")
    assert ("left-to-right LM perplexity" in printed) == (objective == "ltr")
    assert ("right-to-left LM perplexity" in printed) == (objective == "rtl")
    assert "random, initialization mimetic, deviation 0.098" in printed
    config = json.loads((settings.run / "model" / "config.json").read_text())
    assert config["is_decoder"] == (objective != "mlm")
    assert config["model_type"] == ("bert-rtl" if objective == "rtl" else "bert")


def test_transformers_activation_and_positions_are_trained_and_read_by_transformers(
    tmp_path: Path, make_settings: Make
) -> None:
    """ReLU and fixed position encodings (Vaswani et al. 2017), which training must not change."""
    from transformers import BertForPreTraining

    sizes = ModelSettings("tiny", hidden_size=32, num_heads=2, max_positions=64)
    settings = make_settings(tmp_path / "run", model=replace(sizes, activation="relu", sinusoidal_positions=True))
    run_pretrain(settings)
    words, positions = (
        load_weights(settings.run / "model")[f"bert.embeddings.{name}_embeddings.weight"]
        for name in ("word", "position")
    )
    config = settings.model.config(len(words), causal=False)
    angles = np.arange(64)[:, None] / 10_000 ** (np.arange(0, 32, 2) / 32)
    expected = config.initializer_range * np.stack([np.sin(angles), np.cos(angles)], -1).reshape(64, 32)
    np.testing.assert_allclose(positions, expected, atol=1e-7)
    assert not torch.equal(words, BertForPretraining(config, seed=0).encoder.embeddings.word.weight)
    theirs = BertForPreTraining.from_pretrained(settings.run / "model")
    assert torch.equal(theirs.bert.embeddings.position_embeddings.weight, positions)
    loaded = load_model(settings.run / "model").model
    assert loaded.config == config
    assert not loaded.encoder.embeddings.position.weight.requires_grad


def test_run_with_init_starts_from_its_weights(tmp_path: Path, make_settings: Make) -> None:
    first = make_settings(tmp_path / "first", steps=60, optimizer=OptimizerSettings(learning_rate=5e-3))
    run_pretrain(first)
    second = make_settings(tmp_path / "second", model=ModelSettings(init=str(tmp_path / "first" / "model")))
    run_pretrain(second)
    last = read_evaluations(first.run)[-1]
    start = read_evaluations(second.run)[0]
    assert start["loss"] == pytest.approx(last["loss"], rel=1e-5)


def test_model_with_one_segment_type_is_rejected_for_pairs(tmp_path: Path, make_settings: Make, store: Path) -> None:
    tokenizer = Tokenizer.load(store / "tokenizer")
    config = BertConfig(tokenizer.vocab_size, hidden_size=32, num_layers=1, num_heads=2, intermediate_size=32)
    save_model(tmp_path / "one", BertForPretraining(replace(config, type_vocab_size=1), seed=0), tokenizer)
    settings = make_settings(tmp_path / "run", model=ModelSettings(init=str(tmp_path / "one")))
    with pytest.raises(ValueError, match=r"type_vocab_size = 1: .*; choose --objective mlm$"):
        run_pretrain(settings)
    assert not settings.run.exists()
    run_pretrain(replace(settings, data=replace(settings.data, objective="mlm")))


@pytest.mark.parametrize(
    ("given", "rates"),
    [({}, (0.3, 0.2)), ({"hidden_dropout": 0.0}, (0.0, 0.2)), ({"attention_dropout": 0.1}, (0.3, 0.1))],
)
def test_init_has_its_own_dropouts_unless_they_are_set(
    tmp_path: Path, make_settings: Make, tiny_bert: Path, given: dict[str, float], rates: tuple[float, float]
) -> None:
    init = shutil.copytree(tiny_bert, tmp_path / "init")
    (init / "checksums.json").unlink()
    config = json.loads((init / "config.json").read_text())
    theirs = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
    (init / "config.json").write_text(json.dumps(config | theirs))
    settings = make_settings(tmp_path / "run", steps=2, save_every=1, model=ModelSettings(init=str(init), **given))
    run_pretrain(settings)
    shutil.rmtree(settings.run / "model")
    shutil.rmtree(settings.run / "checkpoints" / "step-00000002")
    run_pretrain(replace(settings, resume=True))
    trained = load_config(settings.run / "model")
    assert (trained.hidden_dropout, trained.attention_dropout) == rates
    assert replace(trained, hidden_dropout=0.3, attention_dropout=0.2) == load_config(init)


def test_model_larger_than_memory_is_rejected(tmp_path: Path, make_settings: Make) -> None:
    settings = make_settings(tmp_path / "run", model=ModelSettings("tiny", num_layers=10**9))
    with pytest.raises(ValueError, match=r"take 793,\d{3} GB, .* lower --num-layers \(1,000,000,000\)"):
        run_pretrain(settings)
    assert not (settings.run / "settings.toml").exists()


@pytest.mark.parametrize("layout", ["", "0_Transformer"])
def test_pretraining_carries_the_modules_of_a_sentence_embedding_model(
    tmp_path: Path, make_settings: Make, tiny_bert: Path, layout: str
) -> None:
    init = shutil.copytree(tiny_bert, tmp_path / "init" / layout)
    width = load_config(init).hidden_size
    paths = {"Transformer": layout, "Pooling": "1_Pooling", "Dense": "2_Dense", "Normalize": "3_Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{name}"} for name, path in paths.items()]
    values = {
        "modules.json": modules,
        "config_sentence_transformers.json": {"prompts": {"query": "find: "}, "default_prompt_name": "query"},
        "1_Pooling/config.json": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
        "2_Dense/config.json": {"in_features": width, "out_features": 5, "bias": False},
    }
    for name, content in values.items():
        (tmp_path / "init" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "init" / name).write_text(json.dumps(content))
    (init / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9}))
    save_file({"linear.weight": torch.randn(5, width)}, tmp_path / "init/2_Dense/model.safetensors")
    settings = make_settings(tmp_path / "run", steps=2, save_every=1, model=ModelSettings(init=str(init)))
    printed = " ".join(run_pretrain(settings).split())
    assert f"{init} was trained for sentence embeddings (modules.json). Pre-training alone spoils" in printed
    assert "keeps its modules: cls pooling, Dense to 5, normalized, at most 9 tokens, prompts query." in printed

    for last in (settings.run / "model", settings.run / "checkpoints/step-00000002"):
        shutil.rmtree(last)
    shutil.rmtree(tmp_path / "init")  # the checkpoint has all that a resumed run needs
    printed = run_pretrain(replace(settings, resume=True))
    assert "sentence embeddings" not in printed
    trained = bertwright.load(settings.run, device="cpu")
    assert trained.sentence_modules is not None
    assert (
        trained.sentence_modules.description == "cls pooling, Dense to 5, normalized, at most 9 tokens, prompts query"
    )
    assert trained.embed(["a b"]).shape == (1, 5)


def test_pretraining_carries_modules_that_it_does_not_compute(
    tmp_path: Path, make_settings: Make, tiny_bert: Path
) -> None:
    init = shutil.copytree(tiny_bert, tmp_path / "init")
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "1_X", "type": "own.X"}]
    (init / "modules.json").write_text(json.dumps(modules))
    settings = make_settings(tmp_path / "run", steps=1, model=ModelSettings(init=str(init)))
    assert "module 1 is own.X" in " ".join(run_pretrain(settings).split())
    with pytest.raises(ValueError, match=r"module 1 is own\.X"):
        bertwright.load(settings.run, device="cpu").embed(["a b"])


def test_missing_heads_of_init_are_reported(tmp_path: Path, make_settings: Make, tiny_bert: Path) -> None:
    init = shutil.copytree(tiny_bert, tmp_path / "init")
    (init / "checksums.json").unlink()
    bare = {name: tensor for name, tensor in load_file(init / "model.safetensors").items() if "cls." not in name}
    save_file(bare, init / "model.safetensors")
    printed = run_pretrain(make_settings(tmp_path / "run", steps=1, model=ModelSettings(init=str(init))))
    assert "init has no masked_token head: it starts from random weights" in " ".join(printed.split())
    assert "no next_sentence head" in " ".join(printed.split())
    assert "no pooler" not in printed


# Resuming


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_run_killed_several_times_ends_with_the_same_bits(tmp_path: Path, make_settings: Make, kills: int) -> None:
    settings = make_settings(tmp_path / "unbroken", steps=40, save_every=2, long=LongPhase(0.5, 64))
    started = time.monotonic()
    process = start_process(pretrain, settings)
    process.join()
    whole = time.monotonic() - started
    assert process.exitcode == 0
    chance = random.Random(4)  # kills from the start, before anything is written, to the middle of a later save
    check_killed_runs(pretrain, settings, lambda process, _: process.join(chance.uniform(0.05, 0.5) * whole), kills)


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.05)


def test_resumed_run_ends_with_the_same_bits(unfinished: PretrainSettings, finished_run: Path) -> None:
    shutil.rmtree(unfinished.run / "checkpoints" / "step-00000012")
    assert "Resuming after step 8" in run_pretrain(unfinished)
    assert same_weights(finished_run / "model", unfinished.run / "model")
    assert "finished already" in run_pretrain(unfinished)


@pytest.mark.usefixtures("with_plots")
def test_run_killed_at_its_end_writes_its_report_on_resume(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(tmp_path / "run")

    def die(*_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("bertwright.pretraining.run.plot_metrics", die)
        pretrain(settings, TerminalReporter(Console(file=StringIO())))
    run_pretrain(replace(settings, resume=True))
    assert {"model", "loss.png", "report.json"} <= {path.name for path in settings.run.iterdir()}


def test_store_that_has_changed_is_rejected_on_resume(
    unfinished: PretrainSettings, tmp_path: Path, vocabulary_folder: Path
) -> None:
    settings = unfinished
    assert settings.store is not None
    text = (settings.store.parent / "text.txt").read_text(encoding="utf-8")
    (tmp_path / "other.txt").write_text(text.rpartition("\n\n")[0], encoding="utf-8")  # without its last document
    corpus = CorpusSettings((str(tmp_path / "other.txt"),))
    build(tmp_path / "other", corpus, Tokenizer.load(vocabulary_folder), BuildSettings(held_out=0.1, workers=1))
    with pytest.raises(ValueError, match=r"other: .* changed since"):
        pretrain(replace(settings, store=tmp_path / "other"))


TORCHRUN = [str(Path(sys.executable).parent / "torchrun"), "--standalone"]


@pytest.mark.slow
def test_ctrl_c_stops_all_ranks_and_the_printed_command_resumes_them(tmp_path: Path, make_settings: Make) -> None:
    settings = make_settings(tmp_path / "run", steps=100_000, save_every=100_000, eval_every=100_000, log_every=1)
    write_settings(tmp_path / "recipe.toml", settings, "test")
    arguments = ["--config", str(tmp_path / "recipe.toml"), "--run", str(settings.run)]
    command = ["--nproc-per-node", "2", "-m", "--", "bertwright", "pretrain", *arguments]
    saved = [0]
    for _ in range(2):
        with subprocess.Popen(
            [*TORCHRUN, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as run:
            wait_for(lambda: len(read_metrics(settings.run)) > saved[-1] + 5)
            run.send_signal(signal.SIGINT)
            printed, _ = run.communicate(timeout=60)
        step, resume = re.search(r"interrupted: step ([\d,]+) is saved; resume with: torchrun (.*)", printed).groups()  # type: ignore[union-attr]
        assert printed.count("parameters, vocabulary") == 1  # only rank 0 prints
        saved.append(int(step.replace(",", "")))
        command = shlex.split(resume)
    names = sorted(path.name for path in (settings.run / "checkpoints").iterdir())
    assert names == [f"step-{step:08d}" for step in saved[1:]]
    assert 0 < saved[1] < saved[2]


@pytest.mark.slow
def test_each_rank_reports_its_failure_in_one_line(unfinished: PretrainSettings) -> None:
    ranks = [*TORCHRUN, "--nproc-per-node", "2", "-m", "--"]
    command = [*ranks, "bertwright", "pretrain", "--run", str(unfinished.run), "--resume"]
    with lock_folder(unfinished.run):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    ours = [line for line in done.stderr.splitlines() if line.startswith("bertwright")]
    assert "another process is writing there" in next(line for line in ours if line.startswith("bertwright: error: "))
    assert f"bertwright, rank 1: error: {unfinished.run}: rejected by rank 0; see its message" in ours
    assert "Error: " not in done.stderr.replace("ChildFailedError: ", "")  # no traceback of ours


# Misuse and faults


def test_folder_with_a_run_is_rejected(finished: PretrainSettings) -> None:
    settings = replace(finished, resume=False)
    message = "already holds a run; resume it with --resume, or name another"
    with pytest.raises(ValueError, match=message):
        pretrain(settings)
    (settings.run / "settings.toml").unlink()  # the new run would take its checkpoints for its own
    with pytest.raises(ValueError, match=message):
        pretrain(settings)


def test_resumed_run_with_other_settings_is_rejected(finished: PretrainSettings) -> None:
    changed = replace(finished, optimizer=OptimizerSettings(learning_rate=1.0))
    with pytest.raises(ValueError, match=r"optimizer.learning_rate was 0.003, now 1.0"):
        pretrain(changed)
    run_pretrain(replace(finished, keep_last=1, log_every=50))


def test_settings_changed_on_resume_are_saved_and_the_store_may_have_moved(
    unfinished: PretrainSettings, tmp_path: Path
) -> None:
    settings = unfinished
    assert settings.store is not None
    moved = shutil.copytree(settings.store, tmp_path / "moved")
    now = replace(settings, store=moved, keep_last=1, log_every=50)
    run_pretrain(now)
    assert (settings.run / "model").is_dir()
    assert read_run_settings(PretrainSettings, settings.run) == now
    assert "resume = false" in (settings.run / "settings.toml").read_text()


def test_altered_store_is_rejected(tmp_path: Path, make_settings: Make, store: Path, vocabulary_folder: Path) -> None:
    text = (store.parent / "text.txt").read_text(encoding="utf-8")
    (tmp_path / "text.txt").write_text(f"{text}\n" * 40, encoding="utf-8")
    corpus, tokenizer = CorpusSettings((str(tmp_path / "text.txt"),)), Tokenizer.load(vocabulary_folder)
    build(tmp_path / "store", corpus, tokenizer, BuildSettings(held_out=0.1, workers=1))
    file = tmp_path / "store" / "train" / "tokens-00000.npy"
    tokens = np.load(file)
    tokens[len(tokens) // 2 + 2_500] ^= 1  # between the samples that are always compared
    np.save(file, tokens)
    TokenStore.open(file.parent, tokenizer.digest)
    settings = make_settings(tmp_path / "run", store=tmp_path / "store")
    with pytest.raises(ValueError, match=r"tokens-00000.npy: altered"):
        pretrain(settings)
    assert not settings.run.exists()


def test_run_without_enough_held_out_text_is_not_evaluated(
    tmp_path: Path, make_settings: Make, store: Path, vocabulary_folder: Path
) -> None:
    (tmp_path / "one.txt").write_text("The bear sees the deer in the forest .\n", encoding="utf-8")
    corpus = CorpusSettings((str(store.parent / "text.txt"),))
    preparing = BuildSettings(held_out_inputs=(str(tmp_path / "one.txt"),), workers=1)
    build(tmp_path / "store", corpus, Tokenizer.load(vocabulary_folder), preparing)
    settings = make_settings(tmp_path / "run", store=tmp_path / "store")
    assert "held_out: one sentence is too few to evaluate on" in " ".join(run_pretrain(settings).split())
    assert {record["kind"] for record in read_metrics(settings.run)} == {"train"}


def test_small_held_out_text_is_reported_with_its_standard_errors(
    tmp_path: Path, make_settings: Make, store: Path, vocabulary_folder: Path
) -> None:
    corpus = CorpusSettings((str(store.parent / "text.txt"),))
    build(tmp_path / "store", corpus, Tokenizer.load(vocabulary_folder), BuildSettings(held_out=0.02, workers=1))
    for eval_sequences, is_reported in ((1024, True), (2, False)):  # of which only the first is cut short by the text
        settings = make_settings(
            tmp_path / "run", store=tmp_path / "store", eval_sequences=eval_sequences, dry_run=True
        )
        printed = " ".join(run_pretrain(settings).split())
        assert (
            bool(re.search(r"held_out: .*sequences of length 32 .*standard error of 0\.\d+ nats", printed))
            == is_reported
        )
        assert ("next-sentence accuracy" in printed and "points" in printed) == is_reported
        assert "\\n" not in printed


def test_the_long_phase_has_its_own_share_of_predicted_tokens(tmp_path: Path, make_settings: Make) -> None:
    long = LongPhase(long_ratio=0.5, long_length=32, long_mlm_probability=0.15)
    settings = make_settings(tmp_path / "run", long=long)
    settings = replace(settings, data=replace(settings.data, mlm_probability=0.4))
    run = open_cpu(settings)
    for data, share in zip(run.train, (0.4, 0.15), strict=True):
        batch = next(iter(data.validation_batches(64)))
        assert batch.num_predictions / batch.packing.lengths.sum() == pytest.approx(share, abs=0.2 * share)


def test_batch_smaller_than_the_number_of_ranks_is_rejected(tmp_path: Path, make_settings: Make) -> None:
    settings = make_settings(tmp_path / "run", long=LongPhase(long_ratio=0.25, long_length=64, long_batch_size=3))
    with pytest.raises(ValueError, match="batch_size is 3, less than the 4 ranks"):
        open_cpu(settings, rank=0, world_size=4)


def test_missing_store_is_rejected(tmp_path: Path, make_settings: Make) -> None:
    with pytest.raises(ValueError, match="no token store given: --store FOLDER"):
        pretrain(make_settings(tmp_path / "one", store=None))
    with pytest.raises((ValueError, OSError), match="nowhere"):
        pretrain(make_settings(tmp_path / "two", store=tmp_path / "nowhere"))


def test_infinite_loss_stops_the_run_and_earlier_checkpoints_remain(tmp_path: Path, make_settings: Make) -> None:
    wild = OptimizerSettings(learning_rate=1e30, warmup_ratio=0.0)
    settings = make_settings(tmp_path / "run", optimizer=wild, save_every=1)
    with pytest.raises(DivergedError, match=r"step \d+: not finite: .*--learning-rate"):
        pretrain(settings, TerminalReporter(Console(file=StringIO())))
    assert not (settings.run / "model").exists()
    checkpoints = list((settings.run / "checkpoints").iterdir())
    assert checkpoints
    assert all(
        tensor.isfinite().all() for path in checkpoints for tensor in load_file(path / "model.safetensors").values()
    )


def test_infinite_weights_are_not_written(tmp_path: Path, make_settings: Make) -> None:
    """Loss and gradient of the last step are finite; no later step would detect the broken weights."""
    wild = OptimizerSettings(learning_rate=3e38, warmup_ratio=0.0)
    settings = make_settings(tmp_path / "run", optimizer=wild, steps=1, save_every=1)
    with pytest.raises(DivergedError, match=r"step 1: .*not finite.* \(.*try a hundredth"):
        pretrain(settings, TerminalReporter(Console(file=StringIO())))
    assert not (settings.run / "model").exists()
    assert list((settings.run / "checkpoints").iterdir()) == []


def test_diverged_run_with_finite_weights_is_reported(tmp_path: Path, make_settings: Make) -> None:
    wild = OptimizerSettings(learning_rate=3.0, warmup_ratio=0.0)
    printed = run_pretrain(make_settings(tmp_path / "run", optimizer=wild, steps=30))
    assert "The held-out loss is higher than before training." in printed
    assert "has diverged" not in run_pretrain(make_settings(tmp_path / "tame", steps=30))


def test_altered_length_of_a_run_names_its_settings(unfinished: PretrainSettings) -> None:
    path = unfinished.run / "settings.toml"
    path.write_text(re.sub(r"(?m)^max_length = .*", "max_length = 512", path.read_text()))
    with pytest.raises(ValueError, match=r"run/settings\.toml: max_length = 512"):
        pretrain(replace(read_run_settings(PretrainSettings, unfinished.run), run=unfinished.run))


def test_damaged_checkpoint_is_named(unfinished: PretrainSettings) -> None:
    settings = unfinished
    file = settings.run / "checkpoints" / "step-00000012" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r"step-00000012/model.safetensors: expected .* bytes.*delete .*step-00000012"):
        pretrain(settings)
    shutil.rmtree(file.parent)  # the fix in the message
    run_pretrain(settings)
    assert (settings.run / "model").is_dir()


@pytest.mark.parametrize("name", ["checkpoints", "best", "tensorboard", "metrics.jsonl"])
def test_foreign_run_whose_folder_is_a_link_deletes_nothing_elsewhere(
    unfinished: PretrainSettings, tmp_path: Path, name: str
) -> None:
    path = unfinished.run / name
    if path.exists():
        path.rename(tmp_path / "mine")
    else:
        (tmp_path / "mine" / ".old.part-1-1").mkdir(parents=True)
    before = {*tmp_path.glob("mine/**/*")}
    path.symlink_to(tmp_path / "mine")
    with pytest.raises(ValueError, match=f"^{path}: .*link to"):
        pretrain(unfinished)
    assert {*tmp_path.glob("mine/**/*")} == before


def test_full_disk_while_saving_loses_nothing(unfinished: PretrainSettings) -> None:
    settings = unfinished
    shutil.rmtree(settings.run / "checkpoints" / "step-00000012")
    with full_disk(50_000), pytest.raises(OSError, match=r"not written|could not be written|[Tt]oo large"):
        pretrain(settings, TerminalReporter(Console(file=StringIO())))
    assert [path.name for path in (settings.run / "checkpoints").iterdir()] == ["step-00000008"]
    run_pretrain(settings)
    assert (settings.run / "model").is_dir()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps: expected at least 1, got 0"),
        ({"micro_batch_size": 0}, "micro_batch_size: expected at least 1, got 0"),
        ({"long": LongPhase(0.5, 512)}, "max_length = 512: the model has 64 positions"),
        ({"model": ModelSettings(size="tiny", hidden_size=30, num_heads=4)}, "multiple of num_heads"),
    ],
)
def test_impossible_settings_are_rejected(
    tmp_path: Path, make_settings: Make, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        pretrain(make_settings(tmp_path / "run", **changes))


def test_init_with_another_vocabulary_is_rejected(tmp_path: Path, make_settings: Make, tiny_bert: Path) -> None:
    other = shutil.copytree(tiny_bert, tmp_path / "other")
    for name in ("vocab.txt", "tokenizer.json"):
        text = (other / name).read_text()
        (other / name).write_text(text.replace("bear", "boar"))
    with pytest.raises(ValueError, match="expected the vocabulary of"):
        pretrain(make_settings(tmp_path / "second", model=ModelSettings(init=str(other))))
