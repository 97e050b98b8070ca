"""Padding of micro-batches to a fixed number of tokens, so that one compiled program or CUDA graph serves all steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from bertwright.kernels.reference import IGNORED_LABEL
from bertwright.models.packing import from_flat

if TYPE_CHECKING:
    from bertwright.objectives.language_model_objective import LanguageModelBatch


def pad_batch(batch: LanguageModelBatch, sequences: int, length: int, predictions: int) -> LanguageModelBatch:
    """Pad a micro-batch of at most `sequences` examples on the CPU to shapes that depend only on the other arguments.

    `length`: maximum tokens of an example. `predictions`: maximum predictions of an example. With S `sequences`, the
    result has S · length tokens, 2 S sequences, S · predictions predictions, S next-sentence labels (if the objective
    has them), and a `max_seqlen` of `length`. The padding tokens come last, in sequences of their own of up to `length`
    tokens, which no other token sees; empty sequences fill up `cu_seqlens`. Added predictions and answers have the
    label `IGNORED_LABEL`. On a CPU, padding changes no bit of the losses, and gradients only by rounding.

    The numbers `dropout_seed`, `first_token`, `lm_count` and `nsp_count` differ between batches as before.
    """
    tokens = batch.input
    packed = tokens.packing
    budget = sequences * length
    full, rest = divmod(budget - packed.num_tokens, length)
    lengths = np.zeros(2 * sequences, dtype=np.int64)
    lengths[: len(packed) + full + 1] = [*packed.lengths, *[length] * full, rest]
    missing_tokens = np.zeros(budget - packed.num_tokens, dtype=np.int64)
    input_ids = np.concatenate([tokens.input_ids.numpy(), missing_tokens])
    types = tokens.token_type_ids
    token_type_ids = None if types is None else np.concatenate([types.numpy(), missing_tokens])
    padded = from_flat(input_ids, token_type_ids, lengths)
    packing = replace(
        padded.packing, dropout_seed=packed.dropout_seed, first_token=packed.first_token, fixed_seqlen=length
    )

    # States are read at distinct positions; the added positions are of padding tokens if possible.
    answers = sequences if len(batch.nsp_labels) else 0
    used = np.concatenate([batch.mlm_positions.numpy(), packing.cu_seqlens[:answers].numpy()])
    unused = np.setdiff1d(np.arange(budget), used)
    missing = sequences * predictions - len(batch.mlm_positions)
    added_positions = torch.from_numpy(unused[len(unused) - missing :])
    missing_answers = answers - len(batch.nsp_labels)
    return replace(
        batch,
        input=replace(padded, packing=packing),
        mlm_positions=torch.cat([batch.mlm_positions, added_positions]),
        mlm_labels=F.pad(batch.mlm_labels, (0, missing), value=IGNORED_LABEL),
        nsp_labels=F.pad(batch.nsp_labels, (0, missing_answers), value=IGNORED_LABEL),
        added_sequences=2 * sequences - len(packed),
        added_predictions=missing,
    )
