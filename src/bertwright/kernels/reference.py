"""Reference implementation of every kernel in plain PyTorch, for other devices and machines without a compiler.

Arithmetic is float32, and a result has the dtype of its input. (Weights are float32: by type promotion, the sum of a
bfloat16 state and a bias, and all states after it, would be float32.)

T tokens, B sequences, H hidden size, F intermediate size, A heads, D head size, V vocabulary, M masked positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.kernels.dropout import MaskKey, keep_mask

IGNORED_LABEL = -100  # label of a prediction without loss (torch, transformers)


class LayerNormParams(NamedTuple):
    """Layer normalization over H."""

    weight: Tensor  # H
    bias: Tensor  # H
    eps: float


class EmbeddingTables(NamedTuple):
    """The three embeddings whose sum enters the encoder (section 3, figure 2)."""

    word: Tensor  # V H
    position: Tensor  # max_positions H
    token_type: Tensor  # 2 H


class AdamStep(NamedTuple):
    """Coefficients of one AdamW update (Loshchilov and Hutter 2019, algorithm 2)."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float  # decoupled: parameter -= lr * weight_decay * parameter
    clip_scale: float | Tensor = 1.0  # factor of the gradient; a tensor stays on the GPU, and NaN skips the update
    correction1: float = 1.0  # 1 - beta1^step, or 1 without bias correction (BERT's own code)
    correction2: float = 1.0  # 1 - beta2^step, or 1


def dropout(x: Tensor, mask_key: MaskKey) -> Tensor:
    """Apply a mask, T … → T …; its columns are all dimensions after the first."""
    if mask_key.threshold == 0 or len(x) == 0:
        return x
    mask = keep_mask(mask_key, mask_key.token_indices(len(x), x.device), math.prod(x.shape[1:])).view_as(x)
    return torch.where(mask, x * mask_key.scale, 0.0)


def bias_gelu(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    """Compute GELU(x + bias), T F → T F; `tanh`: the tanh approximation."""
    return F.gelu(x.float() + bias.float(), approximate="tanh" if tanh else "none").to(x.dtype)


def layer_norm(x: Tensor, norm: LayerNormParams) -> Tensor:
    return F.layer_norm(x.float(), norm.weight.shape, norm.weight.float(), norm.bias.float(), norm.eps)


def add_dropout_norm(x: Tensor, bias: Tensor, residual: Tensor, norm: LayerNormParams, mask_key: MaskKey) -> Tensor:
    """Compute LayerNorm(residual + dropout(x + bias)), T H → T H: the end of each sub-layer."""
    return layer_norm(residual.float() + dropout(x.float() + bias.float(), mask_key), norm).to(x.dtype)


def embed_norm(ids: tuple[Tensor, ...], tables: EmbeddingTables, norm: LayerNormParams, mask_key: MaskKey) -> Tensor:
    """Compute dropout(LayerNorm(word + position + segment)) of T tokens, whose three ids are given, → T H."""
    word, position, token_type = (F.embedding(indices, table) for indices, table in zip(ids, tables, strict=True))
    return dropout(layer_norm(word + position + token_type, norm), mask_key).to(word.dtype)


def cross_entropy_(
    logits: Tensor, bias: Tensor, labels: Tensor, scale: float, dbias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return loss and correctness per row; with `dbias`, turn logits into their gradient and add its sum to dbias."""
    biased = logits.float() + bias
    losses = F.cross_entropy(biased, labels, reduction="none", ignore_index=IGNORED_LABEL)
    correct = biased.argmax(-1) == labels
    if dbias is not None:
        gradient = biased.softmax(-1)
        gradient[torch.arange(len(labels), device=labels.device), labels.clamp(min=0)] -= 1
        gradient *= scale
        gradient.masked_fill_((labels == IGNORED_LABEL).unsqueeze(1), 0)
        dbias += gradient.sum(0)
        logits.copy_(gradient)
    return losses, correct


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm as a tensor on the device, so that the caller waits for the device once."""
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients]
    together: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return together


def adamw_(
    parameters: list[Tensor], gradients: list[Tensor], exp_avg: list[Tensor], exp_avg_sq: list[Tensor], step: AdamStep
) -> None:
    """Update all tensors in place with few kernel launches; the gradients are overwritten."""
    torch._foreach_mul_(gradients, step.clip_scale)
    torch._foreach_lerp_(exp_avg, gradients, 1 - step.beta1)
    torch._foreach_mul_(exp_avg_sq, step.beta2)
    torch._foreach_addcmul_(exp_avg_sq, gradients, gradients, 1 - step.beta2)
    scales = torch._foreach_div(exp_avg_sq, step.correction2)
    torch._foreach_sqrt_(scales)
    torch._foreach_add_(scales, step.eps)
    torch._foreach_mul_(parameters, 1 - step.lr * step.weight_decay)
    torch._foreach_addcdiv_(parameters, exp_avg, scales, -step.lr / step.correction1)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_kv: Tensor,
    max_seqlen_q: int,
    max_seqlen_kv: int,
    mask_key: MaskKey,
    causal: bool,
    bias: Tensor | None = None,
) -> Tensor:
    """Compute softmax attention on sequences padded to the longest: Tq A D and twice Tkv A D → Tq A D.

    `bias`: as in `attention.biased_attention`.
    """
    head_size = q.shape[-1]
    token, real_queries = pad(cu_seqlens_q, max_seqlen_q, len(q))  # B Sq
    key_token, real_keys = pad(cu_seqlens_kv, max_seqlen_kv, len(k))  # B Skv
    query = q[token].transpose(1, 2).float()  # B A Sq D
    key, value = (x[key_token].transpose(1, 2).float() for x in (k, v))  # B A Skv D
    scores = query @ key.mT * head_size**-0.5  # B A Sq Skv
    if bias is not None:
        scores = scores + spread_bias(bias, *scores.shape[2:])
    visible = real_keys[:, None, None, :]
    if causal:  # the last query and the last key have the same position
        positions, key_positions = (torch.arange(size, device=q.device) for size in scores.shape[2:])
        offsets = cu_seqlens_kv.diff() - cu_seqlens_q.diff()
        visible = visible & (key_positions <= positions[:, None] + offsets[:, None, None, None])
    weights = attention_weights(scores, visible, token, mask_key)
    context: Tensor = (weights @ value).transpose(1, 2)[real_queries]  # Tq A D: sequences lie end to end in both
    return context.to(q.dtype)


def attention_weights(scores: Tensor, visible: Tensor, token: Tensor, mask_key: MaskKey, first_key: int = 0) -> Tensor:
    """Compute the softmax of scores B A Sq Skv over the visible keys, and apply dropout.

    `token`: B Sq, index of each query in the batch; `first_key`: position of the first key.
    """
    weights = scores.masked_fill(~visible, torch.finfo(scores.dtype).min).softmax(-1)
    weights = weights.masked_fill(~visible, 0.0)  # also for a query without keys
    if mask_key.threshold == 0:
        return weights
    heads = scores.shape[1]
    rows = (mask_key.first_token + token[:, None, :]) * heads + torch.arange(heads, device=scores.device)[:, None]
    mask = keep_mask(mask_key, rows.flatten(), scores.shape[-1], first_key).view_as(weights)
    return torch.where(mask, weights * mask_key.scale, 0.0)


def windowed_attention(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, window: int, mask_key: MaskKey) -> Tensor:
    """Compute softmax attention over the keys up to `window` tokens away, T 3 A D → T A D, by blocks of queries."""
    token, real = pad(cu_seqlens, max_seqlen, len(qkv))  # B S
    query, key, value = qkv[token].permute(2, 0, 3, 1, 4).float()  # each B A S D
    position, contexts = torch.arange(max_seqlen, device=qkv.device), []
    for first in range(0, max_seqlen, window):
        queries, first_key = slice(first, first + window), max(first - window, 0)
        keys = slice(first_key, first + 2 * window)
        near = (position[queries, None] - position[keys]).abs() <= window
        scores = query[:, :, queries] @ key[:, :, keys].mT * qkv.shape[-1] ** -0.5
        visible = near & real[:, None, None, keys]
        contexts.append(attention_weights(scores, visible, token[:, queries], mask_key, first_key) @ value[:, :, keys])
    return torch.cat(contexts, 2).transpose(1, 2)[real].to(qkv.dtype)


def rotate(qkv: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn queries and keys by the angles of each token, T × D / 2: T 3 A D → T 3 A D."""
    first, second = qkv[:, :2].float().chunk(2, -1)
    cos, sin = cosines[:, None, None], sines[:, None, None]
    turned = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return torch.cat([turned.to(qkv.dtype), qkv[:, 2:]], 1)


def spread_bias(bias: Tensor, queries: int, keys: int) -> Tensor:
    """Return the bias of each query and key from the bias of each distance, A (2 R + 1) → A × queries × keys.

    >>> spread_bias(torch.tensor([[-1.0, 0.0, 1.0]]), 2, 2).tolist()
    [[[0.0, 1.0], [-1.0, 0.0]]]
    """
    distances = torch.arange(keys, device=bias.device) - torch.arange(queries, device=bias.device)[:, None]
    return bias[:, distances + bias.shape[1] // 2]


def pad(cu_seqlens: Tensor, max_seqlen: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Return the token at each position of padded sequences, B S, and whether it is real.

    Padding repeats a sequence's first token; an empty sequence at the end has none, and repeats the last one.
    """
    starts, positions = cu_seqlens[:-1].long(), torch.arange(max_seqlen, device=cu_seqlens.device)
    real = positions < (cu_seqlens[1:].long() - starts)[:, None]
    return (starts[:, None] + torch.where(real, positions, 0)).clamp(max=max(tokens - 1, 0)), real


WEIGHT_LEVELS = 64  # largest whole number of an int8 weight: two products with a byte fit into 16 bits
BYTE_LEVELS = 255  # levels of a row of activations above its smallest number


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Round rows to bytes, T K → T K float64 from 0 to 255, T scales and T zero points: x ≈ (bytes - zero) · scale."""
    high, low = x.amax(1).clamp(min=0), (-x.amin(1)).clamp(min=0)
    span = high + low
    inverse = torch.where(span > 0, BYTE_LEVELS / span, 0.0)
    zeros = (low * inverse).round()
    rounded = (x * inverse[:, None]).round() + zeros[:, None]
    odd = (x - x).sum(1)  # NaN for a row with an infinity or NaN
    return rounded.nan_to_num().clamp(0, BYTE_LEVELS).double(), span / BYTE_LEVELS + odd, zeros.nan_to_num()


def int8_linear(x: Tensor, values: Tensor, scales: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """Compute activation(x · weightᵀ + bias), T K → T O, from x in bytes and a weight of whole numbers, O K int8.

    Sums of whole numbers are exact in float64.
    """
    rounded, row_scales, zeros = quantize_rows(x)
    exact = rounded @ values.double().T - zeros.double()[:, None] * values.sum(1, dtype=torch.float64)
    y = exact.float() * (scales * row_scales[:, None])
    y = y if bias is None else y + bias
    return activate(y, activation) if activation else y


ACTIVATIONS = ("", "gelu", "gelu_tanh", "relu")  # `enum Activation` in csrc/gelu.h


def activate(x: Tensor, activation: str) -> Tensor:
    """Compute an activation by its name: "gelu", "gelu_tanh" or "relu"."""
    if activation == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")
