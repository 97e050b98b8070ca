"""A Transformer's decoder that computes one more token at a time.

S tokens of the sources, N hypotheses, t tokens of each hypothesis, A heads, D head size.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from bertwright.models.packing import TokenBatch
from bertwright.systems.transformer.transformer import DecoderLayer, Sequences, Transformer


class CachedDecoder:
    """A Transformer's decoder with the keys and values of all earlier tokens and of the sources.

    The hypotheses of a source are queries of one sequence of keys, so the source's keys and values are stored once.
    """

    def __init__(self, model: Transformer, source: TokenBatch) -> None:
        """Encode the sources."""
        config, memory = model.config, model.encode(source)
        self.model, self.source = model, source.packing
        self.layers = cast(list[DecoderLayer], list(model.decoder_layers))
        self.memory = [layer.cross_attention.read(memory) for layer in self.layers]  # S 2 A D each
        empty = memory.new_empty(len(source.packing), 0, 2, config.num_heads, config.hidden_size // config.num_heads)
        self.past = [empty] * config.num_layers  # N t 2 A D each
        self.length = 0

    def advance(self, tokens: Tensor, parents: Tensor, sources: Tensor) -> Tensor:
        """Compute the logits after one more token of each hypothesis; see `StepDecoder`."""
        device = self.source.cu_seqlens.device
        counts = np.zeros(len(self.source), np.int32)
        counts[sources.numpy()] = beam = len(tokens) // len(sources)
        bounds = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)).to(device)
        tokens, parents = tokens.to(device), parents.to(device)
        hidden = self.model.add_positions(tokens, torch.full_like(tokens, self.length), self.length + 1)
        self.length += 1
        for number, layer in enumerate(self.layers):
            past = self.past[number].index_select(0, parents)
            hidden, self.past[number] = layer.step(
                hidden, past, self.memory[number], Sequences(bounds, beam), self.source
            )
        return self.model.logits(hidden).cpu()
