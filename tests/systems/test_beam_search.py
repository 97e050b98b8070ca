"""Beam search against exhaustive search and greedy decoding, and the cache against decoding without one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from bertwright.base.seeding import make_rng
from bertwright.models.beam_search import beam_search, length_penalty, top_of_rows
from bertwright.models.packing import pack
from bertwright.systems.transformer.transformer import CachedDecoder, Transformer, TransformerConfig

START, END = 0, 1
ALPHA = 0.6


class MarkovDecoder:
    """A toy whose logits depend on the source and on all tokens so far."""

    def __init__(self, sources: int, vocabulary: int, sharpness: float = 1.0) -> None:
        self.sources, self.vocabulary, self.sharpness = sources, vocabulary, sharpness
        self.prefixes: list[list[int]] = [[] for _ in range(sources)]

    def logits_of(self, source: int, prefix: list[int]) -> Tensor:
        numbers = make_rng(11, source, len(prefix), *prefix).normal(size=self.vocabulary)
        return torch.from_numpy(self.sharpness * numbers)

    def advance(self, tokens: Tensor, parents: Tensor, sources: Tensor) -> Tensor:
        beam = len(tokens) // len(sources)
        self.prefixes = [[*self.prefixes[p], t] for p, t in zip(parents.tolist(), tokens.tolist(), strict=True)]
        owners = sources.repeat_interleave(beam).tolist()
        return torch.stack([self.logits_of(s, prefix) for s, prefix in zip(owners, self.prefixes, strict=True)])

    def score(self, source: int, tokens: list[int]) -> float:
        """Return the log-probability of tokens, the end included if it is among them."""
        total = 0.0
        for n, token in enumerate(tokens):
            total += self.logits_of(source, [START, *tokens[:n]]).log_softmax(0)[token].item()
        return total


def exhaustive(decoder: MarkovDecoder, source: int, max_length: int) -> tuple[float, list[int]]:
    """Return the best of all sequences that end, or that have the maximum length."""
    others = [token for token in range(decoder.vocabulary) if token != END]
    scored = []
    for length in range(max_length):
        for ids in product(others, repeat=length):
            scored.append((decoder.score(source, [*ids, END]) / length_penalty(length + 1, ALPHA), [*ids]))
    for ids in product(others, repeat=max_length):
        scored.append((decoder.score(source, [*ids]) / length_penalty(max_length, ALPHA), [*ids]))
    return max(scored)


def test_a_wide_beam_finds_the_best_of_all_sequences() -> None:
    lengths = np.array([3, 1, 4])
    best = beam_search(MarkovDecoder(3, 4), lengths, 200, ALPHA, START, END)
    for source, hypothesis in enumerate(best):
        score, tokens = exhaustive(MarkovDecoder(3, 4), source, int(lengths[source]))
        assert hypothesis.tokens == tokens
        assert hypothesis.score == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("vocabulary", [3, 12])
def test_a_beam_of_one_is_greedy(vocabulary: int) -> None:
    lengths = np.array([6, 2, 9, 5])
    best = beam_search(MarkovDecoder(4, vocabulary), lengths, 1, ALPHA, START, END)
    toy = MarkovDecoder(4, vocabulary)
    for source, hypothesis in enumerate(best):
        tokens: list[int] = []
        while len(tokens) < lengths[source]:
            token = int(toy.logits_of(source, [START, *tokens]).argmax())
            if token == END:
                break
            tokens.append(token)
        assert hypothesis.tokens == tokens


def test_a_wider_beam_has_a_better_score_and_does_not_depend_on_the_batch() -> None:
    lengths = np.array([8, 8, 8])
    narrow, wide = (beam_search(MarkovDecoder(3, 9), lengths, size, ALPHA, START, END) for size in (1, 8))
    assert all(b.score >= a.score for a, b in zip(narrow, wide, strict=True))
    assert beam_search(MarkovDecoder(1, 9), lengths[:1], 8, ALPHA, START, END) == wide[:1]


def test_the_length_penalty_prefers_longer_translations() -> None:
    lengths = np.full(20, 8)
    short, long = (beam_search(MarkovDecoder(20, 6), lengths, 6, alpha, START, END) for alpha in (0.0, 2.0))
    assert sum(len(h.tokens) for h in long) > sum(len(h.tokens) for h in short)


@pytest.mark.parametrize(("columns", "count"), [(30, 8), (640, 8), (700, 8), (1000, 2), (513, 8), (200, 3)])
def test_the_top_of_rows_is_topks_with_and_without_columns_beyond_the_blocks(columns: int, count: int) -> None:
    values = torch.from_numpy(make_rng(2, columns).normal(size=(20, columns)))
    values[:5, -count:] += 10  # the largest are beyond the last whole block, or in one block
    best, indices = top_of_rows(values, count)
    expected = values.topk(count, dim=1)
    assert torch.equal(best, expected.values)
    assert torch.equal(indices, expected.indices)


class UncachedDecoder:
    """A Transformer's decoder that computes all tokens of all hypotheses again in every step."""

    def __init__(self, model: Transformer, sources: list[np.ndarray]) -> None:
        self.model, self.texts = model, sources
        self.prefixes: list[list[int]] = [[] for _ in sources]

    def advance(self, tokens: Tensor, parents: Tensor, sources: Tensor) -> Tensor:
        self.prefixes = [[*self.prefixes[p], t] for p, t in zip(parents.tolist(), tokens.tolist(), strict=True)]
        source = pack([self.texts[s] for s in sources.repeat_interleave(len(tokens) // len(sources)).tolist()])
        target = pack([np.array(prefix) for prefix in self.prefixes])
        states = self.model.decode(target, self.model.encode(source), source.packing)
        return self.model.logits(states[target.packing.last_positions])


@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_cache_changes_nothing(beam_size: int) -> None:
    torch.manual_seed(0)
    config = TransformerConfig(30, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=32)
    model = Transformer(config, seed=5).eval()
    with torch.no_grad():
        model.words.weight *= 2  # sharper distributions, so that some hypotheses end early
    texts = [make_rng(1, n).integers(2, 30, length) for n, length in enumerate((4, 1, 7, 3))]
    lengths = np.array([len(text) + 9 for text in texts])
    cached = beam_search(CachedDecoder(model, pack(texts)), lengths, beam_size, ALPHA, START, END)
    plain = beam_search(UncachedDecoder(model, texts), lengths, beam_size, ALPHA, START, END)
    assert [h.tokens for h in cached] == [h.tokens for h in plain]
    assert len({len(h.tokens) for h in cached}) > 1
    assert [h.score for h in cached] == pytest.approx([h.score for h in plain], abs=1e-4)
