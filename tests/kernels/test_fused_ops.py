"""The fused operations against their reference implementations, torch's autograd, and other numbers of threads."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gradients import with_gradients
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bertwright.kernels import cpu_linear, ffi, fused_ops, native_library, reference
from bertwright.kernels.adamw import adamw_, gradient_norm
from bertwright.kernels.attention import attention
from bertwright.kernels.dropout import Dropout, keep_mask, mask_key
from bertwright.kernels.ffi import use_native
from bertwright.kernels.linear_cross_entropy import cross_entropy_, linear_cross_entropy
from bertwright.kernels.reference import AdamStep, EmbeddingTables, LayerNormParams

needs_native = pytest.mark.skipif(native_library.load_library("kernels") is None, reason="no native kernels")
DROPOUT = Dropout(0.1, seed=2**63 + 99, first_token=2**32 - 3)  # rows on both sides of 2^32
SHAPES = [(130, 256), (37, 100), (5, 11), (1, 8), (0, 16)]


@pytest.fixture(autouse=True)
def seed_torch() -> None:
    torch.manual_seed(7)


def assert_same(
    ours: Callable[..., Tensor], expected: Callable[..., Tensor], *inputs: Tensor, tolerance: float = 3e-6
) -> None:
    """Compare results and gradients; `tolerance` is relative to each tensor's largest number."""
    for got, exact in zip(with_gradients(ours, *inputs), with_gradients(expected, *inputs), strict=True):
        largest = exact.abs().max().item() if exact.numel() else 0.0
        torch.testing.assert_close(got, exact, rtol=0, atol=tolerance * largest)


def norm_inputs(rows: int, columns: int) -> list[Tensor]:
    shapes = [(rows, columns), (columns,), (rows, columns), (columns,), (columns,)]
    return [torch.randn(shape) for shape in shapes]


def draw_ids(count: int, sizes: tuple[int, int, int]) -> tuple[Tensor, ...]:
    """Draw the rows of tokens in tables of these sizes."""
    return tuple(torch.randint(0, size, (count,)) for size in sizes)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tanh", [False, True])
def test_bias_gelu_equals_torch(shape: tuple[int, int], tanh: bool) -> None:
    inputs = (3 * torch.randn(shape), torch.randn(shape[1]))
    assert_same(lambda x, b: fused_ops.bias_gelu(x, b, tanh), lambda x, b: reference.bias_gelu(x, b, tanh), *inputs)


@needs_native  # torch's own is less accurate in the left tail
def test_bias_gelu_is_accurate_over_its_whole_range() -> None:
    x = torch.linspace(-14, 14, 100_001)[:, None].requires_grad_()
    y = fused_ops.bias_gelu(x, torch.zeros(1), tanh=False)
    (slope,) = torch.autograd.grad(y.sum(), x)
    exact = x.detach().double()
    density = torch.exp(-(exact**2) / 2) / (2 * torch.pi) ** 0.5
    cdf = torch.special.ndtr(exact)
    torch.testing.assert_close(y.double(), exact * cdf, rtol=1e-6, atol=1e-7)  # relative in the left tail as well
    torch.testing.assert_close(slope.double(), cdf + exact * density, rtol=0, atol=3e-7)


@needs_native
@pytest.mark.parametrize("tanh", [False, True])
def test_bias_gelu_in_bfloat16_is_rounded_once(tanh: bool) -> None:
    """The error before rounding, at most a sixteenth of a rounding, changes few results."""
    x = torch.linspace(-5, 5, 100_001).bfloat16().unique()[None].requires_grad_()
    y = fused_ops.bias_gelu(x, torch.zeros(x.shape[1]), tanh)
    (slope,) = torch.autograd.grad(y.sum(), x)
    exact_x = x.detach().double().requires_grad_()
    exact = F.gelu(exact_x, approximate="tanh" if tanh else "none")
    (exact_slope,) = torch.autograd.grad(exact.sum(), exact_x)
    torch.testing.assert_close(y.double(), exact, rtol=2**-8 + 2**-12, atol=0)
    torch.testing.assert_close(slope.double(), exact_slope, rtol=2**-8, atol=2**-11)
    assert (y != exact.bfloat16()).float().mean() < 0.02


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dropout", [None, DROPOUT])
def test_add_dropout_norm_equals_the_reference_implementation(shape: tuple[int, int], dropout: Dropout | None) -> None:
    def with_norm(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, b, r, w, c: function(x, b, r, LayerNormParams(w, c, 1e-12))

    ours = with_norm(lambda *inputs: fused_ops.add_dropout_norm(*inputs, dropout, 5))
    expected = with_norm(lambda *inputs: reference.add_dropout_norm(*inputs, mask_key(dropout, 5)))
    assert_same(ours, expected, *norm_inputs(*shape), tolerance=1e-5)


@needs_native
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_default_dtype_of_torch_changes_nothing(dtype: torch.dtype) -> None:
    """In bfloat16, scratch tensors of that type would be half as large as what the kernels write to them."""
    x, bias, residual, *norm = norm_inputs(130, 64)
    ids = torch.arange(130)
    rows = (ids, ids, ids % 2)
    weight, labels, boundaries = torch.randn(50, 64), ids % 50, torch.tensor([0, 60, 130]).int()

    def compute() -> list[Tensor]:
        leaves = [tensor.clone().requires_grad_() for tensor in (x, bias, residual, *norm, weight)]
        x_, bias_, residual_, norm_weight, norm_bias, weight_ = leaves
        norm_ = LayerNormParams(norm_weight, norm_bias, 1e-12)
        tables = EmbeddingTables(x_, residual_, weight_)
        states = fused_ops.embed_norm(rows, tables, norm_, DROPOUT, 0)
        states = fused_ops.bias_gelu(states, bias_, False)
        states = attention(states.repeat(1, 3).view(130, 3, 2, 32), boundaries, 70, DROPOUT, 1).flatten(1)
        states = fused_ops.add_dropout_norm(states, bias_, residual_, norm_, DROPOUT, 2)
        loss, correct = linear_cross_entropy(states, weight_, weight_[:, 0].contiguous(), labels)
        return [loss.detach(), correct, *torch.autograd.grad(loss, leaves)]

    expected = compute()
    torch.set_default_dtype(dtype)
    try:
        got = compute()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


@needs_native
@pytest.mark.parametrize("columns", [64, 77])
def test_layer_norm_of_a_large_mean_is_accurate(columns: int) -> None:
    """Finding L2: the mean's own rounding error; torch is three times less accurate."""
    rows = torch.full((2, columns), 1000.1)
    rows[1] = 1000 + torch.randn(columns)
    zeros, norm = torch.zeros(columns), LayerNormParams(torch.ones(columns), torch.zeros(columns), 1e-12)
    normed = fused_ops.add_dropout_norm(torch.zeros_like(rows), zeros, rows, norm, None, 0)
    assert not normed[0].any()
    exact = F.layer_norm(rows[1].double(), (columns,), eps=1e-12)
    torch.testing.assert_close(normed[1].double(), exact, rtol=0, atol=4e-5)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dropout", [None, DROPOUT])
def test_embed_norm_equals_the_reference_implementation(shape: tuple[int, int], dropout: Dropout | None) -> None:
    rows, columns = shape
    ids = draw_ids(rows, (50, 20, 2))
    tables = [torch.randn(size, columns) for size in (50, 20, 2)]
    assert_same(
        lambda a, p, t, w, c: fused_ops.embed_norm(
            ids, EmbeddingTables(a, p, t), LayerNormParams(w, c, 1e-12), dropout, 0
        ),
        lambda a, p, t, w, c: reference.embed_norm(
            ids, EmbeddingTables(a, p, t), LayerNormParams(w, c, 1e-12), mask_key(dropout, 0)
        ),
        *tables,
        torch.randn(columns),
        torch.randn(columns),
        tolerance=1e-5,
    )


@needs_native
@pytest.mark.parametrize("rows", [0, 1, 40])
def test_sparse_gradient_of_embeddings_equals_the_dense_one(rows: int) -> None:
    ids = draw_ids(rows, (500, 20, 2))
    tables = EmbeddingTables(*(torch.randn(size, 24).requires_grad_() for size in (500, 20, 2)))
    norm = LayerNormParams(torch.randn(24), torch.randn(24), 1e-12)
    found = []
    for sparse in (False, True):
        y = fused_ops.embed_norm(ids, tables, norm, DROPOUT, 0, sparse)
        found.append(torch.autograd.grad((y * y).sum(), tables))
    assert [gradient.is_sparse for gradient in found[1]] == [True, False, False]
    assert found[1][0].values().shape == (len(ids[0].unique()), 24)
    for dense, sparse_one in zip(*found, strict=True):
        assert torch.equal(dense, sparse_one.to_dense())


@needs_native
def test_embed_norm_with_an_id_outside_its_table_raises() -> None:
    ids = torch.tensor([0, 9])
    rows = (ids, ids, torch.zeros_like(ids))
    tables = EmbeddingTables(torch.randn(9, 8), torch.randn(20, 8), torch.randn(2, 8))
    with pytest.raises(ValueError, match=r"embed_norm.* 0 to 8.* 0 to 9"):
        fused_ops.embed_norm(rows, tables, LayerNormParams(torch.ones(8), torch.zeros(8), 1e-12), None, 0)


@given(st.integers(1, 40), st.integers(1, 70), st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 50))
@settings(max_examples=60)
def test_dropout_mask_equals_the_reference_implementation(
    rows: int, columns: int, seed: int, first: int, site: int
) -> None:
    dropout = Dropout(0.3, seed, first)
    x = torch.ones(rows, columns)
    assert torch.equal(fused_ops.dropout(x, dropout, site), reference.dropout(x, dropout.mask_key(site)))


def test_dropout_of_micro_batches_equals_that_of_the_batch() -> None:
    x = torch.randn(100, 33)
    whole = fused_ops.dropout(x, Dropout(0.5, 1), 2)
    micro_batches = [
        fused_ops.dropout(x[:60], Dropout(0.5, 1), 2),
        fused_ops.dropout(x[60:], Dropout(0.5, 1, first_token=60), 2),
    ]
    assert torch.equal(whole, torch.cat(micro_batches))


def test_dropout_masks_look_random() -> None:
    """Shares are within five standard deviations: of all, rows, columns, and pairs that must be independent."""
    rows, columns, rate = 2000, 256, 0.1
    numbers = torch.arange(rows)
    masks = [
        keep_mask(Dropout(rate, seed).mask_key(site), numbers, columns)
        for seed, site in [(1, 0), (1, 1), (2, 0), (2**40 + 1, 0)]
    ]

    def assert_random(share: Tensor, expected: float, count: int) -> None:
        assert (share - expected).abs().max() < 5 * (expected * (1 - expected) / count) ** 0.5

    for mask in masks:
        mask = mask.float()
        assert_random(mask.mean(), 1 - rate, rows * columns)
        assert_random(mask.mean(0), 1 - rate, rows)
        assert_random(mask.mean(1), 1 - rate, columns)
        both = (1 - rate) ** 2
        for shift in (1, 2, 8, 64):
            assert_random((mask[shift:] * mask[:-shift]).mean(), both, (rows - shift) * columns)
            assert_random((mask[:, shift:] * mask[:, :-shift]).mean(), both, rows * (columns - shift))
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert_random((one & other).float().mean(), (1 - rate) ** 2, rows * columns)


@pytest.mark.parametrize(("rows", "hidden", "vocabulary"), [(130, 64, 999), (7, 5, 3), (1, 8, 40), (0, 8, 40)])
@pytest.mark.parametrize("upstream", [1.0, 0.25])
def test_linear_cross_entropy_equals_torch(
    rows: int, hidden: int, vocabulary: int, upstream: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertwright.kernels.linear_cross_entropy.CHUNK_BYTES", {"cpu": 50 * vocabulary * 4})
    labels = torch.randint(0, vocabulary, (rows,))
    inputs = torch.randn(rows, hidden), torch.randn(vocabulary, hidden), torch.randn(vocabulary)
    leaves = [x.requires_grad_() for x in inputs]
    loss, correct = linear_cross_entropy(*inputs, labels, scale=0.01)
    logits = F.linear(*inputs)
    expected = 0.01 * F.cross_entropy(logits, labels, reduction="sum")
    torch.testing.assert_close(loss, expected)
    assert correct == (logits.argmax(-1) == labels).sum()
    got = torch.autograd.grad(upstream * loss, leaves)
    for one, other in zip(got, torch.autograd.grad(upstream * expected, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@needs_native
@pytest.mark.parametrize("rows", [0, 7, 300, 700])
def test_linear_cross_entropy_in_bfloat16_is_float32_rounded(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary, hidden = 999, 64
    monkeypatch.setattr("bertwright.kernels.linear_cross_entropy.CHUNK_BYTES", {"cpu": 400 * vocabulary * 2})
    labels = torch.randint(0, vocabulary, (rows,))
    states, weight, bias = torch.randn(rows, hidden), torch.randn(vocabulary, hidden) / 8, torch.randn(vocabulary)
    halves = states.bfloat16().requires_grad_(), weight.requires_grad_(), bias.requires_grad_()
    loss, correct = linear_cross_entropy(*halves, labels)
    floats = [halves[0].detach().float().requires_grad_(), weight.bfloat16().float().detach().requires_grad_(), bias]
    logits = F.linear(*floats)
    expected = F.cross_entropy(logits, labels, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=2e-3, atol=0)
    assert abs(correct - (logits.argmax(-1) == labels).sum()) <= rows // 50
    for got, exact in zip(torch.autograd.grad(loss, halves), torch.autograd.grad(expected, floats), strict=True):
        assert (got.float() - exact).norm() <= 2**-6 * exact.norm()


@needs_native
@pytest.mark.parametrize(
    ("rows", "in_features", "out_features"),
    [(0, 8, 8), (0, 32, 64), (1, 64, 24), (255, 40, 8), (425, 128, 96), (1100, 33, 77)],
)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("native_linear", [False, True])
def test_linear_in_bfloat16_equals_torch(
    rows: int,
    in_features: int,
    out_features: int,
    with_bias: bool,
    native_linear: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sums are float32 in another order, so the error is that of one rounding to 8 bits."""
    if not native_linear:  # as on a processor without bfloat16 units
        monkeypatch.setattr(fused_ops, "uses_native_linear", lambda weight: False)
    x, weight = torch.randn(rows, in_features).bfloat16(), torch.randn(out_features, in_features).bfloat16()
    inputs = (x, weight, torch.randn(out_features).bfloat16()) if with_bias else (x, weight)
    for got, expected in zip(with_gradients(fused_ops.linear, *inputs), with_gradients(F.linear, *inputs), strict=True):
        assert got.dtype == torch.bfloat16
        assert got.shape == expected.shape
        assert (got.float() - expected.float()).norm() <= 2**-8 * expected.float().norm()


@pytest.mark.bfloat16
@given(
    rows=st.integers(0, 520),
    features=st.tuples(*[st.integers(1, 9).map(lambda tiles: 32 * tiles)] * 2),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    needed=st.tuples(*[st.booleans()] * 3),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
@example(rows=512, features=(32, 32), dtype=torch.float32, needed=(True, True, True), threads=2, seed=0)
@settings(deadline=None, max_examples=100)
def test_products_of_small_integers_are_exact(
    rows: int, features: tuple[int, int], dtype: torch.dtype, needed: tuple[bool, bool, bool], threads: int, seed: int
) -> None:
    """Small integers have exact sums: every product of a layer must be right to the last bit."""
    torch.set_num_threads(threads)
    numbers = torch.Generator().manual_seed(seed)
    in_features, out_features = features
    x, dy, weight, bias = (
        torch.randint(-3, 4, shape, generator=numbers).double()
        for shape in ((rows, in_features), (rows, out_features), (out_features, in_features), (out_features,))
    )
    inputs = x.bfloat16(), weight.to(dtype), bias.to(dtype)
    assert torch.equal(cpu_linear.linear_forward(*inputs), (x @ weight.T + bias).bfloat16())
    gradients = cpu_linear.linear_backward(dy.bfloat16(), *inputs[:2], needed)
    exact = (dy @ weight).bfloat16(), (dy.T @ x).float(), dy.sum(0).float()
    for got, expected, is_needed in zip(gradients, exact, needed, strict=True):
        assert got is None if not is_needed else got is not None and torch.equal(got, expected)


@pytest.mark.bfloat16
def test_tile_registers_are_requested_when_the_library_is_loaded() -> None:
    """Linux kills a process that uses them without permission."""
    program = "import torch; from bertwright.kernels.cpu_linear import linear_forward; x = torch.ones(32, 32); "
    program += "print(linear_forward(x.bfloat16(), x, None).sum().item())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "32768.0\n"), done.stderr


@pytest.mark.bfloat16
def test_numbers_that_are_not_finite_stay_in_their_row() -> None:
    x, weight = torch.ones(65, 64).bfloat16(), torch.ones(32, 64)
    x[3, 5], x[64, 0] = torch.inf, torch.nan
    y = cpu_linear.linear_forward(x, weight, None)
    assert y[3].isinf().all()
    assert y[64].isnan().all()
    assert (y[4:64] == 64).all()


@pytest.mark.bfloat16
@given(first=st.integers(0, 150), rows=st.integers(1, 150), threads=st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_a_row_does_not_depend_on_the_others_or_its_position(first: int, rows: int, threads: int) -> None:
    """A text has the same outputs in any batch."""
    numbers = torch.Generator().manual_seed(5)
    x, weight = torch.randn(300, 160, generator=numbers).bfloat16(), torch.randn(96, 160, generator=numbers)
    torch.set_num_threads(threads)
    selected = slice(first, first + rows)
    assert torch.equal(
        cpu_linear.linear_forward(x[selected], weight, None), cpu_linear.linear_forward(x, weight, None)[selected]
    )


@pytest.mark.bfloat16
def test_gradients_of_float32_weights_are_not_rounded() -> None:
    x, weight = torch.randn(200, 64).bfloat16(), torch.randn(96, 64, requires_grad=True)
    upstream = torch.randn(200, 96).bfloat16()
    dweight = torch.autograd.grad(fused_ops.linear(x, weight), weight, upstream)[0]
    torch.testing.assert_close(dweight, upstream.float().T @ x.float(), rtol=0, atol=1e-4)
    assert not torch.equal(dweight, dweight.bfloat16().float())


@needs_native
def test_linear_computes_only_the_gradients_that_are_needed() -> None:
    x, weight = torch.randn(300, 16).bfloat16(), torch.randn(8, 16).bfloat16().requires_grad_()
    dweight = torch.autograd.grad(fused_ops.linear(x, weight).sum(), weight)[0]
    torch.testing.assert_close(dweight, x.sum(0).expand(8, 16), rtol=0.01, atol=0.1)
    x.requires_grad_()
    dx = torch.autograd.grad(fused_ops.linear(x, weight.detach()).sum(), x)[0]
    torch.testing.assert_close(dx, weight.detach().sum(0).expand(300, 16), rtol=0.01, atol=0.01)


@needs_native
@given(rows=st.integers(0, 200), columns=st.integers(0, 200), gap=st.integers(0, 3), threads=st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_transpose_moves_every_number_and_zeros_the_gaps(rows: int, columns: int, gap: int, threads: int) -> None:
    torch.set_num_threads(threads)
    numbers = torch.arange(rows * (columns + gap), dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = numbers.view(rows, columns + gap)[:, :columns]
    y = cpu_linear.transpose(x)
    assert torch.equal(y.view(torch.int16), x.T.view(torch.int16))
    assert y._base is not None
    assert not y._base[:, rows:].any()  # the gaps


def test_pad_rows_makes_few_shapes_and_appends_zeros() -> None:
    heights = set()
    for rows in range(1, 4097):
        padded = cpu_linear.pad_rows(torch.ones(rows, 1))
        assert rows <= len(padded) <= max(rows + 15, rows * 17 / 16)
        assert padded.sum() == rows
        assert (padded[:rows] == 1).all()
        heights.add(len(padded))
    assert len(heights) <= 96


class LargestResult(TorchDispatchMode):
    """Records the size in elements of the largest tensor that an operation allocates."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not func.is_view:
            self.elements = max(self.elements, result.numel())
        return result


@pytest.mark.parametrize("grad", [False, True])
def test_linear_cross_entropy_allocates_gradients_only_for_a_backward_pass(grad: bool) -> None:
    rows, columns, size = 4, 500, 64
    hidden, weight = torch.randn(rows, size), torch.randn(columns, size, requires_grad=True)
    with torch.set_grad_enabled(grad), LargestResult() as largest:
        linear_cross_entropy(hidden, weight, torch.zeros(columns), torch.arange(rows))
    assert largest.elements == (columns * size if grad else columns * rows)


def test_linear_cross_entropy_equals_the_result_by_hand() -> None:
    """Two classes, logits 0 and ln 3: probabilities 1/4 and 3/4."""
    hidden = torch.tensor([[1.0]], requires_grad=True)
    weight, bias = torch.zeros(2, 1), torch.tensor([0.0, math.log(3)], requires_grad=True)
    loss, correct = linear_cross_entropy(hidden, weight, bias, torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(4))
    assert correct == 0
    assert bias.grad is not None
    assert bias.grad.tolist() == pytest.approx([-0.75, 0.75])


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_bias_gelu_of_what_is_not_finite_is_not_finite(bad: float, dtype: torch.dtype, tanh: bool) -> None:
    """Finding L8: gelu(-inf) may be -inf instead of torch's NaN; the check for finite losses detects both."""
    x = torch.full((1, 20), bad, dtype=dtype)
    assert not fused_ops.bias_gelu(x, torch.zeros(20), tanh).isfinite().any()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_reach_the_result(bad: float) -> None:
    x = torch.randn(3, 16)
    x[1, 4] = bad
    zeros, ones = torch.zeros(16), torch.ones(16)
    gelu = fused_ops.bias_gelu(x, zeros, tanh=False)
    normed = fused_ops.add_dropout_norm(x, zeros, torch.zeros(3, 16), LayerNormParams(ones, zeros, 1e-12), None, 0)
    loss, _ = linear_cross_entropy(x, torch.randn(5, 16), torch.zeros(5), torch.tensor([0, 1, 2]))
    assert not gelu[1, 4].isfinite()
    assert not normed[1].isfinite().any()
    assert not loss.isfinite()
    assert gelu[[0, 2]].isfinite().all()
    assert normed[[0, 2]].isfinite().all()
    assert not math.isfinite(gradient_norm([x]))


@needs_native
@pytest.mark.parametrize("bits", [0x7FC00001, 0x7FC001FF, 0x7F800001, 0xFFC12345 - 2**32])
def test_nan_with_any_payload_stays_nan(bits: int) -> None:
    """Corrupted memory may contain one; the exponential works on the bits of its argument (finding M6)."""
    nan = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    logits = torch.randn(2, 40)
    logits[0, 3] = logits[1, 39] = nan
    losses, _ = cross_entropy_(logits, torch.zeros(40), torch.tensor([0, 1]), 1.0, None)
    assert losses.isnan().all()
    qkv = torch.randn(4, 3, 1, 8)
    qkv[2, 0, 0, 5] = nan
    assert attention(qkv, torch.tensor([0, 4], dtype=torch.int32), 4, None, 0)[2].isnan().all()
    for tanh in (False, True):
        assert fused_ops.bias_gelu(nan.expand(1, 20).clone(), torch.zeros(20), tanh).isnan().all()


@needs_native
def test_correct_is_the_first_of_equal_logits() -> None:
    logits = torch.zeros(4, 33)
    logits[0, [2, 20]] = logits[1, [2, 20]] = logits[2, 32] = 1.0
    _, correct = cross_entropy_(logits, torch.zeros(33), torch.tensor([2, 20, 32, 1]), 1.0, None)
    assert correct.tolist() == [1, 0, 1, 0]


@needs_native
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    inputs = norm_inputs(300, 96)
    ids = draw_ids(300, (50, 20, 2))
    tables, numbers = [torch.randn(size, 96) for size in (50, 20, 2)], torch.randn(99_999)

    def run_all() -> list[Tensor]:
        normed = with_gradients(
            lambda x, b, r, w, c: fused_ops.add_dropout_norm(x, b, r, LayerNormParams(w, c, 1e-12), DROPOUT, 5), *inputs
        )
        gelu = with_gradients(lambda x, b: fused_ops.bias_gelu(x, b, False), *inputs[:2])
        embedded = with_gradients(
            lambda a, p, t, w: fused_ops.embed_norm(
                ids, EmbeddingTables(a, p, t), LayerNormParams(w, w, 1e-12), DROPOUT, 0
            ),
            *tables,
            inputs[1],
        )
        is_native = ffi.bf16_isa() is not None  # otherwise torch computes it, which does not guarantee this
        layer = (inputs[0].bfloat16(), torch.eye(160, 96) + 1 / 3, torch.ones(160))
        dense = with_gradients(fused_ops.linear, *layer) if is_native else []
        return [*normed, *gelu, *embedded, *dense, gradient_norm([numbers])]

    torch.set_num_threads(1)
    expected = run_all()
    torch.set_num_threads(threads)
    assert all(map(torch.equal, run_all(), expected))


@needs_native
def test_results_in_bfloat16_are_float32_rounded() -> None:
    x, b, r, w, c = (tensor.bfloat16() for tensor in norm_inputs(40, 72))
    got = fused_ops.add_dropout_norm(x, b, r, LayerNormParams(w, c, 1e-12), DROPOUT, 1)
    floats = x.float(), b.float(), r.float(), LayerNormParams(w.float(), c.float(), 1e-12)
    assert torch.equal(got, reference.add_dropout_norm(*floats, DROPOUT.mask_key(1)).bfloat16())
    gelu = with_gradients(lambda x, b: fused_ops.bias_gelu(x, b, False), x, b)
    expected = with_gradients(lambda x, b: reference.bias_gelu(x, b, False), x.float(), b.float())
    for one, other in zip(gelu, expected, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0.02, atol=0.02)


def test_reference_implementations_preserve_the_dtype_of_a_state() -> None:
    x, b, r, w, c = norm_inputs(40, 72)
    x, r = x.bfloat16(), r.bfloat16()
    for found, exact in (
        (reference.bias_gelu(x, b, False), reference.bias_gelu(x.float(), b, False)),
        (
            reference.add_dropout_norm(x, b, r, LayerNormParams(w, c, 1e-12), DROPOUT.mask_key(1)),
            reference.add_dropout_norm(x.float(), b, r.float(), LayerNormParams(w, c, 1e-12), DROPOUT.mask_key(1)),
        ),
    ):
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, exact.bfloat16())


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("shape", [(70_001,), (3, 5)])
def test_adamw_equals_torch(shape: tuple[int, ...], corrected: bool) -> None:
    parameter = torch.nn.Parameter(torch.randn(shape))
    theirs = torch.nn.Parameter(parameter.detach().clone())
    optimizer = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1)
    moments = torch.zeros(shape), torch.zeros(shape)
    expected = parameter.detach().clone(), torch.zeros(shape), torch.zeros(shape)
    for number in range(1, 4):
        gradient = torch.randn(shape)
        step = AdamStep(0.01, 0.9, 0.99, 1e-6, 0.1, clip_scale=0.5)
        if corrected:
            step = step._replace(correction1=1 - 0.9**number, correction2=1 - 0.99**number)
        theirs.grad = 0.5 * gradient
        adamw_([parameter], [gradient.clone()], *([moment] for moment in moments), step)
        reference.adamw_(*([tensor] for tensor in (expected[0], gradient, *expected[1:])), step)
        optimizer.step()
    torch.testing.assert_close(parameter.detach(), expected[0], rtol=1e-6, atol=1e-6)
    if corrected:
        torch.testing.assert_close(parameter, theirs, rtol=1e-5, atol=1e-6)


def test_tensors_without_native_kernels_compile_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertwright.kernels.native_library.load_library", lambda name: pytest.fail("compiled"))
    assert not use_native(torch.empty(2, device="meta"))
    assert not use_native(torch.empty(2, dtype=torch.float64))


def test_gradient_norm_is_the_norm_of_all_gradients_together() -> None:
    gradients = [torch.randn(100, 1001), torch.randn(7), torch.randn(())]
    expected = torch.cat([gradient.flatten() for gradient in gradients]).double().norm().item()
    assert float(gradient_norm(gradients)) == pytest.approx(expected, rel=1e-12)
    assert gradient_norm([]) == 0.0
