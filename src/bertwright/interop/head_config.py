"""How `config.json` describes a task's head: which class of `transformers` it is, and what its outputs are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from bertwright.interop.weights import summarize
from bertwright.models.heads import HeadSpec


class Architecture(NamedTuple):
    """A task model of theirs: its class, as `config.json` names it, and what that class calls our `classifier`."""

    name: str
    classifier: str


ARCHITECTURES = {
    "sequence": Architecture("BertForSequenceClassification", "classifier"),
    "choice": Architecture("BertForMultipleChoice", "classifier"),
    "token": Architecture("BertForTokenClassification", "classifier"),
    "span": Architecture("BertForQuestionAnswering", "qa_outputs"),
}
LABELLED = ("sequence", "token")  # whose number of outputs is the number of labels; the others' is fixed
THEIR_LABELS = 2  # how many there are where config.json does not say
MOST_LABELS = 1_000_000  # more is a slip, and names for them would take the memory


class HeadRecord(NamedTuple):
    """What `config.json` says of a task's head."""

    head: HeadSpec
    labels: tuple[str, ...]
    """Name of each output; empty where outputs have none: a regression, a choice, a span."""
    regression: bool
    """Whether the one output is a number to be predicted, not the score of a label."""


def head_from(fields: dict[str, Any], path: Path) -> HeadRecord | None:
    """Read the description from the fields of the `config.json` at `path`; None where no task model is named.

    Raises ValueError for labels that are not one name for each output, and for what is not computed here.
    """
    named = fields.get("architectures") or ()
    kind: Any = next((kind for kind, architecture in ARCHITECTURES.items() if architecture.name in named), None)
    if kind is None:
        return None
    if kind not in LABELLED:
        return HeadRecord(HeadSpec(kind, 1 if kind == "choice" else 2), (), regression=False)
    labels = _labels(fields, path)
    problem = fields.get("problem_type")
    regression = kind == "sequence" and problem in ("regression", None) and len(labels) == 1
    if not regression and (problem in ("regression", "multi_label_classification") or len(labels) == 1):
        raise ValueError(
            f"{path}: problem_type = {problem!r} with {len(labels)} outputs is not computed here, only one of several "
            "labels, or one number"
        )
    return HeadRecord(HeadSpec(kind, len(labels)), () if regression else labels, regression)


def head_fields(record: HeadRecord, folder: Path) -> dict[str, Any]:
    """What `transformers` reads from the `config.json` in `folder`. Raises ValueError as `head_from` does."""
    head, labels, regression = record
    fields: dict[str, Any] = {"architectures": [ARCHITECTURES[head.kind].name]}
    if head.kind not in LABELLED:
        return fields
    names = ("LABEL_0",) if regression else labels  # theirs for outputs without a name
    if len(names) != head.outputs or len(set(names)) < len(names):
        raise ValueError(
            f"{folder}: the head has {head.outputs} outputs, which these labels do not name: {summarize(names)}"
        )
    fields["id2label"] = {str(number): label for number, label in enumerate(names)}
    fields["label2id"] = {label: number for number, label in enumerate(names)}
    if head.kind == "sequence":
        fields["problem_type"] = "regression" if regression else "single_label_classification"
    return fields


def _labels(fields: dict[str, Any], path: Path) -> tuple[str, ...]:
    given, count = fields.get("id2label"), fields.get("num_labels", THEIR_LABELS)
    if given is None:
        if type(count) is not int or not 0 < count <= MOST_LABELS:
            raise ValueError(f"{path}: num_labels = {count!r}: a number from 1 to {MOST_LABELS:,} expected")
        return tuple(f"LABEL_{number}" for number in range(count))
    names = [given.get(str(number)) for number in range(len(given))] if isinstance(given, dict) else []
    labels = tuple(str(name) for name in names if isinstance(name, str | int))
    if not labels or len(set(labels)) < len(names):
        raise ValueError(f"{path}: id2label names each output, counted from 0, once; {str(given)[:60]} does not")
    return labels
