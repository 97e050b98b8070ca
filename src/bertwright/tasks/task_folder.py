"""Model folders with a task: reading and writing a model and its task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import torch

from bertwright.base.description import Description
from bertwright.base.files import read_json, write_json, write_text
from bertwright.base.settings import convert, did_you_mean
from bertwright.interop.checksums import describe_check, write_checksums
from bertwright.interop.head_config import HeadRecord
from bertwright.interop.huggingface import (
    Head,
    LoadResult,
    load_config,
    load_head,
    load_model,
    load_task_model,
    read_config,
    write_model,
    write_task_model,
)
from bertwright.interop.model_card import write_card
from bertwright.interop.model_files import CHECKSUMS, CLASSES, CONFIG, MODULES, explain_folder, model_folder, new_folder
from bertwright.interop.sentence_modules import SentenceModules, read_sentence_modules
from bertwright.interop.weights import summarize
from bertwright.models.encoder import EncoderConfig, EncoderModel
from bertwright.models.heads import VectorHead
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.tasks.classification import format_labels
from bertwright.tasks.denoising import write_decoder
from bertwright.tasks.task import AnyTask, Task
from bertwright.tasks.task_types import TASK_TYPES
from bertwright.vocabulary.open_tokenizer import describe_tokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer

OF_LOSSES = ("loss", "criterion")  # weights of classes that some programs store beside the model
MAX_LABELS = 12  # listed labels
TASK_FILE = "task.json"
DECISIONS = ("temperature", "threshold", "thresholds")  # fields of tasks that `evaluate` chooses


def read_task(folder: Path) -> AnyTask | None:
    """Read the task of a model folder from `task.json`, else infer it from `config.json`; None if neither has a task.

    Raises ValueError for an invalid `task.json`, and for a head that is not supported.
    """
    path = folder / TASK_FILE
    if not path.is_file():
        config = read_config(folder)
        return None if config.head is None else infer_task(config.head, config.config.max_positions)
    values = read_json(path)
    if not isinstance(values, dict) or not isinstance(kind := values.pop("kind", None), str):
        raise ValueError(f'{path}: expected an object with the "kind" of a task')
    if kind not in TASK_TYPES:
        raise ValueError(f'{path}: no task type "{kind}"; {did_you_mean(kind, TASK_TYPES)}')
    try:
        task = from_fields(TASK_TYPES[kind], values, path)
        task.check_learned()
    except ValueError as error:
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    return task


def write_task(folder: Path, task: Task[Any, Any]) -> None:
    write_text(folder / TASK_FILE, json.dumps({"kind": task.kind} | asdict(task), indent=2, ensure_ascii=False) + "\n")  # type: ignore[call-overload]


def save_decisions(folder: Path, task: AnyTask) -> Path:
    """Write the temperature and the thresholds of a task into a folder that has been loaded; return the file's path.

    Its other fields stay as they are, and the checksums are computed again, if the folder has them.
    """
    changes = {name: getattr(task, name) for name in DECISIONS if hasattr(task, name)}
    own: Any = read_task(folder)
    write_task(folder, replace(own, **changes))
    if (folder / CHECKSUMS).is_file():
        write_checksums(folder)
    return folder / TASK_FILE


def from_fields(cls: type[Task[Any, Any]], values: Mapping[str, Any], path: Path) -> Task[Any, Any]:
    """Build a task from the fields of `task.json` at `path` except "kind". Raises ValueError for unknown fields."""
    known = {field.name: field.default for field in fields(cls)}  # type: ignore[arg-type]
    odd = sorted(values.keys() - known.keys())
    if odd:
        raise ValueError(f"{path}: unknown fields: {', '.join(odd)}; was it written by a later version?")
    types = get_type_hints(cls)
    # A default may be empty where a value may not, such as the metric of a run without dev files.
    given = {name: value for name, value in values.items() if value != "" or known[name] != ""}
    return cls(**{name: convert(value, types[name], f"{path}: {name}") for name, value in given.items()})


def infer_task(described: HeadRecord, max_positions: int) -> AnyTask:
    """Infer the task of a folder of `transformers` from its head; see `Task.from_head`."""
    inferred = (cls.from_head(described, max_positions) for cls in TASK_TYPES.values())
    return next(task for task in inferred if task is not None)


class TaskModel(NamedTuple):
    """A task and a model trained on it."""

    model: EncoderForTask
    task: AnyTask
    inferred: bool = False
    """True if the task was inferred from `config.json`; its columns, and whether it reads pairs, are then unknown."""
    outputs: tuple[str, ...] = ()
    """Names of the outputs in `config.json`, if an inferred task spells them differently."""
    classes: Any = None
    """For classifiers of `estimators`: the values of y by label, from `classes.json`."""

    def check_computed(self, name: Path | str) -> None:
        """Raise ValueError, naming the model, if its answers depend on layers that are not computed here."""
        if layers := [layer for layer in self.model.not_computed if not layer.startswith(OF_LOSSES)]:
            raise ValueError(
                f"{name}: its answers depend on {summarize(layers)}, which its class does not have and bertwright does "
                "not compute; predict with the program that trained it, or train a new head (bertwright finetune "
                "--model)"
            )


def load_task(folder: Path) -> TaskModel | None:
    """Load a model and its task, ready for inference; None for a folder without a task.

    Raises ValueError if one of them is invalid, or if they do not match.
    """
    task = read_task(folder)
    if task is None:
        return None
    described = load_head(folder)
    model = load_task_model(folder, head=_head_of(task, folder))
    spec = model.head.spec
    if task.head != spec:
        raise ValueError(
            f"{folder / TASK_FILE}: expected a {task.head.kind} head with {task.head.outputs} outputs, got a "
            f"model with a {spec.kind} head with {spec.outputs}; the two are not from one training"
        )
    explicit = (folder / TASK_FILE).is_file()
    outputs = described.labels if described and not explicit else ()
    if explicit and task.label_names and described and described.labels not in ((), task.label_names):
        raise ValueError(
            f"{folder / TASK_FILE}: expected the labels of config.json (id2label: "
            f"{', '.join(described.labels[:5])} …), got {', '.join(task.label_names[:5])} …; fix the wrong file"
        )
    _scale_classifier(model, 1 / task.head_scale)
    classes = read_json(folder / CLASSES) if (folder / CLASSES).is_file() else None
    return TaskModel(model, task, inferred=not explicit, outputs=outputs, classes=classes)


def _head_of(task: AnyTask, folder: Path) -> Head | None:
    """Return the head that a task builds, or its specification if `config.json` names no head of `transformers`."""
    return task.head_for(folder) or (None if load_head(folder) else task.head)


def continue_task(folder: Path, task: AnyTask) -> AnyTask:
    """Return a task with its labels in the order of the trained head of a folder.

    Raises ValueError, naming the folder, unless the head fits: the same task type and, if any, the same labels.
    """
    trained = read_task(folder)
    kind = trained.kind if trained else "pre-training only"
    if trained is None or kind != task.kind:
        raise ValueError(
            f"{folder}: expected a model fine-tuned on {task.kind}, whose head can be continued, got one of {kind}; "
            "omit --keep-head for a new head"
        )
    if set(trained.label_names) != set(task.label_names):
        raise ValueError(
            f"{folder}: expected a head for the labels of the training data ({format_labels(task.label_names)}), got "
            f"one for {format_labels(trained.label_names)}; omit --keep-head for a new head"
        )
    changes: dict[str, Any] = {} if trained.label_names == task.label_names else {"labels": trained.label_names}
    if trained.pooling is not None:
        changes["pooling"] = trained.pooling
    return replace(task, **changes)  # type: ignore[type-var]


def load_to_continue(folder: Path, task: AnyTask, dropout: float | None) -> EncoderForTask:
    """Load a folder's model with its head for a task of `continue_task`; `dropout`: None leaves the folder's rates."""
    model = load_task_model(folder, dropout, _head_of(task, folder))
    TaskModel(model, task).check_computed(folder)
    _scale_classifier(model, 1 / task.head_scale)
    return model


def describe_head(trained: TaskModel) -> HeadRecord:
    names = trained.outputs or trained.task.label_names
    task = trained.task
    return HeadRecord(trained.model.head.spec, names, task.is_regression, task.is_multi_label, task.activation)


def write_task_folder(folder: Path, trained: TaskModel, tokenizer: TextTokenizer) -> None:
    """Write a model and its task into an existing folder; each file is written atomically."""
    model = trained.model
    if isinstance(model.head, VectorHead) and isinstance(model.head.layers, SentenceModules):
        write_model(folder, EncoderModel(model.encoder), tokenizer, modules=model.head.layers)
        write_task(folder, trained.task)
        write_decoder(model, folder)
        write_checksums(folder)
        return
    if trained.task.head_scale != 1:  # other threads may predict with the model: scale a copy of its head
        model = EncoderForTask(model.encoder, model.head.spec)
        model.head = deepcopy(trained.model.head)
        _scale_classifier(model, trained.task.head_scale)
    write_task_model(folder, model, tokenizer, describe_head(trained))
    if not trained.inferred:
        write_task(folder, trained.task)
    if trained.classes is not None:
        write_json(folder / CLASSES, trained.classes)
    write_checksums(folder)


def save_task_folder(folder: Path, trained: TaskModel, tokenizer: TextTokenizer) -> None:
    """Write a new folder with a model and its task, atomically. Raises ValueError if it already exists."""
    with new_folder(folder) as temporary:
        write_task_folder(temporary, trained, tokenizer)
        write_card(temporary)


@torch.no_grad()
def _scale_classifier(model: EncoderForTask, factor: float) -> None:
    """Multiply the head's last layer, which predicts in original units in files and in units of `head_scale` here."""
    if factor != 1:
        for parameter in model.head.get_submodule("classifier").parameters():
            parameter.mul_(factor)


def describe(folder: Path, verify: bool) -> Description | None:
    """Load and describe a model; None for another folder. Loading compares all files with their checksums."""
    if not ((folder / CONFIG).is_file() or (folder / MODULES).is_file()):
        if explained := explain_folder(folder):
            raise ValueError(f"{folder}: {explained}")
        return None
    folder = model_folder(folder)
    config, trained = load_config(folder), load_task(folder)
    loaded = trained or load_model(folder, heads="optional")
    fields = {"shape": describe_shape(config), "positions": f"{config.max_positions:,}"}
    fields["parameters"] = f"{loaded.model.num_parameters:,}"
    if isinstance(loaded, LoadResult):
        if modules := read_sentence_modules(folder):
            fields["text vectors"] = modules.description
        fields["missing heads"] = ", ".join(loaded.missing_heads) or "none"
    else:
        fields |= describe_task(loaded.task)
    if loaded.model.not_computed:
        fields["not computed"] = f"{summarize(loaded.model.not_computed)} (layers that this class does not have)"
    checked = describe_check(folder)
    fields |= describe_tokenizer(folder) | {"checked": checked.text}
    return Description(f"model for {trained.task.kind}" if trained else "model", fields, checked.by_checksums)


def describe_shape(config: EncoderConfig) -> str:
    """Return the sizes of an encoder and, if it reads in one direction only, that direction."""
    return f"{config}, {config.direction}" if isinstance(config, BertConfig) and config.is_causal else str(config)


def describe_task(task: AnyTask) -> dict[str, str]:
    fields = {"task": task.kind}
    if task.label_names:
        names = ", ".join(task.label_names[:MAX_LABELS]) + (" …" if len(task.label_names) > MAX_LABELS else "")
        fields["labels"] = f"{len(task.label_names)}: {names}"
    fields |= {"head": f"{task.head.kind}, {task.head.outputs} outputs", "metric": task.metric}
    fields["longest sequence"] = f"{task.max_length} tokens"
    return fields | task.describe()
