"""The engine on a toy model: it needs batches, a loss and an evaluation, and resumes to the bit."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, load_model, save_model
from torch import Tensor, nn

from bertwright.base.reporter import MUTE
from bertwright.base.seeding import make_rng
from bertwright.cli.render.terminal import TerminalReporter
from bertwright.training import checkpoint
from bertwright.training.fit import FitResult, FitSettings, TrainingSpec, fit
from bertwright.training.loop import DivergedError, LossOutput
from bertwright.training.metrics_log import read_metrics
from bertwright.training.optimizer import Optimizer, OptimizerSettings
from harness import read_untimed, run_until_killed
from helpers import CPU_CONTEXT

WEIGHTS = "weights.safetensors"


def make_toy(kill_at: int = 0, kill_signal: int = signal.SIGKILL) -> TrainingSpec[Tensor]:
    """Return the training of a network that adds numbers; after `kill_at` steps it sends a signal to itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    settings = OptimizerSettings(learning_rate=0.01, schedule="cosine")
    optimizer = Optimizer(dict(model.named_parameters()), settings)

    def batches(first_step: int) -> Iterator[list[Tensor]]:
        for step in range(first_step, 60):
            yield [torch.from_numpy(make_rng(1, step).normal(size=(16, 4))).float()]

    def loss(batch: Tensor) -> LossOutput:
        if kill_at and optimizer.steps == kill_at:
            os.kill(os.getpid(), kill_signal)
        error = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        return LossOutput(error, {"loss": error})

    def evaluate() -> dict[str, float]:
        return {"score": -loss(next(batches(0))[0]).loss.item()}

    return TrainingSpec(
        model,
        optimizer,
        settings.make_schedule(60),
        batches,
        loss,
        evaluate,
        write_model=lambda folder: save_model(model, folder / WEIGHTS),
        read_model=lambda folder: load_model(model, folder / WEIGHTS),
    )


def fit_toy(run: Path | None, training: TrainingSpec[Tensor], reporter: TerminalReporter) -> FitResult:
    settings = FitSettings(run, 60, eval_steps=range(10, 60, 10), save_steps=range(0, 60, 7), metric="score")
    return fit(settings, training, CPU_CONTEXT, reporter)


def train_toy(run: Path, kill_at: int = 0) -> str:
    """Train from the newest checkpoint of a run; returns what is printed."""
    training, reporter = make_toy(kill_at), TerminalReporter(Console(file=StringIO()))
    if latest := checkpoint.verify_latest(run / "checkpoints"):
        load_model(training.model, latest / WEIGHTS)
        training.optimizer.load_state(checkpoint.load_optimizer(latest))
    run.mkdir(exist_ok=True)
    fit_toy(run, training, reporter)
    return reporter.console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def score_by_step(training: TrainingSpec[Tensor]) -> dict[str, float]:
    """Return the highest score after 30 steps."""
    return {"score": -abs(training.optimizer.steps - 30.0)}


def read_weights(run: Path) -> list[bytes]:
    return [(path / WEIGHTS).read_bytes() for path in sorted(run.glob("*/step-*"))]


def test_toy_model_killed_and_resumed_ends_with_the_same_bits(tmp_path: Path) -> None:
    train_toy(tmp_path / "unbroken")
    for kill_at in (5, 12, 21, 59):
        run_until_killed(partial(train_toy, tmp_path / "killed"), kill_at)
    assert "Resuming after step 56" in train_toy(tmp_path / "killed")
    assert read_untimed(tmp_path / "killed") == read_untimed(tmp_path / "unbroken")
    assert read_weights(tmp_path / "killed") == read_weights(tmp_path / "unbroken")
    scores = {record["step"]: record["score"] for record in read_metrics(tmp_path / "killed") if "score" in record}
    assert list(scores) == [10, 20, 30, 40, 50, 60]
    (best,) = checkpoint.list_checkpoints(tmp_path / "killed" / "best")
    assert scores[checkpoint.step_of(best)] == max(scores.values()) > -0.5


def test_run_without_a_folder_ends_with_the_same_best_weights(tmp_path: Path) -> None:
    results, weights = [], []
    for run in (None, tmp_path):
        training = make_toy()
        results.append(fit_toy(run, replace(training, evaluate=partial(score_by_step, training)), MUTE))
        weights.append(training.model.state_dict())
    assert results[0] == results[1]
    assert results[0].step == 30
    assert results[0].scores == {"score": 0}
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    last = load_file(tmp_path / "checkpoints" / "step-00000060" / WEIGHTS)
    assert not torch.equal(last["0.weight"], weights[0]["0.weight"])


@pytest.mark.parametrize(
    ("resumable", "expected"),
    [
        (True, [[], [0], [0, 10], [0, 20], [30], [30, 40], [30, 50]]),
        (False, [[], [0], [10], [20], [30], [40], [50]]),
    ],
)
def test_best_checkpoints_are_those_of_a_resumed_run_and_of_this_one(
    tmp_path: Path, resumable: bool, expected: list[list[int]]
) -> None:
    """The score rises at each of seven evaluations; a checkpoint is written after step 30 alone."""
    training, found = make_toy(), []

    def evaluate() -> dict[str, float]:
        found.append([checkpoint.step_of(path) for path in checkpoint.list_checkpoints(tmp_path / "best")])
        return {"score": float(training.optimizer.steps)}

    settings = FitSettings(
        tmp_path, 60, eval_steps=range(0, 60, 10), save_steps=[30], metric="score", resumable=resumable
    )
    fit(settings, replace(training, evaluate=evaluate), CPU_CONTEXT, MUTE)
    assert found == expected
    assert [checkpoint.step_of(path) for path in checkpoint.list_checkpoints(tmp_path / "best")] == [60]


def test_training_stops_after_evaluations_without_improvement_also_when_it_is_resumed(tmp_path: Path) -> None:
    """The scores of steps 0, 10, … are 1, 2, 2, 3, 3, 0, …: with a patience of two, step 50 is the last one."""
    scores = {0: 1.0, 10: 2.0, 20: 2.0, 30: 3.0, 40: 3.0}

    def train(run: Path | None, kill_at: int = 0) -> tuple[FitResult, int, str]:
        training = make_toy(kill_at, signal.SIGTERM)
        if run and (latest := checkpoint.find_latest(run / "checkpoints")):
            load_model(training.model, latest / WEIGHTS)
            training.optimizer.load_state(checkpoint.load_optimizer(latest))
        training = replace(training, evaluate=lambda: {"score": scores.get(training.optimizer.steps, 0.0)})
        reporter = TerminalReporter(Console(file=StringIO(), width=200))
        settings = FitSettings(
            run, 60, eval_steps=range(0, 60, 10), save_steps=range(7, 60, 7), metric="score", patience=2
        )
        result = fit(settings, training, CPU_CONTEXT, reporter)
        return result, training.optimizer.steps, reporter.console.file.getvalue()  # type: ignore[attr-defined]

    result, last, printed = train(tmp_path / "unbroken")
    assert (result.step, last, list(result.evaluations)) == (30, 50, [0, 10, 20, 30, 40, 50])
    assert "Stopped early after step 50 of 60" in printed
    assert train(None)[:2] == (result, 50)
    for kill_at in (22, 45):  # after evaluations that count
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "killed", kill_at)
    for _ in range(2):  # the second time after the last step
        assert train(tmp_path / "killed")[:2] == (result, 50)
    assert read_weights(tmp_path / "killed") == read_weights(tmp_path / "unbroken")
    assert read_untimed(tmp_path / "killed")[-1] == read_untimed(tmp_path / "unbroken")[-1]


def test_a_signal_during_the_last_step_interrupts_nothing(tmp_path: Path) -> None:
    """The run is finished: a temporary run would lose its model, and another one would be resumed without a step."""
    training = make_toy(kill_at=59, kill_signal=signal.SIGTERM)
    assert fit_toy(tmp_path, training, MUTE).step == 60
    assert checkpoint.find_latest(tmp_path / "checkpoints") == checkpoint.path_of(tmp_path / "checkpoints", 60)


def test_a_signal_that_the_process_ignores_is_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        training = make_toy(15, signal.SIGINT)
        fit_toy(None, training, MUTE)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert training.optimizer.steps == 60


def test_a_run_that_another_rank_stops_is_not_finished(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    training = make_toy()
    monkeypatch.setattr("bertwright.training.fit.any_rank", lambda *_: training.optimizer.steps == 15)
    with pytest.raises(KeyboardInterrupt, match="step 15 is saved"):
        fit_toy(tmp_path, training, MUTE)
    assert checkpoint.find_latest(tmp_path / "checkpoints") == checkpoint.path_of(tmp_path / "checkpoints", 15)


def test_ctrl_c_without_a_folder_stops_after_the_step() -> None:
    training, handler = make_toy(15, signal.SIGINT), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="step 16 is not saved"):
        fit_toy(None, training, MUTE)
    assert training.optimizer.steps == 16
    assert signal.getsignal(signal.SIGINT) == handler


def test_best_checkpoint_with_weights_that_are_not_finite_is_not_written(tmp_path: Path) -> None:
    model = nn.Linear(1, 1)
    settings = OptimizerSettings()
    optimizer = Optimizer(dict(model.named_parameters()), settings)

    def evaluate() -> dict[str, float]:
        nn.init.constant_(model.weight, float("inf"))
        return {"score": 1.0}

    def loss(batch: Tensor) -> LossOutput:
        return LossOutput(model(batch).sum(), {"loss": model(batch).sum()})

    training = TrainingSpec(
        model, optimizer, settings.make_schedule(9), lambda _: iter([[torch.ones(1, 1)]] * 9), loss, evaluate
    )
    with pytest.raises(DivergedError, match=r"step 3: .*not finite.* \(weight\)"):
        fit(
            FitSettings(tmp_path, 9, eval_steps=(3,), metric="score"),
            training,
            CPU_CONTEXT,
            TerminalReporter(Console(file=StringIO())),
        )
    assert not checkpoint.list_checkpoints(tmp_path / "best")


def test_checkpoint_left_by_a_kill_between_saving_and_deleting_is_deleted_on_resume(tmp_path: Path) -> None:
    train_toy(tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    shutil.copytree(folder / "step-00000060", folder / "step-00000056")
    train_toy(tmp_path / "run")
    assert [path.name for path in folder.iterdir()] == ["step-00000060"]


def test_lost_metrics_of_a_finished_run_are_evaluated_again(tmp_path: Path) -> None:
    train_toy(tmp_path / "run")
    log = tmp_path / "run" / "metrics.jsonl"
    last = [record for record in read_metrics(tmp_path / "run") if "score" in record][-1]
    log.unlink()
    train_toy(tmp_path / "run")
    assert read_metrics(tmp_path / "run") == [last]


def test_evaluation_without_the_score_that_selects_is_rejected(tmp_path: Path) -> None:
    train_toy(tmp_path / "run")
    log = tmp_path / "run" / "metrics.jsonl"
    log.write_text(log.read_text().replace('"score"', '"other"'))
    with pytest.raises(ValueError, match=r"metrics\.jsonl: .* no score"):
        train_toy(tmp_path / "run")


def test_resume_in_another_environment_prints_the_difference(tmp_path: Path) -> None:
    train_toy(tmp_path / "run")
    state = tmp_path / "run" / "checkpoints" / "step-00000060" / "state.json"
    saved = json.loads(state.read_text())
    assert "environment" not in train_toy(tmp_path / "run")
    saved["environment"] |= {"threads": "77", "kernels": "others", "dtype": "bfloat16"}
    state.write_text(json.dumps(saved))
    printed = " ".join(train_toy(tmp_path / "run").split())
    for change in ("threads 77 → 1", "kernels others → ", "dtype bfloat16 → float32"):
        assert change in printed


def test_window_ends_at_each_log_step_and_checkpoint(tmp_path: Path) -> None:
    train_toy(tmp_path / "run")
    steps = [record["step"] for record in read_metrics(tmp_path / "run") if record["kind"] == "train"]
    assert steps == sorted({*range(10, 61, 10), *range(7, 60, 7)})
    assert all(one < other for one, other in itertools.pairwise(steps))
