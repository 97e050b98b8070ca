"""The outputs of a model and of its graph on the same batch, for comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertwright.inference.bert import Bert
from bertwright.inference.exported_folder import LOGITS, MASKED_LM, STATES, VECTOR, ExportedEncoder
from bertwright.inference.text_vectors import normalize_vectors, pool
from bertwright.models.encoder import TokenPredictor
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import TokenBatch
from bertwright.models.task_model import EncoderForTask


@torch.inference_mode()
def compute_outputs(bert: Bert, kind: str, batch: TokenBatch) -> dict[str, npt.NDArray[Any]]:
    """Compute the outputs of a graph of this kind by name, whether the model is one or has weights of its own."""
    model, packing = bert.model, batch.packing
    if kind == MASKED_LM:
        assert isinstance(model, TokenPredictor)
        positions = torch.arange(0, packing.num_tokens, 3)
        return {STATES: model.encoder(batch).numpy(), LOGITS: model.token_logits(batch, positions).numpy()}
    if kind != "embedding":
        assert isinstance(model, EncoderForTask)
        one_each = model.head.spec.reads_sequence_state
        positions = packing.first_positions if one_each else torch.arange(packing.num_tokens)
        counts = np.ones(len(packing), np.int64) if one_each else packing.lengths
        return {LOGITS: model.predict_batch(TaskBatch(batch, positions, counts)).numpy()}
    states = model.encoder(batch)
    if isinstance(model.encoder, ExportedEncoder):
        return {STATES: states.numpy(), VECTOR: model.encoder.compute(batch, VECTOR).numpy()}
    modules = bert.choose_modules(None)
    if modules is None:
        return {STATES: states.numpy(), VECTOR: normalize_vectors(pool(model.encoder, batch, ("mean",)).numpy())}
    vectors = modules.apply_layers(pool(model.encoder, batch, modules.modes), None)
    return {STATES: states.numpy(), VECTOR: vectors.numpy()}
