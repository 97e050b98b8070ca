"""Triton's kernels equal the reference: in its interpreter on a CPU, compiled on a machine with a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="no Triton on this machine")

from gradients import with_gradients

from bertwright.kernels import attention as attention_module
from bertwright.kernels import fused_encoder, gpu_linear, reference
from bertwright.kernels.dropout import Dropout, mask_key
from bertwright.kernels.reference import IGNORED_LABEL, AdamStep, EmbeddingTables, LayerNormParams
from bertwright.kernels.triton import adamw_kernels, gelu, ops
from bertwright.models.packing import pack
from bertwright.objectives.language_model_objective import LanguageModelBatch
from bertwright.systems.bert import bert_encoder
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.bert.masked_lm_objective import MaskedLMWithNextSentence
from bertwright.training.loop import DivergedError, train_steps
from bertwright.training.optimizer import Optimizer, OptimizerSettings
from interpreted_triton import DEVICE, take_for_gpu

ROOT = Path(__file__).parents[2]
ROWS, COLUMNS = 37, 72  # neither is a multiple of a tile


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def everything_in_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models on the CPU run Triton's kernels, interpreted."""
    if DEVICE == "cpu":
        take_for_gpu(monkeypatch, lambda *tensors: True)
        for name, size in {"ROWS": 32, "COLUMNS": 64}.items():  # the interpreter computes tile by tile, padding too
            monkeypatch.setattr(gelu, name, size)


def normal(*shape: int, trained: bool = True) -> Tensor:
    return torch.randn(shape, device=DEVICE, requires_grad=trained)


def assert_same(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-5) -> None:
    for number, (own, exact) in enumerate(zip(ours, theirs, strict=True)):
        torch.testing.assert_close(
            own, exact, rtol=tolerance, atol=tolerance, msg=lambda text, n=number: f"{n}: {text}"
        )


@pytest.mark.parametrize("tanh", [False, True])
def test_bias_gelu_equals_the_reference(tanh: bool) -> None:
    operands = normal(ROWS, COLUMNS), normal(COLUMNS), tanh
    assert_same(with_gradients(ops.BiasGelu.apply, *operands), with_gradients(reference.bias_gelu, *operands))


def test_gelu_in_bfloat16_is_exact_within_its_rounding() -> None:
    """Its distribution function is a series. The tolerance is two roundings: the interpreter cuts digits off."""
    x = torch.linspace(-6, 6, 2048, device=DEVICE).bfloat16().view(2, 1024).requires_grad_()
    exact = x.detach().double().requires_grad_()
    y, expected = ops.BiasGelu.apply(x, torch.zeros(1024, device=DEVICE), False), torch.nn.functional.gelu(exact)
    (dx,), (dexpected,) = (
        torch.autograd.grad(result.sum(), operand) for result, operand in ((y, x), (expected, exact))
    )
    torch.testing.assert_close(y.double(), expected, rtol=2**-7, atol=5e-7)
    torch.testing.assert_close(dx.double(), dexpected, rtol=2**-7, atol=5e-7)


def test_gradient_with_other_strides_is_read_by_rows() -> None:
    """A kernel writes rows one after another; `empty_like` of a transposed gradient has columns one after another."""
    x, bias = normal(ROWS, COLUMNS), normal(COLUMNS)
    upstream = torch.randn(COLUMNS, ROWS, device=DEVICE).T
    results = [
        torch.autograd.grad(function(x, bias, False), (x, bias), upstream)
        for function in (ops.BiasGelu.apply, reference.bias_gelu)
    ]
    assert_same(*map(list, results))


DROPOUTS = [
    None,
    Dropout(0.3, seed=2**63 + 12345, first_token=2**32 - 30),  # token indices with more than 32 bits
    Dropout(0.3, 5, 7, torch.arange(500, device=DEVICE)[torch.randperm(500)[:ROWS]]),
]


@pytest.mark.parametrize("dropout", DROPOUTS)
def test_add_dropout_norm_equals_the_reference(dropout: Dropout | None) -> None:
    key = mask_key(dropout, 3)
    operands = [normal(*shape) for shape in ((ROWS, COLUMNS), (COLUMNS,), (ROWS, COLUMNS), (COLUMNS,), (COLUMNS,))]

    def theirs(x: Tensor, bias: Tensor, residual: Tensor, weight: Tensor, norm_bias: Tensor) -> Tensor:
        return reference.add_dropout_norm(x, bias, residual, LayerNormParams(weight, norm_bias, 1e-12), key)

    ours = with_gradients(lambda *x: ops.AddDropoutNorm.apply(*x, 1e-12, key, True), *operands)
    assert_same(ours, with_gradients(theirs, *operands))


@pytest.mark.parametrize("types", [2, 5])
@pytest.mark.parametrize("dropout", DROPOUTS[:2])
def test_embed_norm_equals_the_reference(dropout: Dropout | None, types: int) -> None:
    key, sizes = mask_key(dropout, 0), (30, 80, types)
    ids = tuple(torch.randint(size, (ROWS,), device=DEVICE) for size in sizes)
    operands = [*(normal(size, COLUMNS) for size in sizes), normal(COLUMNS), normal(COLUMNS)]

    def theirs(*given: Tensor) -> Tensor:
        return reference.embed_norm(ids, EmbeddingTables(*given[:3]), LayerNormParams(*given[3:], 1e-12), key)

    ours = with_gradients(lambda *given: ops.EmbedNorm.apply(*given, 1e-12, key, *ids), *operands)
    assert_same(ours, with_gradients(theirs, *operands))


@pytest.mark.parametrize("shape", [(9, 3, 11), (0, 5)])
def test_dropout_has_the_bits_of_the_reference(shape: tuple[int, ...]) -> None:
    operands = normal(*shape), Dropout(0.3, 5, 7).mask_key(2)
    ours, theirs = (with_gradients(function, *operands) for function in (ops.DropoutFunction.apply, reference.dropout))
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize(
    ("queries", "keys", "head_size", "causal", "dropout"),
    [
        ([17, 5, 40], None, 24, False, Dropout(0.3, 5, 7)),  # several tiles; a size that is no power of two
        ([9, 20], None, 16, True, Dropout(0.3, 5, 2**31)),
        ([9, 0, 40], [33, 9, 50], 16, True, None),
        ([17, 3], [12, 0], 16, False, Dropout(0.3, 5)),  # queries without keys
    ],
)
def test_attention_equals_the_reference(
    queries: list[int], keys: list[int] | None, head_size: int, causal: bool, dropout: Dropout | None
) -> None:
    heads, key = 2, mask_key(dropout, 3)
    cu_q, cu_k = (torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int() for lengths in (queries, keys or queries))
    if keys is None:
        operands = [normal(sum(queries), 3, heads, head_size)]
    else:
        operands = [normal(sum(queries), heads, head_size), normal(sum(keys), 2, heads, head_size)]
    sequences = cu_q, cu_k, max(queries), max(keys or queries)

    def theirs(*given: Tensor) -> Tensor:
        return reference.attention(*attention_module.split(given), *sequences, key, causal)

    ours = with_gradients(lambda *given: ops.Attention.apply(sequences, causal, key, None, *given), *operands)
    assert_same(ours, with_gradients(theirs, *operands))


@pytest.mark.usefixtures("everything_in_triton")
@pytest.mark.parametrize("dropout", [None, Dropout(0.3, 5, 7)])
def test_attention_with_a_bias_equals_the_reference(dropout: Dropout | None) -> None:
    """Several tiles, an empty sequence, and a bias of larger distances than the sequences have."""
    lengths = [17, 0, 40]
    cu, qkv, bias = torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int(), normal(57, 3, 2, 16), normal(2, 95)

    def ours(qkv: Tensor, bias: Tensor) -> Tensor:
        return attention_module.biased_attention(qkv, cu, 40, bias, dropout, 3)

    def theirs(qkv: Tensor, bias: Tensor) -> Tensor:
        return reference.attention(*attention_module.split([qkv]), cu, cu, 40, 40, mask_key(dropout, 3), False, bias)

    assert_same(with_gradients(ours, qkv, bias), with_gradients(theirs, qkv, bias))


@pytest.mark.usefixtures("everything_in_triton")
@pytest.mark.parametrize(
    ("causal", "rate", "positions", "frozen"),
    [
        (False, 0.3, [0, 8, 9, 3, 22], ""),
        pytest.param(False, 0.0, None, "layers.0", marks=pytest.mark.slow),
        pytest.param(True, 0.3, None, "", marks=pytest.mark.slow),
        (True, 0.0, [], "layers.0"),
    ],
)
def test_all_layers_at_once_equal_one_after_another(
    causal: bool, rate: float, positions: list[int] | None, frozen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, so that nothing but the order of sums differs."""
    config = BertConfig(
        vocab_size=90, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=48, max_positions=64,
        is_causal=causal, hidden_dropout=rate, attention_dropout=rate,
    )  # fmt: skip
    model = BertEncoder(config, seed=1).train().to(DEVICE)
    for number, (name, parameter) in enumerate(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
        parameter.data += 0.1 * noise.to(DEVICE)
        parameter.requires_grad_(not frozen or not name.startswith((frozen, "embeddings")))
    batches = [pack([np.arange(5, 5 + n) for n in lengths]).with_dropout(3, 7) for lengths in ((9, 12, 2), (20, 3))]
    at = None if positions is None else torch.tensor(positions, dtype=torch.int64, device=DEVICE)
    results = []
    for fuses in (True, False):
        for module in (bert_encoder, fused_encoder):
            monkeypatch.setattr(module, "can_fuse", lambda *of, fuses=fuses: fuses)
        model.zero_grad()
        passes = (model(batch.to(DEVICE), at) for batch in batches)
        states = []
        for y in passes if causal else list(passes):  # gradients of two batches, one after another or intertwined
            y.backward(torch.linspace(-1, 1, y.numel(), device=DEVICE).view_as(y))
            states.append(y)
        with torch.no_grad():
            assert_same([model(batch.to(DEVICE), at) for batch in batches], states)
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append((type(states[0].grad_fn).__name__, [*states, *gradients.values()], list(gradients)))
    (fused, ours, names), (single, theirs, other_names) = results
    assert (fused, single) == ("FusedEncoderBackward", "AddDropoutNormBackward")
    assert names == other_names
    assert len(names) == (12 if frozen else 29)
    assert_same(ours, theirs, 1e-4)


@pytest.mark.parametrize("vocabulary", [70, 4100])
def test_cross_entropy_equals_the_reference_and_ignores_padding(vocabulary: int) -> None:
    padded = torch.randn(7, -(-vocabulary // 64) * 64).to(DEVICE)
    padded[4] = padded[4].round()  # several largest logits: the first one counts
    bias = torch.zeros(vocabulary, device=DEVICE)
    labels = padded[:, :vocabulary].argmax(1)
    labels[0], labels[1] = IGNORED_LABEL, 3
    logits, (ours, theirs) = padded[:, :vocabulary].clone(), torch.ones(2, vocabulary, device=DEVICE)
    losses, correct = ops.cross_entropy_(padded, bias, labels, 0.25, ours)
    exact, exact_correct = reference.cross_entropy_(logits, bias, labels, 0.25, theirs)
    assert_same([losses, padded[:, :vocabulary], ours], [exact, logits, theirs])
    assert correct.bool().tolist() == exact_correct.tolist()
    assert correct.sum() == 5
    assert not padded[:, vocabulary:].any()


def optimizer_tensors() -> list[list[Tensor]]:
    shapes = [(100, 99), (7,), ()]
    kinds = [[normal(*shape, trained=False) for shape in shapes] for _ in range(4)]
    kinds[3] = [tensor.abs() for tensor in kinds[3]]
    return kinds


def test_adamw_and_the_gradient_norm_equal_the_reference() -> None:
    kinds = optimizer_tensors()
    exact = [[tensor.clone() for tensor in kind] for kind in kinds]
    norm, exact_norm = adamw_kernels.gradient_norm(kinds[1]), reference.gradient_norm(kinds[1])
    torch.testing.assert_close(norm, exact_norm, rtol=1e-12, atol=0)
    copies = [torch.zeros(128, 99, dtype=torch.bfloat16, device=DEVICE), None, None]
    step = AdamStep(0.01, 0.9, 0.99, 1e-6, 0.1, clip_scale=0.5, correction1=0.3, correction2=0.2)
    adamw_kernels.adamw_(*kinds, copies, step)
    reference.adamw_(*exact, step)
    for kind in (0, 2, 3):
        assert_same(kinds[kind], exact[kind], 1e-6)
    assert copies[0] is not None
    torch.testing.assert_close(copies[0][:100].float(), kinds[0][0], rtol=2**-7, atol=0)
    assert not copies[0][100:].any()


def test_a_norm_that_is_not_finite_updates_nothing() -> None:
    kinds = optimizer_tensors()
    before = [tensor.clone() for kind in kinds for tensor in kind]
    step = AdamStep(0.01, 0.9, 0.99, 1e-6, 0.1, clip_scale=torch.tensor(float("nan"), device=DEVICE))
    adamw_kernels.adamw_(*kinds, [None] * 3, step)
    assert all(map(torch.equal, before, [tensor for kind in kinds for tensor in kind]))


def tiny_model(dtype: torch.dtype) -> tuple[BertForPretraining, LanguageModelBatch, Optimizer]:
    config = BertConfig(
        vocab_size=90, hidden_size=32, num_layers=1, num_heads=2, intermediate_size=48, max_positions=64
    )
    model = BertForPretraining(config, seed=1).train().to(DEVICE)
    model.encoder.compute_dtype = dtype
    rng = np.random.default_rng(0)
    packed = pack([rng.integers(5, 90, length) for length in (17, 24, 5)]).with_dropout(3)
    positions = torch.arange(3, 46, 7)
    labels = torch.from_numpy(rng.integers(5, 90, len(positions)))
    batch = LanguageModelBatch(packed, positions, labels, torch.tensor([0, 1, 1]), len(labels), 3).to(DEVICE)
    return model, batch, Optimizer(dict(model.named_parameters()), OptimizerSettings())


def train(dtype: torch.dtype, steps: int = 3) -> Iterator[Any]:
    """Yield the loss of each step; then all weights as one vector."""
    model, batch, optimizer = tiny_model(dtype)
    for result in train_steps(
        lambda batch: MaskedLMWithNextSentence().loss(model, batch), [[batch]] * steps, optimizer, lambda _: 1e-2
    ):
        yield result.sums["lm_sum"] + result.gradient_norm
    yield torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).cpu()


@pytest.fixture
def exact_training(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Losses and weights of the same steps on a CPU in float32, by the native kernels."""
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "DEVICE", "cpu")
        return list(train(torch.float32))


def test_training_steps_with_dropout_equal_those_of_a_cpu(
    exact_training: list[Any], request: pytest.FixtureRequest
) -> None:
    """Masks are the same on all devices, also those of attention."""
    request.getfixturevalue("everything_in_triton")
    *losses, weights = train(torch.float32)
    *exact_losses, exact_weights = exact_training
    assert losses == pytest.approx(exact_losses, rel=1e-4)
    assert exact_losses[0] - exact_losses[-1] > 1
    torch.testing.assert_close(weights, exact_weights, rtol=0, atol=5e-3)


@pytest.mark.slow
def test_training_steps_in_bfloat16_have_about_the_losses_of_float32(
    exact_training: list[Any], request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("everything_in_triton")
    *losses, _ = train(torch.bfloat16)
    assert losses == pytest.approx(exact_training[:-1], rel=3e-2)  # the interpreter cuts digits off


@pytest.mark.usefixtures("everything_in_triton")
def test_a_diverged_step_leaves_the_weights_although_it_is_noticed_later() -> None:
    model, batch, optimizer = tiny_model(torch.float32)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    added = iter((float("inf"), 0.0))
    steps = train_steps(
        lambda batch: MaskedLMWithNextSentence().loss(model, batch)._replace(sums={"loss": torch.tensor(next(added))}),
        [[batch], [batch]],
        optimizer,
        lambda _: 1e-2,
    )
    result = next(steps)
    assert all(map(torch.equal, before, model.parameters()))
    for notice in (result.read, lambda: next(steps)):  # when its numbers are read, or in the next step
        with pytest.raises(DivergedError, match="step 1: not finite: loss = inf"):
            notice()


@pytest.mark.usefixtures("everything_in_triton")
def test_copies_of_weights_follow_the_optimizer_and_every_other_change() -> None:
    weight = torch.nn.Parameter(torch.randn(5, 8, device=DEVICE))
    assert gpu_linear.padded(weight, torch.bfloat16) is not gpu_linear.padded(weight, torch.bfloat16)
    optimizer = Optimizer({"weight": weight}, OptimizerSettings())
    copy = gpu_linear.padded(weight, torch.bfloat16)
    assert copy.shape == (64, 8)
    weight.grad = torch.ones_like(weight)
    optimizer.step(0.1, 1.0)
    assert gpu_linear.padded(weight, torch.bfloat16) is copy
    torch.testing.assert_close(copy[:5].float(), weight.detach(), rtol=2**-7, atol=0)
    with torch.no_grad():
        weight += 1
    assert torch.equal(gpu_linear.half(weight, torch.bfloat16), weight.bfloat16())
    assert not gpu_linear.padded(weight, torch.bfloat16)[5:].any()


def test_kernels_compile_for_gpus_that_are_not_there_and_keep_most_values_in_registers(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["OUT"] = str(tmp_path)  # where the script writes its result file
    command = [sys.executable, str(ROOT / "bench/gpu_compile.py"), "--targets", "90"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines()[2:]]
    assert len(rows) == 17
    # Bytes per thread; with tiles that fit whole, attention's backward pass takes longer on an H200.
    # The backward pass with a bias (MPNet) has the bias's gradient on the stack; no GPU was at hand to tune its tiles.
    limits = {name: 520 if "backward" in name and "bias" in name else 160 for name, *_ in rows}
    assert all(int(stack) <= limits[name] for name, _, _, stack, *_ in rows), result.stdout
