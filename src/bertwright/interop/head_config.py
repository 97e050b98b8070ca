"""The description of a task's head in `config.json`: its class in `transformers`, and the names of its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.files import read_json
from bertwright.interop.weights import summarize
from bertwright.models.head_spec import HeadSpec


class HeadClass(NamedTuple):
    """A task model in `transformers`: the end of its class name, and that class's name of our `classifier`."""

    suffix: str
    classifier: str


HEAD_CLASSES = {
    "sequence": HeadClass("ForSequenceClassification", "classifier"),
    "choice": HeadClass("ForMultipleChoice", "classifier"),
    "token": HeadClass("ForTokenClassification", "classifier"),
    "span": HeadClass("ForQuestionAnswering", "qa_outputs"),
}
KINDS_WITH_LABELS = ("sequence", "token")  # one output per label; other kinds have a fixed number of outputs
DEFAULT_LABELS = 2  # transformers' number if config.json states none
MULTI_LABEL = "multi_label_classification"
MAX_LABELS = 1_000_000  # more names would exhaust memory
# Functions that sentence-transformers applies to the output of a re-ranker, by their names in its files.
ACTIVATIONS = {
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.linear.Identity": "identity",
}


class HeadRecord(NamedTuple):
    """The description of a task's head in `config.json`."""

    head: HeadSpec
    labels: tuple[str, ...]
    """Name of each output; empty if outputs have none: a regression, a choice, a span."""
    regression: bool
    """The one output is a number to predict, not the score of a label."""
    multi_label: bool = False
    """The labels do not exclude each other: `multi_label_classification` in `transformers`."""
    activation: str = ""
    """Function from the output of a re-ranker to its score: sigmoid or identity; empty for other models."""


def parse_head(values: Mapping[str, Any], path: Path, class_prefix: str = "Bert") -> HeadRecord | None:
    """Read the description from the fields of the `config.json` at `path`; None if they name no task model.

    Raises ValueError for labels that are not one name per output, and for unsupported problem types.
    """
    names = values.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path}: architectures: expected a list of class names, got {names!r}")
    kind: Any = next((kind for kind, head in HEAD_CLASSES.items() if class_prefix + head.suffix in names), None)
    if kind is None:
        return None
    if kind not in KINDS_WITH_LABELS:
        return HeadRecord(HeadSpec(kind, 1 if kind == "choice" else 2), (), regression=False)
    labels = _parse_labels(values, path)
    problem = values.get("problem_type")
    if kind == "sequence" and problem == MULTI_LABEL:
        return HeadRecord(HeadSpec(kind, len(labels)), labels, regression=False, multi_label=True)
    regression = kind == "sequence" and problem in ("regression", None) and len(labels) == 1
    if not regression and (problem in ("regression", MULTI_LABEL) or len(labels) == 1):
        raise ValueError(
            f"{path}: problem_type = {problem!r} with {len(labels)} outputs: expected a classification with one of "
            "several labels, or a regression with one output"
        )
    activation = _find_activation(values, path) if regression else ""
    return HeadRecord(HeadSpec(kind, len(labels)), () if regression else labels, regression, activation=activation)


def format_head(record: HeadRecord, folder: Path, class_prefix: str = "Bert") -> dict[str, Any]:
    """Return the fields of `config.json`. Raises ValueError, naming `folder`, for labels as in `parse_head`."""
    head, labels, regression, multi_label, activation = record
    values: dict[str, Any] = {"architectures": [class_prefix + HEAD_CLASSES[head.kind].suffix]}
    if head.kind not in KINDS_WITH_LABELS:
        return values
    names = ("LABEL_0",) if regression else labels  # the name in transformers of an output without one
    if len(names) != head.outputs or len(set(names)) < len(names):
        raise ValueError(f"{folder}: labels: expected {head.outputs} different names, got {summarize(names)}")
    values["id2label"] = {str(number): label for number, label in enumerate(names)}
    values["label2id"] = {label: number for number, label in enumerate(names)}
    if head.kind == "sequence":
        single = "regression" if regression else "single_label_classification"
        values["problem_type"] = MULTI_LABEL if multi_label else single
    if activation:
        values["sentence_transformers"] = {"activation_fn": next(k for k, v in ACTIVATIONS.items() if v == activation)}
    return values


def _find_activation(values: Mapping[str, Any], path: Path) -> str:
    """Return the activation of a re-ranker from `config.json`, or from the file beside it; empty for other models.

    sentence-transformers 4 and 5 write it into `config.json`, earlier releases under another name, later ones into
    `config_sentence_transformers.json`. Raises ValueError for another function.
    """
    beside = path.with_name("config_sentence_transformers.json")
    described = read_json(beside) if beside.is_file() else {}
    described = described if isinstance(described, dict) and described.get("model_type") == "CrossEncoder" else {}
    own = values.get("sentence_transformers")
    named = [
        own.get("activation_fn") if isinstance(own, dict) else None,
        values.get("sbert_ce_default_activation_function"),
        described.get("activation_fn", next(iter(ACTIVATIONS)) if described else None),
    ]
    name = next((name for name in named if name is not None), "")
    if name and name not in ACTIVATIONS:
        raise ValueError(f"{path}: activation_fn: expected {' or '.join(ACTIVATIONS)}, got {str(name)[:60]!r}")
    return ACTIVATIONS.get(name, "")


def _parse_labels(values: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    id2label, count = values.get("id2label"), values.get("num_labels", DEFAULT_LABELS)
    if id2label is None:
        if type(count) is not int or not 0 < count <= MAX_LABELS:
            raise ValueError(f"{path}: num_labels: expected a number from 1 to {MAX_LABELS:,}, got {count!r}")
        return tuple(f"LABEL_{number}" for number in range(count))
    names = [id2label.get(str(number)) for number in range(len(id2label))] if isinstance(id2label, dict) else []
    labels = tuple(str(name) for name in names if isinstance(name, str | int))
    if not labels or len(set(labels)) < len(names):
        raise ValueError(
            f"{path}: id2label: expected a different name for each output, counted from 0, got {str(id2label)[:60]}"
        )
    return labels
