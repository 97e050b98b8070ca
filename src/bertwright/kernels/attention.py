"""Attention over packed sequences: no token is padded, no sequence sees another.

T tokens of B sequences, A heads, D head size. Three backends with one signature:
a native kernel on CPU (`attention.h`), PyTorch's variable-length kernels on CUDA, and padding anywhere else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels import reference
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.ffi import DTYPE_CODES, CMaskKey, apply, c_mask_key, call, use_native


def attention(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout: Dropout | None, site: int, causal: bool = False
) -> Tensor:
    """softmax(Q·Kᵀ/√D)·V within each sequence, T 3 A D → T A D (Vaswani et al. 2017, section 3.2).

    The weights of the softmax are dropped out, keyed by (token, head, place of the key in its sequence), so that a mask
    depends neither on micro-batches nor on ranks; on CUDA alone the masks are torch's own.
    """
    vectors = head_size_vectorizable(qkv.shape[-1])
    if vectors and qkv.device.type == "cuda" and _kernels_take(qkv):
        return cuda_attention(qkv, cu_seqlens, max_seqlen, dropout, site, causal)
    if vectors and use_native(qkv):
        return apply(PackedAttention, qkv, cu_seqlens, causal, c_mask_key(dropout, site))
    return reference.attention(qkv, cu_seqlens, max_seqlen, dropout and dropout.mask_key(site), causal)


def head_size_vectorizable(head_size: int) -> bool:
    """Whether heads of this size consist of whole vectors, which is what the kernels read."""
    return head_size % 8 == 0


def check_sequences(cu_seqlens: Tensor, tokens: int) -> None:
    """Native code would read outside its tensors."""
    assert cu_seqlens.dtype == torch.int32, cu_seqlens.dtype
    boundaries = cu_seqlens.tolist()
    assert (boundaries[0], boundaries[-1]) == (0, tokens), (cu_seqlens, tokens)
    assert boundaries == sorted(boundaries), cu_seqlens


class PackedAttention(torch.autograd.Function):
    """Keeps its input, its output and one number a query and head; the weights are computed again."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cu_seqlens: Tensor, causal: bool, mask_key: CMaskKey) -> Tensor:
        tokens, three, heads, size = qkv.shape
        assert three == 3, qkv.shape
        check_sequences(cu_seqlens, tokens)
        out, lse = qkv.new_empty(tokens, heads, size), torch.empty(tokens, heads)
        shape = (cu_seqlens, len(cu_seqlens) - 1, heads, size, int(causal))
        call("attention", DTYPE_CODES[qkv.dtype], qkv, *shape, mask_key, out, lse)
        ctx.save_for_backward(qkv, out, lse, cu_seqlens)
        ctx.shape, ctx.mask_key = shape[1:], mask_key
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        qkv, out, lse, cu_seqlens = ctx.saved_tensors
        dqkv = torch.empty_like(qkv)
        given = (qkv, out, lse, dout.contiguous(), cu_seqlens, *ctx.shape)
        call("attention_backward", DTYPE_CODES[qkv.dtype], *given, ctx.mask_key, dqkv)
        return dqkv, None, None, None


def _kernels_take(qkv: Tensor) -> bool:
    """Heads of at most 256 numbers; of half-size ones only on an Ampere card or newer (flash attention)."""
    return qkv.shape[-1] <= 256 and (
        qkv.dtype == torch.float32 or torch.cuda.get_device_capability(qkv.device) >= (8, 0)
    )


def cuda_attention(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout: Dropout | None, site: int, causal: bool
) -> Tensor:
    """PyTorch's variable-length kernels: flash attention for half-size numbers, memory-efficient attention for float32.

    `scaled_dot_product_attention` reaches them through nested tensors alone, and not for views such as ours. They have
    random numbers of their own, which are seeded by the same place as all others, but depend on how a step is cut into
    micro-batches.
    """
    if dropout is not None:
        torch.cuda.manual_seed(dropout._replace(seed=dropout.seed + dropout.first_token).site_key(site)[0])
    rate = dropout.rate if dropout is not None else 0.0
    query, key, value = qkv.unbind(1)
    sequences = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    if qkv.dtype == torch.float32:
        given = (query[None], key[None], value[None], None, *sequences, rate, int(causal))
        context: Tensor = torch.ops.aten._efficient_attention_forward(*given, compute_log_sumexp=True)[0][0]
    else:
        context = torch.ops.aten._flash_attention_forward(query, key, value, *sequences, rate, causal, False)[0]
    return context
