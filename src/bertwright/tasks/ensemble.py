"""Ensembles: the averaged predictions of several models of one task (tables 2 to 4).

R positions that the head reads, C outputs per position, N examples. The models have the same vocabulary, so that they
read the same sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bertwright.ragged import offsets_from_lengths
from bertwright.tasks.prediction import predict_logits
from bertwright.tasks.presets import options_of
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.task import AnyTask, Encoded, Outputs
from bertwright.tasks.task_io import TaskModel

Floats = npt.NDArray[np.float64]


def merge_tasks(tasks: Sequence[AnyTask]) -> AnyTask:
    """Return the task of an ensemble: the first one, in question answering with the mean threshold.

    Raises ValueError for models of different task types, labels or options: one task reads and decodes for all.
    """
    first = tasks[0]
    options = [option.name for option in options_of(type(first))]
    for number, task in enumerate(tasks[1:], 2):
        for name in ("kind", "label_names", *options):
            expected, found = getattr(first, name), getattr(task, name)
            if expected != found:
                fix = f"; set --{name.replace('_', '-')} for all models" if name in options else ""
                raise ValueError(
                    f"model {number} of the ensemble: expected {name} = {expected!r} as in the first model, got "
                    f"{found!r}{fix}"
                )
    if isinstance(first, QuestionAnswering):
        thresholds = [task.threshold for task in tasks if isinstance(task, QuestionAnswering)]
        return replace(first, threshold=float(np.mean(thresholds)))
    return first


def predict_ensemble(
    members: Sequence[TaskModel], encoded: Encoded, advance: Callable[[int], None] | None = None
) -> Outputs:
    """Compute the outputs, R × C float32, whose decoding gives the mean of the members' predictions.

    These are the logarithms of mean probabilities; in a regression, mean numbers in units of the first member's scale.
    A single member's outputs are returned as they are. `advance` receives the items that all members have read.
    """
    outputs = []
    for number, member in enumerate(members, 1):
        outputs.append(predict_logits(member.model, encoded, advance if number == len(members) else None))
    if len(members) == 1:
        return outputs[0]
    if isinstance(members[0].task, Regression):
        scales = [member.task.scale for member in members if isinstance(member.task, Regression)]
        scaled = [one.astype(np.float64) * (scale / scales[0]) for one, scale in zip(outputs, scales, strict=True)]
        numbers: Outputs = np.mean(scaled, axis=0).astype(np.float32)
        return numbers
    kind = members[0].task.head.kind
    logarithms = [log_probabilities(one.astype(np.float64), encoded, kind) for one in outputs]
    mean: Outputs = (np.logaddexp.reduce(logarithms, axis=0) - np.log(len(members))).astype(np.float32)
    return mean


def log_probabilities(outputs: Floats, encoded: Encoded, kind: str) -> Floats:
    """Compute the logarithms of probabilities, R × C, among the outputs that compete.

    These are the labels of a position, the endings of a choice, and in a span head all tokens of a question's windows,
    for the start and for the end.
    """
    if kind not in ("choice", "span"):
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        labels: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return labels
    if kind == "choice":
        counts = np.full(encoded.num_items, encoded.sequences_per_item)
    else:
        first = np.unique(encoded.example_ids, return_index=True)[1]
        ends = np.append(encoded.position_starts[first[1:]], len(outputs))
        counts = ends - encoded.position_starts[first]
    starts = offsets_from_lengths(counts)[:-1]
    shifted = outputs - np.repeat(np.maximum.reduceat(outputs, starts), counts, axis=0)
    totals = np.log(np.add.reduceat(np.exp(shifted), starts))
    competing: Floats = shifted - np.repeat(totals, counts, axis=0)
    return competing
