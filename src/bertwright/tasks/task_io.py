"""The kinds of task by name; which of them a model folder is for, and folders of model and task together."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from bertwright.files import read_json, write_json
from bertwright.interop.head_config import HeadRecord
from bertwright.interop.huggingface import load_config, load_head, load_task_model, write_task_model
from bertwright.interop.model_files import CLASSES, new_folder
from bertwright.metrics.span_f1 import detect, to_canonical_scheme
from bertwright.models.heads import EncoderForTask
from bertwright.settings import did_you_mean
from bertwright.tasks.classification import Classification, Regression
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import TASK_FILE, Task, from_fields, write_task
from bertwright.vocabulary.tokenizer import Tokenizer

AnyTask = Task[Any, Any]

TASK_TYPES: dict[str, type[AnyTask]] = {
    cls.kind: cls for cls in (Classification, Regression, MultipleChoice, Tagging, QuestionAnswering)
}


def read_task(folder: Path) -> AnyTask | None:
    """The task of a model folder, from its `task.json`; else what its `config.json` tells of one; else None.

    Raises ValueError for a `task.json` that is not whole, and for a head that is not computed here.
    """
    path = folder / TASK_FILE
    if not path.is_file():
        described = load_head(folder)
        return None if described is None else inferred(described, load_config(folder).max_positions)
    values = read_json(path)
    if not isinstance(values, dict) or not isinstance(kind := values.pop("kind", None), str):
        raise ValueError(f'{path}: an object with the "kind" of a task expected')
    if kind not in TASK_TYPES:
        raise ValueError(f'{path}: no kind of task "{kind}"; {did_you_mean(kind, TASK_TYPES)}')
    try:
        task = from_fields(TASK_TYPES[kind], values, path)
        _ = task.head  # which a task without its labels does not know
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    return task


def inferred(described: HeadRecord, max_positions: int) -> AnyTask:
    """The task of a folder of `transformers`, which says neither what was read nor how long: as long as possible."""
    if described.head.kind == "choice":
        return MultipleChoice(max_length=max_positions)
    if described.head.kind == "token":
        scheme = detect([label] for label in described.labels)
        labels = (
            to_canonical_scheme(described.labels, scheme) if scheme == "bioes" else described.labels
        )  # BILOU has another E
        metric = "accuracy" if scheme == "none" else "f1"
        return Tagging(max_length=max_positions, scheme=scheme, metric=metric, labels=labels)
    if described.head.kind == "span":
        return QuestionAnswering().limited_to(max_positions)
    if described.regression:
        return Regression(max_length=max_positions)
    return Classification(max_length=max_positions, labels=described.labels)


class TaskModel(NamedTuple):
    """A model that was trained on a task, and the task."""

    model: EncoderForTask
    task: AnyTask
    inferred: bool = False
    """Does only `config.json` tell of the task? Then nobody said which columns it reads, nor whether it reads pairs."""
    classes: Any = None
    """Of a classifier of `estimators`: what its label names stood for in y, as `classes.json` has it."""


def load_task(folder: Path) -> TaskModel | None:
    """Read a model and its task, ready for inference; None for a folder without a task.

    Raises ValueError where the two do not belong together, and as `read_task` and `load_task_model` do.
    """
    task = read_task(folder)
    if task is None:
        return None
    model = load_task_model(folder)
    if task.head != model.head:
        raise ValueError(
            f"{folder / TASK_FILE}: a {task.head.kind} head with {task.head.outputs} outputs expected, but the model "
            f"has a {model.head.kind} head with {model.head.outputs}; the two are not from one training"
        )
    said = (folder / TASK_FILE).is_file()
    described = load_head(folder) if said else None  # from which the task is inferred where nothing else tells of it
    if task.label_names and described and described.labels and tuple(described.labels) != task.label_names:
        raise ValueError(
            f"{folder / TASK_FILE}: its labels are not those of config.json (id2label): "
            f"{', '.join(task.label_names[:5])} … against {', '.join(described.labels[:5])} …; which are right?"
        )
    classes = read_json(folder / CLASSES) if (folder / CLASSES).is_file() else None
    return TaskModel(model, task, inferred=not said, classes=classes)


def write_task_folder(folder: Path, found: TaskModel, tokenizer: Tokenizer) -> None:
    """Write a model and its task into a folder that exists; each file is whole or absent."""
    write_task_model(folder, found.model, tokenizer, found.task.label_names, isinstance(found.task, Regression))
    if not found.inferred:  # what is not known stays unsaid
        write_task(folder, found.task)
    if found.classes is not None:
        write_json(folder / CLASSES, found.classes)


def save_task_folder(folder: Path, found: TaskModel, tokenizer: Tokenizer) -> None:
    """Write a new folder, whole or not at all. Raises ValueError when something is there already."""
    with new_folder(folder) as part:
        write_task_folder(part, found, tokenizer)
