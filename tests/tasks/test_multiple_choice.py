"""Multiple choice: encodings as in transformers, hand-worked loss, every table format, misuse."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import torch
from transformers import BertTokenizerFast

from bertwright.models.head_spec import HeadSpec
from bertwright.tasks.collation import collate
from bertwright.tasks.multiple_choice import ChoiceExample, ChoicePrediction, MultipleChoice
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from helpers import ALL_DATA, SAMPLES, uncased_vocabulary, write_file

TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *"abcd"], lowercase=True)
CLS, SEP = TOKENIZER.cls_id, TOKENIZER.sep_id
A, B, C, D = (TOKENIZER.id(token) for token in "abcd")
CODAH = MultipleChoice(prompt="2", endings=("3", "4", "5", "6"), label="7", header=False)
IN_LIST = MultipleChoice(endings=("endings",))


def question(prompt: str, *endings: str, label: int | None = None) -> ChoiceExample:
    return ChoiceExample(prompt, endings, label, "a.jsonl, line 1")


# Reading


def test_endings_in_columns_with_a_common_start(tmp_path: Path) -> None:
    path = write_file(tmp_path, 'sent1,sent2,ending0,ending1,label\n"A, b.",The c,ran.,"sat, d.",1\n', "swag.csv")
    task = MultipleChoice(prompt="sent1", start="sent2", endings=("ending0", "ending1"))
    assert list(task.read(path)) == [ChoiceExample("A, b.", ("The c ran.", "The c sat, d."), 1, f"{path}, line 2")]
    assert [example.label for example in task.read(path, labeled=False)] == [None]


def test_endings_in_a_list(tmp_path: Path) -> None:
    path = write_file(tmp_path, json.dumps({"prompt": "a", "endings": ["b", "c", "d"], "label": 2}) + "\n", "a.jsonl")
    expected = [("b", "c", "d")]
    assert [example.endings for example in IN_LIST.read(path)] == expected
    assert [example.label for example in IN_LIST.read(path)] == [2]
    polars.DataFrame({"prompt": ["a"], "endings": [["b", "c", "d"]], "label": [2.0]}).write_parquet(
        tmp_path / "a.parquet"
    )
    (example,) = IN_LIST.read(str(tmp_path / "a.parquet"))
    assert (example.endings, example.label) == (("b", "c", "d"), 2)


@pytest.mark.parametrize("names", [["0", "1", "2", "3"], ["A", "B", "C", "D"]])  # SWAG and MMLU of the hub
def test_class_names_of_hub_files_are_numbers(tmp_path: Path, names: list[str]) -> None:
    path, task = tmp_path / "a.parquet", MultipleChoice(prompt="sent1", start="sent2")
    features = {"label": {"names": names, "_type": "ClassLabel"}}
    table = {"sent1": ["A."], "sent2": ["The b"], "label": [2], **{f"ending{n}": [f"{n}."] for n in range(4)}}
    polars.DataFrame(table).write_parquet(path, metadata={"huggingface": json.dumps({"info": {"features": features}})})
    expected = ("The b 0.", "The b 1.", "The b 2.", "The b 3.")
    assert list(task.read(str(path))) == [ChoiceExample("A.", expected, 2, f"{path}, row 1")]
    polars.DataFrame(table | {"label": [-1]}).write_parquet(path)
    with pytest.raises(ValueError, match=r"row 1: expected .* in 'label', 0 to 3, got '-1'"):
        list(task.read(str(path)))


def test_labels_may_count_from_one(tmp_path: Path) -> None:
    task = MultipleChoice(endings=("x", "y"), first_label=1)
    path = write_file(tmp_path, "prompt\tx\ty\tlabel\na\tb\tc\t1\na\tb\tc\t2\n", "a.tsv")
    examples = list(task.read(path))
    assert [example.label for example in examples] == [0, 1]
    record = task.to_record(examples[0], ChoicePrediction(1, (0.25, 0.75)))
    assert record == {"choice": 2, "probability": 0.75, "p(1)": 0.25, "p(2)": 0.75}


def test_labels_may_be_letters(tmp_path: Path) -> None:
    path = write_file(tmp_path, "prompt\tx\ty\tlabel\na\tb\tc\tB\na\tb\tc\tA\n", "a.tsv")
    for first in (0, 1):
        assert [one.label for one in MultipleChoice(endings=("x", "y"), first_label=first).read(path)] == [1, 0]
    with pytest.raises(ValueError, match="0 to 1, got 'C'"):
        list(
            MultipleChoice(endings=("x", "y")).read(write_file(tmp_path, "prompt\tx\ty\tlabel\na\tb\tc\tC\n", "b.tsv"))
        )


def test_warning_if_the_first_ending_is_never_right() -> None:
    task = MultipleChoice(endings=("x", "y", "z"))
    counted = [ChoiceExample("a", ("b", "c", "d"), 1 + number % 2, "row") for number in range(30)]
    assert "counted from 1, set --first-label 1" in task.warnings(counted)[0]
    assert task.warnings([*counted, ChoiceExample("a", ("b", "c", "d"), 0, "row")]) == []


# Encoding, loss, decoding, score


def test_every_ending_is_a_sequence_with_its_prompt() -> None:
    task = MultipleChoice(endings=("x", "y"), max_length=6)
    examples = [question("a", "b", "c d d", label=1), question("a b", "", "d", label=0)]
    found = task.encode(examples, TOKENIZER)
    bounds = found.starts
    assert [found.input_ids[begin:end].tolist() for begin, end in pairwise(bounds)] == [
        [CLS, A, SEP, B, SEP],
        [CLS, A, SEP, C, D, SEP],
        [CLS, A, B, SEP, SEP],
        [CLS, A, B, SEP, D, SEP],
    ]
    assert (found.num_items, found.sequences_per_item, found.truncated, found.labels.tolist()) == (2, 2, 1, [1, 0])
    batch = collate(found, np.array([1]))
    assert batch.input.input_ids.tolist() == [CLS, A, B, SEP, SEP, CLS, A, B, SEP, D, SEP]
    assert (batch.positions.tolist(), batch.labels.tolist(), batch.num_labels) == ([0, 5], [0], 1)
    assert task.head == HeadSpec("choice", 1)


def test_probabilities_sum_to_1_per_question() -> None:
    examples = [question("a", "b", "c", label=0), question("a", "c", "d", label=1)]
    task = IN_LIST.with_labels_of(examples)
    found = task.encode(examples, TOKENIZER)
    logits = torch.tensor([[0.0], [math.log(3)], [7.0], [7.0]])
    batch = collate(found, np.array([0, 1]))
    assert task.loss(logits, batch).item() == pytest.approx(-math.log(0.25) - math.log(0.5))
    smoothed = -0.9 * math.log(0.25) - 0.1 * math.log(0.75) - math.log(0.5)
    assert task.loss(logits, batch, smoothing=0.2).item() == pytest.approx(smoothed)
    first, second = task.decode(examples, found, logits.numpy())
    assert first.choice == 1
    assert first.probabilities == pytest.approx((0.25, 0.75))
    assert second.probabilities == pytest.approx((0.5, 0.5))
    assert task.score(examples, [first, ChoicePrediction(1, (0.0, 1.0))]) == {"accuracy": 0.5}


@pytest.mark.parametrize("data", ALL_DATA)
@pytest.mark.parametrize("max_length", [20, 128])
def test_codah_is_encoded_as_in_transformers(data: Path, max_length: int) -> None:
    path, vocab = data / "codah" / "dev.tsv", uncased_vocabulary()
    task = MultipleChoice(prompt="2", endings=("3", "4", "5", "6"), label="7", header=False, max_length=max_length)
    examples = list(task.read(str(path)))
    assert len(examples) == (5 if data == SAMPLES else 556)
    found = task.encode(examples, Tokenizer.load(vocab, lowercase=True))
    theirs = BertTokenizerFast(vocab=str(vocab), do_lower_case=True)(
        [example.prompt for example in examples for _ in example.endings],
        [ending for example in examples for ending in example.endings],
        truncation="longest_first",
        max_length=max_length,
    )
    assert found.lengths.tolist() == [len(ids) for ids in theirs["input_ids"]]
    assert found.input_ids.tolist() == [number for ids in theirs["input_ids"] for number in ids]
    assert found.token_type_ids.tolist() == [number for types in theirs["token_type_ids"] for number in types]
    last_column = [int(line.split("\t")[-1]) for line in path.read_text().splitlines()]
    assert found.labels.tolist() == last_column


# Misuse


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(["b", "c"], 0), (["b", "c", "d"], 0)], r"line 2: expected 2 endings, as in .*, got 3"),
        ([(["b"], 0)], r"line 1: expected at least two endings, got 1"),
        (
            [(["b", "c"], 2)],
            r"line 1: .* in 'label', 0 to 1, got '2'; if endings are counted from 1, set --first-label 1",
        ),
        ([(["b", "c"], -1)], r"line 1: expected the number of the right ending in 'label', 0 to 1, got '-1'$"),
        ([(["b", "c"], "0_1")], r"line 1: expected the number of the right ending in 'label', 0 to 1, got '0_1'$"),
        ([(["b", "c"], 0.5)], r"got '0\.5'"),
        ([(["b", "c"], "b")], r"0 to 1, got 'b'$"),
        ([(["b", "c"], "nan")], r"0 to 1, got 'nan'$"),
        ([(["b", "c"], None)], r"line 1: no value \(null\) in 'label'"),
        ([("b", 0)], r"line 1: expected a list of strings in 'endings'"),
        ([(["b", None], 0)], r"line 1: expected a list of strings in 'endings'"),
    ],
)
def test_invalid_rows_are_rejected(tmp_path: Path, rows: list[tuple[Any, Any]], message: str) -> None:
    lines = (json.dumps({"prompt": "a", "endings": endings, "label": label}) for endings, label in rows)
    with pytest.raises(ValueError, match=message):
        list(IN_LIST.read(write_file(tmp_path, "\n".join(lines), "a.jsonl")))


def test_file_with_another_number_of_endings_is_named(tmp_path: Path) -> None:
    two = write_file(tmp_path, json.dumps({"prompt": "a", "endings": ["b", "c"], "label": 0}), "two.jsonl")
    three = write_file(tmp_path, json.dumps({"prompt": "a", "endings": ["b", "c", "d"], "label": 2}), "three.jsonl")
    examples = [example for path in (two, three) for example in IN_LIST.read(path)]
    assert [len(example.endings) for example in examples] == [2, 3]
    message = f"{three}, line 1: expected 2 endings, as in {two}, line 1, got 3"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        IN_LIST.encode(examples, TOKENIZER)


def test_missing_column_is_named(tmp_path: Path) -> None:
    path = write_file(tmp_path, "prompt\tending0\tending1\tlabel\na\tb\tc\t0\n", "a.tsv")
    with pytest.raises(
        ValueError, match=r"no column 'ending2'; did you mean \"ending1\"\? \(choose columns with --prompt"
    ):
        list(MultipleChoice().read(path))


def test_examples_from_python_are_checked() -> None:
    with pytest.raises(ValueError, match=r"expected 2 endings, as in .*, got 3"):
        IN_LIST.encode([question("a", "b", "c"), question("a", "b", "c", "d")], TOKENIZER, labeled=False)
    with pytest.raises(ValueError, match="line 1: the label is not known"):
        IN_LIST.encode([question("a", "b", "c")], TOKENIZER)
    with pytest.raises(ValueError, match="line 1: the label is not known"):
        IN_LIST.check([question("a", "b", "c")])
    with pytest.raises(ValueError, match="no examples"):
        IN_LIST.with_labels_of([])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"endings": ()}, "endings is empty"),
        ({"endings": ("prompt", "b")}, "'prompt' is named twice"),
        ({"start": "label"}, "'label' is named twice"),
        ({"first_label": 2}, "first_label = 2: expected 0 or 1"),
        ({"max_length": 4}, "max_length = 4: at least 5"),
        ({"metric": "f1"}, "metric = 'f1': known: accuracy"),
    ],
)
def test_invalid_settings_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultipleChoice(**fields)


def test_choices_that_are_objects_are_read_by_their_text(tmp_path: Path) -> None:
    choices = [{"label": letter, "text": text} for letter, text in zip("AB", ("a cat", "the dog"), strict=True)]
    row = {"answerKey": "B", "question": {"stem": "it sees", "choices": choices}}
    (tmp_path / "csqa.jsonl").write_text(json.dumps(row), encoding="utf-8")
    task = MultipleChoice(prompt="question.stem", endings=("question.choices",), label="answerKey")
    (example,) = task.read(str(tmp_path / "csqa.jsonl"))
    assert (example.prompt, example.endings, example.label) == ("it sees", ("a cat", "the dog"), 1)


def test_the_label_may_be_the_column_with_the_right_ending(tmp_path: Path) -> None:
    row = {"question": "it sees", "distractor1": "a cat", "correct_answer": "the dog"}
    (tmp_path / "sciq.json").write_text(json.dumps([row] * 30), encoding="utf-8")
    task = MultipleChoice(prompt="question", endings=("distractor1", "correct_answer"), label="correct_answer")
    examples = list(task.read(str(tmp_path / "sciq.json")))
    assert [example.label for example in examples] == [1] * 30
    assert examples[0].endings == ("a cat", "the dog")
    assert task.warnings(examples) == []
    assert next(task.read(str(tmp_path / "sciq.json"), labeled=False)).label is None
