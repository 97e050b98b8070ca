"""Every native kernel once more in plain PyTorch: what it computes, for other devices and where no compiler is found.

As there, arithmetic is float32 and a result has the number type of its input. (Weights are float32: PyTorch by itself
would make the sum of a bfloat16 state and a bias, and from there on all of the model, float32.)

T tokens, B sequences, H hidden size, F intermediate size, A heads, D head size, V vocabulary, M masked positions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.models.dropout import Dropout, kept


class Norm(NamedTuple):
    """Layer normalisation over H."""

    weight: Tensor  # H
    bias: Tensor  # H
    eps: float


class Tables(NamedTuple):
    """The three embeddings whose sum enters the encoder (section 3, figure 2)."""

    word: Tensor  # V H
    position: Tensor  # max_positions H
    token_type: Tensor  # 2 H


class AdamStep(NamedTuple):
    """The numbers of one AdamW update (Loshchilov and Hutter 2019, algorithm 2)."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float  # decoupled: parameter -= lr * weight_decay * parameter
    clip_scale: float = 1.0  # what the gradient is multiplied by
    correction1: float = 1.0  # 1 - beta1^step, or 1 without bias correction (as in BERT's own code)
    correction2: float = 1.0  # 1 - beta2^step, or 1


def dropout(x: Tensor, dropout: Dropout | None, site: int) -> Tensor:
    """T … → T …; the columns are all that follows the first dimension."""
    if dropout is None or len(x) == 0:
        return x
    mask = kept(dropout, site, dropout.places(len(x), x.device), x[0].numel()).view_as(x)
    return torch.where(mask, x * dropout.scale, 0.0)


def bias_gelu(x: Tensor, bias: Tensor, tanh: bool) -> Tensor:
    return F.gelu(x.float() + bias.float(), approximate="tanh" if tanh else "none").to(x.dtype)


def layer_norm(x: Tensor, norm: Norm) -> Tensor:
    return F.layer_norm(x.float(), norm.weight.shape, norm.weight.float(), norm.bias.float(), norm.eps)


def add_dropout_norm(x: Tensor, bias: Tensor, residual: Tensor, norm: Norm, drop: Dropout | None, site: int) -> Tensor:
    return layer_norm(residual.float() + dropout(x.float() + bias.float(), drop, site), norm).to(x.dtype)


def embed_norm(ids: tuple[Tensor, ...], tables: Tables, norm: Norm, drop: Dropout | None, site: int) -> Tensor:
    word, position, token_type = (F.embedding(places, table) for places, table in zip(ids, tables, strict=True))
    return dropout(layer_norm(word + position + token_type, norm), drop, site).to(tables.word.dtype)


def cross_entropy_(
    logits: Tensor, bias: Tensor, labels: Tensor, scale: float, dbias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Losses and correctness of each row; with `dbias`, logits become their gradient and its sum is added there."""
    biased = logits.float() + bias
    losses = F.cross_entropy(biased, labels, reduction="none")
    correct = biased.argmax(-1) == labels
    if dbias is not None:
        gradient = biased.softmax(-1)
        gradient[torch.arange(len(labels), device=labels.device), labels] -= 1
        gradient *= scale
        dbias += gradient.sum(0)
        logits.copy_(gradient)
    return losses, correct


def square_sum(x: Tensor) -> float:
    return x.double().square().sum().item()


def adamw_(parameter: Tensor, gradient: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, step: AdamStep) -> None:
    gradient = gradient.float() * step.clip_scale
    exp_avg.lerp_(gradient, 1 - step.beta1)
    exp_avg_sq.mul_(step.beta2).addcmul_(gradient, gradient, value=1 - step.beta2)
    update = (exp_avg / step.correction1) / ((exp_avg_sq / step.correction2).sqrt() + step.eps)
    parameter.mul_(1 - step.lr * step.weight_decay).sub_(update, alpha=step.lr)


def attention(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout: Dropout | None, site: int, causal: bool
) -> Tensor:
    """Softmax attention on sequences padded to the longest: T 3 A D → T A D."""
    tokens, _, heads, head_size = qkv.shape
    starts = cu_seqlens[:-1].long()
    places = torch.arange(max_seqlen, device=qkv.device)
    real = places < (cu_seqlens[1:].long() - starts)[:, None]  # B S
    token = starts[:, None] + torch.where(
        real, places, 0
    )  # B S: the token at each place; padding shows the first again
    query, key, value = qkv[token].permute(2, 0, 3, 1, 4).float()  # each B A S D
    scores = query @ key.mT * head_size**-0.5  # B A S S
    seen = real[:, None, None, :]
    if causal:
        seen = seen & (places <= places[:, None])
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)  # every query, a padded one too, sees the first key
    if dropout is not None:
        rows = (dropout.first_token + token[:, None, :]) * heads + torch.arange(heads, device=qkv.device)[:, None]
        mask = kept(dropout, site, rows.flatten(), max_seqlen).view_as(weights)
        weights = torch.where(mask, weights * dropout.scale, 0.0)
    context: Tensor = (weights @ value).transpose(1, 2)[real]  # T A D: sequences lie end to end in both
    assert len(context) == tokens
    return context.to(qkv.dtype)
