"""A Triton kernel with wrong numbers never reaches a model: the process computes with the reference, and says why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="no Triton on this machine")

from bertwright.kernels import attention as attention_module
from bertwright.kernels import fused_encoder, fused_ops, native_library, triton_check
from bertwright.kernels.adamw import adamw_, gradient_norm, optimizer_works
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.linear_cross_entropy import linear_cross_entropy
from bertwright.kernels.reference import AdamStep, EmbeddingTables, LayerNormParams
from bertwright.kernels.triton import adamw_kernels, flash, gelu, layer_norm, ops
from bertwright.models.packing import pack
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.training.context import ExecutionContext
from interpreted_triton import DEVICE, take_for_gpu

WIDTH, HEADS, VOCABULARY = 16, 2, 50
OPERATIONS = {"embeddings", "dense layer", "attention", "LayerNorm", "GELU", "dropout", "cross entropy", "AdamW"}


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has checked nothing, and whose dispatcher takes every tensor for one on a GPU."""
    monkeypatch.setattr(triton_check, "_checked", set())
    monkeypatch.setattr(triton_check, "ROWS", 20)
    take_for_gpu(monkeypatch, lambda *tensors: not native_library.triton_problems)
    yield
    native_library.triton_problems.clear()


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype).requires_grad_()


def compute(dtype: torch.dtype) -> list[Tensor]:
    """Return results and gradients of one small computation with every operation, and an update."""
    rates, lengths = Dropout(0.2, 5, 7), [5, 8]
    vectors = [normal(WIDTH) for _ in range(2)]
    norm = LayerNormParams(vectors[0], vectors[1], 1e-12)
    ids = tuple(torch.arange(13, device=DEVICE) % size for size in (VOCABULARY, 8, 2))
    tables = EmbeddingTables(*(normal(size, WIDTH) for size in (VOCABULARY, 8, 2)))
    weight = normal(3 * WIDTH, WIDTH)
    hidden = fused_ops.embed_norm(ids, tables, norm, rates, 0).to(dtype)
    qkv = fused_ops.linear(hidden, weight, normal(3 * WIDTH)).unflatten(-1, (3, HEADS, -1))
    bounds = torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()
    context = attention_module.attention(qkv, bounds, max(lengths), rates, 1).flatten(1)
    hidden = fused_ops.add_dropout_norm(context, vectors[0], hidden, norm, rates, 2)
    hidden = fused_ops.dropout(fused_ops.bias_gelu(hidden, vectors[1], False), rates, 3)
    labels = torch.arange(13, device=DEVICE)
    loss, _ = linear_cross_entropy(hidden, tables.word, normal(VOCABULARY), labels, 0.1)
    gradients = torch.autograd.grad(loss, [*tables, weight])
    parameters = [normal(30, 7).detach() for _ in range(4)]
    parameters[3].abs_()
    norm_of_gradient = gradient_norm([parameters[1]])
    adamw_(*([x] for x in parameters), AdamStep(0.01, 0.9, 0.99, 1e-6, 0.1))
    return [loss.detach(), *gradients, norm_of_gradient, parameters[0]]


def exact(dtype: torch.dtype) -> list[Tensor]:
    native_library.triton_problems.append("the reference computes")
    results = compute(dtype)
    native_library.triton_problems.clear()
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_operation_is_checked_once_and_works(dtype: torch.dtype, capsys: pytest.CaptureFixture[str]) -> None:
    for own, reference in zip(compute(dtype), exact(dtype), strict=True):
        tolerance = triton_check.TOLERANCES[dtype]
        assert (own - reference).abs().max() <= 2 * tolerance * reference.abs().max()
    checked = [name for name, *_ in triton_check._checked]
    assert set(checked) == OPERATIONS - ({"dense layer"} if dtype == torch.float32 else set())
    compute(dtype)
    assert [name for name, *_ in triton_check._checked] == checked
    assert capsys.readouterr().err == ""


def test_checks_of_an_encoder_start_the_kernels_of_its_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles another kernel if an argument is None: the same ones must be None in the checks."""
    launched: dict[bool, set[Any]] = {True: set(), False: set()}
    is_check = False

    def record(kernel: Any, grid: Any, *arguments: Any, **options: Any) -> None:
        launched[is_check].add((kernel.fn.__name__, *(argument is None for argument in arguments)))
        start(kernel, grid, *arguments, **options)

    def check(*given: Any) -> bool:
        nonlocal is_check
        is_check = True
        passed = kernels_work(*given)
        is_check = False
        return passed

    start = flash.launch
    for module in (flash, gelu, layer_norm):
        monkeypatch.setattr(module, "launch", record)
    kernels_work = fused_encoder._kernels_work
    monkeypatch.setattr(fused_encoder, "_kernels_work", check)
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_layers=2, num_heads=HEADS, intermediate_size=24, max_positions=8
    )
    model = BertEncoder(config, torch.bfloat16, seed=1).train().to(DEVICE)
    states = model(pack([np.arange(5), np.arange(8)]).with_dropout(3).to(DEVICE), torch.tensor([0, 7], device=DEVICE))
    states.float().sum().backward()
    assert {name for name, *_ in launched[False]} >= {"attention_kernel", "add_dropout_norm_backward_kernel"}
    assert launched[False] - {("column_sum_kernel", *[False] * 8)} <= launched[True]


def wrong_forward(function: Any) -> Any:
    """Return a forward pass whose first number is twice as large."""

    def forward(ctx: Any, *operands: Any) -> Tensor:
        result: Tensor = function(ctx, *operands)
        result.view(-1)[:1] += result.abs().max()
        return result

    return staticmethod(forward)


def wrong_backward(function: Any) -> Any:
    """Return a backward pass with NaN in its first gradient of floating-point numbers."""

    def backward(ctx: Any, *upstream: Tensor) -> tuple[Any, ...]:
        gradients = list(function(ctx, *upstream))
        number = next(number for number, gradient in enumerate(gradients) if gradient is not None)
        gradients[number] = gradients[number] * float("nan")
        return tuple(gradients)

    return staticmethod(backward)


@pytest.mark.parametrize(
    ("name", "function"), [("attention", ops.Attention), ("LayerNorm", ops.AddDropoutNorm), ("GELU", ops.BiasGelu)]
)
@pytest.mark.parametrize("part", ["forward", "backward"])
def test_a_broken_kernel_leads_to_the_reference_and_one_notice(
    name: str, function: Any, part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    breaks = wrong_forward if part == "forward" else wrong_backward
    monkeypatch.setattr(function, part, breaks(getattr(function, part)))
    for own, reference in zip(compute(torch.float32), exact(torch.float32), strict=True):
        torch.testing.assert_close(own, reference, rtol=1e-3, atol=1e-4)
    native_library.triton_problems.append("as before")
    compute(torch.float32)
    (line,) = capsys.readouterr().err.splitlines()
    assert all(word in line for word in (f"{name}, float32", "differs by", "slower but right", "report", "triton "))
    assert ("nan" in line) == (part == "backward")


def test_an_exception_of_the_compiler_leads_to_the_reference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("out of resources")

    monkeypatch.setattr(ops, "adamw_", fail)
    own, reference = compute(torch.float32), exact(torch.float32)
    torch.testing.assert_close(own[-1], reference[-1], rtol=0, atol=0)
    line = capsys.readouterr().err
    assert "AdamW, float32" in line
    assert "RuntimeError: out of resources" in line


def test_a_batch_without_rows_is_no_failure() -> None:
    empty = torch.empty(0, WIDTH, device=DEVICE, requires_grad=True)
    assert fused_ops.bias_gelu(empty, normal(WIDTH), False).shape == (0, WIDTH)
    assert not native_library.triton_problems


def test_an_update_that_nan_does_not_skip_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def update(*kinds: Any) -> None:
        *tensors, step = kinds
        adamw_kernels.adamw_(*tensors, step._replace(clip_scale=torch.nan_to_num(step.clip_scale)))

    monkeypatch.setattr(ops, "adamw_", update)
    assert not optimizer_works(normal(3))


def test_the_summary_says_which_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GPU")
    monkeypatch.setattr("bertwright.training.context.triton_available", lambda: True)
    context = replace(ExecutionContext(torch.device("cpu"), torch.float32, 1), device=torch.device("cuda"))
    assert "Triton kernels" in str(context)
    native_library.triton_problems.append("GELU")
    assert "PyTorch's kernels, memory-efficient attention" in str(context)
    assert "(Triton's failed their check)" in str(context)
