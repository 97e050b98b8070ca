"""Classification and regression: encodings as in transformers, hand-worked losses and scores, misuse."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertTokenizerFast

from bertwright.models.head_spec import HeadSpec
from bertwright.tasks.classification import Classification, LabelPrediction
from bertwright.tasks.collation import collate
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.presets import PRESETS
from bertwright.tasks.regression import Regression
from bertwright.tasks.text_task import TextExample, count_empty_texts
from bertwright.tasks.truncation import SegmentTokens, encode_segments, truncate_longest_first
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from helpers import ALL_DATA, uncased_vocabulary, write_file

TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *"abcd.", *(f"##{c}" for c in "abcd")], lowercase=True)
CLS, SEP = TOKENIZER.cls_id, TOKENIZER.sep_id
A, B, C, D = (TOKENIZER.id(token) for token in "abcd")

TABLE = "label\ttext\tother\n1\ta b\tc\n0\td\t\n"
YES_NO = Classification(labels=("no", "yes"))


def texts(*given: str, labels: Any = None) -> list[TextExample[Any]]:
    known = labels or [None] * len(given)
    return [
        TextExample(text, None, label, f"a.tsv, line {n}")
        for n, (text, label) in enumerate(zip(given, known, strict=True), 2)
    ]


def sequences(found: Encoded) -> list[tuple[list[int], list[int]]]:
    bounds = found.starts
    return [
        (found.input_ids[begin:end].tolist(), found.token_type_ids[begin:end].tolist())
        for begin, end in pairwise(bounds)
    ]


# Reading


def test_texts_pairs_and_labels_are_read_with_their_locations(tmp_path: Path) -> None:
    path = write_file(tmp_path, TABLE, "a.tsv")
    assert list(Classification().read(path)) == [
        TextExample("a b", None, "1", f"{path}, line 2"),
        TextExample("d", None, "0", f"{path}, line 3"),
    ]
    assert list(Regression(text_pair="other").read(path)) == [
        TextExample("a b", "c", 1.0, f"{path}, line 2"),
        TextExample("d", "", 0.0, f"{path}, line 3"),
    ]


def test_unlabeled_read_needs_no_label_column(tmp_path: Path) -> None:
    path = write_file(tmp_path, "text\na\n", "a.tsv")
    assert list(Classification().read(path, labeled=False)) == [TextExample("a", None, None, f"{path}, line 2")]
    with pytest.raises(
        ValueError,
        match=r"no column 'label'; .*\(choose columns with --text, --text-pair and --label; .*--header False",
    ):
        list(Classification().read(path))


def test_labels_of_json_and_parquet_equal_those_of_text(tmp_path: Path) -> None:
    lines = write_file(tmp_path, '{"text": "a", "label": 1}\n{"text": "b", "label": true}\n', "a.jsonl")
    assert [example.label for example in Classification().read(lines)] == ["1", "true"]
    polars.DataFrame({"text": ["a", "b"], "label": [0.5, 2]}).write_parquet(tmp_path / "a.parquet")
    path = str(tmp_path / "a.parquet")
    assert [example.label for example in Regression().read(path)] == [0.5, 2.0]
    assert [example.label for example in Classification().read(path)] == ["0.5", "2"]


def test_integer_labels_of_hub_files_become_names(tmp_path: Path) -> None:
    feature = {"names": ["neg", "pos"], "_type": "ClassLabel"}
    path = tmp_path / "a.parquet"
    metadata = {
        "huggingface": json.dumps({"info": {"features": {"label": feature, "score": feature | {"names": ["1", "5"]}}}})
    }
    polars.DataFrame({"text": ["a", "b"], "label": [1, 0], "score": [0, 1]}).write_parquet(path, metadata=metadata)
    task = Classification().with_labels_of(examples := list(Classification().read(str(path))))
    assert [example.label for example in examples] == ["pos", "neg"]
    assert task.label_names == ("neg", "pos")
    assert [example.label for example in Regression(label="score").read(str(path))] == [1.0, 5.0]
    with pytest.raises(ValueError, match=r"a\.parquet, row 1: .*number in 'label', got 'pos'"):
        list(Regression().read(str(path)))

    polars.DataFrame({"text": ["a"], "label": [-1]}).write_parquet(path, metadata=metadata)  # as GLUE's test files are
    assert [example.label for example in Classification().read(str(path), labeled=False)] == [None]
    with pytest.raises(ValueError, match=r"a\.parquet, row 1: no label \(-1\) in 'label'; use files that have labels"):
        list(Classification().read(str(path)))


def test_empty_texts_are_read_and_counted(tmp_path: Path) -> None:
    examples = list(
        Classification(text_pair="other").read(
            write_file(tmp_path, "label\ttext\tother\n1\t\tb\n0\ta\t \n1\ta\tb\n", "a.tsv")
        )
    )
    assert count_empty_texts(examples) == 2
    assert sequences(Classification().encode(texts(""), TOKENIZER, labeled=False)) == [([CLS, SEP], [0, 0])]


# As in Quora's release, in which a line end inside quotes breaks a row in two: 4 and 3 columns, or 5 and 2.
HEADER = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
BROKEN = [
    '7\t13\t14\t"Is the book good?\n"\tWas it read?\t0\n',
    '9\t17\t18\tWhy in black?\t"Why on that day?\nSay why, if you know."\t0\n',
]


def test_known_broken_rows_of_qqp_are_skipped_and_reported(tmp_path: Path) -> None:
    task: Any = PRESETS["qqp"].task
    content = HEADER + "5\t9\t10\tWho?\tWhose?\t1\n" + BROKEN[0] + "8\t15\t16\tWhen?\tHow?\t0\n" + BROKEN[1]
    path = write_file(tmp_path, content, "train.tsv")
    examples = list(task.read(path))
    assert [example[:3] for example in examples] == [("Who?", "Whose?", "1"), ("When?", "How?", "0")]
    assert [example.location for example in examples] == [f"{path}, line 2", f"{path}, line 5"]
    assert task.warnings((), [path]) == [
        f"4 rows with too few columns skipped (the published file is known to have 22); the first is {path}, line 3"
    ]
    one = write_file(tmp_path, content.partition('"\t')[0] + "8\t15\t16\tWhen?\tHow?\t0\n", "dev.tsv")
    assert task.warnings((), [one])[0].startswith("1 row with too few columns skipped")
    assert task.warnings((), [write_file(tmp_path, HEADER + "5\t9\t10\tWho?\tWhose?\t1\n", "clean.tsv")]) == []
    assert task.with_labels_of(examples).labels == ("0", "1")


def test_broken_rows_of_other_files_are_rejected(tmp_path: Path) -> None:
    qqp: Any = PRESETS["qqp"].task
    path = write_file(tmp_path, HEADER + "5\t9\t10\tWho?\tWhose?\t1\n" + BROKEN[0], "own.tsv")
    own = Classification(text="question1", text_pair="question2", label="is_duplicate")
    for task, labeled in ((own, True), (qqp, False)):  # every row needs a prediction
        with pytest.raises(ValueError, match=r"own\.tsv, line 3: expected 6 columns \(id, .*\), got 4"):
            list(task.read(path, labeled))
    assert own.warnings((), [path]) == []

    many = write_file(tmp_path, HEADER + BROKEN[0] * 11 + "5\t9\n", "own.tsv")
    with pytest.raises(ValueError, match=r"line 24: .* got 2; 22 such rows"):
        list(qqp.read(many))
    wide = write_file(tmp_path, HEADER + "5\t9\t10\tWho?\tWhose?\t1\t2\n", "own.tsv")
    with pytest.raises(ValueError, match=r"line 2: expected 6 columns \(id, .*\), got 7$"):
        list(qqp.read(wide))


# Labels


@pytest.mark.parametrize(
    ("found", "labels"),
    [
        (["yes", "no", "yes"], ("no", "yes")),
        (["10", "9", "-1", "0.5"], ("-1", "0.5", "9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
        (["1", "inf", "0"], ("0", "1", "inf")),
    ],
)
def test_labels_are_collected_and_sorted(found: list[str], labels: tuple[str, ...]) -> None:
    task = Classification().with_labels_of(texts(*found, labels=found))
    assert task.labels == task.label_names == labels
    assert task.head == HeadSpec("sequence", len(labels))


def test_given_labels_keep_their_order() -> None:
    given = Classification(labels=("yes", "maybe", "no"))
    assert given.with_labels_of(texts("a", "b", labels=["no", "yes"])) == given


# Encoding


def test_encoding_of_text_and_pair_hand_worked() -> None:
    single = YES_NO.encode(texts("a bc", "d", labels=["yes", "no"]), TOKENIZER)
    c = TOKENIZER.id("##c")
    assert sequences(single) == [([CLS, A, B, c, SEP], [0] * 5), ([CLS, D, SEP], [0] * 3)]
    assert (single.labels.tolist(), single.label_counts.tolist(), single.truncated) == ([1, 0], [1, 1], 0)
    assert (single.positions.tolist(), single.position_counts.tolist(), single.example_ids.tolist()) == (
        [0, 0],
        [1, 1],
        [0, 1],
    )
    task = Regression(text_pair="other", max_length=7)
    pairs = [TextExample("a b c", "d d", 0.25, "line 1"), TextExample("a", "", 3.0, "line 2")]
    both = task.encode(pairs, TOKENIZER)
    assert sequences(both) == [
        ([CLS, A, B, SEP, D, D, SEP], [0, 0, 0, 0, 1, 1, 1]),
        ([CLS, A, SEP, SEP], [0, 0, 0, 1]),
    ]
    assert (both.labels.dtype, both.labels.tolist(), both.truncated) == (np.float32, [0.25, 3.0], 1)


def test_unlabeled_encoding_has_no_targets() -> None:
    found = YES_NO.encode(texts("a", "b"), TOKENIZER, labeled=False)
    assert (found.labels.tolist(), found.label_counts.tolist()) == ([], [0, 0])
    assert len(collate(found, np.array([1])).labels) == 0


def test_special_tokens_in_a_text_are_ordinary_words() -> None:
    (ids, _), *_ = sequences(YES_NO.encode(texts("a [SEP] b"), TOKENIZER, labeled=False))
    assert ids.count(SEP) == 1


THEIRS = BertTokenizerFast(vocab={token: number for number, token in enumerate(TOKENIZER.tokens)})
WORDS = st.text("abcd. ", max_size=14)


@given(
    pairs=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6), single=st.booleans(), max_length=st.integers(5, 20)
)
def test_encodings_are_those_of_transformers(pairs: list[tuple[str, str]], single: bool, max_length: int) -> None:
    first, second = [a for a, _ in pairs], None if single else [b for _, b in pairs]
    examples = [TextExample(a, None if single else b, None, "") for a, b in pairs]
    task = Classification(text_pair=None if single else "b", max_length=max_length)
    found = task.encode(examples, TOKENIZER, labeled=False)
    theirs = THEIRS(first, second, truncation="longest_first", max_length=max_length)
    whole = THEIRS(first, second)["input_ids"]
    assert sequences(found) == list(zip(theirs["input_ids"], theirs["token_type_ids"], strict=True))
    assert found.truncated == sum(len(ids) > max_length for ids in whole)


@given(lengths=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1), room=st.integers(0, 40))
def test_truncation_equals_that_of_transformers(lengths: list[tuple[int, int]], room: int) -> None:
    a, b = truncate_longest_first(list(np.array(lengths).T), room)
    for (first, second), *left in zip(lengths, a.tolist(), b.tolist(), strict=True):
        assert sum(left) == min(first + second, room)
        assert left[0] <= first
        assert left[1] <= second
        assert left[0] == first or left[0] >= left[1] - 1
        assert left[1] == second or left[1] >= left[0] - 1


def test_items_of_several_sequences_repeat_their_first_segment() -> None:
    sides = [SegmentTokens.of(["a", "b"], TOKENIZER).repeat(2), SegmentTokens.of(["c", "d", "c d", ""], TOKENIZER)]
    found = encode_segments(sides, np.array([1, 0]), TOKENIZER, 5, sequences_per_item=2)
    assert [ids for ids, _ in sequences(found)] == [
        [CLS, A, SEP, C, SEP],
        [CLS, A, SEP, D, SEP],
        [CLS, B, SEP, C, SEP],
        [CLS, B, SEP, SEP],
    ]
    assert (found.num_items, found.example_ids.tolist(), found.truncated) == (2, [0, 0, 1, 1], 1)


PUBLISHED = [
    ("glue/SST-2/train.tsv", Classification(text="sentence", max_length=16)),
    ("glue/MRPC/train.tsv", Classification(text="#1 String", text_pair="#2 String", label="Quality", max_length=48)),
    ("glue/CoLA/dev.tsv", Classification(text="4", label="2", header=False)),
    ("glue/STS-B/dev.tsv", Regression(text="sentence1", text_pair="sentence2", label="score", max_length=25)),
]


@pytest.mark.parametrize("data", ALL_DATA)
@pytest.mark.parametrize(("name", "task"), PUBLISHED)
def test_published_examples_are_encoded_as_in_transformers(
    data: Path, name: str, task: Classification | Regression
) -> None:
    vocab = uncased_vocabulary()
    examples: list[Any] = list(task.read(str(data / name)))[:1_000]
    task = task.with_labels_of(examples)
    found = task.encode(examples, Tokenizer.load(vocab, lowercase=True))
    theirs = BertTokenizerFast(vocab=str(vocab), do_lower_case=True)(
        [example.text for example in examples],
        [example.text_pair for example in examples] if task.text_pair else None,
        truncation="longest_first",
        max_length=task.max_length,
    )
    assert sequences(found) == list(zip(theirs["input_ids"], theirs["token_type_ids"], strict=True))
    assert (found.truncated > 0) == (task.max_length < 128)
    assert len(found.labels) == len(examples)


# Loss, decoding, scores


def logits_of(*shares: list[float]) -> torch.Tensor:
    return torch.tensor(shares).log()


def test_cross_entropy_hand_worked() -> None:
    batch = collate(YES_NO.encode(texts("a", "b", labels=["yes", "no"]), TOKENIZER), np.array([0, 1]))
    logits = logits_of([0.25, 0.75], [0.5, 0.5])
    assert YES_NO.loss(logits, batch).item() == pytest.approx(-math.log(0.75) - math.log(0.5))
    smoothed = -0.95 * math.log(0.75) - 0.05 * math.log(0.25) - math.log(0.5)  # a tenth is spread over both labels
    assert YES_NO.loss(logits, batch, smoothing=0.1).item() == pytest.approx(smoothed)


def test_squared_errors_hand_worked() -> None:
    batch = collate(Regression().encode(texts("a", "b", labels=[1.0, -2.0]), TOKENIZER), np.array([0, 1]))
    assert Regression().loss(torch.tensor([[1.5], [1.0]]), batch).item() == pytest.approx(0.25 + 9)
    with pytest.raises(ValueError, match="regression has no labels"):
        Regression().loss(torch.zeros(2, 1), batch, smoothing=0.1)


def test_predictions_are_probabilities_by_label() -> None:
    examples = texts("a", "b")
    found = YES_NO.encode(examples, TOKENIZER, labeled=False)
    outputs = np.array([[0.0, math.log(3)], [900.0, -900.0]], dtype=np.float32)
    first, second = YES_NO.decode(examples, found, outputs)
    assert first.label == "yes"
    assert first.probabilities == {"no": pytest.approx(0.25), "yes": pytest.approx(0.75)}
    assert second == LabelPrediction("no", {"no": 1.0, "yes": 0.0})
    assert YES_NO.to_record(examples[1], second) == {"label": "no", "probability": 1.0, "p(no)": 1.0, "p(yes)": 0.0}
    numbers = Regression().decode(examples, found, np.array([[0.5], [-2.0]], dtype=np.float32))
    assert numbers == [0.5, -2.0]
    assert Regression().to_record(examples[0], numbers[0]) == {"score": 0.5}


def test_scores_of_two_and_of_three_labels() -> None:
    def score(task: Classification, truth: str, found: str) -> dict[str, float]:
        return task.score(texts(*truth, labels=list(truth)), [LabelPrediction(label, {}) for label in found])

    two = Classification(labels=("0", "1"), metric="f1")
    assert score(two, "11100", "11001") == pytest.approx(
        {"accuracy": 0.6, "f1": 2 / 3, "macro_f1": 7 / 12, "matthews": 1 / 6}
    )
    other = Classification(labels=("0", "1"), metric="f1", pos_label="0")
    assert score(other, "11100", "11001")["f1"] == pytest.approx(0.5)
    assert score(Classification(labels=("a", "b", "c")), "abc", "abc") == {
        "accuracy": 1.0,
        "macro_f1": 1.0,
        "matthews": 1.0,
    }


def test_scores_of_numbers() -> None:
    examples = texts("a", "b", "c", labels=[1.0, 2.0, 3.0])
    assert Regression().score(examples, [2.0, 4.0, 6.0]) == pytest.approx(
        {"spearman": 1.0, "pearson": 1.0, "mse": 14 / 3}
    )
    assert Regression().score(examples, [1.0, 1.0, 1.0]) == pytest.approx(
        {"spearman": 0.0, "pearson": 0.0, "mse": 5 / 3}
    )


# Misuse


@pytest.mark.parametrize("value", ["nan", "inf", "-Infinity", "1e39", "high", "1,5", "true"])
def test_targets_that_are_not_finite_are_rejected(tmp_path: Path, value: str) -> None:
    path = write_file(tmp_path, f"text\tlabel\na\t1\nb\t{value}\n", "a.tsv")
    with pytest.raises(ValueError, match=rf"a\.tsv, line 3: expected a finite number in 'label', got '{value}'"):
        list(Regression().read(path))


def test_numbers_from_python_are_checked() -> None:
    with pytest.raises(ValueError, match=r"a\.tsv, line 3: expected a finite number, got nan"):
        Regression().encode(texts("a", "b", labels=[1.0, math.nan]), TOKENIZER)


def test_unknown_label_is_rejected(tmp_path: Path) -> None:
    examples = list(Classification().read(write_file(tmp_path, "text,label\r\na,yes\r\nb,Yes\r\n", "dev.csv")))
    message = r"dev\.csv, line 3: label 'Yes' is not one of the training data: 'no', 'yes'"
    with pytest.raises(ValueError, match=message):
        YES_NO.encode(examples, TOKENIZER)
    with pytest.raises(ValueError, match=message):
        YES_NO.check(examples)
    YES_NO.check(examples[:1])
    many = Classification(labels=tuple(map(str, range(100))))
    with pytest.raises(ValueError, match=r"'18', '19', … \(100 in all\)$"):
        many.encode(examples, TOKENIZER)


def test_single_class_and_missing_labels_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"line 2: from there on all examples \(2\) have the same 'label': 'yes'"):
        Classification().with_labels_of(texts("a", "b", labels=["yes", "yes"]))
    with pytest.raises(ValueError, match=r"all examples \(2\) have the same 'label': 2\.5"):
        Regression().with_labels_of(texts("a", "b", labels=[2.5, 2.5]))
    with pytest.raises(ValueError, match="no examples"):
        Classification().with_labels_of([])
    with pytest.raises(ValueError, match="line 3: the label is not known"):
        YES_NO.check(texts("a", "b", labels=["yes", None]))


def test_texts_for_pairs_and_pairs_for_texts_are_rejected() -> None:
    with pytest.raises(ValueError, match="line 2: expected a pair of texts, got one text"):
        Classification(text_pair="other").encode(texts("a"), TOKENIZER, labeled=False)
    with pytest.raises(ValueError, match="expected one text, got a pair"):
        Classification().encode([TextExample("a", "b", None, "text 0")], TOKENIZER, labeled=False)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (Classification, {"text": "a", "text_pair": "a"}, "'a' is named twice"),
        (Classification, {"text": "label"}, "'label' is named twice"),
        (Classification, {"max_length": 2}, "max_length = 2: at least 3"),
        (Regression, {"text_pair": "other", "max_length": 4}, "max_length = 4: at least 5"),
        (Classification, {"metric": "macro-f1"}, "metric = 'macro-f1': did you mean \"macro_f1\""),
        (Regression, {"metric": "mse"}, "metric = 'mse': known: pearson, spearman"),
        (Classification, {"labels": ("a",)}, "at least two are needed"),
        (Classification, {"labels": ("a", "a")}, "at least two are needed, all different"),
        (Classification, {"labels": ("a", "b"), "pos_label": "c"}, "pos_label = 'c' is none of the labels: 'a', 'b'"),
        (Classification, {"labels": ("a", "b", "c"), "metric": "f1"}, "'f1' is for two labels, not for 3"),
    ],
)
def test_invalid_settings_are_rejected(kind: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**fields)


def test_settings_that_contradict_the_labels_are_rejected() -> None:
    examples = texts("a", "b", "c", labels=["0", "1", "2"])
    with pytest.raises(ValueError, match="set it to macro_f1"):
        Classification(metric="f1").with_labels_of(examples)
    assert Classification(labels=("yes", "no")).f1_label == "yes"  # whatever the order of a head's outputs
    assert Classification(labels=("10", "9")).f1_label == "10"
    with pytest.raises(ValueError, match=r"pos_label = 'yes' .*: '0', '1', '2'"):
        Classification(pos_label="yes").with_labels_of(examples)
    with pytest.raises(ValueError, match="labels are not known"):
        _ = Classification().head


def test_labels_of_a_single_example_each_are_reported() -> None:
    labels = [str(number) for number in range(30)]
    examples = [TextExample("a text", None, label, "row") for label in labels]
    (note,) = Classification(labels=tuple(labels)).warnings(examples)
    assert note.startswith("30 labels in 30 examples: is 'label' the right column?")
    assert Classification(labels=tuple(labels)).warnings([*examples, *examples]) == []


def test_prediction_has_the_probability_of_its_label_and_a_short_text() -> None:
    shares = {f"intent {number}": number / 10 for number in range(5)}
    prediction = LabelPrediction("intent 4", shares)
    assert prediction.probability == 0.4
    assert prediction.top(2) == [("intent 4", 0.4), ("intent 3", 0.3)]
    assert len(prediction.top(99)) == 5
    many = LabelPrediction("intent 4", shares | {f"other {number}": 0.0 for number in range(700)})
    assert "'intent 4': 0.4" in repr(many)
    assert len(repr(many)) < 120


def test_rows_on_which_the_annotators_of_snli_disagreed_are_left_out_of_training(tmp_path: Path) -> None:
    rows = [{"sentence1": f"a{n}", "sentence2": "b", "gold_label": label} for n, label in enumerate(("yes", "-", "no"))]
    path = tmp_path / "snli.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    task = Classification(text="sentence1", text_pair="sentence2", label="gold_label")
    with pytest.warns(UserWarning, match="left out because their 'gold_label' is '-': 1$"):
        assert [example.text for example in task.read(str(path))] == ["a0", "a2"]
    assert len(list(task.read(str(path), labeled=False))) == 3
