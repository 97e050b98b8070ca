"""The most frequent answer of the training examples as a prediction for every example: the floor of each task type."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from bertwright.tables.qa_example import GoldAnswer, QaExample
from bertwright.tables.tag_example import TagExample
from bertwright.tasks.classification import Classification
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.multiple_choice import ChoiceExample, MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.text_task import TextExample
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"], lowercase=True)


def predict(task: AnyTask, train: list[Any], dev: list[Any]) -> tuple[AnyTask, list[Any]]:
    learned = task.with_labels_of(train)
    encoded = learned.encode(dev, TOKENIZER, labeled=False)
    outputs = learned.frequent_outputs(learned.encode(train, TOKENIZER), encoded)
    return learned, learned.decode(dev, encoded, outputs)


def texts(*labels: Any) -> list[Any]:
    return [TextExample("a b", None, label, f"file:{number}") for number, label in enumerate(labels)]


def test_the_most_frequent_label_of_train_is_predicted_for_dev() -> None:
    task, predictions = predict(Classification(), texts("yes", "no", "no"), texts("yes", "yes", "no"))
    assert [prediction.label for prediction in predictions] == ["no"] * 3
    assert task.score(texts("yes", "yes", "no"), predictions)["accuracy"] == pytest.approx(1 / 3)


def test_the_mean_is_predicted_for_numbers() -> None:
    _, predictions = predict(Regression(), texts(1.0, 2.0, 6.0), texts(0.0, 5.0))
    assert predictions == pytest.approx([3.0, 3.0])


def test_the_most_frequent_tag_is_predicted_for_every_word() -> None:
    train = [TagExample(("a", "b", "c"), ("O", "B-X", "O"), "file:1")]
    dev = [TagExample(("d", "e"), ("B-X", "O"), "file:2"), TagExample(("f",), ("O",), "file:3")]
    task, predictions = predict(Tagging(), train, dev)
    assert [prediction.tags for prediction in predictions] == [("O", "O"), ("O",)]
    assert task.score(dev, predictions)["f1"] == 0.0


def test_labels_that_most_examples_have_are_predicted() -> None:
    task = replace(MultiLabel(), metric="micro_f1")
    train = texts(("x",), ("x", "y"), ("x", "z"), ("z", "y", "x"), ("z",))
    _, predictions = predict(task, train, texts(("y",)))
    assert predictions[0].labels == ("x", "z")


def test_the_most_frequent_choice_is_predicted() -> None:
    def example(label: int) -> ChoiceExample:
        return ChoiceExample("a", ("b", "c", "d"), label, "file:1")

    _, predictions = predict(MultipleChoice(), [example(n) for n in (2, 1, 2)], [example(0), example(2)])
    assert Counter(prediction.choice for prediction in predictions) == {2: 2}


def test_no_answer_is_the_most_frequent_one_if_it_is_allowed() -> None:
    def example(answers: tuple[GoldAnswer, ...]) -> QaExample:
        return QaExample("1", "a", "b c d", answers, not answers, "file:1")

    task = QuestionAnswering(allow_no_answer=True, max_length=16, max_query_length=4)
    train = [example((GoldAnswer("c", 2),)), example(())]
    assert task.has_frequent_answer
    assert [answer.text for answer in predict(task, train, train)[1]] == ["", ""]
    plain = replace(task, allow_no_answer=False)
    assert not plain.has_frequent_answer
    with pytest.raises(ValueError, match="question-answering: answers are texts"):
        predict(plain, train[:1], train[:1])
