"""Fine-tuned models of one task: the model, or the ensemble, of `evaluate` and `predict`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bertwright.inference.bert import Bert, open_in
from bertwright.interop.model_files import model_folder
from bertwright.interop.weights import summarize
from bertwright.tasks.ensemble import merge_tasks
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_data import within_positions
from bertwright.tasks.task_folder import TaskModel
from bertwright.tasks.task_types import TaskOptions
from bertwright.training.context import ExecutionContext


class LoadedModels(NamedTuple):
    """The models of a task, ready to predict."""

    first: Bert
    """The first model, with its tokenizer."""
    members: list[TaskModel]
    """All models."""
    task: AnyTask
    """Their common task, with the user's options."""
    notices: list[str]
    """Choices that the user should know of."""


def load_for_task(
    names: Sequence[str], overrides: TaskOptions, threshold: float | None, context: ExecutionContext
) -> LoadedModels:
    """Load fine-tuned models of one task; `threshold` replaces theirs.

    Raises ValueError for a model without a task, for different tasks, and for a task without a threshold.
    """
    berts: list[Bert] = []
    members: list[TaskModel] = []
    for name in names:
        folder = model_folder(name)
        bert = open_in(context, folder)
        if bert.task_model is None:
            layers = bert.model.not_computed
            other = f" that bertwright computes (it has {summarize(layers)})" if layers else " yet"
            raise ValueError(
                f"{folder}: not fine-tuned on a task{other}; bertwright finetune --model {name} …, or, for its "
                "vectors, bertwright evaluate --kind similarity (retrieval, pairs …)"
            )
        bert.task_model.check_computed(folder)
        if berts and bert.tokenizer.digest != berts[0].tokenizer.digest:
            raise ValueError(f"{name}: its vocabulary differs from {names[0]}'s; the models of an ensemble share one")
        chosen = overrides.apply_to(bert.task_model.task)
        task = within_positions(chosen, overrides, bert.config.max_positions)
        berts.append(bert)
        members.append(bert.task_model._replace(task=task))
    task = merge_tasks([member.task for member in members])
    if threshold is not None:
        return LoadedModels(berts[0], members, task.with_threshold(threshold), [])
    return LoadedModels(berts[0], members, task, task.merge_notes() if len(names) > 1 else [])
