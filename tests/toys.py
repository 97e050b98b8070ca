"""Training of toys through `fit`: a toy that is killed at several steps must resume to the same bits."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, load_model, save_model

from bertwright.base.reporter import MUTE
from bertwright.models.heads import TaskBatch
from bertwright.models.task_model import EncoderForTask
from bertwright.tasks.collation import micro_batches
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.task import AnyTask
from bertwright.training import checkpoint
from bertwright.training.context import execution_context
from bertwright.training.fit import FitSettings, TrainingSpec, fit
from bertwright.training.loop import LossOutput, wrap_forward
from bertwright.training.optimizer import Optimizer, OptimizerSettings
from harness import read_untimed, run_until_killed
from helpers import CPU

STEPS, SAVE_EVERY = 80, 10
WEIGHTS = "weights.safetensors"
SETTINGS = OptimizerSettings(learning_rate=0.02, bias_correction=True)


def task_spec(task: AnyTask, model: EncoderForTask, encoded: Encoded) -> TrainingSpec[TaskBatch]:
    """Return the training of a task's model as fine-tuning does it, in micro-batches of about half a step."""
    model.train()
    optimizer = Optimizer(dict(model.named_parameters()), SETTINGS)

    def batches(first_step: int) -> Iterator[list[TaskBatch]]:
        for step in range(first_step, STEPS):
            yield micro_batches(encoded, step, batch_size=8, seed=1, max_tokens=int(4 * encoded.lengths.mean()))

    def loss(batch: TaskBatch) -> LossOutput:
        value = task.loss(model(batch), batch) / batch.num_labels
        return LossOutput(value, {"loss": value.detach()})

    return TrainingSpec(model, optimizer, SETTINGS.make_schedule(STEPS), batches, loss)


def train_toy(make: Callable[[], TrainingSpec[Any]], run: Path, kill_at: int = 0) -> TrainingSpec[Any]:
    """Train a toy from its newest checkpoint; before the loss of step `kill_at` it kills its own process."""
    spec = make()

    def kill_before(forward: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(batch: Any) -> Any:
            if kill_at and spec.optimizer.steps == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return forward(batch)

        return run

    if latest := checkpoint.verify_latest(run / "checkpoints"):
        load_model(spec.model, latest / WEIGHTS)
        spec.optimizer.load_state(checkpoint.load_optimizer(latest))
    run.mkdir(exist_ok=True)
    settings = FitSettings(run, STEPS, save_steps=range(0, STEPS, SAVE_EVERY))
    loss = wrap_forward(spec.loss, kill_before)
    written = replace(spec, loss=loss, write_model=lambda folder: save_model(spec.model, folder / WEIGHTS))
    with execution_context(CPU) as context:
        fit(settings, written, context, MUTE)
    return spec


def check_resumes_to_the_bit(make: Callable[[], TrainingSpec[Any]], folder: Path) -> TrainingSpec[Any]:
    """Train a toy without a break, and once more with two SIGKILLs; return the first, whose model is trained."""
    spec = train_toy(make, folder / "unbroken")
    for kill_at in (13, 47):
        run_until_killed(partial(train_toy, make, folder / "killed"), kill_at)
    train_toy(make, folder / "killed")
    assert read_untimed(folder / "killed") == read_untimed(folder / "unbroken")
    last = f"checkpoints/step-{STEPS:08d}/{WEIGHTS}"
    killed, unbroken = (load_file(folder / name / last) for name in ("killed", "unbroken"))
    assert all(torch.equal(killed[name], tensor) for name, tensor in unbroken.items())
    return spec
