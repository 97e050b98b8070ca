"""Beam search (Vaswani et al. 2017, section 6.1; Wu et al. 2016, section 7) over a batch of sources.

B sources, K hypotheses of each (the beam), N = K · (sources in progress) rows of a step, V vocabulary. The rows of one
source lie together, best first.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from bertwright.base.ragged import Ints
from bertwright.models.packing import TokenBatch
from bertwright.systems.transformer.transformer import DecoderLayer, Sequences, Transformer

BLOCK = 64  # columns whose maximum is compared first


class StepDecoder(Protocol):
    """A model that continues hypotheses by one token at a time."""

    def advance(self, tokens: Tensor, parents: Tensor, sources: Tensor) -> Tensor:
        """Append a token to each hypothesis, and compute the logits of the next token, N × V.

        `tokens`: N int64. `parents`: N int64, the row of the last step that each hypothesis continues; in the first
        step, the K rows of a source are its number. `sources`: the numbers of the sources in progress, ascending.
        """


class Hypothesis(NamedTuple):
    """A finished translation."""

    tokens: list[int]
    """Its tokens, without start and end."""
    score: float
    """Its log-probability over its length penalty."""


def length_penalty(length: int, alpha: float) -> float:
    """Return ((5 + length) / 6)^α, by which log-probabilities are divided (Wu et al. 2016, equation 14).

    >>> [round(length_penalty(length, 0.6), 3) for length in (1, 7, 25)]
    [1.0, 1.516, 2.627]
    """
    return float(((5 + length) / 6) ** alpha)


@torch.inference_mode()
def beam_search(
    decoder: StepDecoder, max_lengths: Ints, beam_size: int, alpha: float, start: int, end: int
) -> list[Hypothesis]:
    """Return the best hypothesis of each source; a beam of 1 is greedy decoding.

    `max_lengths`: B, the most tokens of each translation, at least 1. A source is finished as soon as K of its
    hypotheses have ended with the token `end`; at its maximum length the unfinished ones count as they are. `start`:
    first token of every hypothesis. `alpha`: exponent of the length penalty.
    """
    finished: list[list[Hypothesis]] = [[] for _ in max_lengths]
    sources = torch.arange(len(max_lengths))
    parents = sources[:, None].expand(-1, beam_size)  # sources × K, rows of the last step
    tokens = torch.full_like(parents, start)
    history = torch.empty(len(sources), beam_size, 0, dtype=torch.int64)  # sources × K × tokens after the start
    scores = torch.full((len(sources), beam_size), -torch.inf)
    scores[:, 0] = 0.0  # at first all hypotheses of a source are equal: one of them counts
    length = 0
    while len(sources):
        length += 1
        logits = decoder.advance(tokens.flatten(), parents.flatten(), sources).float()
        best = best_candidates(logits, scores)
        past = history.gather(1, best.beams[..., None].expand(-1, -1, length - 1))
        grown = torch.cat([past, best.tokens[..., None]], dim=2)
        is_end = best.tokens == end
        alive = is_end.int().argsort(dim=1, stable=True)[:, :beam_size]  # the K best that have not ended
        scores = best.scores.masked_fill(is_end, -torch.inf).gather(1, alive)
        rows = torch.arange(len(sources))[:, None] * beam_size + best.beams
        penalty = length_penalty(length, alpha)
        numbers = sources.tolist()
        for row, rank in is_end[:, :beam_size].nonzero().tolist():
            if (score := best.scores[row, rank].item()) > -torch.inf:
                finished[numbers[row]].append(Hypothesis(grown[row, rank, :-1].tolist(), score / penalty))
        going = []
        for row, source in enumerate(numbers):
            if length == max_lengths[source]:
                unfinished = zip(grown[row, alive[row]].tolist(), scores[row].tolist(), strict=True)
                finished[source] += [
                    Hypothesis(ids, score / penalty) for ids, score in unfinished if score > -torch.inf
                ]
            elif len(finished[source]) < beam_size:
                going.append(row)
        alive, sources, scores = alive[going], sources[going], scores[going]
        parents, tokens = (values[going].gather(1, alive) for values in (rows, best.tokens))
        history = grown[going].gather(1, alive[..., None].expand(-1, -1, length))
    return [max(hypotheses, key=lambda hypothesis: hypothesis.score) for hypotheses in finished]


class Candidates(NamedTuple):
    """The best continuations of each source's hypotheses, best first: sources × C."""

    scores: Tensor  # log-probabilities, float32
    beams: Tensor  # int64, the hypothesis that is continued, 0 … K - 1
    tokens: Tensor  # int64


def best_candidates(logits: Tensor, scores: Tensor) -> Candidates:
    """Return the 2 K best continuations of each source's K hypotheses, whose log-probabilities are `scores`.

    At most K of them end, so K are left that do not.
    """
    (sources, beams), vocabulary = scores.shape, logits.shape[1]
    count = min(2 * beams, vocabulary)
    largest, tokens = top_of_rows(logits, count)
    # One pass, where logsumexp takes four. The best token is finite; the first one may be forbidden, with -∞.
    log_sum = largest[:, 0] - logits.log_softmax(1).gather(1, tokens[:, :1])[:, 0]
    log_probs = (largest - log_sum[:, None] + scores.reshape(-1, 1)).view(sources, -1)
    best = log_probs.topk(min(2 * beams, log_probs.shape[1]), dim=1)
    return Candidates(best.values, best.indices // count, tokens.view(sources, -1).gather(1, best.indices))


def top_of_rows(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values of each row, descending, and their columns: N × count.

    They lie in the `count` blocks of columns with the largest maxima. To find these takes a pass over the values; topk
    of whole rows takes as long as a sort of some of them.
    """
    blocks = values.shape[1] // BLOCK
    if blocks <= count:
        return values.topk(count, dim=1)
    whole = blocks * BLOCK
    blocked = values[:, :whole].reshape(-1, blocks, BLOCK)
    chosen = blocked.amax(2).topk(count, dim=1).indices  # N × count
    inside = blocked.gather(1, chosen[..., None].expand(-1, -1, BLOCK)).flatten(1)
    best = torch.cat([inside, values[:, whole:]], dim=1).topk(count, dim=1)
    block, offset = best.indices // BLOCK, best.indices % BLOCK
    beyond = whole + best.indices - count * BLOCK  # columns after the last whole block
    columns_of = torch.where(block < count, chosen.gather(1, block.clamp(max=count - 1)) * BLOCK + offset, beyond)
    return best.values, columns_of


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
