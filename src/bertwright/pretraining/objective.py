"""Masked-LM, next-sentence and left-to-right losses: sums, divided once by the counts of the whole step.

Left-to-right pre-training (section 5.1) is the masked-LM loss with the next tokens as targets, under causal attention.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bertwright.kernels.fused_ops import linear_cross_entropy
from bertwright.models.heads import BertForPretraining
from bertwright.pretraining.data import PretrainingBatch


class PretrainingLosses(NamedTuple):
    """Losses of a micro-batch; each a scalar on the model's device."""

    loss: Tensor
    """Share of the step's loss, mean MLM + mean NSP (appendix A.2), on which `backward` is called.

    The shares of all micro-batches and ranks add up to the step's loss, because `mlm_count` and `nsp_count` are those
    of the whole step.
    """
    mlm_sum: Tensor
    """Cross entropy of the masked tokens, in nats, summed; without gradient, like all fields below."""
    mlm_correct: Tensor
    """Number of them that the model ranks first."""
    nsp_sum: Tensor
    """Cross entropy of the next-sentence answers, in nats, summed; 0 if the objective has none."""
    nsp_correct: Tensor
    """Number of right answers."""


def pretraining_losses(model: BertForPretraining, batch: PretrainingBatch) -> PretrainingLosses:
    """Compute both losses of a micro-batch.

    The last layer computes only the states that are read, B of [CLS] and M of masked tokens; logits exist only for the
    latter, and never for all at once.
    """
    firsts = batch.packing.first_positions[: len(batch.nsp_labels)]
    hidden = model.encoder(batch.input, torch.cat([firsts, batch.mlm_positions]))  # B + M  H
    first, masked = hidden.split([len(firsts), len(batch.mlm_positions)])
    states = model.masked_token(masked)  # M H
    mlm_mean, mlm_correct = linear_cross_entropy(
        states, model.word_embeddings, model.masked_token.bias, batch.mlm_labels, scale=1 / max(batch.mlm_count, 1)
    )
    mlm_sum = mlm_mean.detach() * max(batch.mlm_count, 1)
    if len(batch.nsp_labels) == 0:
        none = torch.zeros((), device=hidden.device)
        return PretrainingLosses(mlm_mean, mlm_sum, mlm_correct, none, none)
    answers = model.next_sentence(model.pooler(first)).float()  # B 2
    nsp_sum = F.cross_entropy(answers, batch.nsp_labels, reduction="sum")
    nsp_correct = (answers.argmax(-1) == batch.nsp_labels).sum()
    return PretrainingLosses(mlm_mean + nsp_sum / batch.nsp_count, mlm_sum, mlm_correct, nsp_sum.detach(), nsp_correct)
