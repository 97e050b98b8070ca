"""Examples of a task's file as bodies of the task's route, which the page offers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from bertwright.serving.served_models import ServedModel
from bertwright.tables.qa_example import QaExample
from bertwright.tables.tag_example import TagExample
from bertwright.tasks.multiple_choice import ChoiceExample
from bertwright.tasks.ranking_examples import RankingExample
from bertwright.tasks.text_task import TextExample

NUMBER = 5  # examples per model


def read_examples(models: Sequence[ServedModel], paths: Sequence[str]) -> None:
    """Give models the first examples of the first file that they can read.

    Raises ValueError, with the reason of the last model, for a file that no model can read.
    """
    for path in paths:
        reason: ValueError | None = ValueError(f"--examples {path}: no model here has a task; omit it")
        for model in models:
            if model.examples or model.bert.task is None:
                continue
            try:
                model.examples = [to_body(one) for one in islice(model.bert.task.read(path, labeled=False), NUMBER)]
                reason = None
                break
            except ValueError as error:
                reason = error
        if reason is not None:
            raise reason


def to_body(example: Any) -> dict[str, Any]:
    match example:
        case TextExample(text=text, text_pair=None):
            return {"texts": text}
        case TextExample(text=text, text_pair=pair):
            return {"texts": [[text, pair]]}
        case ChoiceExample(prompt=prompt, endings=endings):
            return {"prompt": prompt, "endings": [*endings]}
        case TagExample(words=words):
            return {"texts": " ".join(words)}
        case QaExample(question=question, context=context):
            return {"question": question, "context": context}
        case RankingExample(query=query, texts=texts):
            return {"query": query, "texts": [*texts]}
    return {}
