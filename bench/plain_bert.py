"""BERT's pre-training step as plain PyTorch, to compare with: one module, dense batches, and torch.compile.

Attention by `scaled_dot_product_attention`, the vocabulary padded to a multiple of 64, logits at the masked positions
only, fused AdamW. T = B · S tokens of B sequences of equal length S, A heads, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.systems.bert.defaults import SIZES
from bertwright.training.optimizer_settings import OptimizerSettings
from environment import adamw, train_step

VOCABULARY, DROPOUT = 30_592, 0.1


class PlainLayer(nn.Module):
    """A Transformer layer with the normalization after each sub-layer."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.attended = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # B A S D each
        context = F.scaled_dot_product_attention(q, k, v, dropout_p=DROPOUT).transpose(1, 2).flatten(2)
        x = self.norm1(x + F.dropout(self.attended(context), DROPOUT))
        normed: Tensor = self.norm2(x + F.dropout(self.down(F.gelu(self.up(x))), DROPOUT))
        return normed


class PlainBert(nn.Module):
    """BERT with both pre-training losses."""

    def __init__(self, size: str) -> None:
        super().__init__()
        layers, hidden, heads = (int(SIZES[size][name]) for name in ("num_layers", "hidden_size", "num_heads"))
        self.words, self.positions = nn.Embedding(VOCABULARY, hidden), nn.Embedding(512, hidden)
        self.types, self.norm = nn.Embedding(2, hidden), nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(PlainLayer(hidden, heads) for _ in range(layers))
        self.head, self.head_norm, self.bias = (
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden),
            nn.Parameter(torch.zeros(VOCABULARY)),
        )
        self.pooler, self.next = nn.Linear(hidden, hidden), nn.Linear(hidden, 2)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor, masks: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        embedded = self.words(ids) + self.positions.weight[: ids.shape[1]] + self.types(torch.zeros_like(ids))
        x = F.dropout(self.norm(embedded), DROPOUT)
        x = x.to(torch.get_autocast_dtype(x.device.type)) if torch.is_autocast_enabled(x.device.type) else x
        for layer in self.layers:
            x = layer(x)
        masked = x.gather(1, masks[..., None].expand(-1, -1, x.shape[2])).flatten(0, 1)
        logits = F.linear(self.head_norm(F.gelu(self.head(masked))), self.words.weight, self.bias)
        next_sentence = self.next(torch.tanh(self.pooler(x[:, 0])))
        loss = F.cross_entropy(logits.float(), labels.flatten())
        return loss + F.cross_entropy(next_sentence.float(), answers)


def plain_step(
    size: str, device: str, example: Mapping[str, Tensor], compiled: bool, bfloat16: bool
) -> Callable[[], Tensor]:
    """Return a function that makes one step and returns its loss; `example`: ids, masks, labels, next."""
    model = PlainBert(size).to(device)
    optimizer = adamw(model, OptimizerSettings())
    given = [example[name].to(device) for name in ("ids", "masks", "labels", "next")]
    forward = torch.compile(model) if compiled else model
    return lambda: train_step(model, lambda: forward(*given), optimizer, bfloat16, device)
