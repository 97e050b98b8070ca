"""The training loop: sums over micro-batches, times, losses that are not finite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from bertwright.training import loop
from bertwright.training.loop import DivergedError, LossOutput, StepResult, train_steps
from bertwright.training.optimizer import Optimizer, OptimizerSettings

SETTINGS = OptimizerSettings(learning_rate=0.1, bias_correction=True)


class Line(nn.Module):
    """y = w x, squared error, divided by the count of the whole step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[0.5]]))

    def forward(self, batch: tuple[Tensor, Tensor, int]) -> LossOutput:
        x, y, count = batch
        total = ((x * self.weight[0, 0] - y) ** 2).sum()
        return LossOutput(total / count, {"error": total, "seen": torch.tensor(float(len(x)))})


def test_micro_batches_give_the_same_step_and_report() -> None:
    x = torch.linspace(-1, 1, 12)
    y = 3 * x
    found = []
    for size in (12, 5, 1):
        line = Line()
        micro_batches = [(x[i : i + size], y[i : i + size], 12) for i in range(0, 12, size)]
        optimizer = Optimizer(dict(line.named_parameters()), SETTINGS)
        results = list(train_steps(line, [micro_batches] * 5, optimizer, lambda step: 0.1 / (step + 1)))
        found.append((line.weight.item(), [result.sums["error"] for result in results]))
        assert [result.step for result in results] == [1, 2, 3, 4, 5]
        assert [result.sums["seen"] for result in results] == [12.0] * 5
        assert [result.learning_rate for result in results] == pytest.approx([0.1, 0.05, 0.1 / 3, 0.025, 0.02])
    for weight, errors in found[1:]:
        assert weight == pytest.approx(found[0][0], rel=1e-6)
        assert errors == pytest.approx(found[0][1], rel=1e-6)
    assert found[0][1][-1] < found[0][1][0]


def test_seconds_of_a_step_include_the_wait_for_data_but_not_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])

    def slow_data() -> Iterator[list[tuple[Tensor, Tensor, int]]]:
        for _ in range(3):
            clock[0] += 1
            yield [(torch.ones(2), torch.ones(2), 2)]

    line = Line()
    seconds = []
    for result in train_steps(line, slow_data(), Optimizer(dict(line.named_parameters()), SETTINGS), lambda _: 0.1):
        seconds.append(result.seconds)
        clock[0] += 100  # an evaluation, a checkpoint
    assert seconds == [1, 1, 1]


def test_waits_for_a_gpu_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the caller reads a step's numbers, or the next step does."""
    clock, waits = [0.0], set[int]()
    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(Optimizer, "checks_on_gpu", True)
    monkeypatch.setattr(Optimizer, "step", lambda self, *_: setattr(self, "steps", self.steps + 1))

    def wait(result: StepResult) -> list[float]:
        clock[0] += result.step not in waits  # a GPU needs a second for each step
        waits.add(result.step)
        return [0.0, 0.0, 0.0]

    monkeypatch.setattr(StepResult, "wait", wait)
    line, results = Line(), list[StepResult]()
    batches = [[(torch.ones(2), torch.ones(2), 2)]] * 4
    for result in train_steps(line, batches, Optimizer(dict(line.named_parameters()), SETTINGS), lambda _: 0.1):
        results.append(result)
        if result.step in (1, 4):
            result.read()
    assert sum(result.seconds for result in results) == clock[0] == 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_loss_that_is_not_finite_stops_before_the_update(bad: float) -> None:
    line = Line()
    good = (torch.ones(2), torch.ones(2), 2)
    optimizer = Optimizer(dict(line.named_parameters()), SETTINGS)
    running = train_steps(line, [[good], [(torch.tensor([bad]), torch.ones(1), 1)]], optimizer, lambda _: 0.1)
    next(running)
    before = line.weight.item()
    with pytest.raises(DivergedError, match=r"step 2: not finite: error = (nan|inf).*learning-rate"):
        next(running)
    assert line.weight.item() == before
    assert optimizer.steps == 1
