"""The task types by name."""

from __future__ import annotations

from bertwright.tasks.classification import Classification
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask

TASK_TYPES: dict[str, type[AnyTask]] = {
    cls.kind: cls for cls in (Classification, Regression, MultipleChoice, Tagging, QuestionAnswering)
}
