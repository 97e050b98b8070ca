"""Seams of the engine on toys: a state that steps carry, and rates that depend on the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from bertwright.base.reporter import MUTE
from bertwright.training import checkpoint
from bertwright.training.fit import FitSettings, TrainingSpec, fit
from bertwright.training.loop import LossOutput
from bertwright.training.optimizer import LRScale, OptimizerSettings, make_optimizer
from harness import read_untimed
from helpers import CPU_CONTEXT

STEPS, WINDOW, WEIGHTS = 12, 5, "weights.safetensors"
TEXT = torch.randint(9, (STEPS * WINDOW + 1, 4), generator=torch.Generator().manual_seed(0))  # 4 streams of characters
SETTINGS = OptimizerSettings(learning_rate=0.01, schedule="constant", warmup_ratio=0.0)


class Recurrent(nn.Module):
    """A character model that is trained by truncated back-propagation through time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.lstm, self.output = nn.Embedding(9, 6), nn.LSTM(6, 8), nn.Linear(8, 9)
        self.hidden = torch.zeros(2, 1, 4, 8)  # state and cell, carried from window to window
        self.position = 0  # begin of the next window, carried by the batches

    def batches(self, first_step: int) -> Iterator[list[Tensor]]:
        for _ in range(first_step, STEPS):
            self.position += WINDOW
            yield [TEXT[self.position - WINDOW : self.position + 1]]

    def loss(self, window: Tensor) -> LossOutput:
        states, hidden = self.lstm(self.embedding(window[:-1]), tuple(self.hidden))
        self.hidden = torch.stack(hidden).detach()
        loss = nn.functional.cross_entropy(self.output(states).flatten(0, 1), window[1:].flatten())
        return LossOutput(loss, {"loss": loss})

    def state(self) -> dict[str, Tensor]:
        return {"hidden": self.hidden, "position": torch.tensor(self.position)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.hidden, self.position = state["hidden"], int(state["position"])


def train(
    run: Path, stop_at: int = STEPS, carries: bool = True, unfreeze: Callable[[int], float] | float = 1.0
) -> None:
    """Train from the newest checkpoint, which is written after every second step, and stop in the step `stop_at`."""
    model = Recurrent()
    scales: dict[str, LRScale] = {
        name: unfreeze if "embedding" in name else 1.0 for name, _ in model.named_parameters()
    }
    optimizer = make_optimizer(model, SETTINGS, scales)

    def loss(window: Tensor) -> LossOutput:
        if optimizer.steps == stop_at:
            raise InterruptedError
        return model.loss(window)

    if latest := checkpoint.verify_latest(run / "checkpoints"):
        load_model(model, latest / WEIGHTS)
        optimizer.load_state(checkpoint.load_optimizer(latest))
    run.mkdir(exist_ok=True)
    spec = TrainingSpec(
        model, optimizer, SETTINGS.make_schedule(STEPS), model.batches, loss,
        write_model=lambda folder: save_model(model, folder / WEIGHTS), carried=model if carries else None,
    )  # fmt: skip
    fit(FitSettings(run, STEPS, log_every=1, save_steps=range(2, STEPS, 2)), spec, CPU_CONTEXT, MUTE)


def interrupt_and_compare(tmp_path: Path, **options: bool | Callable[[int], float]) -> bool:
    """Train without interruption, and interrupted twice between checkpoints; return whether all bits are equal."""
    train(tmp_path / "unbroken", **options)  # type: ignore[arg-type]
    for stop_at in (3, 9):
        with pytest.raises(InterruptedError):
            train(tmp_path / "stopped", stop_at, **options)  # type: ignore[arg-type]
    train(tmp_path / "stopped", **options)  # type: ignore[arg-type]
    runs = tmp_path / "unbroken", tmp_path / "stopped"
    weights = [(run / "checkpoints" / f"step-{STEPS:08d}" / WEIGHTS).read_bytes() for run in runs]
    return weights[0] == weights[1] and read_untimed(runs[0]) == read_untimed(runs[1])


def test_hidden_state_of_truncated_bptt_is_resumed_to_the_bit(tmp_path: Path) -> None:
    assert interrupt_and_compare(tmp_path)


def test_hidden_state_that_no_checkpoint_has_is_lost(tmp_path: Path) -> None:
    assert not interrupt_and_compare(tmp_path, carries=False)


def test_gradual_unfreezing_is_resumed_to_the_bit(tmp_path: Path) -> None:
    """The embeddings are unfrozen after 6 of the 12 steps."""
    assert interrupt_and_compare(tmp_path, unfreeze=lambda step: float(step >= 6))


@pytest.mark.parametrize(("steps", "changes"), [(6, False), (7, True)])
def test_frozen_parameters_do_not_change_until_their_step(steps: int, changes: bool) -> None:
    """Nor do their gradients count for the norm by which the others are clipped."""
    model = Recurrent()
    before = model.embedding.weight.detach().clone()
    scales: dict[str, LRScale] = dict.fromkeys(dict(model.named_parameters()), 1.0)
    optimizer = make_optimizer(model, SETTINGS, scales | {"embedding.weight": lambda step: float(step >= 6)})
    for _, (window,) in zip(range(steps), model.batches(0), strict=False):
        model.loss(window).loss.backward()
        embedding = model.embedding.weight.grad
        others = [tensor.grad for name, tensor in model.named_parameters() if name != "embedding.weight"]
        counted = others if optimizer.steps < 6 else [embedding, *others]
        expected = torch.stack([gradient.norm() for gradient in counted if gradient is not None]).norm()
        assert float(optimizer.gradient_norm()) == pytest.approx(float(expected), rel=1e-5)
        optimizer.step(0.01, 1.0)
    assert torch.equal(before, model.embedding.weight) != changes


def test_a_constant_factor_of_zero_freezes_and_a_function_does_not() -> None:
    model = nn.Linear(2, 2)
    optimizer = make_optimizer(model, SETTINGS, {"weight": lambda step: 0.0, "bias": 0.0})
    assert [*optimizer.parameters] == ["weight"]
    assert model.weight.requires_grad
    assert not model.bias.requires_grad
