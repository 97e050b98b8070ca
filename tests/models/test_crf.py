"""The CRF against sums over all paths, finite differences, and the limits of a tag scheme."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
import torch

from bertwright.models.crf import (
    CrfHead,
    CrfScores,
    best_path,
    log_partition,
    marginals,
    path_score,
)
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch
from bertwright.tables.tag_schemes import find_spans, spell

LENGTHS = np.array([3, 1, 5, 4, 2])
TAGS = 3


def random_scores(seed: int, words: int, tags: int = TAGS) -> CrfScores:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((words, tags), (tags, tags), (tags,), (tags,))
    return CrfScores(*(torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes))


def weigh(scores: CrfScores, first: int, path: tuple[int, ...]) -> float:
    total = scores.start[path[0]] + scores.end[path[-1]]
    total = total + sum(scores.emissions[first + n, tag] for n, tag in enumerate(path))
    return float(total + sum(scores.transitions[a, b] for a, b in pairwise(path)))


@pytest.mark.parametrize("seed", range(3))
def test_partition_viterbi_and_marginals_equal_all_paths(seed: int) -> None:
    scores, first, log_z, paths = random_scores(seed, LENGTHS.sum()), 0, 0.0, list[int]()
    expected = np.zeros((LENGTHS.sum(), TAGS))
    for length in LENGTHS.tolist():
        weights = {path: weigh(scores, first, path) for path in product(range(TAGS), repeat=length)}
        total = np.logaddexp.reduce([*weights.values()])
        for path, weight in weights.items():
            for n, tag in enumerate(path):
                expected[first + n, tag] += np.exp(weight - total)
        log_z += total
        paths += max(weights, key=weights.__getitem__)
        first += length
    assert float(log_partition(scores, LENGTHS)) == pytest.approx(log_z, abs=1e-6)
    with torch.inference_mode():  # as in prediction
        assert best_path(scores, LENGTHS).tolist() == paths
        np.testing.assert_allclose(marginals(scores, LENGTHS), expected, atol=1e-6)


def test_loss_is_minus_the_log_probability_of_the_tags() -> None:
    scores = random_scores(0, 3)
    weights = {path: weigh(scores, 0, path) for path in product(range(TAGS), repeat=3)}
    share = np.exp(weights[2, 0, 1]) / np.exp([*weights.values()]).sum()
    assert float(path_score(scores, torch.tensor([2, 0, 1]), np.array([3]))) == pytest.approx(weights[2, 0, 1])
    loss = scores.negative_log_likelihood(torch.tensor([2, 0, 1]), np.array([3]))
    assert float(loss) == pytest.approx(-np.log(share), abs=1e-6)


def test_gradients_equal_finite_differences() -> None:
    scores = random_scores(1, LENGTHS.sum())
    tags = torch.randint(TAGS, (int(LENGTHS.sum()),), generator=torch.Generator().manual_seed(0))
    inputs = [tensor.requires_grad_() for tensor in scores]
    assert torch.autograd.gradcheck(lambda *given: CrfScores(*given).negative_log_likelihood(tags, LENGTHS), inputs)


def test_decoding_takes_the_best_valid_path_of_bioes() -> None:
    labels = ("O", "B-PER", "I-PER", "E-PER", "S-PER", "S-LOC")
    head = CrfHead(HeadSpec("token", len(labels)), 4, labels, "bioes")
    for seed in range(5):
        scores = CrfScores(*(tensor.float() for tensor in random_scores(seed, 4, len(labels))))
        batch = TaskBatch(None, torch.arange(4), np.array([4]))  # type: ignore[arg-type]
        decoded = head.scores(scores, batch)
        path = tuple(decoded[:, -1].int().tolist())
        tags = tuple(labels[tag] for tag in path)
        assert spell(find_spans(tags), 4, "bioes") == tags
        valid = {
            path: weigh(scores, 0, path)
            for path in product(range(len(labels)), repeat=4)
            if spell(find_spans(names := [labels[tag] for tag in path]), 4, "bioes") == tuple(names)
        }
        assert path == max(valid, key=valid.__getitem__)
        total = np.logaddexp.reduce([*valid.values()])
        share = sum(np.exp(weight - total) for other, weight in valid.items() if other[1] == path[1])
        assert float(decoded[1, path[1]].exp()) == pytest.approx(share, rel=1e-4)
