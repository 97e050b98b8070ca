"""Attention over packed sequences, without padding.

T tokens of B sequences, A heads, D head size. Three backends with one signature: a native kernel on CPU
(`attention.h`), PyTorch's variable-length kernels on CUDA, and the reference implementation, which pads, elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.kernels import reference
from bertwright.kernels.dropout import Dropout
from bertwright.kernels.ffi import DTYPE_CODES, CMaskKey, apply, c_mask_key, call, check, new_float32, use_native


def attention(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout: Dropout | None, site: int, causal: bool = False
) -> Tensor:
    """Compute softmax(Q·Kᵀ/√D)·V within each sequence, T 3 A D → T A D (Vaswani et al. 2017, section 3.2).

    Dropout acts on the weights of the softmax. Its masks are keyed by (token, head, position of the key) and so depend
    neither on micro-batches nor on ranks; on CUDA they are PyTorch's own.
    """
    vectors = head_size_vectorizable(qkv.shape[-1])
    if vectors and qkv.device.type == "cuda" and _cuda_supports(qkv):
        return cuda_attention(qkv, cu_seqlens, max_seqlen, dropout, site, causal)
    if vectors and use_native(qkv):
        return apply(PackedAttention, qkv, cu_seqlens, causal, c_mask_key(dropout, site))
    return reference.attention(qkv, cu_seqlens, max_seqlen, dropout.mask_key(site) if dropout else None, causal)


def head_size_vectorizable(head_size: int) -> bool:
    """Return whether an attention head of this size consists of whole vectors, as the kernels require."""
    return head_size % 8 == 0


def check_sequences(cu_seqlens: Tensor, tokens: int) -> None:
    """Raise ValueError unless the sequences lie end to end and cover all tokens."""
    check(cu_seqlens.dtype == torch.int32, "cu_seqlens: expected int32, got {}", cu_seqlens.dtype)
    check(cu_seqlens.ndim == 1, "cu_seqlens: expected one dimension, got {}", cu_seqlens.shape)
    starts = cu_seqlens.tolist()
    covers = starts[:1] == [0] and starts[-1] == tokens and starts == sorted(starts)
    check(covers, "cu_seqlens: expected 0 to {} in ascending order, got {}", tokens, starts)


class PackedAttention(torch.autograd.Function):
    """Native attention: saves input, output and one number per query and head, and recomputes the weights backward."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cu_seqlens: Tensor, causal: bool, mask_key: CMaskKey) -> Tensor:
        tokens, three, heads, size = qkv.shape
        check(three == 3 and heads > 0 and size > 0, "qkv: expected T 3 A D, got {}", qkv.shape)
        check_sequences(cu_seqlens, tokens)
        out, lse = qkv.new_empty(tokens, heads, size), new_float32(tokens, heads)
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
        operands = (qkv, out, lse, dout.contiguous(), cu_seqlens, *ctx.shape)
        call("attention_backward", DTYPE_CODES[qkv.dtype], *operands, ctx.mask_key, dqkv)
        return dqkv, None, None, None


def _cuda_supports(qkv: Tensor) -> bool:
    """Return whether PyTorch has a kernel: head sizes up to 256; 16-bit types on Ampere or newer (flash attention)."""
    return qkv.shape[-1] <= 256 and (
        qkv.dtype == torch.float32 or torch.cuda.get_device_capability(qkv.device) >= (8, 0)
    )


def cuda_attention(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout: Dropout | None, site: int, causal: bool
) -> Tensor:
    """Run PyTorch's variable-length kernels: flash attention for 16-bit types, memory-efficient attention for float32.

    `scaled_dot_product_attention` calls them for nested tensors only, which cannot be views such as ours. Their dropout
    is seeded with the key of our masks, but depends on the micro-batches.
    """
    if dropout is not None:
        torch.cuda.manual_seed(dropout._replace(seed=dropout.seed + dropout.first_token).site_key(site)[0])
    rate = dropout.rate if dropout is not None else 0.0
    query, key, value = qkv.unbind(1)
    sequences = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    if qkv.dtype == torch.float32:
        operands = (query[None], key[None], value[None], None, *sequences, rate, int(causal))
        context: Tensor = torch.ops.aten._efficient_attention_forward(*operands, compute_log_sumexp=True)[0][0]
    else:
        context = torch.ops.aten._flash_attention_forward(query, key, value, *sequences, rate, causal, False)[0]
    return context
