"""The table of dialects: a layout that only this test knows, names that are given, files that fit two layouts."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.tables.dialects import DIALECTS, Dialect
from bertwright.tables.label_dialects import UnlabeledFile
from bertwright.tasks.classification import Classification
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task_data import read_examples
from bertwright.tasks.task_types import TaskOptions
from bertwright.text.sources import InputFile

FASTTEXT = "__label__old __label__river the old mill\n__label__river the river\n"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def split_arrows(file: UnlabeledFile) -> Iterator[tuple[int, tuple[str, ...]]]:
    for number, line in file.lines():
        text, _, label = line.partition(" => ")
        yield number, (text, label)


def test_a_dialect_is_a_row_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Dialect(
        "arrows",
        "the label follows an arrow",
        "a toy, `a mill => x`",
        lambda file: bool(file.head) and all(" => " in line for _, line in file.head),
        split_arrows,
    )
    path = str(write(tmp_path / "a.txt", "a mill => x\nthe river => y\n"))
    with pytest.raises(ValueError, match="dialect is 'arrows'"):
        Classification(dialect="arrows")
    monkeypatch.setitem(DIALECTS, "labels", (*DIALECTS["labels"], toy))
    with pytest.warns(UserWarning, match=r"a\.txt: read as arrows .*--dialect arrows says so"):
        rows = [(example.text, example.label) for example in Classification().read(path)]
    assert rows == [("a mill", "x"), ("the river", "y")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [(one.text, one.label) for one in Classification(dialect="arrows").read(path)] == rows
    with pytest.raises(ValueError, match="no column 'text'"):
        list(Classification(dialect="plain").read(path))
    assert "arrows" in TaskOptions.field_docs()["dialect"]


def test_the_name_of_a_dialect_is_checked_by_task() -> None:
    with pytest.raises(ValueError, match="dialect is 'label-frist': did you mean \"label-first\""):
        Classification(dialect="label-frist")
    for task in (Tagging, QuestionAnswering):
        with pytest.raises(ValueError, match="dialect is 'trees'"):
            task(dialect="trees")
    settings = TaskSettings("tagging", overrides=TaskOptions(dialect="plain"))
    assert settings.build_task() == Tagging(dialect="plain")


def test_a_file_that_fits_two_dialects_is_an_error_that_names_both(tmp_path: Path) -> None:
    path = str(write(tmp_path / "a.txt", "x a mill @1\nx b @1\ny c @2\ny the river @2\n"))
    with pytest.raises(ValueError, match=r"a\.txt: .*--dialect label-first .* or --dialect label-last"):
        list(Classification().read(path))
    assert [one.label for one in Classification(dialect="label-last").read(path)] == ["1", "1", "2", "2"]


def test_a_line_of_another_layout_after_the_head_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = str(write(tmp_path / "a.txt", "__label__x a\n" * 600 + "__label__y b\n" * 600 + "end\n"))
    with (
        pytest.warns(UserWarning, match="label-first"),
        pytest.raises(ValueError, match=r"a\.txt, line 1201: .*'end'.*--dialect plain"),
    ):
        list(Classification().read(path))


@pytest.mark.filterwarnings("ignore:.*read as label-first")
def test_several_labels_of_fasttext_are_all_read_or_refused(tmp_path: Path) -> None:
    path = str(write(tmp_path / "train.txt", FASTTEXT))
    first, second = MultiLabel().read(path)
    assert (first.text, first.label) == ("the old mill", ("old", "river"))
    assert (second.text, second.label) == ("the river", "river")
    with pytest.raises(ValueError, match=r"train\.txt, line 1: .*--task multi-label"):
        list(Classification().read(path))


def test_brackets_stay_in_a_plain_file(tmp_path: Path) -> None:
    path = str(write(tmp_path / "a.conll", "Ada\t(PER*\nKing\t*)\n\n"))
    (plain,) = Tagging(dialect="plain").read(path)
    assert plain.tags == ("(PER*", "*)")
    with pytest.warns(UserWarning, match="read as brackets"):
        (sentence,) = Tagging().read(path)
    assert sentence.tags == ("B-PER", "I-PER")


def test_links_are_no_language_code(tmp_path: Path) -> None:
    path = str(write(tmp_path / "a.conll", "http://a.b\tO\nhttp://c.d\tB-X\n\n"))
    (sentence,) = Tagging().read(path)
    assert sentence.words == ("http://a.b", "http://c.d")


NAMES = ["a.csv", "b.txt", "a_labels.txt", "a.labels", "text.txt", "label.txt", "x/1.txt", "y/2.txt", "unsup/3.txt"]
CONTENTS = ["text,label\na mill,x\n", "text\tlabel\na mill\tx\n", "x a\nx b\ny c\ny d\n", "a mill\n", "x\n", ""]


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(CONTENTS), min_size=1, max_size=4))
def test_no_file_of_a_folder_is_left_out_in_silence(contents: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name, content in contents.items():
            write(Path(folder) / name, content)
        try:
            read = {example.location.rpartition(", ")[0] for example in Classification().read(folder)}
        except ValueError:
            return
        messages = "\n".join(str(warning.message) for warning in caught)
        for name in contents:
            path = str(Path(folder) / name)
            counted = "more" in messages and "left out" in messages
            assert path in read or path in messages or counted


def test_splits_and_questions_that_are_left_out_are_named(tmp_path: Path) -> None:
    rows = [{"text": "a mill", "label": "x"}]
    path = str(write(tmp_path / "data.json", json.dumps({"train": rows, "dev": rows})))
    settings = TaskSettings("classification", train=(path,))
    with pytest.warns(UserWarning, match=r"data\.json: only 'train' of its splits \(train, dev\)"):
        assert len(read_examples(settings.build_task(), settings, "train")) == 1
    agreed = [{"s": 0, "e": 1}, {"badQuestion": True}]
    questions = [{"q": f"Q{number}?", "consensus": consensus} for number, consensus in enumerate(agreed)]
    path = str(write(tmp_path / "newsqa.json", json.dumps({"data": [{"text": "A mill.", "questions": questions}]})))
    with pytest.warns(UserWarning, match="1 question left out, .*question 2"):
        assert len(list(QuestionAnswering().read(path))) == 1


def test_a_list_with_one_label_is_the_label_an_empty_one_none_and_several_are_refused(tmp_path: Path) -> None:
    rows = [{"id": 1, "text": "a mill", "label": ["good"], "Comments": []}, {"id": 2, "text": "b", "label": ["bad"]}]
    path = write(tmp_path / "doccano.jsonl", "\n".join(map(json.dumps, [*rows, {"text": "c", "label": []}])))
    with pytest.warns(UserWarning, match="'label' is missing .*: 1$"):
        assert [one.label for one in Classification().read(str(path))] == ["good", "bad"]
    write(path, json.dumps({"text": "a", "label": ["good", "bad"]}))
    with pytest.raises(ValueError, match=r"line 1: .*got a list of 2; .*multi-label"):
        list(Classification().read(str(path)))


@pytest.mark.filterwarnings("ignore:.*read as char-spans")
@pytest.mark.parametrize("span", [{"span": [0, 3]}, {"offset": 0, "length": 3}, {"start": 0, "end": 3}])
def test_spans_may_be_pairs_or_have_a_length(tmp_path: Path, span: dict[str, object]) -> None:
    row = {"text": "Ada came", "entities": [span | {"type": "PER"}]}
    (example,) = Tagging().read(str(write(tmp_path / "a.jsonl", json.dumps(row))))
    assert example.tags == ("B-PER", "O")


@pytest.mark.filterwarnings("ignore:.*read as class-folders")
def test_each_short_text_of_a_class_is_opened_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    read = InputFile.open
    monkeypatch.setattr(InputFile, "open", lambda file: opened.append(file.path) or read(file))
    for label in ("neg", "pos"):
        (tmp_path / label).mkdir()
        for number in range(10):
            (tmp_path / label / f"{number}.txt").write_text("a mill\nby the river\n")
    assert len(list(Classification().read(str(tmp_path)))) == 20
    assert len(opened) == 40  # once to see that it is no table, and once for its text
