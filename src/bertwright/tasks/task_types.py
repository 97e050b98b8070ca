"""The task types by name, and the union of their options: add yours, with its options, here.

A method of its own for Python users is in `inference/bert.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any

from bertwright.base.settings import check_not_str, written_docs
from bertwright.tables.dialects import dialects_of
from bertwright.tables.tag_example import Unit
from bertwright.tasks.classification import Classification
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask, options_of

TASK_TYPES: dict[str, type[AnyTask]] = {
    cls.kind: cls for cls in (Classification, MultiLabel, Regression, MultipleChoice, Tagging, QuestionAnswering)
}
NATIVE_SUFFIXES = {cls.native_suffix: cls for cls in TASK_TYPES.values() if cls.native_suffix}


@dataclass(frozen=True)
class TaskOptions:
    """Columns, lengths and metric of the task. Unset options keep the preset's value, or the default in brackets."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    header: bool | None = None
    quotes: bool | None = None
    encoding: str | None = None
    format: str | None = None
    dialect: str | None = None
    max_length: int | None = None
    both_orders: bool | None = None
    metric: str | None = None
    pos_label: str | None = None
    label_separator: str | None = None
    label_columns: tuple[str, ...] | None = None
    prompt: str | None = None
    start: str | None = None
    endings: tuple[str, ...] | None = None
    first_label: int | None = None
    words: str | None = None
    tags: str | None = None
    scheme: str | None = None
    unit: Unit | None = None
    context: bool | None = None
    tag_head: str | None = None
    comment_prefix: str | None = None
    doc_stride: int | None = None
    max_query_length: int | None = None
    n_best_size: int | None = None
    max_answer_length: int | None = None
    allow_no_answer: bool | None = None
    scoring: str | None = None

    def __post_init__(self) -> None:
        check_not_str(self, "endings", "label_columns")

    @classmethod
    def field_docs(cls) -> dict[str, str]:
        """Build the help of each option from the fields of the task classes that have it, with their defaults."""
        helps: dict[str, dict[str, list[tuple[str, str]]]] = {}  # by option, then by text: task types and defaults
        for task_type, task in TASK_TYPES.items():
            texts = written_docs(task, dialects=", ".join(dialects_of(task.dialect_parts)))
            for option in options_of(task):
                text = texts[option.name]
                default = "" if "unset:" in text.lower() else _format_default(option.default)
                helps.setdefault(option.name, {}).setdefault(text, []).append((task_type, default))
        return {name: _compose_help(by_text) for name, by_text in helps.items()}

    def to_dict(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def apply_to(self, task: AnyTask) -> AnyTask:
        """Return the task with these options. Raises ValueError for an option that its task type does not have."""
        known = {option.name for option in options_of(type(task))}
        if odd := sorted(self.to_dict().keys() - known):
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in odd)
            raise ValueError(f"{flags}: not an option of {task.kind} tasks")
        return replace(task, **self.to_dict())  # type: ignore[type-var]


for _cls in TASK_TYPES.values():
    if _missing := {option.name for option in options_of(_cls)} - {field.name for field in fields(TaskOptions)}:
        raise TypeError(f"TaskOptions: {', '.join(sorted(_missing))} of {_cls.__name__} is missing")


def _format_default(default: Any) -> str:
    return " ".join(default) if isinstance(default, tuple) else str(default)


def _compose_help(by_text: dict[str, list[tuple[str, str]]]) -> str:
    """Join the help texts of an option: each with its task types, unless it is for all, and their default.

    Their common beginning comes first.

    >>> _compose_help({"Longest sequence.": [("tagging", "128"), ("regression", "128")]})
    'Tagging, regression: longest sequence [128].'
    >>> _compose_help({"Score: accuracy.": [("tagging", "")], "Score: pearson.": [("regression", "")]})
    'Score. Tagging: accuracy. Regression: pearson.'
    """
    first = next(iter(by_text))
    openings = [first[: mark.end()] for mark in re.finditer("[:;] ", first)] if len(by_text) > 1 else []
    shared = [opening for opening in openings if all(text.startswith(opening) for text in by_text)]
    common = max(shared, key=len, default="")
    composed = [f"{common[:-2]}."] if common else []
    for text, uses in by_text.items():
        defaults = dict.fromkeys(default for _, default in uses if default)
        shown = f" [{', '.join(defaults)}]" if defaults else ""
        own = text[len(common) :].removesuffix(".") + shown + "."
        if len(uses) < len(TASK_TYPES):
            own = f"{', '.join(task_type for task_type, _ in uses).capitalize()}: {own[0].lower()}{own[1:]}"
        composed.append(own)
    return " ".join(composed)
