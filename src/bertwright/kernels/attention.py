"""Attention over packed sequences, without padding: self-attention, and attention to other sequences.

T tokens of B sequences, A heads, D head size; Tq queries and Tkv keys if they belong to different sequences. Three
kernels with one signature: a native one on CPU (`attention.h`), a Triton kernel on GPUs (`triton/flash.py`), and the
reference implementation, which pads, elsewhere. Without Triton, and for large heads, a GPU runs PyTorch's
variable-length kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels import reference
from bertwright.kernels.dropout import Dropout, MaskKey, mask_key
from bertwright.kernels.ffi import apply, call, check, new_float32, triton_ops, use_native, use_triton
from bertwright.kernels.triton_check import attention_example, attention_length, works

CAUSAL_FROM_BOTTOM_RIGHT = 2  # CustomMaskType of PyTorch's memory-efficient attention


def attention(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout: Dropout | None, site: int, causal: bool = False
) -> Tensor:
    """Compute softmax(Q·Kᵀ/√D)·V within each sequence, T 3 A D → T A D (Vaswani et al. 2017, section 3.2).

    Dropout acts on the weights of the softmax. Its masks are keyed by (token, head, position of the key) and so depend
    neither on micro-batches nor on ranks; PyTorch's kernels on a GPU draw their own.
    """
    return _attend((qkv,), (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen), dropout, site, causal)


def biased_attention(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, bias: Tensor, dropout: Dropout | None, site: int
) -> Tensor:
    """Compute softmax(Q·Kᵀ/√D + bias)·V within each sequence, T 3 A D → T A D.

    `bias`: A × (2 R + 1) float32; column R + d is added to the score of a key d tokens behind the query, where R is
    at least `max_seqlen` - 1. Its gradient takes memory for all scores on a GPU.
    """
    heads, reach = qkv.shape[2], bias.shape[1] // 2
    fits = bias.shape == (heads, 2 * reach + 1) and reach >= max_seqlen - 1
    check(fits, "attention: expected a bias of {} heads up to distance {}, got {}", heads, max_seqlen - 1, bias.shape)
    sequences = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return _attend((qkv,), sequences, dropout, site, causal=False, bias=bias.float().contiguous())


def windowed_attention(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, window: int, dropout: Dropout | None, site: int
) -> Tensor:
    """Compute softmax(Q·Kᵀ/√D)·V over the keys up to `window` tokens before and behind each query, T 3 A D → T A D.

    Time and memory grow with T · window. On a GPU the reference implementation runs.
    """
    check(window > 0, "attention: expected a window of at least 1 token, got {}", window)
    if max_seqlen <= window + 1:  # each query sees all keys
        return attention(qkv, cu_seqlens, max_seqlen, dropout, site)
    key = mask_key(dropout, site)
    if head_size_vectorizable(qkv.shape[-1]) and use_native(qkv):
        return apply(PackedAttention, cu_seqlens, cu_seqlens, False, key, window, None, qkv)
    return reference.windowed_attention(qkv, cu_seqlens, max_seqlen, window, key)


def cross_attention(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_kv: Tensor,
    max_seqlen_q: int,
    max_seqlen_kv: int,
    dropout: Dropout | None = None,
    site: int = 0,
    causal: bool = False,
) -> Tensor:
    """Let the queries of each sequence attend to its own sequence of keys and values: Tq A D, Tkv 2 A D → Tq A D.

    `causal`: the queries are the last positions of the keys' sequence (decoding with a cache of keys and values), and
    each query attends to the keys up to its own position. A query without keys has the result 0. Dropout is keyed by
    the token of the query. The arguments are named after `flash_attn_varlen_kvpacked_func`.
    """
    counts = cu_seqlens_q.shape, cu_seqlens_kv.shape
    check(counts[0] == counts[1], "cu_seqlens: expected as many sequences of queries as of keys, got {}", counts)
    fits = q.ndim == 3 and kv.shape[1:] == (2, *q.shape[1:])
    check(fits, "attention: expected queries T A D and keys and values T 2 A D, got {} and {}", q.shape, kv.shape)
    sequences = (cu_seqlens_q, cu_seqlens_kv, max_seqlen_q, max_seqlen_kv)
    return _attend((q.contiguous(), kv.contiguous()), sequences, dropout, site, causal)


Offsets = tuple[Tensor, Tensor, int, int]
"""Offsets of the queries and of the keys, and the lengths of the longest sequence of each."""


def _attend(
    operands: tuple[Tensor, ...],
    sequences: Offsets,
    dropout: Dropout | None,
    site: int,
    causal: bool,
    bias: Tensor | None = None,
) -> Tensor:
    """Choose the backend; `operands`: qkv, or q and kv."""
    first, key = operands[0], mask_key(dropout, site)
    vectors = head_size_vectorizable(first.shape[-1])
    if vectors and use_triton(*operands) and first.shape[-1] <= triton_ops().MAX_HEAD_SIZE:
        contiguous = [operand.contiguous() for operand in operands]
        if attention_works(contiguous, sequences[2:], causal, key, bias=bias):
            return apply(triton_ops().Attention, sequences, causal, key, bias, *contiguous)
    if vectors and bias is None and first.device.type == "cuda" and _cuda_supports(first):
        return cuda_attention(split(operands), sequences, dropout, site, causal)
    if vectors and use_native(*operands):
        return apply(PackedAttention, *sequences[:2], causal, key, 0, bias, *operands)
    q, k, v = split(operands)
    return reference.attention(q, k, v, *sequences, key, causal, bias)


def attention_works(
    operands: Sequence[Tensor],
    longest: tuple[int, int],
    causal: bool,
    key: MaskKey,
    recorded: bool = False,
    bias: Tensor | None = None,
) -> bool:
    """Return whether Triton's attention may run with these sizes.

    `longest`: lengths of the longest sequences of queries and of keys; `recorded`: in a step that becomes a CUDA graph.
    """
    first, (queries, keys) = operands[0], longest
    lengths = attention_length(queries), attention_length(keys)
    sizes = (*first.shape[-2:], causal, key.threshold != 0, len(operands), *lengths, recorded, bias is not None)
    example = partial(attention_example, split, lengths, causal, key, bias, *operands, recorded=recorded)
    return works("attention", first, sizes, example)


def split(operands: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Split qkv, T 3 A D, or q and kv, Tq A D and Tkv 2 A D, into views of q, k and v."""
    *queries, stacked = operands
    q, k, v = *queries, *stacked.unbind(1)
    return q, k, v


def head_size_vectorizable(head_size: int) -> bool:
    """Return whether an attention head of this size consists of whole vectors, as the kernels require."""
    return head_size % 8 == 0


def check_sequences(cu_seqlens: Tensor, tokens: int) -> None:
    """Raise ValueError unless the sequences lie end to end and cover all tokens."""
    check(cu_seqlens.dtype == torch.int32, "cu_seqlens: expected int32, got {}", cu_seqlens.dtype)
    check(cu_seqlens.ndim == 1, "cu_seqlens: expected one dimension, got {}", cu_seqlens.shape)
    covers = covers_all_tokens(cu_seqlens.numpy().tobytes(), tokens)
    check(covers, "cu_seqlens: expected 0 to {} in ascending order, got {}", tokens, cu_seqlens)


@lru_cache(maxsize=16)
def covers_all_tokens(cu_seqlens: bytes, tokens: int) -> bool:
    """Return whether offsets ascend from 0 to the number of tokens; cached, since all layers get the same offsets."""
    starts: list[int] = np.frombuffer(cu_seqlens, np.int32).tolist()
    return starts[:1] == [0] and starts[-1] == tokens and starts == sorted(starts)


class AttentionArgs(NamedTuple):
    """The fields of `struct AttentionArgs` in csrc/attention.h."""

    q: Tensor  # q, Tq A D, or qkv, T 3 A D
    kv: Tensor  # kv, Tkv 2 A D, or the same qkv
    parts_q: int  # 1, or 3 for qkv: the queries are the first part
    parts_kv: int  # 2, or 3 for qkv: keys and values are the last two parts
    cu_seqlens_q: Tensor  # B + 1 int32
    cu_seqlens_kv: Tensor
    sequences: int  # B
    heads: int
    head_size: int
    causal: bool
    bias: Tensor | None  # A (2 reach + 1) float32, added to the scores by the distance of key and query
    reach: int
    window: int  # number of keys before and behind its own position that a query attends to; 0: all keys


class PackedAttention(torch.autograd.Function):
    """Native attention: saves input, output and one number per query and head, and recomputes the weights backward."""

    @staticmethod
    def forward(
        ctx: Any,
        cu_seqlens_q: Tensor,
        cu_seqlens_kv: Tensor,
        causal: bool,
        key: MaskKey,
        window: int,
        bias: Tensor | None,
        *operands: Tensor,
    ) -> Tensor:
        queries, stacked = len(operands[0]), operands[-1]
        fits = stacked.ndim == 4 and stacked.shape[1] + len(operands) == 4 and stacked.shape[2:].numel() > 0
        check(fits, "attention: expected T 3 A D, or T A D and T 2 A D, got {}", stacked.shape)
        for operand in operands:
            check(operand.is_contiguous(), "attention: expected contiguous operands, got strides {}", operand.stride())
        check_sequences(cu_seqlens_q, queries)
        check_sequences(cu_seqlens_kv, len(stacked))
        args = attention_args(operands, cu_seqlens_q, cu_seqlens_kv, causal, bias, window)
        out, lse = stacked.new_empty(queries, args.heads, args.head_size), new_float32(queries, args.heads)
        call("attention", stacked.dtype, args, key, out, lse)
        ctx.causal, ctx.mask_key, ctx.window = causal, key, window
        ctx.save_for_backward(out, lse, cu_seqlens_q, cu_seqlens_kv, bias, *operands)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        out, lse, cu_seqlens_q, cu_seqlens_kv, bias, *operands = ctx.saved_tensors
        args = attention_args(operands, cu_seqlens_q, cu_seqlens_kv, ctx.causal, bias, ctx.window)
        gradients = [torch.empty_like(operand) for operand in operands]
        # A part for each sequence: the sum over them has the same order for any number of threads.
        dbias = None if bias is None else bias.new_zeros(args.sequences, *bias.shape)
        results = (gradients[0], gradients[-1], dbias)
        call("attention_backward", out.dtype, args, ctx.mask_key, out, lse, dout.contiguous(), *results)
        return None, None, None, None, None, None if dbias is None else dbias.sum(0), *gradients


def attention_args(
    operands: Sequence[Tensor],
    cu_seqlens_q: Tensor,
    cu_seqlens_kv: Tensor,
    causal: bool,
    bias: Tensor | None,
    window: int = 0,
) -> AttentionArgs:
    """Collect the arguments of both native passes; `operands`: qkv, or q and kv."""
    q, kv = operands[0], operands[-1]
    _, parts, heads, size = kv.shape
    parts_q, sequences = parts if q is kv else 1, len(cu_seqlens_q) - 1
    reach = 0 if bias is None else bias.shape[1] // 2
    return AttentionArgs(
        q, kv, parts_q, parts, cu_seqlens_q, cu_seqlens_kv, sequences, heads, size, causal, bias, reach, window
    )


def _cuda_supports(q: Tensor) -> bool:
    """Return whether PyTorch has a kernel: head sizes up to 256; 16-bit types on Ampere or newer (flash attention)."""
    return q.shape[-1] <= 256 and (q.dtype == torch.float32 or torch.cuda.get_device_capability(q.device) >= (8, 0))


def cuda_attention(
    operands: tuple[Tensor, Tensor, Tensor], sequences: Offsets, dropout: Dropout | None, site: int, causal: bool
) -> Tensor:
    """Run PyTorch's variable-length kernels: flash attention for 16-bit types, memory-efficient attention for float32.

    `scaled_dot_product_attention` calls them for nested tensors only, which cannot be views of qkv. Their dropout is
    seeded with the key of our masks, but depends on the micro-batches.
    """
    if dropout is not None:
        torch.cuda.manual_seed(dropout._replace(seed=dropout.seed + dropout.first_token).site_key(site)[0])
    rate = dropout.rate if dropout is not None else 0.0
    q, k, v = operands
    if q.dtype == torch.float32:
        mask = CAUSAL_FROM_BOTTOM_RIGHT if causal else 0
        batches = (q[None], k[None], v[None])
        outputs = torch.ops.aten._efficient_attention_forward(
            *batches, None, *sequences, rate, mask, compute_log_sumexp=True
        )
        order_gradients(outputs[0])
        return outputs[0][0]  # type: ignore[no-any-return]
    # Its causal mask is always aligned with the last query and key.
    context: Tensor = torch.ops.aten._flash_attention_forward(q, k, v, *sequences, rate, causal, False)[0]
    order_gradients(context)
    return context


def order_gradients(result: Tensor) -> None:
    """Let the operation that computed `result` add up gradients in a fixed order, if deterministic ones are wanted.

    PyTorch's attention does so only where an operation that cannot would be an error (`warn_only=False`).
    """
    node = result.grad_fn
    if node is not None and torch.is_deterministic_algorithms_warn_only_enabled():
        node.register_prehook(lambda *_: torch.use_deterministic_algorithms(True))
        node.register_hook(lambda *_: torch.use_deterministic_algorithms(True, warn_only=True))
