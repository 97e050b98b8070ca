"""Floors without a network: their losses, their optimum, their features, and their predictions for each task type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from bertwright.tables.qa_example import QaExample
from bertwright.tables.tagged_sentences import TagExample
from bertwright.tasks import linear_fit, linear_floor
from bertwright.tasks.classification import Classification
from bertwright.tasks.linear_fit import Block, Loss, cross_entropy, fit_linear, logistic_loss, squared_loss
from bertwright.tasks.linear_floor import LINEAR, LOOKUP, floor_names, score_floors, train_floor
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.multiple_choice import ChoiceExample, MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask, Floats
from bertwright.tasks.text_task import TextExample


def texts(*rows: tuple[str, Any]) -> list[Any]:
    return [TextExample(text, None, label, f"file:{number}") for number, (text, label) in enumerate(rows)]


def pairs(*rows: tuple[str, str, Any]) -> list[Any]:
    return [TextExample(*row, f"file:{number}") for number, row in enumerate(rows)]


def sentence(words: str, tags: str) -> TagExample:
    return TagExample(tuple(words.split()), tuple(tags.split()))


def make_blocks(rng: np.random.Generator) -> list[Block]:
    """Return two blocks of 30 rows: 8 words with 5 features, and 6 with 4."""
    rows = [sparse.csr_matrix(np.eye(size)[rng.integers(size, size=30)]) for size in (8, 6)]
    return [Block(one, sparse.csr_matrix(rng.integers(3, size=(one.shape[1], width)).astype(float)))
            for one, width in zip(rows, (5, 4), strict=True)]  # fmt: skip


def to_matrix(blocks: list[Block]) -> Floats:
    return np.hstack([(block.rows @ block.features).toarray() for block in blocks])


def score_own(task: AnyTask, train: list[Any], dev: list[Any]) -> dict[str, float]:
    """Return the metric of each floor on dev, by its name without what it reads."""
    task = task.with_labels_of(train)
    floors = score_floors(task, {"train": train}, {"dev": dev})
    return {floor.name.partition(" (")[0]: floor.scores["dev"][task.metric] for floor in floors}


# The optimum


@pytest.mark.parametrize("loss", [cross_entropy, logistic_loss, squared_loss])
def test_the_slope_of_a_loss_equals_its_finite_differences(loss: Loss) -> None:
    rng = np.random.default_rng(0)
    outputs, targets = rng.normal(size=(4, 3)), np.eye(3)[[0, 2, 1, 2]]
    slope, step = loss(outputs, targets)[1], 1e-6
    for place in np.ndindex(outputs.shape):
        shift = np.zeros_like(outputs)
        shift[place] = step
        difference = (loss(outputs + shift, targets)[0] - loss(outputs - shift, targets)[0]) / (2 * step)
        assert slope[place] == pytest.approx(difference, abs=1e-7)


def test_the_gradient_with_respect_to_the_weights_equals_its_finite_differences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(1)
    targets = np.eye(3)[rng.integers(3, size=30)]
    objectives = []

    def keep(objective: Any, start: Floats, **_: Any) -> Any:
        objectives.append((objective, start))
        return type("Result", (), {"x": start})

    monkeypatch.setattr("scipy.optimize.minimize", keep)
    fit_linear(make_blocks(rng), targets, cross_entropy)
    objective, start = objectives[0]
    at = rng.normal(size=len(start))
    gradient, step = objective(at)[1], 1e-6
    for place in range(len(at)):
        shift = step * (np.arange(len(at)) == place)
        difference = (objective(at + shift)[0] - objective(at - shift)[0]) / (2 * step)
        assert gradient[place] == pytest.approx(difference, abs=1e-5)


def test_the_weights_equal_the_ones_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    monkeypatch.setattr(linear_fit, "TOLERANCE", 1e-14)
    monkeypatch.setattr(linear_fit, "MAX_STEPS", 10_000)
    rng = np.random.default_rng(2)
    blocks, labels = make_blocks(rng), rng.integers(3, size=30)
    weights, bias = fit_linear(blocks, np.eye(3)[labels], cross_entropy, l2=0.5)
    other = linear_model.LogisticRegression(C=2.0, tol=1e-10, max_iter=10_000).fit(to_matrix(blocks), labels)
    assert weights == pytest.approx(other.coef_.T, abs=1e-4)
    assert bias - bias.mean() == pytest.approx(other.intercept_ - other.intercept_.mean(), abs=1e-4)


def test_squared_errors_have_the_optimum_of_a_ridge_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    monkeypatch.setattr(linear_fit, "TOLERANCE", 1e-14)
    rng = np.random.default_rng(3)
    blocks, numbers = make_blocks(rng), rng.normal(size=(30, 1))
    weights, bias = fit_linear(blocks, numbers, squared_loss, l2=0.5)
    ridge = linear_model.Ridge(alpha=0.5).fit(to_matrix(blocks), numbers)
    assert weights[:, 0] == pytest.approx(ridge.coef_.ravel(), abs=1e-5)
    assert bias == pytest.approx(ridge.intercept_, abs=1e-5)


# Task types


def test_separable_texts_are_all_right() -> None:
    train = texts(("good film", "yes"), ("so good", "yes"), ("bad film", "no"), ("so bad", "no"))
    assert score_own(Classification(), train, texts(("good", "yes"), ("bad", "no"))) == {LINEAR: 1.0}


def test_the_order_of_words_distinguishes_labels() -> None:
    train = texts(("not bad", "yes"), ("bad not", "no")) * 5
    assert score_own(Classification(), train, train) == {LINEAR: 1.0}


def test_pairs_are_distinguished_by_what_they_share() -> None:
    train = pairs(("a b c", "c b a", "same"), ("d e f", "f e d", "same"), ("a b c", "d e f", "other"),
                  ("d f e", "a c b", "other")) * 3  # fmt: skip
    dev = pairs(("x y z", "z x y", "same"), ("u v w", "x y z", "other"))  # words that training lacks
    assert score_own(Classification(text_pair="text_pair"), train, dev) == {LINEAR: 1.0}


def test_numbers_of_pairs_rise_with_their_overlap() -> None:
    words = [f"w{number}" for number in range(10)]
    rows = [(" ".join(words), " ".join(words[:shared] + ["x"] * (10 - shared)), float(shared)) for shared in range(11)]
    task = Regression(text_pair="text_pair")
    assert score_own(task, pairs(*rows), pairs(*rows))[LINEAR] > 0.95


def test_each_label_of_several_is_learned_and_dev_chooses_the_threshold() -> None:
    train = texts(("red", ("r",)), ("blue", ("b",)), ("red blue", ("b", "r")), ("grey", ())) * 4
    task = MultiLabel().with_labels_of(train)
    floor = train_floor(LINEAR, task, {"train": train, "dev": train})
    assert [one.labels for one in floor.predict(train[:4])] == [("r",), ("b",), ("b", "r"), ()]
    untuned = train_floor(LINEAR, task, {"train": train})
    assert untuned.task == task
    best = task.with_threshold_from(train, untuned.predict(train)).threshold
    assert isinstance(floor.task, MultiLabel)
    assert floor.task.threshold == best


def test_the_ending_with_the_words_of_the_prompt_is_chosen() -> None:
    rows = [("the cat sat", ("a cat slept", "a wall stood"), 0), ("one dog ran", ("two trees", "the dog ate"), 1)] * 5
    examples = [ChoiceExample(*row, "file") for row in rows]
    assert score_own(MultipleChoice(), examples, examples) == {LINEAR: 1.0}


@pytest.mark.parametrize("tag_head", ["linear", "crf"])
@pytest.mark.parametrize("scheme", ["iob2", "bioes"])
def test_names_are_found_by_lookup_and_by_their_spelling(scheme: str, tag_head: str) -> None:
    last, single = ("E", "S") if scheme == "bioes" else ("I", "B")
    tags = f"O B-LOC {last}-LOC O {single}-PER"
    train = [sentence("in New York with Anna", tags), sentence("by Los Angeles and Otto", tags)]
    dev = [sentence("from New York to Anna", tags)]
    scores = score_own(Tagging(tag_head=tag_head), train * 3, dev)
    assert scores == {LOOKUP: 1.0, LINEAR: 1.0}
    assert score_own(Tagging(), train * 3, [sentence("in San Jose with Emma", tags)])[LOOKUP] == 0.0


def test_the_lookup_takes_the_longest_name_and_its_most_frequent_type() -> None:
    train = [
        sentence("Bank of Rome", "B-ORG I-ORG I-ORG"),
        sentence("Rome won", "B-ORG O"),
        sentence("in Rome", "O B-LOC"),
        sentence("to Rome", "O B-LOC"),
    ]
    dev = [sentence("Bank of Rome , Rome", "B-ORG I-ORG I-ORG O B-LOC")]
    assert score_own(Tagging(), train, dev)[LOOKUP] == 1.0


def test_plain_classes_are_looked_up_word_by_word() -> None:
    train = [
        sentence("the dog barks", "DET NOUN VERB"),
        sentence("a dog", "DET NOUN"),
        sentence("dog food", "NOUN NOUN"),
    ]
    dev = [sentence("the cat barks", "DET NOUN VERB")]  # NOUN is the most frequent tag
    task = Tagging().with_labels_of(train)
    assert task.scheme == "none"
    assert score_own(Tagging(), train, dev)[LOOKUP] == 1.0


def test_question_answering_has_no_floor() -> None:
    task = QuestionAnswering()
    example = QaExample("1", "who", "the bear", location="file")
    assert floor_names(task) == ()
    assert score_floors(task, {"train": [example]}, {"dev": [example]}) == []


# Limits


def test_more_examples_than_the_bound_are_sampled_and_the_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    train = texts(("good film", "yes"), ("bad film", "no")) * 50
    task = Classification().with_labels_of(train)
    monkeypatch.setattr(linear_floor, "MAX_EXAMPLES", 40)
    floors = score_floors(task, {"train": train}, {"dev": train[:2]})
    assert [floor.name for floor in floors] == [f"{LINEAR} (words and bigrams, 40 of 100 examples)"]
    assert floors[0].describe("accuracy").endswith("accuracy 100.00 on dev")


def test_characters_of_all_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    train = texts(("good film", "yes"), ("bad film.", "no")) * 50
    monkeypatch.setattr(linear_floor, "MAX_CHARACTERS", 450)
    floor = train_floor(LINEAR, Classification().with_labels_of(train), {"train": train})
    assert "50 of 100 examples" in floor.reads


def test_the_most_frequent_features_remain_if_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    train = texts(*((f"good film{n}", "yes") for n in range(9)), *((f"bad film{n}", "no") for n in range(9)))
    monkeypatch.setattr(linear_floor, "MAX_WEIGHTS", 8)  # good, bad, and their bigrams with the start
    assert score_own(Classification(), train, texts(("good", "yes"), ("bad", "no"))) == {LINEAR: 1.0}


def test_texts_without_words_are_predicted() -> None:
    train = texts(("", "yes"), ("", "yes"), ("", "no"))
    assert score_own(Classification(), train, texts(("", "yes"))) == {LINEAR: 1.0}
    task = Tagging().with_labels_of([sentence("a Rome", "O B-LOC")])
    train_tags = [sentence("", ""), sentence("a Rome", "O B-LOC"), sentence("", "")]
    floor = train_floor(LINEAR, task, {"train": train_tags})
    assert [one.tags for one in floor.predict([sentence("", ""), sentence("Rome", "B-LOC")])] == [(), ("B-LOC",)]


def test_the_same_examples_give_the_same_bits() -> None:
    train = texts(("good film", "yes"), ("so good", "yes"), ("bad film", "no"), ("so bad", "no"))
    task = replace(Classification(), labels=("no", "yes"))
    state = np.random.get_state()[1].copy()  # type: ignore[union-attr, index]
    first, second = (train_floor(LINEAR, task, {"train": train}).outputs(train) for _ in range(2))
    assert np.array_equal(first, second)
    assert np.array_equal(state, np.random.get_state()[1])  # type: ignore[index]
