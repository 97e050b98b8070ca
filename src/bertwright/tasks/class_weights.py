"""Class weights: factors of the labels in the loss of training, balanced by frequency or given in a file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertwright.base.files import read_json
from bertwright.tasks.classification import format_labels
from bertwright.tasks.task import AnyTask

BALANCED = "balanced"


def with_class_weights(task: AnyTask, given: str, examples: Sequence[Any]) -> AnyTask:
    """Return the task with class weights: "balanced", or the path of a JSON file.

    `examples`: the training examples. Raises ValueError for a task type without classes, and for an unusable file.
    """
    weights = task.balanced_weights(examples).tolist()
    if given != BALANCED:
        weights = read_class_weights(Path(given), task.label_names)
    return replace(task, class_weights=tuple(weights))  # type: ignore[type-var]


def read_class_weights(path: Path, labels: Sequence[str]) -> list[float]:
    """Read a JSON object of labels and positive numbers; return a weight per label, 1 for labels that it lacks.

    Raises ValueError with the path for another content, and for a name that is not a label.
    """
    if not path.is_file():
        raise ValueError(f'class_weights = "{path}": expected balanced, or a JSON file; there is no such file')
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f'{path}: expected an object such as {{"{labels[0]}": 2.5}}, got {type(values).__name__}')
    for name, value in values.items():
        if name not in labels:
            raise ValueError(f"{path}: label {name!r} is not one of the training data: {format_labels(labels)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(f"{path}: expected a number above 0 for {name!r}, got {value!r}")
    return [float(values.get(label, 1.0)) for label in labels]
