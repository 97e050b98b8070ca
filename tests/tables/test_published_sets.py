"""Data sets in the layout of their authors: folders of texts, trees, marks at line ends, splits in a column."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from bertwright.tasks.classification import Classification
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.regression import Regression
from bertwright.tasks.task_data import digest_files, read_examples

PARTITION = '{"text": "%s", "label": "x", "partition": "%s"}\n'


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def rows_of(path: Path | str, **options: Any) -> list[tuple[str, str | None]]:
    return [(example.text, example.label) for example in Classification(**options).read(str(path))]


def test_folders_of_texts_without_suffix_are_classes(tmp_path: Path) -> None:
    write(tmp_path / "alt.atheism" / "49960", "From: a\n\nno \tgods\n")  # 20 Newsgroups
    write(tmp_path / "sci.space" / "60150", 'orbit "x\r\n')
    with pytest.warns(UserWarning, match=r"read as class-folders .*: alt\.atheism, sci\.space;"):
        rows = rows_of(tmp_path)
    assert [label for _, label in rows] == ["alt.atheism", "sci.space"]
    assert rows[0][0].startswith("From: a")
    assert rows[0][0].endswith("gods")


def test_files_beside_folders_of_classes_and_texts_without_class_are_left_out(tmp_path: Path) -> None:
    for name in ("neg/0_3.txt", "pos/0_9.txt", "pos/1_7.txt", "unsup/0_0.txt", "urls_pos.txt", "labeledBow.feat"):
        write(tmp_path / "train" / name, f"text of {name}")  # IMDB
    with pytest.warns(UserWarning, match=r"labeledBow\.feat and 2 more files: .* left out"):
        rows = rows_of(tmp_path / "train")
    assert [label for _, label in rows] == ["neg", "pos", "pos"]


def test_numbered_texts_of_one_folder_have_its_name_as_their_class(tmp_path: Path) -> None:
    for name in ("0_3.txt", "1_2.txt"):
        write(tmp_path / "neg" / name, "bad\nfilm")
    with pytest.warns(UserWarning, match="read as class-folders .*: neg;"):
        assert rows_of(tmp_path / "neg") == [("bad\nfilm", "neg")] * 2


def test_numbered_texts_of_this_folder_are_texts_without_a_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("0_3.txt", "1_2.txt"):
        write(Path(name), "bad\nfilm")
    with pytest.warns(UserWarning, match="read as class-folders"):
        examples = [*Classification().read("*.txt", labeled=False)]
    assert [example.text for example in examples] == ["bad\nfilm"] * 2


@pytest.mark.parametrize("names", [("rt-polarity.neg", "rt-polarity.pos"), ("neg.tok.gt9.5000", "pos.tok.gt9.5000")])
def test_a_file_per_class_may_have_any_suffix(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        write(tmp_path / name, "a film\na mill\n")
    with pytest.warns(UserWarning, match="read as class-files .*: neg, pos;"):
        assert [label for _, label in rows_of(tmp_path)] == ["neg", "neg", "pos", "pos"]


def test_files_of_other_formats_among_tables_remain_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "text,label\na,x\n")
    write(tmp_path / "b.xlsx", "x")
    with pytest.raises(ValueError, match=r"b\.xlsx: \.xlsx is not read"):
        rows_of(tmp_path)


def test_trees_are_read_as_their_words_and_the_label_of_their_root(tmp_path: Path) -> None:
    path = write(tmp_path / "train.txt", "(3 (2 The) (3 (2 old\\/new) (2 mill)))\n(0 (2 -LRB-) (1 bad))\n")
    with pytest.warns(UserWarning, match=r"train\.txt: read as trees"):
        assert rows_of(path) == [("The old/new mill", "3"), ("( bad", "0")]


def test_labels_after_the_last_mark_of_each_line_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "Sales rose .@positive\nmail x@y .@neutral\nUp .@positive\nSame .@neutral\n")
    with pytest.warns(UserWarning, match=r"a\.txt: read as label-last"):
        assert rows_of(path)[1] == ("mail x@y .", "neutral")
    write(path, "mail a@b.com\nmail b@c.com\nmail d@e.com\n")  # no label repeats
    with pytest.raises(ValueError, match="no column 'text'"):
        rows_of(path)


def test_intents_beside_a_file_of_sentences_are_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "seq.in", "play a song\nbook a table\n")
    write(tmp_path / "label", "Play\nBook\n")
    with pytest.warns(UserWarning, match=r"seq\.in: read as label-file .*label;"):
        assert rows_of(path, format="txt") == [("play a song", "Play"), ("book a table", "Book")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "en-US.jsonl",
            "".join(f'{{"text": "{s}", "label": "x", "partition": "{s}"}}\n' for s in ("train", "dev", "test")),
        ),
        ("SICK.txt", "text\tlabel\tSemEval_set\ntrain\tx\tTRAIN\ndev\tx\tTRIAL\ntest\tx\tTEST\n"),
        ("data.csv", "split,text,label\ntrain,train,x\nvalidation,dev,x\ntest,test,x\n"),
    ],
)
def test_splits_in_a_column_are_read_by_the_option_that_names_the_file(tmp_path: Path, name: str, content: str) -> None:
    path = str(write(tmp_path / name, content))
    settings = TaskSettings("classification", train=(path,), dev=(path,), test=(path,))
    texts = {
        split: [example.text for place in places for example in settings.build_task().read(place)]
        for split, places in settings.files_by_split().items()
    }
    assert texts == {"train": ["train"], "dev": ["dev"], "test": ["test"]}
    assert len(digest_files(settings)) == 3
    assert rows_of(f"{path}#test") == [("test", "x")]
    alone = TaskSettings("classification", train=(path,))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        alone.check_files("train")
        assert len(read_examples(alone.build_task(), alone, "train")) == 3
        assert digest_files(alone).keys() == {path}
    assert [f"{name}: a column has splits" in str(warning.message) for warning in warned] == [True]
    with pytest.raises(ValueError, match=rf"{name}#extra: no row of this split"):
        rows_of(f"{path}#extra")


def test_splits_in_a_column_of_queries_are_read_by_the_option_that_names_the_file(tmp_path: Path) -> None:
    rows = "".join(f"{split},{split} query,text {label},{label}\n" for split in ("train", "dev") for label in (1, 0))
    path = str(write(tmp_path / "a.csv", f"split,query,text,label\n{rows}"))
    settings = TaskSettings("reranking", train=(path,), dev=(path,))
    for split in ("train", "dev"):
        (example,) = read_examples(settings.build_task(), settings, split)
        assert (example.query, example.grades) == (f"{split} query", (1, 0))


def test_rows_whose_label_is_missing_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "olid.tsv", "tweet\tsubtask_b\na\tTIN\nb\tNULL\nc\tUNT\n")  # level B of OLID
    with pytest.warns(UserWarning, match=r"'subtask_b' is missing .*: 1$"):
        assert rows_of(path, text="tweet", label="subtask_b") == [("a", "TIN"), ("c", "UNT")]


def test_a_part_of_a_table_without_splits_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\na,x\n")
    with pytest.raises(ValueError, match=r"a\.csv#dev: no column .* splits"):
        rows_of(f"{path}#dev")
    assert TaskSettings("classification", train=(str(path),), dev=(str(path),)).files("dev") == (str(path),)


def test_a_file_per_document_is_a_row_and_lists_of_texts_are_joined(tmp_path: Path) -> None:
    for number in (1, 2):  # EURLEX57K
        write(
            tmp_path / f"{number}.json",
            {"type": "Decision", "main_body": ["One.", "Two."], "concepts": ["192", "862"][:number]},
        )
    with pytest.warns(UserWarning, match="'main_body' .* are joined"):
        examples = list(MultiLabel(text="main_body", label="concepts").read(str(tmp_path)))
    assert [example.text for example in examples] == ["One.\nTwo."] * 2
    assert [example.label for example in examples] == [("192",), ("192", "862")]


def test_an_object_with_several_questions_is_a_row_for_each(tmp_path: Path) -> None:
    race = {
        "answers": ["B", "A"],
        "options": [["a", "b"], ["c", "d"]],
        "questions": ["Who?", "When?"],
        "article": "It.",
    }
    path = write(tmp_path / "middle" / "1.txt", race)
    task = MultipleChoice(prompt="article", start="questions", endings=("options",), label="answers")
    with pytest.raises(ValueError, match=r"1\.txt, line 1: no column 'article'; .*--format json"):
        list(task.read(str(path)))
    json_task = MultipleChoice(
        prompt="article", start="questions", endings=("options",), label="answers", format="json"
    )
    first, second = json_task.read(str(tmp_path))
    assert (first.prompt, first.endings, first.label) == ("It.", ("Who? a", "Who? b"), 1)
    assert (second.endings, second.label) == (("When? c", "When? d"), 0)


def arc(keys: str, answer: str) -> str:
    choices = [{"text": f"text {key}", "label": key} for key in keys]
    return json.dumps({"question": {"stem": "Q", "choices": choices}, "answerKey": answer}) + "\n"


def test_an_answer_is_the_label_of_its_ending_and_other_numbers_of_endings_are_left_out(tmp_path: Path) -> None:
    # ARC: a few questions count their choices from 1, a few have three or five of them.
    path = write(tmp_path / "train.jsonl", arc("ABC", "A") + arc("ABCD", "C") * 9 + arc("1234", "1") + arc("1234", "4"))
    task = MultipleChoice(prompt="question.stem", endings=("question.choices",), label="answerKey")
    with pytest.warns(UserWarning, match=r"train\.jsonl: 1 row left out.* 4 endings .*line 1"):
        assert [example.label for example in task.read(str(path))] == [2] * 9 + [0, 3]
    write(path, arc("ABCD", "E"))
    with pytest.raises(ValueError, match=r"line 1: .* endings, A, B, C, D, got 'E'"):
        list(task.read(str(path)))


def test_tabs_in_a_csv_without_header_and_sources_at_the_end_of_some_rows_are_read(tmp_path: Path) -> None:
    rows = ["main\tMSR\t2012\t1\t5.0\tA mill, old.\tA mill.", "main\tMSR\t2012\t4\t0.5\tA.\tB.\tlicense\thttp://x"]
    path = write(tmp_path / "sts-train.csv", "\n".join(rows) + "\n")
    task = Regression(text="6", text_pair="7", label="5", header=False)
    with pytest.warns(UserWarning, match="1 row has more columns .* line 2"):
        assert [(e.text, e.text_pair, e.label) for e in task.read(str(path))] == [
            ("A mill, old.", "A mill.", 5.0),
            ("A.", "B.", 0.5),
        ]
