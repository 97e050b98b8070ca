"""What was understood of a task's files: their examples, the gold answers, and the first examples with their fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertwright.base.messages import count_of, shorten
from bertwright.base.reporter import Fields, Heading, Reporter
from bertwright.tasks.task import AnyTask

MAX_ANSWERS = 12  # gold answers whose counts are shown


def show_examples(
    reporter: Reporter, task: AnyTask, name: str, files: Sequence[str], examples: Sequence[Any], count: int
) -> None:
    """Print the files of a split, how often each gold answer occurs, and the first `count` examples."""
    answers = sorted(task.count_gold(examples).items(), key=lambda answer: -answer[1])
    rest = f" and {len(answers) - MAX_ANSWERS:,} more" if len(answers) > MAX_ANSWERS else ""
    gold = ", ".join(f"{label}: {number:,}" for label, number in answers[:MAX_ANSWERS])
    reporter.record(Heading(f"{name}: {count_of(len(examples), 'example', 'examples')}"))
    of_split = {"files": ", ".join(files)} if files else {}
    reporter.record(Fields(of_split | ({"gold answers": gold + rest} if answers else {})))
    for example in examples[:count]:
        show_example(reporter, task, example)


def show_example(reporter: Reporter, task: AnyTask, example: Any) -> None:
    """Print the fields of an example; long texts are shortened."""
    reporter.record(Fields({name: shorten(text) for name, text in task.show(example).items()}))
