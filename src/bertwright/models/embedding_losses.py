"""Losses of text vectors, in which all texts of a step meet.

Each is a sum over rows and a count of rows. Similarities are computed in blocks of rows, so that no matrix over all
pairs is in memory. B rows (anchors), C columns (documents), N texts, D numbers per vector, P pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize, pairwise_distance

BLOCK_ROWS = 256  # rows of the similarity matrix in memory; bounds memory and changes a loss by rounding only
MARGIN = 0.5  # of `contrastive`, on the distance 1 - cosine (sentence-transformers' default)
TRIPLET_MARGIN = 5.0  # of `triplet`, on the Euclidean distance (sentence-transformers' default)

BlockLoss = Callable[[Tensor, int, int], Tensor]


class LossSum(NamedTuple):
    """The sum of a loss over some rows, and their number."""

    total: Tensor
    rows: int

    @property
    def mean(self) -> Tensor:
        return self.total / max(self.rows, 1)


class Pairs(NamedTuple):
    """Pairs of a row and a column, ordered by row."""

    rows: Tensor
    columns: Tensor

    def in_rows(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Return the pairs of some rows, which are counted from `begin`."""
        first, last = torch.searchsorted(self.rows, self.rows.new_tensor([begin, end])).tolist()
        return self.rows[first:last] - begin, self.columns[first:last]


class _SumOfBlocks(torch.autograd.Function):
    """The sum of a loss over blocks of rows; the gradient of a block is computed with its loss, and its graph freed."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, block_loss: BlockLoss, num_rows: int) -> Tensor:
        leaf, total = vectors.detach().requires_grad_(), vectors.new_zeros(())
        with torch.enable_grad():
            for begin in range(0, num_rows, BLOCK_ROWS):
                value = block_loss(leaf, begin, min(begin + BLOCK_ROWS, num_rows))
                value.backward()  # type: ignore[no-untyped-call]
                total += value.detach()
        ctx.save_for_backward(leaf.grad)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (saved,) = ctx.saved_tensors
        return gradients[0] * saved, None, None


def sum_blocks(vectors: Tensor, block_loss: BlockLoss, num_rows: int) -> Tensor:
    """Sum `block_loss(vectors, begin, end)` over blocks of rows, in the memory of one block."""
    total: Tensor = _SumOfBlocks.apply(vectors, block_loss, num_rows)  # type: ignore[no-untyped-call]
    return total


class Guide(NamedTuple):
    """Vectors of another model; a column that it finds nearer than the target is no negative (2402.16829)."""

    first: Tensor
    """B × G, unit vectors of the rows."""
    second: Tensor
    """C × G, unit vectors of the columns."""
    margin: float


@dataclass(frozen=True)
class RankingBatch:
    """The rows and columns of `ranking`: indices of N vectors."""

    anchors: Tensor
    """B, index of each row's vector."""
    columns: Tensor
    """C, index of each column's vector."""
    targets: Tensor
    """B, the column that belongs to each row."""
    masked: Pairs
    """Pairs that are no negatives; never a row and its target."""
    explicit: Pairs | None = None
    """The row's own negatives, to which `hardness` gives more weight."""
    guide: Guide | None = None


def ranking(vectors: Tensor, batch: RankingBatch, scale: float, hardness: float = 0.0) -> LossSum:
    """Compute −Σ log softmax of each row's target among its columns (1705.00652, 1807.03748).

    `vectors`: N × D of length 1. `hardness`: a · cosine, without gradient, is added to the logits of negatives
    (2503.04812); of a row's explicit ones if it has some, else of all.
    """

    def block_loss(unit: Tensor, begin: int, end: int) -> Tensor:
        cosines = unit[batch.anchors[begin:end]] @ unit[batch.columns].T  # b C
        targets = batch.targets[begin:end, None]
        logits = scale * cosines
        if hardness:
            logits = logits + hardness * _hardened(cosines.detach(), batch, begin, end)
        logits[batch.masked.in_rows(begin, end)] = -torch.inf
        if batch.guide is not None:
            logits = logits.masked_fill(_guided(batch.guide, targets, begin, end), -torch.inf)
        return (logits.logsumexp(1) - logits.gather(1, targets)[:, 0]).sum()

    rows = len(batch.anchors)
    return LossSum(sum_blocks(vectors, block_loss, rows), rows)


def _hardened(cosines: Tensor, batch: RankingBatch, begin: int, end: int) -> Tensor:
    """Return the cosines of the negatives that get more weight; 0 for the others."""
    weights = torch.ones_like(cosines)
    if batch.explicit is not None:
        rows, columns = batch.explicit.in_rows(begin, end)
        weights[rows] = 0.0
        weights[rows, columns] = 1.0
    return cosines * weights.scatter(1, batch.targets[begin:end, None], 0.0)


def _guided(guide: Guide, targets: Tensor, begin: int, end: int) -> Tensor:
    """Return the pairs, b × C, that the guide finds nearer than the row's target minus the margin."""
    cosines = guide.first[begin:end] @ guide.second.T
    return (cosines > cosines.gather(1, targets) - guide.margin).scatter(1, targets, False)


def ranking_all_pairs(vectors: Tensor, batch: RankingBatch, scale: float, same: Pairs, reverse: Pairs) -> LossSum:
    """Compute `ranking` with one denominator over q→d, q→q, d→q and d→d (2308.03281), in batches of pairs only.

    `same`: pairs of a row and another row whose anchors, or whose targets, have the same text or belong together;
    they are masked between texts of one side. `reverse`: of a row's target and other rows to which it belongs.
    """

    def block_loss(unit: Tensor, begin: int, end: int) -> Tensor:
        first, second = unit[batch.anchors], unit[batch.columns[batch.targets]]
        own = torch.arange(begin, end, device=unit.device)
        rows = own - begin
        forward = scale * unit[batch.anchors[begin:end]] @ unit[batch.columns].T
        forward[batch.masked.in_rows(begin, end)] = -torch.inf
        target = forward.gather(1, batch.targets[begin:end, None])
        others = [scale * (one[begin:end] @ two.T) for one, two in ((first, first), (second, first), (second, second))]
        for logits, masked, one_side in zip(others, (same, reverse, same), (True, False, True), strict=True):
            found, columns = masked.in_rows(begin, end)
            if one_side:  # a text with itself
                found, columns = torch.cat([found, rows]), torch.cat([columns, own])
            logits[found, columns] = -torch.inf
        return (torch.cat([forward, *others], 1).logsumexp(1) - target[:, 0]).sum()

    rows = len(batch.anchors)
    return LossSum(sum_blocks(vectors, block_loss, rows), rows)


def same_class(vectors: Tensor, classes: Tensor, scale: float) -> LossSum:
    """Compute the supervised contrastive loss, in which the texts of a class are each other's targets (2004.11362).

    `vectors`: N × D of length 1; `classes`: N. A text without another one of its class has no loss.
    """

    def block_loss(unit: Tensor, begin: int, end: int) -> Tensor:
        logits = scale * unit[begin:end] @ unit.T  # b N
        own = torch.arange(begin, end, device=unit.device)[:, None]
        same = (classes[begin:end, None] == classes).scatter(1, own, False)
        logs = logits - logits.scatter(1, own, -torch.inf).logsumexp(1, keepdim=True)
        counts = same.sum(1)
        return -(torch.where(same, logs, 0.0).sum(1) / counts.clamp(min=1)).sum()

    _, numbers, counts = torch.unique(classes, return_inverse=True, return_counts=True)
    return LossSum(sum_blocks(vectors, block_loss, len(vectors)), int((counts[numbers] > 1).sum()))


def rank_scores(similarities: Tensor, scores: Tensor, scale: float) -> LossSum:
    """Compute log(1 + Σ exp s (sim_b − sim_a)) over pairs of rows with score_a > score_b (CoSENT): one loss per step.

    `similarities`, `scores`: B. Sorted by score, the sum over b is a cumulative one.
    """
    scores, order = scores.sort(stable=True)
    logits = scale * similarities[order]
    lower = torch.searchsorted(scores, scores)  # number of rows with a lower score
    sums = torch.cat([logits.new_full((1,), -torch.inf), logits.logcumsumexp(0)])
    return LossSum(torch.cat([logits.new_zeros(1), sums[lower] - logits]).logsumexp(0), 1)


def angle_similarity(first: Tensor, second: Tensor) -> Tensor:
    """Compute |cos + sin| of the angle between vectors B × D as complex ones, halves paired (2309.12871)."""
    if first.shape[1] % 2:
        first, second = (torch.nn.functional.pad(vectors, (0, 1)) for vectors in (first, second))
    (a, b), (c, d) = first.chunk(2, 1), second.chunk(2, 1)
    return ((first * second).sum(1) + (b * c - a * d).sum(1)).abs()


def online_contrastive(similarities: Tensor, labels: Tensor) -> LossSum:
    """Compute the contrastive loss of the hard pairs: a sum over the step, as in sentence-transformers.

    Hard are positives farther than the nearest negative, and negatives nearer than the farthest positive; in a step
    without the other kind, farther or nearer than the mean.
    """
    distances = 1 - similarities
    positives, negatives = distances[labels > 0.5], distances[labels <= 0.5]
    near = negatives.min() if len(negatives) else positives.mean()
    far = positives.max() if len(positives) else negatives.mean()
    hard_positives = positives[positives > near]
    hard_negatives = negatives[negatives < far]
    return LossSum(hard_positives.square().sum() + (MARGIN - hard_negatives).relu().square().sum(), 1)


def squared_errors(similarities: Tensor, scores: Tensor) -> LossSum:
    """Compute the squared errors of cosines B as predictions of scores from 0 to 1."""
    return LossSum((similarities - scores).square().sum(), len(scores))


def triplets(anchors: Tensor, positives: Tensor, negatives: Tensor) -> LossSum:
    """Compute max(0, |q − p| − |q − n| + 5) of vectors B × D, which are not normalized."""
    gap = pairwise_distance(anchors, positives) - pairwise_distance(anchors, negatives)
    return LossSum((gap + TRIPLET_MARGIN).relu().sum(), len(anchors))


def in_dims(loss: Callable[[Tensor], LossSum], vectors: Tensor, dims: tuple[int, ...]) -> LossSum:
    """Sum a loss over the first numbers of vectors N × D, normalized anew for each of `dims` (2205.13147)."""
    if not dims:
        return loss(vectors)
    sums = [loss(vectors[:, :size]) for size in dims]
    return LossSum(torch.stack([part.total for part in sums]).sum(), sums[0].rows)


def unit(vectors: Tensor) -> Tensor:
    return normalize(vectors, dim=1)


def describe_scale(scale: float) -> str:
    """Describe a scale in both forms that are in use.

    >>> describe_scale(20)
    'scale 20 (temperature 0.05)'
    """
    return f"scale {scale:g} (temperature {1 / scale:g})" if math.isfinite(scale) else ""
