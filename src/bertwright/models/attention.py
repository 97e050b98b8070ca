"""Attention over packed sequences: no token is padded, no sequence sees another.

T tokens of B sequences, A heads, D head size. Three backends with one signature:
a native kernel on CPU (`attention.cpp`), variable-length flash attention on CUDA, and padding anywhere else.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertwright.models import twins
from bertwright.models.binding import TYPES, Draw, apply, call, draw, runs_native
from bertwright.models.dropout import Dropout


def attention(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout: Dropout | None, site: int, causal: bool = False
) -> Tensor:
    """softmax(Q·Kᵀ/√D)·V within each sequence, T 3 A D → T A D (Vaswani et al. 2017, section 3.2).

    The weights of the softmax are dropped out, keyed by (token, head, place of the key in its sequence), so that a mask
    depends neither on micro-batches nor on ranks; on CUDA alone the masks are torch's own.
    """
    if qkv.device.type == "cuda":
        return jagged_attention(qkv, cu_seqlens, max_seqlen, dropout, site, causal)
    if qkv.shape[-1] % 8 == 0 and runs_native("attention", qkv):
        return apply(PackedAttention, qkv, cu_seqlens, causal, draw(dropout, site))
    return twins.attention(qkv, cu_seqlens, max_seqlen, dropout, site, causal)


class PackedAttention(torch.autograd.Function):
    """Keeps its input, its output and one number a query and head; the weights are computed again."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cu_seqlens: Tensor, causal: bool, drawn: Draw) -> Tensor:
        tokens, three, heads, size = qkv.shape
        assert three == 3, qkv.shape
        assert cu_seqlens.dtype == torch.int32, cu_seqlens.dtype
        lengths = cu_seqlens.diff()
        assert lengths.min() >= 0, cu_seqlens
        assert cu_seqlens[0] == 0, cu_seqlens
        assert cu_seqlens[-1] == tokens, (cu_seqlens, tokens)
        out, lse = qkv.new_empty(tokens, heads, size), torch.empty(tokens, heads)
        shape = (cu_seqlens, len(lengths), heads, size, int(causal))
        call("attention", "attention", TYPES[qkv.dtype], qkv, *shape, drawn, out, lse)
        ctx.save_for_backward(qkv, out, lse, cu_seqlens)
        ctx.shape, ctx.drawn = shape[1:], drawn
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        qkv, out, lse, cu_seqlens = ctx.saved_tensors
        dqkv = torch.empty_like(qkv)
        given = (qkv, out, lse, dout.contiguous(), cu_seqlens, *ctx.shape)
        call("attention", "attention_backward", TYPES[qkv.dtype], *given, ctx.drawn, dqkv)
        return dqkv, None, None, None


def jagged_attention(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout: Dropout | None, site: int, causal: bool
) -> Tensor:
    """Through a nested tensor, for which PyTorch chooses its variable-length flash kernel.

    That kernel has random numbers of its own; they are seeded by the same place as all others, but depend on how a step
    is cut into micro-batches.
    """
    if dropout is not None:
        torch.cuda.manual_seed(dropout._replace(seed=dropout.seed + dropout.first_token).key(site)[0])
    query, key, value = (
        torch.nested.nested_tensor_from_jagged(part, cu_seqlens, min_seqlen=1, max_seqlen=max_seqlen).transpose(1, 2)
        for part in qkv.unbind(1)
    )
    rate = dropout.rate if dropout is not None else 0.0
    context = F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=causal)
    return context.transpose(1, 2).values()
