"""Runs of several processes: they compute what one process computes, and go on after one of them was killed."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from bertwright.base.reporter import MUTE
from bertwright.cli.verbs import VERBS
from bertwright.objectives.data_settings import DataSettings
from bertwright.pretraining import run as run_module
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import LongPhase, PretrainSettings
from bertwright.training import checkpoint, distributed, fit
from bertwright.training.metrics_log import read_metrics
from bertwright.training.run_folder import resume_restarted
from harness import run_on_ranks

Make = Callable[..., PretrainSettings]
STEPS, SAVED, KILLED = 5, 2, 3
UNEVEN = {"data": DataSettings(max_length=32, batch_size=7, objective="mlm", whole_word_mask=True)}


def run_pretrain(settings: PretrainSettings) -> None:
    """Pre-train as the command does."""
    next(verb for verb in VERBS if verb.name == "pretrain").run(settings)


def run_rank(settings: PretrainSettings, kill_at: int, tokens: Sequence[int]) -> None:
    """Start or resume a run on this rank. In the first attempt, rank 1 is killed after the step `kill_at`.

    `tokens`: what fits in the memory of each rank; empty for the default. Each attempt writes the number of its first
    step into a file. The groups of gradients are as small as the model. A rank that waits for a minute fails.
    """
    train_steps, attempt = fit.train_steps, os.environ["TORCHELASTIC_RESTART_COUNT"]
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1024  # type: ignore[attr-defined]
    distributed.TIMEOUT = timedelta(minutes=1)
    if tokens:
        run_module.default_micro_batch_tokens = lambda *_: tokens[int(os.environ["RANK"])]

    def train_until_killed(loss: Any, *given: Any) -> Any:
        events = watch_exchange(loss) if hasattr(loss, "register_comm_hook") else []
        for number, result in enumerate(train_steps(loss, *given)):
            if os.environ["RANK"] == "1":
                if number == 0:
                    (settings.run / f"attempt-{attempt}").write_text(str(result.step))
                (settings.run / "events.json").write_text(json.dumps(events))
                if (result.step, attempt) == (kill_at, "0"):
                    os.kill(os.getpid(), signal.SIGKILL)
            events.clear()
            yield result

    fit.train_steps = train_until_killed
    run_pretrain(settings)


def watch_exchange(loss: Any) -> list[str]:
    """Return a list that gets "exchange" when gradients are sent, and "first layer" when its gradient is known."""
    events: list[str] = []
    allreduce = importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks.default_hooks").allreduce_hook

    def exchange(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        events.append("exchange")
        return allreduce(state, bucket)  # type: ignore[no-any-return]

    exchange.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}  # no strings
    loss.register_comm_hook(None, exchange)
    weight = loss.module.model.encoder.layers[0].qkv.weight
    weight.register_post_accumulate_grad_hook(lambda _: events.append("first layer"))
    return events


def run_ranks(settings: PretrainSettings, ranks: int, kill_at: int = -1, tokens: Sequence[int] = ()) -> Path:
    """Run several processes, which are restarted once if one of them fails; return the run folder."""
    run_on_ranks(ranks, run_rank, settings, kill_at, tokens, max_restarts=1)
    return settings.run


@pytest.fixture(scope="module")
def make(make_settings: Make) -> Make:
    """Return a function from changed fields to the settings of five steps, with dropout, all checkpoints kept."""
    return lambda run, **changes: make_settings(
        run,
        steps=STEPS,
        log_every=1,
        eval_every=STEPS,
        save_every=SAVED,
        keep_every=SAVED,
        long=LongPhase(0),
        **changes,
    )


@pytest.fixture(scope="module")
def alone(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process."""
    settings = make(tmp_path_factory.mktemp("alone") / "run")
    pretrain(settings, MUTE)
    return settings.run


@pytest.fixture(scope="module")
def copies(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes with a copy of the model each."""
    return run_ranks(make(tmp_path_factory.mktemp("copies") / "run"), 2)


@pytest.fixture(scope="module")
def shards(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that divide the model."""
    return run_ranks(make(tmp_path_factory.mktemp("shards") / "run", shard=True), 2)


def check_same_losses(run: Path, other: Path) -> None:
    for record, expected in zip(read_metrics(run), read_metrics(other), strict=True):
        assert record["step"] == expected["step"]
        for name in {"loss", "nsp_loss", "gradient_norm"} & expected.keys():
            assert record[name] == pytest.approx(expected[name], abs=1e-6), name


def load_checkpoint(run: Path, step: int) -> dict[str, Tensor]:
    folder = checkpoint.path_of(run / "checkpoints", step)
    return load_file(folder / "model.safetensors") | checkpoint.load_optimizer(folder)


def test_two_ranks_compute_the_same_as_one(alone: Path, copies: Path) -> None:
    check_same_losses(copies, alone)


def test_ranks_with_unequal_batches_compute_the_same_as_one(make: Make, tmp_path: Path) -> None:
    settings = make(tmp_path / "alone", micro_batch_size=2, **UNEVEN)
    pretrain(settings, MUTE)
    check_same_losses(run_ranks(replace(settings, run=tmp_path / "together"), 2), settings.run)


def test_gradients_are_exchanged_while_the_backward_pass_computes(copies: Path) -> None:
    events = json.loads((copies / "events.json").read_text())
    assert events.count("exchange") > 1
    assert events.index("exchange") < events.index("first layer")


def test_divided_weights_compute_the_same_as_whole_ones(alone: Path, shards: Path) -> None:
    check_same_losses(shards, alone)


def test_ranks_with_different_memory_make_equally_many_micro_batches(make: Make, alone: Path, tmp_path: Path) -> None:
    """Of the four sequences of a rank, all fit on rank 0, two on rank 1."""
    check_same_losses(run_ranks(make(tmp_path / "run", shard=True), 2, tokens=(4 * 32, 2 * 32)), alone)


def test_checkpoints_of_divided_weights_are_whole(alone: Path, shards: Path) -> None:
    expected, tensors = load_checkpoint(alone, SAVED), load_checkpoint(shards, SAVED)
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        name: tensor.shape for name, tensor in expected.items()
    }
    moments = [name for name in expected if name.startswith("exp_avg.")]
    assert moments
    for name in moments:
        assert (tensors[name] - expected[name]).abs().max() <= 1e-5 * expected[name].abs().max(), name


@pytest.mark.parametrize("ranks", [1, 4])
def test_checkpoint_of_two_ranks_resumes_at_another_number(
    ranks: int, make: Make, shards: Path, tmp_path: Path
) -> None:
    """With four ranks, some have no row of the segment embeddings, and they do not divide the biases evenly."""
    run = tmp_path / "run"
    shutil.copytree(shards, run, ignore=shutil.ignore_patterns("model", f"step-*{STEPS - 1}", f"step-*{STEPS}"))
    settings = make(run, shard=True, resume=True)
    if ranks == 1:
        pretrain(settings, MUTE)
    else:
        run_ranks(settings, ranks)
        assert (run / "attempt-0").read_text() == str(SAVED + 1)
    check_same_losses(run, shards)


@pytest.mark.parametrize("kind", ["copies", pytest.param("shards", marks=pytest.mark.slow)])
def test_job_with_a_killed_rank_resumes_and_ends_with_the_same_bits(
    kind: str, make: Make, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    unbroken: Path = request.getfixturevalue(kind)
    run = run_ranks(make(tmp_path / "run", shard=kind == "shards"), 2, kill_at=KILLED)
    assert [(run / f"attempt-{number}").read_text() for number in range(2)] == ["1", str(SAVED + 1)]
    expected, tensors = load_checkpoint(unbroken, STEPS), load_checkpoint(run, STEPS)
    assert [name for name in expected if not tensors[name].equal(expected[name])] == []
    assert read_metrics(run)[-1]["loss"] == read_metrics(unbroken)[-1]["loss"]


def test_only_restarted_jobs_resume_by_themselves(
    make: Make, copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make(copies)
    assert not resume_restarted(settings).resume
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "0")
    assert not resume_restarted(settings).resume
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    assert resume_restarted(settings).resume
    assert not resume_restarted(replace(settings, run=tmp_path / "new")).resume
    with pytest.raises(ValueError, match=r"settings.toml: steps was 5, now 6"):
        run_pretrain(replace(settings, steps=6))


def test_batch_that_ranks_cannot_share_evenly_is_rejected() -> None:
    DataSettings(batch_size=8).check_shards(4)
    with pytest.raises(ValueError, match=r"shard, batch_size = 9: expected a multiple of the 4 ranks"):
        DataSettings(batch_size=9).check_shards(4)
