"""Muon: orthogonalization as its definition says, updates like PyTorch's, and stacked matrices one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from bertwright.models.config import BertConfig
from bertwright.models.encoder import layer_matrices
from bertwright.models.heads import BertForPretraining
from bertwright.training import muon
from bertwright.training.muon import orthogonalize
from bertwright.training.optimizer import Optimizer, OptimizerSettings

SETTINGS = OptimizerSettings(algorithm="muon", max_grad_norm=1e9, weight_decay=0.1, bias_correction=True)


def random_matrix(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def cosine(one: Tensor, other: Tensor) -> float:
    return float(nn.functional.cosine_similarity(one.flatten(), other.flatten(), dim=0))


@pytest.mark.parametrize("shape", [(24, 24), (8, 48), (48, 8), (1, 5)])
def test_orthogonalize_keeps_singular_vectors_and_makes_values_one(shape: tuple[int, int]) -> None:
    matrix = random_matrix(*shape)
    u, before, vh = torch.linalg.svd(matrix, full_matrices=False)
    result = orthogonalize(matrix)
    values = torch.diagonal(u.T @ result @ vh.T)
    assert values[before > 0.01 * matrix.norm()].min() > 0.73
    assert values.max() < 1.27
    torch.testing.assert_close(u * values @ vh, result, atol=1e-4, rtol=0)


def test_each_polynomial_maps_the_interval_of_the_one_before_into_a_narrower_one_around_1() -> None:
    values = torch.logspace(-2, 0, 10_000, dtype=torch.float64)
    furthest = 1.0
    for a, b, c in muon.POLYNOMIALS:
        values = a * values + b * values**3 + c * values**5
        low, high = float(values.min()), float(values.max())
        assert low + high == pytest.approx(2, abs=1e-3)  # the best polynomial is as far below 1 as above
        assert high - 1 < furthest
        furthest = high - 1
    assert furthest < 0.27


def test_orthogonalize_ignores_the_scale_and_keeps_zero() -> None:
    matrix = random_matrix(6, 10)
    torch.testing.assert_close(orthogonalize(1e-3 * matrix), orthogonalize(1e3 * matrix), atol=1e-3, rtol=0)
    assert not orthogonalize(torch.zeros(3, 4)).any()


@pytest.mark.parametrize("shape", [(32, 32), (16, 64), (64, 16)])
def test_updates_equal_torch_but_for_its_bfloat16(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "POLYNOMIALS", 5 * [(3.4445, -4.7750, 2.0315)])  # those of torch
    start = random_matrix(*shape)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer = Optimizer({"w": ours}, SETTINGS, matrices={"w": 1})
    reference = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for step in range(5):
        gradient = random_matrix(*shape, seed=1 + step)
        before = ours.detach().clone(), theirs.detach().clone()
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        optimizer.step(0.02, optimizer.gradient_norm())
        reference.step()
        moves = ours.detach() - before[0], theirs.detach() - before[1]
        assert cosine(*moves) > 0.999
        assert float(moves[0].norm() / moves[1].norm()) == pytest.approx(1, rel=0.02)


def test_stacked_matrices_are_orthogonalized_one_by_one() -> None:
    start, gradient = random_matrix(12, 4), random_matrix(12, 4, seed=1)
    stacked = {"qkv": nn.Parameter(start.clone())}
    single = {str(n): nn.Parameter(block.clone()) for n, block in enumerate(start.chunk(3))}
    for parameters, matrices, gradients in (
        (stacked, {"qkv": 3}, [gradient]),
        (single, dict.fromkeys(single, 1), gradient.chunk(3)),
    ):
        for parameter, one in zip(parameters.values(), gradients, strict=True):
            parameter.grad = one.clone()
        Optimizer(parameters, SETTINGS, matrices=matrices).step(0.01, 1.0)
    torch.testing.assert_close(stacked["qkv"], torch.cat(list(single.values())), rtol=0, atol=1e-6)


def test_matrices_of_layers_have_one_moment_and_everything_else_two() -> None:
    config = BertConfig(50, hidden_size=8, num_layers=2, num_heads=2, intermediate_size=32, max_positions=16)
    model = BertForPretraining(config)
    matrices = layer_matrices(model)
    assert len(matrices) == 2 * 4
    assert {name.split(".")[-2]: stacked for name, stacked in matrices.items()} == {
        "qkv": 3,
        "attention_output": 1,
        "intermediate": 1,
        "output": 1,
    }
    parameters = dict(model.named_parameters())
    optimizer = Optimizer(parameters, SETTINGS, matrices=matrices)
    assert optimizer.exp_avg.keys() == parameters.keys()
    assert optimizer.exp_avg_sq.keys() == parameters.keys() - matrices.keys()
    adamw = Optimizer(parameters, replace(SETTINGS, algorithm="adamw"), matrices=matrices)
    assert adamw.exp_avg_sq.keys() == parameters.keys()
    with pytest.raises(ValueError, match=r"exp_avg_sq\..*names differ|names differ.*exp_avg_sq\."):
        optimizer.load_state(adamw.state())
