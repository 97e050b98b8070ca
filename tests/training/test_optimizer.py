"""Optimizer: equal to PyTorch's, and the differences that BERT has."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from bertwright.kernels import native_library
from bertwright.training.optimizer import Optimizer, OptimizerSettings

SETTINGS = OptimizerSettings(max_grad_norm=1e9, bias_correction=True, weight_decay=0.1, eps=1e-8)


def parameters() -> dict[str, nn.Parameter]:
    numbers = torch.Generator().manual_seed(3)
    return {
        "weight": nn.Parameter(torch.randn(5, 3, generator=numbers)),
        "bias": nn.Parameter(torch.randn(5, generator=numbers)),
    }


def set_gradients(named: dict[str, nn.Parameter], step: int) -> None:
    numbers = torch.Generator().manual_seed(100 + step)
    for parameter in named.values():
        parameter.grad = torch.randn(parameter.shape, generator=numbers)


def test_adamw_with_bias_correction_equals_torch() -> None:
    ours, theirs = parameters(), parameters()
    groups = [{"params": [theirs["weight"]], "weight_decay": 0.1}, {"params": [theirs["bias"]], "weight_decay": 0.0}]
    reference = torch.optim.AdamW(groups, lr=0.01, eps=1e-8)
    optimizer = Optimizer(ours, SETTINGS)
    for step in range(20):
        set_gradients(ours, step)
        set_gradients(theirs, step)
        optimizer.step(0.01, optimizer.gradient_norm())
        reference.step()
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter, theirs[name], rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(native_library.load_library("kernels") is None, reason="no C++ compiler: gradients are dense")
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("columns", [3, 32])
def test_sparse_gradients_give_the_bits_of_dense_ones(decay: float, columns: int) -> None:
    """Vectors with a gradient vary, one step is dense, and one optimizer continues from the state of the other."""
    start = torch.randn(40, columns)
    settings = replace(SETTINGS, weight_decay=decay, max_grad_norm=1.0)
    dense, sparse = (Optimizer({"table": nn.Parameter(start.clone())}, settings) for _ in range(2))
    for step in range(12):
        rows = torch.randperm(40 if step != 5 else 1)[: 1 + step].sort().values
        gradient = torch.zeros(40, columns)
        gradient[rows] = torch.randn(len(rows), columns)
        if step == 8:
            resumed = Optimizer({"table": nn.Parameter(sparse.parameters["table"].detach().clone())}, settings)
            resumed.load_state(sparse.state())
            sparse = resumed
        dense.parameters["table"].grad = gradient.clone()
        for share in (gradient / 2, gradient / 2) if step % 3 == 0 else (gradient,):  # micro-batches
            given = (
                share.clone()
                if step == 6
                else torch.sparse_coo_tensor(rows[None], share[rows], gradient.shape, check_invariants=True)
            )
            before = sparse.parameters["table"].grad
            sparse.parameters["table"].grad = given if before is None else before + given
        norms = [float(optimizer.gradient_norm()) for optimizer in (dense, sparse)]
        assert norms[1] == pytest.approx(norms[0], rel=1e-12)
        for optimizer in (dense, sparse):
            optimizer.step(0.01, norms[0])
        assert torch.equal(dense.parameters["table"], sparse.parameters["table"]), step
        for name, moment in dense.state().items():
            assert torch.equal(moment, sparse.state()[name]), (step, name)


def test_first_step_without_bias_correction_equals_that_worked_by_hand() -> None:
    parameter = nn.Parameter(torch.tensor([[2.0]]))
    parameter.grad = torch.tensor([[0.5]])
    optimizer = Optimizer({"w": parameter}, replace(SETTINGS, bias_correction=False, eps=1e-6))
    optimizer.step(0.01, 0.5)
    first, second = 0.1 * 0.5, 0.001 * 0.25
    assert parameter.item() == pytest.approx(2.0 - 0.01 * (first / (math.sqrt(second) + 1e-6) + 0.1 * 2.0), rel=1e-6)
    assert parameter.grad is None


def test_clipping_scales_all_gradients_by_the_global_norm() -> None:
    clipped, scaled = parameters(), parameters()
    set_gradients(clipped, 0)
    set_gradients(scaled, 0)
    optimizer = Optimizer(clipped, replace(SETTINGS, max_grad_norm=0.5))
    norm = float(optimizer.gradient_norm())
    expected = math.sqrt(sum(float((p.grad**2).sum()) for p in clipped.values() if p.grad is not None))
    assert norm == pytest.approx(expected, rel=1e-6)
    optimizer.step(0.01, norm)
    reference = Optimizer(scaled, SETTINGS)
    for parameter in scaled.values():
        assert parameter.grad is not None
        parameter.grad *= 0.5 / norm
    reference.step(0.01, 0.0)
    for name in clipped:
        torch.testing.assert_close(clipped[name], scaled[name])


@pytest.mark.parametrize(("still", "moving"), [("weight", "bias"), ("bias", "weight")])
@pytest.mark.parametrize("compiler", [True, False])
def test_parameter_without_gradient_is_unchanged(
    still: str, moving: str, compiler: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiler:
        monkeypatch.setattr("bertwright.kernels.native_library.load_library", lambda name: None)
    named = parameters()
    before = {name: parameter.detach().clone() for name, parameter in named.items()}
    named[moving].grad = torch.ones_like(named[moving])
    Optimizer(named, SETTINGS).step(0.01, 1.0)
    assert torch.equal(named[still], before[still])
    assert not torch.equal(named[moving], before[moving])


def test_loaded_state_is_bit_equal_and_that_of_another_model_raises_an_error() -> None:
    straight, broken = parameters(), parameters()
    first, second = Optimizer(straight, SETTINGS), Optimizer(broken, SETTINGS)
    for step in range(3):
        for named, optimizer in ((straight, first), (broken, second)):
            set_gradients(named, step)
            optimizer.step(0.01, 1.0)
    resumed = Optimizer(broken, SETTINGS)
    resumed.load_state({name: tensor.clone() for name, tensor in second.state().items()})
    for named, optimizer in ((straight, first), (broken, resumed)):
        set_gradients(named, 3)
        optimizer.step(0.01, 1.0)
    assert all(torch.equal(straight[name], broken[name]) for name in straight)
    with pytest.raises(ValueError, match="another model: 2 names differ"):
        Optimizer({"weight": straight["weight"]}, SETTINGS).load_state(first.state())
    other = {"weight": nn.Parameter(torch.zeros(2, 2)), "bias": nn.Parameter(torch.zeros(5))}
    with pytest.raises(ValueError, match=r"exp_avg.weight: expected \[2, 2\], got \[5, 3\]"):
        Optimizer(other, SETTINGS).load_state(first.state())


@pytest.mark.parametrize(
    "change",
    [{"learning_rate": 0.0}, {"warmup_ratio": 1.0}, {"beta2": 1.0}, {"max_grad_norm": 0.0}, {"weight_decay": -1.0}],
)
def test_invalid_settings_raise_an_error(change: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(SETTINGS, **change)


def test_learning_rate_scale_may_depend_on_the_step_and_freezes_at_0() -> None:
    """Gradual unfreezing: a parameter with scale 0 is unchanged, and later starts like an untrained one."""
    values = {name: nn.Parameter(torch.tensor([[1.0]])) for name in ("constant", "unfrozen", "reference")}
    settings = replace(SETTINGS, weight_decay=0.0, bias_correction=False)
    frozen = Optimizer(
        {name: values[name] for name in ("constant", "unfrozen")},
        settings,
        {"constant": 0.5, "unfrozen": lambda step: float(step >= 2)},
    )
    reference = Optimizer({"reference": values["reference"]}, settings)
    for step in range(4):
        for value in values.values():
            value.grad = torch.tensor([[0.1]])
        frozen.step(0.01, 0.1)
        if step >= 2:
            reference.step(0.01, 0.1)
        else:
            assert values["unfrozen"].item() == 1.0
    assert torch.equal(values["unfrozen"], values["reference"])
    assert all(value.grad is None for name, value in values.items() if name != "reference")
    assert values["constant"].item() < 1.0
