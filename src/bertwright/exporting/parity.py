"""Comparison of a model with its graph: the outputs of both on the same batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertwright.base.seeding import make_rng
from bertwright.exporting.export_graph import NamedGraph
from bertwright.inference.bert import Bert, open_model
from bertwright.inference.exported_folder import LOGITS, MASKED_LM, STATES, VECTOR, ExportedEncoder
from bertwright.inference.text_vectors import normalize_vectors, pool
from bertwright.models.encoder import TokenPredictor
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import TokenBatch, pack
from bertwright.models.task_model import EncoderForTask

LONGEST = 1024  # tokens of a sequence; the scores of all pairs of tokens of a batch must fit in memory
TOLERANCE = 1e-4  # of float32 outputs against the packed model, in units of the largest one if that exceeds 1


def check_parity(bert: Bert, folder: Path, graph: NamedGraph) -> dict[str, Any]:
    """Run an exported folder beside the model, on sequences of all lengths in batches of several sizes.

    Returns the largest difference. Raises ValueError if it exceeds TOLERANCE.
    """
    exported, rng = open_model(folder, "cpu", torch.float32), make_rng(0)
    longest = min(bert.config.max_positions, LONGEST)
    batches = [[1], [longest], [longest, 1], [1 + longest * n // 7 for n in range(7)], [1 + n % 9 for n in range(64)]]
    difference = 0.0
    for lengths in batches:
        batch = pack([rng.integers(bert.tokenizer.vocab_size, size=min(length, longest)) for length in lengths])
        expected, found = (compute_outputs(model, graph.kind, batch) for model in (bert, exported))
        for name, values in expected.items():
            scale = max(1.0, float(np.abs(values).max()))
            difference = max(difference, float(np.abs(values - found[name]).max()) / scale)
    if not difference <= TOLERANCE:
        raise ValueError(
            f"export: expected the outputs of the model to {TOLERANCE:g}, got a difference of {difference:.2g}; please "
            "report it with the model's name"
        )
    return {"difference": difference, "lengths": f"1 to {longest}", "batches": [1, 2, 7, 64]}


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
