"""Attention over packed sequences, every backend against a loop over the sequences one by one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertwright import native
from bertwright.models import twins
from bertwright.models.attention import attention, jagged_attention
from bertwright.models.kernels import Dropout

needs_native = pytest.mark.skipif(native.library("attention") is None, reason="no C++ compiler: the twin serves")


def packed(lengths: list[int], heads: int, size: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(sum(lengths), 3, heads, size, generator=generator)
    return qkv, torch.tensor([0, *lengths]).cumsum(0).int()


def one_by_one(qkv: Tensor, cu_seqlens: Tensor, causal: bool) -> Tensor:
    """The slow twin of both twins: torch's own attention on each sequence alone."""
    contexts = []
    for first, last in zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:], strict=False):
        query, key, value = qkv[first:last].permute(1, 2, 0, 3)
        contexts.append(F.scaled_dot_product_attention(query, key, value, is_causal=causal).transpose(0, 1))
    return torch.cat(contexts)


def with_gradient(function, qkv: Tensor, *arguments) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    leaf = qkv.clone().requires_grad_()
    context = function(leaf, *arguments)
    upstream = torch.randn(context.shape, generator=torch.Generator().manual_seed(2)).to(context.dtype)
    return context.detach(), torch.autograd.grad(context, leaf, upstream)[0]


def assert_near(got: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], tolerance: float = 3e-6) -> None:
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * other.abs().max().item())


LENGTHS = st.lists(st.integers(1, 90), min_size=1, max_size=5)


@given(LENGTHS, st.integers(1, 3), st.sampled_from([8, 16, 24, 64, 128, 5]), st.booleans())
@settings(max_examples=40)
def test_is_attention_of_each_sequence_alone(lengths: list[int], heads: int, size: int, causal: bool) -> None:
    qkv, cu_seqlens = packed(lengths, heads, size)
    got = with_gradient(attention, qkv, cu_seqlens, max(lengths), None, 0, causal)
    assert_near(got, with_gradient(one_by_one, qkv, cu_seqlens, causal))


@given(LENGTHS, st.sampled_from([8, 40, 64]), st.booleans(), st.integers(0, 2**64 - 1), st.integers(0, 2**34))
@settings(max_examples=40)
def test_dropout_is_the_twins(lengths: list[int], size: int, causal: bool, seed: int, first_token: int) -> None:
    qkv, cu_seqlens = packed(lengths, 2, size)
    arguments = (cu_seqlens, max(lengths), Dropout(0.2, seed, first_token), 3, causal)
    assert_near(with_gradient(attention, qkv, *arguments), with_gradient(twins.attention, qkv, *arguments), 5e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_long_sequences(causal: bool) -> None:
    qkv, cu_seqlens = packed([700, 512, 1], 1, 32)
    got = with_gradient(attention, qkv, cu_seqlens, 700, None, 0, causal)
    assert_near(got, with_gradient(one_by_one, qkv, cu_seqlens, causal))


def test_dropout_drops_weights_at_its_rate() -> None:
    """With equal weights and values of one, each output is the kept share × 1 / (1 - rate), whose mean is 1."""
    qkv, cu_seqlens = packed([400], 4, 8)
    qkv[:, :2], qkv[:, 2] = 0.0, 1.0
    context = attention(qkv, cu_seqlens, 400, Dropout(0.25, 11), 0)[:, :, 0]
    assert context.mean().item() == pytest.approx(1.0, abs=0.003)  # 640,000 draws: standard deviation 0.0007
    assert context.std().item() == pytest.approx((0.25 / 0.75 / 400) ** 0.5, rel=0.1)


@pytest.mark.parametrize("dropout", [None, Dropout(0.1, 5)])
def test_companions_and_micro_batches_change_nothing(dropout: Dropout | None) -> None:
    qkv, cu_seqlens = packed([30, 17, 64], 2, 16)
    whole = attention(qkv, cu_seqlens, 64, dropout, 1)
    later = dropout._replace(first_token=30) if dropout else None
    alone = attention(qkv[30:47].clone(), torch.tensor([0, 17], dtype=torch.int32), 17, later, 1)
    torch.testing.assert_close(whole[30:47], alone, rtol=1e-6, atol=1e-6)


def test_numbers_that_are_not_finite_stay_in_their_sequence() -> None:
    qkv, cu_seqlens = packed([5, 9], 2, 8)
    qkv[2, 1, 0, 3] = torch.nan
    context = attention(qkv, cu_seqlens, 9, None, 0)
    assert context[:5, 0].isnan().all()
    assert context[:5, 1].isfinite().all()
    assert context[5:].isfinite().all()


@needs_native
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_bits_do_not_depend_on_threads(threads: int) -> None:
    before = torch.get_num_threads()
    qkv, cu_seqlens = packed([3, 128, 50, 77], 3, 40)
    arguments = (cu_seqlens, 128, Dropout(0.1, 5), 0, False)
    try:
        torch.set_num_threads(1)
        alone = with_gradient(attention, qkv, *arguments)
        torch.set_num_threads(threads)
        assert all(map(torch.equal, with_gradient(attention, qkv, *arguments), alone))
    finally:
        torch.set_num_threads(before)


@needs_native
def test_bfloat16_is_float32_inside() -> None:
    qkv, cu_seqlens = packed([40, 9], 2, 64)
    qkv = qkv.bfloat16()
    context, gradient = with_gradient(attention, qkv, cu_seqlens, 40, None, 0)
    exact, exact_gradient = with_gradient(attention, qkv.float(), cu_seqlens, 40, None, 0)
    assert context.dtype == gradient.dtype == torch.bfloat16
    torch.testing.assert_close(context, exact.bfloat16())
    torch.testing.assert_close(gradient.float(), exact_gradient, rtol=0.02, atol=0.02)


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_jagged_backend_is_the_same_function() -> None:
    """The path of CUDA, on CPU, where PyTorch's nested attention wants Q, K and V contiguous."""
    lengths = [5, 17, 3]
    qkv, cu_seqlens = packed(lengths, 2, 16)
    qkv = qkv.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(
        jagged_attention(qkv, cu_seqlens, 17, None, 0, causal=False),
        one_by_one(qkv, cu_seqlens, False),
        rtol=0,
        atol=2e-6,
    )
