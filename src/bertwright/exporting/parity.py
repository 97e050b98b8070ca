"""Comparison of a model with its graph: the outputs of both on the same batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bertwright.base.seeding import make_rng
from bertwright.exporting.export_graph import Graph
from bertwright.inference.bert import Bert, open_model
from bertwright.inference.exported_folder import LOGITS, MASKED_LM, SCORES, STATES, VECTOR, ExportedEncoder
from bertwright.inference.text_vectors import pool
from bertwright.interop.sentence_modules import MEAN
from bertwright.models.encoder import TokenPredictor
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import TokenBatch, pack
from bertwright.models.task_model import EncoderForTask
from bertwright.tasks.classification import Classification
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.reranking import Reranking
from bertwright.tasks.task import AnyTask, log_softmax_of_groups, softmax

LONGEST = 1024  # tokens of a sequence; the scores of all pairs of tokens of a batch must fit in memory
TOLERANCE = 1e-4  # of float32 outputs against the packed model, in units of the largest one if that exceeds 1


def check_parity(bert: Bert, folder: Path, graph: Graph) -> dict[str, Any]:
    """Run an exported folder beside the model, on sequences of all lengths in batches of several sizes.

    Returns the largest difference. Raises ValueError if it exceeds TOLERANCE.
    """
    exported, rng = open_model(folder, "cpu"), make_rng(0)
    longest = min(bert.config.max_positions, LONGEST)
    batches = [[1], [longest], [longest, 1], [1 + longest * n // 7 for n in range(7)], [1 + n % 9 for n in range(64)]]
    differences = list[float]()
    for lengths in batches:
        batch = pack([rng.integers(bert.tokenizer.vocab_size, size=min(length, longest)) for length in lengths])
        expected, found = (compute_outputs(model, graph.kind, batch) for model in (bert, exported))
        for name, values in expected.items():
            sharpness = 1 / getattr(bert.task, "temperature", 1.0) if name == SCORES else 1.0
            scale = max(1.0, sharpness, float(np.abs(values).max()))
            differences.append(float(np.abs(values - found[name]).max()) / scale)
    difference = float(np.max(differences))  # NaN if one is
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
        logits = model.token_logits(batch, positions)
        encoder = model.encoder
        scores = (
            encoder.compute(batch, SCORES, positions) if isinstance(encoder, ExportedEncoder) else logits.softmax(-1)
        )
        return {STATES: encoder(batch).numpy(), LOGITS: logits.numpy(), SCORES: scores.numpy()}
    if kind != "embedding":
        assert isinstance(model, EncoderForTask)
        one_each = model.head.spec.reads_sequence_state
        positions = packing.first_positions if one_each else torch.arange(packing.num_tokens)
        counts = np.ones(len(packing), np.int64) if one_each else packing.lengths
        answers = model.predict_batch(TaskBatch(batch, positions, counts)).numpy()
        if isinstance(model.encoder, ExportedEncoder):
            return {LOGITS: answers, SCORES: model.encoder.compute(batch, SCORES).numpy()}
        assert bert.task is not None
        return {LOGITS: answers, SCORES: expected_scores(bert.task, answers, counts)}
    states = model.encoder(batch)
    if isinstance(model.encoder, ExportedEncoder):
        return {STATES: states.numpy(), VECTOR: model.encoder.compute(batch, VECTOR).numpy()}
    modules = bert.choose_modules(None) or MEAN
    vectors = modules.transform(pool(model.encoder, batch, modules.modes), None)
    return {STATES: states.numpy(), VECTOR: vectors.numpy()}


def expected_scores(task: AnyTask, logits: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Compute the scores of logits as the task does for its predictions; `counts`: logits of each sequence."""
    if isinstance(task, Classification | MultiLabel):
        unread: Any = None  # the examples
        return np.array([[*one.probabilities.values()] for one in task.decode((), unread, logits)])
    if task.head.kind == "span":
        return np.exp(log_softmax_of_groups(logits.astype(np.float64), counts))
    if task.head.kind == "token":
        return softmax(logits)
    return task.activate(logits)[:, None] if isinstance(task, Reranking) else logits * task.head_scale
