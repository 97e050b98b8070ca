"""Attention to other sequences: every backend against PyTorch's attention of each pair of sequences alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gradients import with_gradients
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bertwright.kernels import native_library, reference
from bertwright.kernels.attention import (
    attention,
    check_sequences,
    covers_all_tokens,
    cross_attention,
    cuda_attention,
    split,
)
from bertwright.kernels.dropout import Dropout, mask_key

needs_native = pytest.mark.skipif(native_library.load_library("kernels") is None, reason="no native kernels")
Lengths = list[tuple[int, int]]  # queries and keys of each sequence
LENGTHS = st.lists(st.tuples(st.integers(0, 70), st.integers(0, 70)), min_size=1, max_size=5)
SIZES = st.sampled_from([8, 24, 64, 5])


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int()


def random_operands(lengths: Lengths, heads: int, size: int) -> tuple[list[Tensor], tuple[Any, ...]]:
    """Return q and kv, and the offsets and maximum lengths of both."""
    generator = torch.Generator().manual_seed(1)
    queries, keys = ([*side] for side in zip(*lengths, strict=True))
    q = torch.randn(sum(queries), heads, size, generator=generator)
    kv = torch.randn(sum(keys), 2, heads, size, generator=generator)
    return [q, kv], (offsets(queries), offsets(keys), max(queries), max(keys))


def visible_keys(queries: int, keys: int, causal: bool) -> Tensor:
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries if causal else keys)


def one_by_one(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_kv: Tensor, *_: object, causal: bool = False
) -> Tensor:
    """Compute torch's own attention on each pair of sequences alone; a query without keys has the result 0."""
    contexts = []
    for queries, stacked in zip(
        q.split(cu_seqlens_q.diff().tolist()), kv.split(cu_seqlens_kv.diff().tolist()), strict=True
    ):
        query, key, value = (x.transpose(0, 1) for x in (queries, *stacked.unbind(1)))
        visible = visible_keys(len(queries), len(stacked), causal)
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=visible).transpose(0, 1)
        contexts.append(
            torch.where(visible.any(1)[:, None, None], context, 0.0) if len(stacked) else queries * 0 + stacked.sum()
        )
    return torch.cat(contexts)


def reference_attention(
    q: Tensor, kv: Tensor, *sequences: Any, dropout: Dropout | None = None, site: int = 0, causal: bool = False
) -> Tensor:
    q, k, v = split((q, kv))
    return reference.attention(q, k, v, *sequences, mask_key(dropout, site), causal)


def assert_near(got: list[Tensor], expected: list[Tensor], tolerance: float = 5e-6) -> None:
    for actual, exact in zip(got, expected, strict=True):
        largest = exact.abs().max().item() if exact.numel() else 1.0
        torch.testing.assert_close(actual, exact, rtol=0, atol=tolerance * max(largest, 1.0))


@pytest.mark.parametrize("function", [cross_attention, reference_attention])
@given(LENGTHS, st.integers(1, 3), SIZES, st.booleans())
@example([(3, 0), (0, 4), (1, 1), (0, 0)], 2, 8, False)
@example([(300, 2), (1, 600)], 1, 32, True)
@example([(5, 0), (2, 0)], 2, 64, True)
@settings(max_examples=30, deadline=None)
def test_cross_attention_equals_each_pair_alone(
    function: Callable[..., Tensor], lengths: Lengths, heads: int, size: int, causal: bool
) -> None:
    operands, sequences = random_operands(lengths, heads, size)
    got = with_gradients(function, *operands, *sequences, causal=causal)
    assert_near(got, with_gradients(one_by_one, *operands, *sequences, causal=causal))


@given(LENGTHS, st.sampled_from([8, 40, 64]), st.booleans(), st.integers(0, 2**64 - 1), st.integers(0, 2**34))
@settings(max_examples=30, deadline=None)
def test_dropout_equals_the_reference_implementation(
    lengths: Lengths, size: int, causal: bool, seed: int, first_token: int
) -> None:
    operands, sequences = random_operands(lengths, 2, size)
    options = {"dropout": Dropout(0.2, seed, first_token), "site": 3, "causal": causal}
    got = with_gradients(cross_attention, *operands, *sequences, **options)
    assert_near(got, with_gradients(reference_attention, *operands, *sequences, **options))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_to_the_same_sequences_has_the_bits_of_self_attention(dtype: torch.dtype, causal: bool) -> None:
    lengths, dropout = [3, 90, 0, 41, 200], Dropout(0.1, 5)
    qkv = torch.randn(sum(lengths), 3, 2, 24, generator=torch.Generator().manual_seed(3)).to(dtype)
    starts, longest = offsets(lengths), max(lengths)
    context, gradient = with_gradients(attention, qkv, starts, longest, dropout, 1, causal)
    operands, rest = [qkv[:, 0], qkv[:, 1:]], (starts, starts, longest, longest, dropout, 1, causal)
    got = with_gradients(cross_attention, *operands, *rest)
    assert all(map(torch.equal, got, (context, gradient[:, 0], gradient[:, 1:])))


def test_cross_attention_equals_torch_multihead_attention() -> None:
    """A decoder's layer: projected queries of a target, keys and values of a padded source."""
    heads, size, lengths = 3, 8, [(4, 7), (1, 2), (6, 5)]
    torch.manual_seed(4)
    module = nn.MultiheadAttention(heads * size, heads, batch_first=True)
    targets, sources = ([torch.randn(pair[side], heads * size) for pair in lengths] for side in (0, 1))
    padded = [nn.utils.rnn.pad_sequence(x, batch_first=True).requires_grad_() for x in (targets, sources)]
    padding = torch.arange(7) >= torch.tensor([n for _, n in lengths])[:, None]
    expected, _ = module(padded[0], padded[1], padded[1], key_padding_mask=padding, need_weights=False)
    expected = torch.cat([rows[:m] for rows, (m, _) in zip(expected, lengths, strict=True)])

    packed = [torch.cat(x).requires_grad_() for x in (targets, sources)]
    weights, biases = module.in_proj_weight.split(heads * size), module.in_proj_bias.split(heads * size)
    q = F.linear(packed[0], weights[0], biases[0]).unflatten(-1, (heads, size))
    kv = F.linear(packed[1], torch.cat(weights[1:]), torch.cat(biases[1:])).unflatten(-1, (2, heads, size))
    queries, keys = ([pair[side] for pair in lengths] for side in (0, 1))
    context = cross_attention(q, kv, offsets(queries), offsets(keys), max(queries), max(keys))
    got = module.out_proj(context.flatten(1))
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-6)
    upstream = torch.randn_like(got)
    exact = torch.autograd.grad(expected, padded, upstream)
    for side, gradient in enumerate(torch.autograd.grad(got, packed, upstream)):
        rows = torch.cat([x[: pair[side]] for x, pair in zip(exact[side], lengths, strict=True)])
        torch.testing.assert_close(gradient, rows, rtol=0, atol=2e-6)


def test_decoding_with_cached_keys_equals_causal_self_attention() -> None:
    """Two sequences, of which one starts with a longer prompt: one query per sequence and step."""
    prompts, steps = [7, 2], 5
    lengths = [prompt + steps for prompt in prompts]
    qkv = torch.randn(sum(lengths), 3, 2, 16)
    whole = [x.split(lengths) for x in (qkv, attention(qkv, offsets(lengths), max(lengths), None, 0, True))]
    for step in range(steps):
        ends = [prompt + step + 1 for prompt in prompts]
        cache = torch.cat([x[:end, 1:] for x, end in zip(whole[0], ends, strict=True)])
        queries = torch.cat([x[end - 1 : end, 0] for x, end in zip(whole[0], ends, strict=True)])
        for causal in (False, True):
            got = cross_attention(queries, cache, offsets([1, 1]), offsets(ends), 1, max(ends), causal=causal)
            expected = torch.cat([x[end - 1 : end] for x, end in zip(whole[1], ends, strict=True)])
            torch.testing.assert_close(got, expected, rtol=0, atol=2e-6)


@needs_native
@pytest.mark.parametrize("head_size", [8, 40, 64])
@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16_is_within_a_few_roundings_of_float32(head_size: int, causal: bool) -> None:
    for lengths in ([(1, 31), (32, 33), (2, 0)], [(129, 300), (0, 9)], [(1, 513), (40, 7)]):
        operands, sequences = random_operands(lengths, 2, head_size)
        halves, options = [x.bfloat16() for x in operands], {"dropout": Dropout(0.1, 5), "causal": causal}
        got = with_gradients(cross_attention, *halves, *sequences, **options)
        exact = with_gradients(cross_attention, *(x.float() for x in halves), *sequences, **options)
        for actual, expected in zip(got, exact, strict=True):
            assert actual.dtype == torch.bfloat16
            assert (actual.float() - expected).norm() < 2**-7 * expected.norm(), lengths


@needs_native
def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    operands, sequences = random_operands([(3, 128), (50, 0), (0, 7), (77, 20)], 3, 40)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(with_gradients(cross_attention, *operands, *sequences, dropout=Dropout(0.1, 5)))
    assert all(torch.equal(x, y) for result in results[1:] for x, y in zip(result, results[0], strict=True))


def test_another_number_of_sequences_raises() -> None:
    (q, kv), (cu_seqlens_q, cu_seqlens_kv, *longest) = random_operands([(3, 4), (2, 2)], 1, 5)
    with pytest.raises(ValueError, match=r"cu_seqlens.*3.*2"):
        cross_attention(q, kv, cu_seqlens_q, cu_seqlens_kv[:2], *longest)


@needs_native
def test_offsets_are_checked_once_for_all_layers_and_again_when_they_change() -> None:
    qkv, starts = torch.randn(10, 3, 1, 8), torch.tensor([0, 4, 10]).int()
    covers_all_tokens.cache_clear()
    for _ in range(12):
        attention(qkv, starts, 6, None, 0)
    assert covers_all_tokens.cache_info().misses == 1
    starts[1] = 11
    with pytest.raises(ValueError, match=r"cu_seqlens.*0 to 10.*11"):
        check_sequences(starts, 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_cuda_kernels_accept_our_shapes(dtype: torch.dtype, causal: bool) -> None:
    """PyTorch computes the shapes, forward and backward, without a GPU."""
    q = torch.empty(9, 2, 16, dtype=dtype, device="meta", requires_grad=True)
    kv = torch.empty(25, 2, 2, 16, dtype=dtype, device="meta", requires_grad=True)
    starts = torch.empty(4, dtype=torch.int32, device="meta")
    context = cuda_attention(split((q, kv)), (starts, starts, 5, 17), Dropout(0.1, 5), 1, causal)
    assert (context.shape, context.dtype) == (q.shape, dtype)
    for x, gradient in zip((q, kv), torch.autograd.grad(context.sum(), (q, kv)), strict=True):
        assert (gradient.shape, gradient.dtype) == (x.shape, dtype)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_cuda_kernels_equal_attention_of_each_pair_alone(dtype: torch.dtype, causal: bool) -> None:
    operands, sequences = random_operands([(5, 9), (1, 170), (60, 64)], 2, 64)
    exact = with_gradients(one_by_one, *operands, *sequences, causal=causal)
    on_gpu = [x.cuda() if isinstance(x, Tensor) else x for x in sequences]
    got = with_gradients(
        lambda *x: cross_attention(*(y.to("cuda", dtype) for y in x), *on_gpu, causal=causal).cpu(), *operands
    )
    for actual, expected in zip(got, exact, strict=True):
        torch.testing.assert_close(actual.float(), expected, rtol=0, atol=(1e-5 if dtype == torch.float32 else 0.03))
