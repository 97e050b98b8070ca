"""Attention over packed sequences: every backend against PyTorch's attention on each sequence alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from gradients import with_gradients
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertwright.kernels import native_library, reference
from bertwright.kernels.attention import attention, biased_attention, windowed_attention
from bertwright.kernels.dropout import Dropout, mask_key

needs_native = pytest.mark.skipif(native_library.load_library("kernels") is None, reason="no native kernels")


def random_qkv(lengths: list[int], heads: int, size: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(sum(lengths), 3, heads, size, generator=generator)
    return qkv, torch.tensor([0, *lengths]).cumsum(0).int()


def one_by_one(qkv: Tensor, cu_seqlens: Tensor, causal: bool) -> Tensor:
    """Compute torch's own attention on each sequence alone."""
    contexts = []
    for first, last in zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:], strict=False):
        query, key, value = qkv[first:last].permute(1, 2, 0, 3)
        contexts.append(F.scaled_dot_product_attention(query, key, value, is_causal=causal).transpose(0, 1))
    return torch.cat(contexts)


def reference_attention(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout: Dropout | None, site: int, causal: bool
) -> Tensor:
    sequences = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return reference.attention(*qkv.unbind(1), *sequences, mask_key(dropout, site), causal)


def assert_near(got: list[Tensor], expected: list[Tensor], tolerance: float = 3e-6) -> None:
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance * other.abs().max().item())


LENGTHS = st.lists(st.integers(1, 90), min_size=1, max_size=5)


@given(LENGTHS, st.integers(1, 3), st.sampled_from([8, 16, 24, 64, 128, 5]), st.booleans())
@settings(max_examples=40)
def test_attention_equals_that_of_each_sequence_alone(lengths: list[int], heads: int, size: int, causal: bool) -> None:
    qkv, cu_seqlens = random_qkv(lengths, heads, size)
    got = with_gradients(attention, qkv, cu_seqlens, max(lengths), None, 0, causal)
    assert_near(got, with_gradients(one_by_one, qkv, cu_seqlens, causal))


@pytest.mark.parametrize("causal", [False, True])
def test_long_sequences_equal_those_alone(causal: bool) -> None:
    qkv, cu_seqlens = random_qkv([700, 512, 1], 1, 32)
    got = with_gradients(attention, qkv, cu_seqlens, 700, None, 0, causal)
    assert_near(got, with_gradients(one_by_one, qkv, cu_seqlens, causal))


def test_dropout_drops_weights_at_its_rate() -> None:
    """With equal weights and values of 1, each output is the share that stays × 1 / (1 - rate); its mean is 1."""
    qkv, cu_seqlens = random_qkv([400], 4, 8)
    qkv[:, :2], qkv[:, 2] = 0.0, 1.0
    context = attention(qkv, cu_seqlens, 400, Dropout(0.25, 11), 0)[:, :, 0]
    assert context.mean().item() == pytest.approx(1.0, abs=0.003)  # 640,000 draws: standard deviation 0.0007
    assert context.std().item() == pytest.approx((0.25 / 0.75 / 400) ** 0.5, rel=0.1)


@pytest.mark.parametrize("dropout", [None, Dropout(0.1, 5)])
def test_a_sequence_does_not_depend_on_its_batch_or_micro_batch(dropout: Dropout | None) -> None:
    qkv, cu_seqlens = random_qkv([30, 17, 64], 2, 16)
    whole = attention(qkv, cu_seqlens, 64, dropout, 1)
    later = dropout._replace(first_token=30) if dropout else None
    alone = attention(qkv[30:47].clone(), torch.tensor([0, 17], dtype=torch.int32), 17, later, 1)
    torch.testing.assert_close(whole[30:47], alone, rtol=1e-6, atol=1e-6)


def test_nan_stays_in_its_sequence_and_head() -> None:
    qkv, cu_seqlens = random_qkv([5, 9], 2, 8)
    qkv[2, 1, 0, 3] = torch.nan
    context = attention(qkv, cu_seqlens, 9, None, 0)
    assert context[:5, 0].isnan().all()
    assert context[:5, 1].isfinite().all()
    assert context[5:].isfinite().all()


@pytest.mark.parametrize("function", [attention, reference_attention])
@pytest.mark.parametrize("lengths", [[0, 11, 4], [5, 0, 0, 3], [7, 0]])
def test_an_empty_sequence_changes_nothing(function: Callable[..., Tensor], lengths: list[int]) -> None:
    qkv, cu_seqlens = random_qkv(lengths, 2, 16)
    got = with_gradients(function, qkv, cu_seqlens, max(lengths), None, 0, False)
    _, without = random_qkv([length for length in lengths if length], 2, 16)
    assert_near(got, with_gradients(function, qkv, without, max(lengths), None, 0, False))
    assert got[1].isfinite().all()


@needs_native
@pytest.mark.parametrize("head_size", [8, 32, 40, 64, 128])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dropout", [None, Dropout(0.1, 5)])
def test_bfloat16_is_within_a_few_roundings_of_float32(head_size: int, causal: bool, dropout: Dropout | None) -> None:
    """All sums are float32: the error is a few roundings to 8 bits, whatever the length of the sequence."""
    for lengths in ([1, 31, 32], [33, 0, 2], [129, 300], [513]):
        qkv, cu_seqlens = random_qkv(lengths, 2, head_size)
        qkv = qkv.bfloat16()
        context, gradient = with_gradients(attention, qkv, cu_seqlens, max(lengths), dropout, 3, causal)
        exact, exact_gradient = with_gradients(attention, qkv.float(), cu_seqlens, max(lengths), dropout, 3, causal)
        assert context.dtype == gradient.dtype == torch.bfloat16
        for got, expected in ((context, exact), (gradient, exact_gradient)):
            assert (got.float() - expected).norm() < 2**-8 * expected.norm(), lengths
            assert (got.float() - expected).abs().max() < 2**-6 * expected.abs().max(), lengths


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_cuda_kernels_equal_attention_of_each_sequence_alone(dtype: torch.dtype, causal: bool) -> None:
    lengths = [5, 170, 3]
    qkv, cu_seqlens = random_qkv(lengths, 2, 64)
    exact = with_gradients(one_by_one, qkv, cu_seqlens, causal)
    got = with_gradients(lambda x: attention(x.to("cuda", dtype), cu_seqlens.cuda(), 170, None, 0, causal).cpu(), qkv)
    for one, other in zip(got, exact, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0, atol=(1e-5 if dtype == torch.float32 else 0.03))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_cuda_dropout_depends_on_its_key_and_drops_at_its_rate() -> None:
    qkv, cu_seqlens = random_qkv([400], 4, 8)
    qkv[:, :2], qkv[:, 2] = 0.0, 1.0
    operands = qkv.cuda(), cu_seqlens.cuda(), 400
    first, again, other = (attention(*operands, Dropout(0.25, seed), 0) for seed in (11, 11, 12))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.mean().item() == pytest.approx(1.0, abs=0.003)


# ---- A bias by distance


def reference_biased(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, bias: Tensor, dropout: Dropout | None, site: int
) -> Tensor:
    sequences = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return reference.attention(*qkv.unbind(1), *sequences, mask_key(dropout, site), False, bias)


def test_reference_of_a_bias_adds_a_mask_to_the_scores() -> None:
    qkv, cu_seqlens = random_qkv([7], 2, 8)
    bias = torch.randn(2, 13, generator=torch.Generator().manual_seed(3))
    query, key, value = qkv.permute(1, 2, 0, 3)
    mask = torch.stack([torch.stack([bias[:, 6 + k - q] for k in range(7)], 1) for q in range(7)], 1)  # A 7 7
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(0, 1)
    torch.testing.assert_close(reference_biased(qkv, cu_seqlens, 7, bias, None, 0), expected)


@given(LENGTHS, st.sampled_from([8, 24, 64, 5]), st.integers(0, 3), st.sampled_from([0.0, 0.2]))
@settings(max_examples=30)
def test_bias_and_its_gradient_equal_the_reference(lengths: list[int], size: int, beyond: int, rate: float) -> None:
    qkv, cu_seqlens = random_qkv(lengths, 2, size)
    longest, dropout = max(lengths), Dropout(rate, 7, 40) if rate else None
    bias = torch.randn(2, 2 * (longest - 1 + beyond) + 1, generator=torch.Generator().manual_seed(3))
    got = with_gradients(biased_attention, qkv, cu_seqlens, longest, bias, dropout, 3)
    expected = with_gradients(reference_biased, qkv, cu_seqlens, longest, bias, dropout, 3)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=5e-6 * max(1.0, other.abs().max().item()))


@needs_native
def test_bias_in_bfloat16_is_close_to_float32() -> None:
    qkv, cu_seqlens = random_qkv([200, 31, 512], 2, 32)
    bias = torch.randn(2, 1023, generator=torch.Generator().manual_seed(3))
    exact = with_gradients(biased_attention, qkv, cu_seqlens, 512, bias, None, 0)
    rounded = with_gradients(biased_attention, qkv.bfloat16(), cu_seqlens, 512, bias, None, 0)
    for one, other in zip(rounded, exact, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=0, atol=0.02 * other.abs().max().item())


def test_bias_of_too_few_distances_is_rejected() -> None:
    qkv, cu_seqlens = random_qkv([7], 2, 8)
    with pytest.raises(ValueError, match="a bias of 2 heads up to distance 6"):
        biased_attention(qkv, cu_seqlens, 7, torch.zeros(2, 11), None, 0)


# ---- Windows


def masked_by_window(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, window: int, dropout: Dropout | None, site: int
) -> Tensor:
    """Compute torch's own attention on each sequence alone, with a mask of the window."""
    contexts = []
    for first, last in zip(cu_seqlens.tolist(), cu_seqlens.tolist()[1:], strict=False):
        query, key, value = qkv[first:last].permute(1, 2, 0, 3)
        position = torch.arange(last - first)
        near = (position[:, None] - position).abs() <= window
        contexts.append(F.scaled_dot_product_attention(query, key, value, attn_mask=near).transpose(0, 1))
    return torch.cat(contexts)


def reference_windowed(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, window: int, dropout: Dropout | None, site: int
) -> Tensor:
    return reference.windowed_attention(qkv, cu_seqlens, max_seqlen, window, mask_key(dropout, site))


@pytest.mark.parametrize("function", [windowed_attention, reference_windowed])
@given(LENGTHS, st.integers(1, 40), st.sampled_from([8, 24, 64, 5]))
@settings(max_examples=30)
def test_windows_equal_a_mask(function: Callable[..., Tensor], lengths: list[int], window: int, size: int) -> None:
    qkv, cu_seqlens = random_qkv(lengths, 2, size)
    arguments = (cu_seqlens, max(lengths), window, None, 0)
    assert_near(with_gradients(function, qkv, *arguments), with_gradients(masked_by_window, qkv, *arguments))


@pytest.mark.parametrize("lengths", [[700, 33], [64, 65, 66, 130, 0]])
def test_windows_have_the_masks_of_the_reference(lengths: list[int]) -> None:
    qkv, cu_seqlens = random_qkv(lengths, 2, 16)
    arguments = (cu_seqlens, max(lengths), 64, Dropout(0.2, 7, 40), 3)
    assert_near(
        with_gradients(windowed_attention, qkv, *arguments), with_gradients(reference_windowed, qkv, *arguments), 5e-6
    )


def test_a_window_as_wide_as_the_sequence_hides_nothing() -> None:
    qkv, cu_seqlens = random_qkv([70, 40], 2, 16)
    assert torch.equal(windowed_attention(qkv, cu_seqlens, 70, 69, None, 0), attention(qkv, cu_seqlens, 70, None, 0))
    with pytest.raises(ValueError, match="a window of at least 1 token, got 0"):
        windowed_attention(qkv, cu_seqlens, 70, 0, None, 0)


@needs_native
@pytest.mark.parametrize("dropout", [None, Dropout(0.1, 5)])
def test_windows_in_bfloat16_are_close_to_float32(dropout: Dropout | None) -> None:
    for lengths, window, size in (([200, 31, 513], 33, 32), ([129, 70], 16, 40)):
        qkv, cu_seqlens = random_qkv(lengths, 2, size)
        qkv = qkv.bfloat16()
        arguments = (cu_seqlens, max(lengths), window, dropout, 3)
        exact = with_gradients(windowed_attention, qkv.float(), *arguments)
        for got, expected in zip(with_gradients(windowed_attention, qkv, *arguments), exact, strict=True):
            assert (got.float() - expected).norm() < 2**-8 * expected.norm(), lengths
