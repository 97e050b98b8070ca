"""The task types by name, and the union of their options: add yours here.

A method of its own for Python users is in `inference/bert.py`.
"""

from __future__ import annotations

import re
from dataclasses import field, fields, make_dataclass, replace
from typing import Any, get_type_hints

from bertwright.base.settings import check_not_str, written_docs
from bertwright.tables.dialects import dialects_of
from bertwright.tasks.classification import Classification
from bertwright.tasks.distillation import Distillation
from bertwright.tasks.embedding import Embedding
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.reranking import Reranking
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask, options_of

TASK_TYPES: dict[str, type[AnyTask]] = {
    cls.kind: cls
    for cls in (
        Classification,
        MultiLabel,
        Regression,
        MultipleChoice,
        Tagging,
        QuestionAnswering,
        Embedding,
        Reranking,
        Distillation,
    )
}
NATIVE_SUFFIXES = {cls.native_suffix: cls for cls in TASK_TYPES.values() if cls.native_suffix}


def _option_fields() -> list[tuple[str, Any, Any]]:
    """Return name, type and default of each option of some task type; unset, an option is None."""
    types = dict[str, Any]()
    for cls in TASK_TYPES.values():
        hints = get_type_hints(cls)
        types |= {option.name: hints[option.name] | None for option in options_of(cls)}
    return [(name, hint, field(default=None)) for name, hint in types.items()]


def _check_options(options: TaskOptions) -> None:
    check_not_str(options, "endings", "label_columns", "columns", "dims", "prompts", "weights")


_Options = make_dataclass("_Options", _option_fields(), frozen=True, namespace={"__post_init__": _check_options})


class TaskOptions(_Options):  # type: ignore[misc, valid-type]  # a class that is made at run time
    """Columns, lengths and metric of the task. Unset options keep the preset's value, or the default in brackets."""

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
        values = {option.name: getattr(self, option.name) for option in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def apply_to(self, task: AnyTask) -> AnyTask:
        """Return the task with these options. Raises ValueError for an option that its task type does not have."""
        known = {option.name for option in options_of(type(task))}
        if odd := sorted(self.to_dict().keys() - known):
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in odd)
            raise ValueError(f"{flags}: not an option of {task.kind} tasks")
        return replace(task, **self.to_dict())  # type: ignore[type-var]


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
