"""Ensembles: the averaged predictions of several models of one task (tables 2 to 4).

R positions that the head reads, C outputs per position, N examples. The models have the same vocabulary, so that they
read the same sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bertwright.tasks.encoded import Encoded, Outputs
from bertwright.tasks.prediction import predict_logits
from bertwright.tasks.task import AnyTask, options_of
from bertwright.tasks.task_folder import TaskModel


def merge_tasks(tasks: Sequence[AnyTask]) -> AnyTask:
    """Merge the tasks of an ensemble's models into the first task (`Task.merge`); a single one stays as it is.

    Raises ValueError for models of different task types, labels or options: one task reads and decodes for all.
    """
    first = tasks[0]
    options = [option.name for option in options_of(type(first))]
    for number, task in enumerate(tasks[1:], 2):
        for name in ("kind", "label_names", *options):
            expected, actual = getattr(first, name), getattr(task, name)
            if expected != actual:
                fix = f"; set --{name.replace('_', '-')} for all models" if name in options else ""
                raise ValueError(
                    f"model {number} of the ensemble: expected {name} = {expected!r} as in the first model, got "
                    f"{actual!r}{fix}"
                )
    return first.merge(tasks[1:]) if len(tasks) > 1 else first


def predict_ensemble(
    members: Sequence[TaskModel], encoded: Encoded, advance: Callable[[int], None] | None = None
) -> Outputs:
    """Compute the outputs, R × C float32, whose decoding gives the mean of the members' predictions.

    A single member's outputs are returned unchanged. `advance` receives the items that all members have read.
    """
    outputs = []
    for number, member in enumerate(members, 1):
        outputs.append(predict_logits(member.model, encoded, advance if number == len(members) else None))
    if len(members) == 1:
        return outputs[0]
    tasks = [member.task for member in members]
    merged: Outputs = tasks[0].merge_outputs(tasks, outputs, encoded)
    return merged
