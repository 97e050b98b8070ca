"""Scores of the pre-training tasks, and the baseline of a model that knows token frequencies only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from bertwright.models.heads import BertForPretraining
from bertwright.pretraining.data import PretrainingBatch
from bertwright.pretraining.objective import pretraining_losses
from bertwright.tokenstore.store import TokenStore
from bertwright.training.loop import evaluation_mode

ENTROPY_SAMPLE = 4_000_000  # tokens; more changes the third decimal


class PretrainingMetrics(NamedTuple):
    """Means over all predictions of an evaluation or of some steps."""

    mlm_loss: float
    """Nats per masked token."""
    perplexity: float
    """exp(mlm_loss), the figure of the paper's table 6."""
    mlm_accuracy: float
    """Share of masked tokens that the model ranks first."""
    nsp_loss: float
    """Nats per sequence; 0 if the objective has no next-sentence prediction."""
    nsp_accuracy: float
    """Share of right next-sentence answers (the paper reaches 97-98 %); 0 if there are none."""


def compute_metrics(sums: Mapping[str, float]) -> PretrainingMetrics:
    """Compute means from sums over any number of batches, by name as in `PretrainingLosses`; a count of 0 gives 0."""
    mlm_loss = sums["mlm_sum"] / max(sums["mlm_count"], 1)
    return PretrainingMetrics(
        mlm_loss,
        math.exp(min(mlm_loss, 700.0)),
        sums["mlm_correct"] / max(sums["mlm_count"], 1),
        sums["nsp_sum"] / max(sums["nsp_count"], 1),
        sums["nsp_correct"] / max(sums["nsp_count"], 1),
    )


@torch.no_grad()
def evaluate(model: BertForPretraining, batches: Iterable[PretrainingBatch]) -> PretrainingMetrics:
    """Score a model on held-out batches without dropout; restores the model's mode."""
    summed = ("mlm_sum", "mlm_correct", "nsp_sum", "nsp_correct")
    total, counts = torch.zeros(len(summed), dtype=torch.float64), {"mlm_count": 0, "nsp_count": 0}
    with evaluation_mode(model):
        for batch in batches:
            losses = pretraining_losses(model, batch)
            found = torch.stack([getattr(losses, name).double() for name in summed])
            total = total.to(found.device) + found  # stays on a GPU, so that nothing waits for it
            counts["mlm_count"] += batch.num_predictions
            counts["nsp_count"] += batch.num_sequences if batch.nsp_count else 0
    return compute_metrics(dict(zip(summed, total.tolist(), strict=True)) | counts)


def unigram_entropy(store: TokenStore) -> float:
    """Compute the entropy of the token frequencies in nats: the masked-LM loss of a model that ignores its input.

    Raises ValueError if the store has ids beyond its vocabulary.
    """
    stride = max(1, store.num_tokens // ENTROPY_SAMPLE)
    counts = np.zeros(store.header.provenance.vocab_size, dtype=np.int64)
    block = 1 << 16
    for start in range(0, store.num_tokens, block * stride):
        ids = store.read_tokens(start, min(start + block, store.num_tokens))
        if ids.max(initial=0) >= len(counts):
            raise ValueError(
                f"{store.folder}: token {ids.max()} in a vocabulary of {len(counts):,}: the store is damaged; prepare "
                "the corpus again"
            )
        counts += np.bincount(ids, minlength=len(counts))
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


class PlateauDetector:
    """Detector of runs that have learned token frequencies and nothing else.

    >>> watch = PlateauDetector(entropy=6.0, window=2)
    >>> [watch.update(loss) for loss in (9.0, 7.0, 6.05, 6.02, 6.03, 6.01)]
    [False, False, False, False, False, True]
    """

    def __init__(self, entropy: float, window: int) -> None:
        self.entropy = entropy
        self.window = window  # losses to compare with as many before them
        self.losses: list[float] = []
        self.noticed = False

    def update(self, loss: float) -> bool:
        """Add a loss; returns True once, when the recent losses are near the entropy and no better than before."""
        self.losses = [*self.losses, loss][-2 * self.window :]
        if self.noticed or len(self.losses) < 2 * self.window:
            return False
        before, recent = np.mean(self.losses[: self.window]), np.mean(self.losses[self.window :])
        self.noticed = bool(abs(recent - self.entropy) < 0.15 and before - recent < 0.05)
        return self.noticed
