"""What people see of the examples that were read, for each task type."""

from __future__ import annotations

from typing import Any

import pytest

from bertwright.base.reporter import Fields, Heading, Reporter
from bertwright.tables.qa_example import GoldAnswer, QaExample
from bertwright.tables.tag_example import TagExample
from bertwright.tasks.classification import Classification
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.multiple_choice import ChoiceExample, MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.shown_examples import MAX_ANSWERS, show_examples
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.text_task import TextExample

ANSWER, LOST = GoldAnswer("the baker", 4), GoldAnswer("nobody", None)
CASES: list[tuple[AnyTask, list[Any], dict[str, str], dict[str, int]]] = [
    (
        Classification(),
        [TextExample("a", "b", "yes", "f, line 1"), TextExample("c", "d", "no", "f, line 2")],
        {"location": "f, line 1", "text": "a", "text_pair": "b", "gold": "yes"},
        {"yes": 1, "no": 1},
    ),
    (
        MultiLabel(),
        [TextExample("a", None, ("x", "y"), "f, line 1"), TextExample("b", None, (), "f, line 2")],
        {"location": "f, line 1", "text": "a", "gold": "x, y"},
        {"x": 1, "y": 1, "(none)": 1},
    ),
    (
        Regression(),
        [TextExample("a", None, 2.5, "f, line 1"), TextExample("b", None, 1.0, "f, line 2")],
        {"location": "f, line 1", "text": "a", "gold": "2.5"},
        {},
    ),
    (
        Tagging(),
        [TagExample(("New", "York", "is", "big"), ("B-LOC", "I-LOC", "O", "O"), "f", lines=(1, 2, 3, 4))],
        {"location": "f, line 1", "words": "[New York LOC] is big"},
        {"LOC": 1},
    ),
    (
        Tagging(scheme="none"),
        [TagExample(("it", "is"), ("PRON", "VERB"), "f", lines=(1, 2))],
        {"location": "f, line 1", "words": "it/PRON is/VERB"},
        {"PRON": 1, "VERB": 1},
    ),
    (
        QuestionAnswering(allow_no_answer=True),
        [
            QaExample("1", "Who?", "Did the baker?", (ANSWER, ANSWER, LOST), location="f, question 1"),
            QaExample("2", "Why?", "No.", is_impossible=True, location="f, question 2"),
        ],
        {
            "location": "f, question 1",
            "question": "Who?",
            "context": "Did the baker?",
            "gold": "the baker, characters 4-13; nobody, not in the context",
        },
        {"with an answer": 1, "without an answer": 1},
    ),
    (
        MultipleChoice(first_label=1),
        [ChoiceExample("p", ("a", "b"), 1, "f, line 1"), ChoiceExample("q", ("a", "b"), 0, "f, line 2")],
        {"location": "f, line 1", "prompt": "p", "ending 1": "a", "ending 2, right": "b"},
        {"ending 1": 1, "ending 2": 1},
    ),
]


@pytest.mark.parametrize(("task", "examples", "shown", "counts"), CASES, ids=lambda case: getattr(case, "kind", ""))
def test_an_example_is_shown_as_it_was_understood(
    task: AnyTask, examples: list[Any], shown: dict[str, str], counts: dict[str, int]
) -> None:
    task = task.with_labels_of(examples)
    assert task.show(examples[0]) == shown
    assert dict(task.count_gold(examples)) == counts


def test_examples_without_gold_answers_are_shown() -> None:
    assert Tagging().show(TagExample(("a", "b"))) == {"location": "words", "words": "a b"}
    assert Classification().show(TextExample("a", None, None, "f")) == {"location": "f", "text": "a"}
    assert MultipleChoice().show(ChoiceExample("p", ("a", "b"), None, "f"))["ending 1"] == "b"
    assert "gold" not in QuestionAnswering().show(QaExample("1", "Who?", "Me."))


class Recorder(Reporter):
    """Keeps the records."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def record(self, record: Any) -> None:
        self.records.append(record)


def test_a_split_is_shown_with_its_files_counts_and_first_examples() -> None:
    labels = [f"l{number}" for number in range(MAX_ANSWERS + 2) for _ in range(20 - number)]
    examples = [TextExample("two\nlines" if n == 0 else "x" * 400, None, label, "f") for n, label in enumerate(labels)]
    recorder = Recorder()
    show_examples(recorder, Classification(), "train", ("a.tsv", "b.tsv"), examples, 2)
    heading, split, first, second = recorder.records
    assert heading == Heading(f"train: {len(examples)} examples")
    assert isinstance(split, Fields)
    assert split.values["files"] == "a.tsv, b.tsv"
    assert split.values["gold answers"].startswith("l0: 20, l1: 19, ")
    assert split.values["gold answers"].endswith(" and 2 more")
    assert first.values["text"] == "two⏎lines"
    assert second.values["text"] == "x" * 300 + "… (400 characters)"
