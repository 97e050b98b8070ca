"""Files as people have them: labels outside of the table, JSON of several forms, archives, dirty cells, changes."""

from __future__ import annotations

import json
import lzma
import os
import zipfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bertwright.corpus.documents import CorpusSettings
from bertwright.corpus.documents import read as read_corpus
from bertwright.tables.neighbours import join_as_glob
from bertwright.tasks.classification import Classification
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task_data import digest_files, read_examples
from bertwright.text import decoding
from bertwright.text.decoding import ReadStats, TextCodec, decode_blocks, read_text
from bertwright.text.sources import InputFile, find_file

ROWS = [("a mill", "x"), ("the river", "y")]
OBJECTS = [{"text": text, "label": label} for text, label in ROWS]
TABLE = "text,label\na mill,x\nthe river,y\n"


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def rows_of(path: Path | str, labeled: bool = True, **options: Any) -> list[tuple[str, str | None]]:
    return [(example.text, example.label) for example in Classification(**options).read(str(path), labeled)]


@pytest.mark.parametrize(
    ("data", "content", "labels"),
    [
        ("train.jsonl", '{"text": "a mill"}\n{"text": "the river"}\n', "train-labels.lst"),
        ("train_text.txt", "a mill\nthe river\n", "train_labels.txt"),
        ("dev.csv", "text,id\na mill,1\nthe river,2\n", "dev.labels"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*read as label-file")
def test_labels_are_read_from_the_file_beside_the_table(tmp_path: Path, data: str, content: str, labels: str) -> None:
    path, beside = write(tmp_path / data, content), write(tmp_path / labels, "x\ny\n")
    with pytest.warns(UserWarning, match=f"read as label-file .*{labels}.*--dialect label-file"):
        assert rows_of(path) == ROWS
    assert [text for text, _ in rows_of(path, labeled=False)] == [text for text, _ in ROWS]
    write(beside, "x\ny\nx\n")
    with pytest.warns(UserWarning, match=labels), pytest.raises(ValueError, match=rf"{labels}: expected 2 .* got 3"):
        rows_of(path)


@pytest.mark.parametrize("names", [("a.csv", "a_labels.csv"), ("b.csv", "a-targets.csv"), ("text.csv", "label.csv")])
def test_a_file_with_all_columns_is_a_table_whatever_its_name(tmp_path: Path, names: tuple[str, str]) -> None:
    for name, (text, label) in zip(names, ROWS, strict=True):
        write(tmp_path / "d" / name, f"text,label\n{text},{label}\n")
    assert sorted(rows_of(tmp_path / "d")) == ROWS
    assert sorted(text for text, _ in rows_of(tmp_path / "d", labeled=False)) == [text for text, _ in ROWS]


@pytest.mark.parametrize("name", ["a_labels.csv", "b_labels.csv"])
def test_a_file_left_out_for_its_name_is_named(tmp_path: Path, name: str) -> None:
    write(tmp_path / "d/a.csv", TABLE)
    write(tmp_path / "d" / name, "label\nx\ny\n")
    with pytest.warns(UserWarning, match=f"{name}: left out"):
        assert rows_of(tmp_path / "d") == ROWS


def test_choices_have_their_labels_in_a_second_file_counted_from_1(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", '{"context": "c", "question": "q", "a": "1", "b": "2"}\n')
    write(tmp_path / "train-labels.lst", "2\n")
    task = MultipleChoice(prompt="context", start="question", endings=("a", "b"), first_label=1)
    with pytest.warns(UserWarning, match=r"train-labels\.lst"):
        assert [example.label for example in task.read(str(path))] == [1]


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        ("__label__x a mill\n__label__y the river\n", ROWS),
        ("X:a a mill\nX:b the river\n", None),  # a single capital may begin a sentence
        ("DESC:manner a mill\nENTY the river\n", [("a mill", "DESC:manner"), ("the river", "ENTY")]),
        ("1 a mill\n0 the river\n", [("a mill", "1"), ("the river", "0")]),
        ("x a mill\ny b\nx c\ny the river\n", [("a mill", "x"), ("b", "y"), ("c", "x"), ("the river", "y")]),
        ("x\ta mill\ny\tthe river\nx\tc d\ny\te\n", [*ROWS, ("c d", "x"), ("e", "y")]),
        ("label\tsentence\n" + "0\ta\n1\tb\n" * 9, None),  # a header with another name of the text
        ("x\ta\tmill\nx\tthe\triver\n", None),
        ("a mill\nthe river\nthe bridge\nit was old\nit is\n", None),
    ],
)
def test_first_words_are_labels_if_they_look_like_it(tmp_path: Path, content: str, rows: Any) -> None:
    path = write(tmp_path / "questions.label", content)
    if rows is None:
        with pytest.raises(ValueError, match="line 1: no column"):
            rows_of(path, format="txt")
        return
    with pytest.warns(UserWarning, match="first word of each line"):
        assert rows_of(path, format="txt") == rows
    with pytest.warns(UserWarning, match="first word of each line"):
        assert rows_of(path, labeled=False, format="txt") == [(text, None) for text, _ in rows]


@pytest.mark.parametrize("names", [("x.txt", "y.txt"), ("rt.x", "rt.y"), ("x/1.txt", "y/2.txt"), ("x.csv", "y.csv")])
def test_a_file_or_folder_may_be_a_class(tmp_path: Path, names: tuple[str, str]) -> None:
    header = "text\n" if names[0].endswith("csv") else ""
    for name, (text, _) in zip(names, ROWS, strict=True):
        write(tmp_path / "d" / name, f"{header}{text}\n")
    with pytest.warns(UserWarning, match=r"read as class-(file|folder)s \(a (file|folder) per class, .*: x, y;"):
        assert rows_of(tmp_path / "d", format="txt" if names[0].startswith("rt") else None) == ROWS


def test_files_with_another_column_that_may_be_the_label_are_no_classes(tmp_path: Path) -> None:
    for name in ("part-1.csv", "part-2.csv"):
        write(tmp_path / "d" / name, TABLE)
    with pytest.raises(ValueError, match="no column 'lable'"):
        rows_of(tmp_path / "d", label="lable")


@pytest.mark.parametrize(
    "content",
    [
        {"version": 1, "data": OBJECTS},
        {"text": ["a mill", "the river"], "label": ["x", "y"]},
        {"text": {"0": "a mill", "1": "the river"}, "label": {"0": "x", "1": "y"}},
        {"columns": ["text", "label"], "index": [0, 1], "data": ROWS},
        {"columns": ["text", "label"], "data": OBJECTS},
        {"r1": OBJECTS[0], "r2": OBJECTS[1]},
        "\n".join(map(json.dumps, OBJECTS)),
        ROWS,
    ],
)
def test_json_of_several_forms_is_read_and_the_form_is_said(tmp_path: Path, content: Any) -> None:
    path = write(tmp_path / "a.json", content)
    with pytest.warns(UserWarning, match=r"a\.json: read as json-"):
        assert rows_of(path) == ROWS


@pytest.mark.parametrize(
    ("columns", "data", "place"),
    [
        (["text", ["label"]], ROWS, r"a\.json: .*'columns', got \['label'\]"),
        (["text", "text"], ROWS, r"a\.json: .*'columns', got 'text'"),
        (["text", "label"], [1, 2], r"row 1 of 'data': .* got int"),
        (["text", "label"], [ROWS[0], 1], r"row 2 of 'data': .* 2 values, got int"),
        (["text", "label"], [ROWS[0], [*ROWS[1], "z"]], r"row 2 of 'data': .* got 3 values"),
        (["text", "label"], [ROWS[0], OBJECTS[1]], r"row 2 of 'data': .* got dict"),
        (["text", "label"], [OBJECTS[0], ROWS[1]], r"a\.json, line 1: .* got list"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*a.json. read as")
def test_columns_beside_data_of_another_form_name_the_place(
    tmp_path: Path, columns: Any, data: Any, place: str
) -> None:
    with pytest.raises(ValueError, match=place):
        rows_of(write(tmp_path / "a.json", {"columns": columns, "data": data}))


def test_rows_that_are_lists_have_all_values_and_are_not_mixed_with_objects(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 1: expected 2 values, got 1"):
        rows_of(write(tmp_path / "a.json", [["a mill"]]))
    with pytest.raises(ValueError, match="line 2: expected a JSON object, got list"):
        rows_of(write(tmp_path / "a.jsonl", '{"text": "a", "label": "x"}\n["b", "y"]\n'))
    assert rows_of(write(tmp_path / "b.json", [["x", "a mill"]]), text="2", label="1") == [("a mill", "x")]


def test_splits_in_one_json_file_are_read_by_their_names(tmp_path: Path) -> None:
    path = write(tmp_path / "data.json", {"oos_train": [], "train": ROWS, "val": ROWS[:1], "n": 3})
    settings = TaskSettings("classification", train=(str(path),), dev=(str(path),))
    assert (settings.files("train"), settings.files("dev")) == ((f"{path}#train",), (f"{path}#val",))
    assert settings.files_by_split("train", "dev")
    assert len(digest_files(settings)) == 2
    with pytest.warns(UserWarning, match="read as json-lists"):
        assert rows_of(f"{path}#val") == ROWS[:1]
    with pytest.raises(ValueError, match=r"train, val, n; name one, as in .*data\.json#train"):
        rows_of(path)
    with pytest.raises(ValueError, match=r"#test: expected an array .*data\.json#train"):
        rows_of(f"{path}#test")


def test_text_of_a_table_that_names_a_split_changes_no_path(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [{"text": "train", "label": '"train": ['}])
    assert TaskSettings("classification", train=(str(path),)).files("train") == (str(path),)


def test_xz_and_zip_are_read(tmp_path: Path) -> None:
    write(tmp_path / "a.csv.xz", lzma.compress(TABLE.encode()))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("folder/train.csv", TABLE)
    assert rows_of(tmp_path / "a.csv.xz") == rows_of(tmp_path / "a.zip") == ROWS
    with zipfile.ZipFile(tmp_path / "a.zip", "a") as archive:
        archive.writestr("dev.csv", "text,label\nb,x\n")
    with pytest.raises(ValueError, match=r"a\.zip: holds 2 files \(folder/train\.csv, dev\.csv\)"):
        rows_of(tmp_path / "a.zip")
    assert rows_of(f"{tmp_path}/a.zip#dev.csv") == [("b", "x")]


@pytest.mark.parametrize("name", ["a.csv.xz", "a.csv.zip"])
def test_damaged_archive_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "whole.zip", "w") as archive:
        archive.writestr("a.csv", TABLE)
    whole = (tmp_path / "whole.zip").read_bytes() if name.endswith("zip") else lzma.compress(TABLE.encode())
    with pytest.raises(ValueError, match=name):
        rows_of(write(tmp_path / name, whole[:-9]))


def test_format_names_what_a_suffix_does_not(tmp_path: Path) -> None:
    path = write(tmp_path / "x.all", TABLE.replace(",", "\t"))
    with pytest.raises(ValueError, match=r"unknown suffix \.all.*--format"):
        rows_of(path)
    assert rows_of(path, format="tsv") == ROWS
    with pytest.raises(ValueError, match="format is 'tvs': did you mean \"tsv\""):
        Classification(format="tvs")
    (document,) = read_corpus(CorpusSettings((str(path),), format="txt"))
    assert document.text.startswith("text\tlabel")


@pytest.mark.parametrize("table", ["text,label,\na mill,x,\nthe river,y,\n", "text,label\na mill,x,,\nthe river,y\n"])
def test_blank_cells_at_the_end_of_rows_are_ignored_and_counted(tmp_path: Path, table: str) -> None:
    with pytest.warns(UserWarning, match=r"a\.csv: (1 row ends|2 rows end) in blank cells"):
        assert rows_of(write(tmp_path / "a.csv", table)) == ROWS


def test_empty_files_beside_others_are_left_out_and_counted(tmp_path: Path) -> None:
    for name, text in (("a", ""), ("b", "A mill."), ("c", ""), ("d", "A river.")):
        write(tmp_path / f"{name}.txt", text)
    with pytest.warns(UserWarning, match=r"a\.txt and 1 more: empty \(0 bytes\), left out"):
        assert [document.text for document in read_corpus(CorpusSettings((str(tmp_path),)))] == ["A mill.", "A river."]
    for name in "bd":
        write(tmp_path / f"{name}.txt", "")
    with pytest.raises(ValueError, match=r"a\.txt: empty file"):
        list(read_corpus(CorpusSettings((str(tmp_path),))))


def test_file_that_changes_while_it_is_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    size = 3 * decoding.BLOCK
    path = write(tmp_path / "a.txt", b"ab \n" * (size // 4))
    for change in (lambda: os.truncate(path, size // 2), lambda: write(path, b"xy \n" * (size // 4))):
        write(path, b"ab \n" * (size // 4))
        os.utime(path, ns=(1, 1))
        blocks = read_text(str(path))
        next(blocks)
        change()
        with pytest.raises(ValueError, match=r"a\.txt: .*while it was read"):
            list(blocks)
    shorter = InputFile(str(path), 2 * size, ".txt", "", "file")
    with pytest.raises(ValueError, match=r"a\.txt: became shorter"):
        list(decode_blocks(shorter, TextCodec(), ReadStats()))


def test_parquet_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    path = tmp_path / "a.parquet"
    polars.DataFrame(OBJECTS).write_parquet(path)
    rows = Classification().read(str(path))
    next(rows)
    os.utime(path, ns=(1, 1))
    with pytest.raises(ValueError, match=r"a\.parquet: changed"):
        list(rows)
    assert find_file(str(path)).modified_ns == 1


def test_archive_that_names_a_place_before_its_start_is_damaged(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        archive.writestr("t.csv", TABLE)
    content = (tmp_path / "t.csv.zip").read_bytes()
    end = content.rindex(b"PK\x05\x06")
    start = int.from_bytes(content[end + 16 : end + 20], "little")
    moved = content[: end + 16] + (start + 50).to_bytes(4, "little") + content[end + 20 :]
    path = write(tmp_path / "moved.csv.zip", moved)
    with pytest.raises(ValueError, match=rf"{path}: not (a )?valid"):
        rows_of(path)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_excels_first_line_names_the_separator(tmp_path: Path, name: str, separator: str) -> None:
    content = "\ufeff" + f"sep={separator}\n" + TABLE.replace(",", separator)
    path = write(tmp_path / name, content.replace("\n", "\r\n"))
    assert [row.location for row in Classification().read(str(path))] == [f"{path}, line 3", f"{path}, line 4"]
    assert rows_of(path) == ROWS


RESULTS = [[{"type": "choices", "value": {"choices": [label]}}] for _, label in ROWS]
STUDIO = [
    {"data": {"text": text}, "annotations": [{"was_cancelled": True}, {"result": result}]}
    for (text, _), result in zip(ROWS, RESULTS, strict=True)
]
MINIMAL = [{"id": 1, "text": text, "mood": label, "annotator": 1} for text, label in ROWS]
REJECTED = {"text": "no", "accept": ["x"], "answer": "reject"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", STUDIO),
        ("a.json", MINIMAL),
        ("a.json", [{**row, "mood": {"choices": [row["mood"]]}} for row in MINIMAL]),
        ("a.csv", "annotation_id,lead_time,mood,text\n1,2.5,x,a mill\n1,2.5,y,the river\n"),
        ("a.json", [*({"text": text, "accept": [label], "answer": "accept"} for text, label in ROWS), REJECTED]),
        ("a.json", [{"text": text, "cats": {"x": float(label == "x"), "y": label == "y"}} for text, label in ROWS]),
    ],
)
def test_labels_are_read_as_annotation_tools_write_them(tmp_path: Path, name: str, content: Any) -> None:
    path = write(tmp_path / name, content)
    with pytest.warns(UserWarning, match="read as annotations") as warned:
        assert rows_of(path) == ROWS
    assert any("'answer' is reject or ignore: 1" in str(one.message) for one in warned) == ("reject" in str(content))
    with pytest.warns(UserWarning, match="read as annotations") if content is STUDIO else nullcontext():
        assert [text for text, _ in rows_of(path, labeled=False)][:2] == [text for text, _ in ROWS]


@pytest.mark.filterwarnings("ignore:.*read as annotations")
def test_several_annotated_labels_are_an_error_that_names_multi_label(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.json, line 1: .*a list of 2; .*--task multi-label"):
        rows_of(write(tmp_path / "a.json", [{"text": "a", "cats": {"x": 1, "y": 1}}]))


@pytest.mark.filterwarnings("ignore:.*read as")
@pytest.mark.parametrize(
    ("undecided", "field", "reason"),
    [
        ({"data": {"text": "no"}, "annotations": []}, "annotations", "empty or cancelled"),
        ({"data": {"text": "no"}, "annotations": [{"was_cancelled": True}]}, "annotations", "empty or cancelled"),
        ({"data": {"text": "no"}, "annotations": [{"result": []}]}, "label", "missing"),
    ],
)
def test_texts_that_nobody_has_labeled_are_left_out_and_counted(
    tmp_path: Path, undecided: Any, field: str, reason: str
) -> None:
    path = write(tmp_path / "a.json", [*STUDIO, undecided])
    with pytest.warns(UserWarning, match=rf"'{field}' is {reason}.*: 1$"):
        assert rows_of(path) == ROWS
    several = [example.label for example in MultiLabel().read(str(path))]
    assert several == [("x",), ("y",), *[()] * (field == "label")]
    assert len(rows_of(path, labeled=False)) == len(ROWS) + 1
    spans = [{**row, "annotations": [{"result": []}]} for row in STUDIO]
    assert len(list(Tagging().read(str(write(tmp_path / "b.json", [*spans, undecided]))))) == 2 + (field == "label")


def decide(*decisions: tuple[str, str, str]) -> list[dict[str, Any]]:
    return [
        {"text": text, "label": label, "answer": answer, "_input_hash": 1, "_task_hash": 2}
        for text, label, answer in decisions
    ]


ONE_LABEL = decide(("a mill", "STONE", "accept"), ("the river", "STONE", "reject"), ("?", "STONE", "ignore"))
TWO_LABELS = decide(
    ("a mill", "STONE", "accept"), ("a mill", "WET", "reject"), ("the river", "STONE", "reject"),
    ("the river", "WET", "accept"), ("a road", "STONE", "reject"), ("a road", "WET", "reject"),
)  # fmt: skip


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
@pytest.mark.filterwarnings("ignore:.*left out because")
def test_answers_of_prodigy_decide_whether_a_text_has_its_label(tmp_path: Path, name: str) -> None:
    write_rows = partial(write, tmp_path / name)
    path = write_rows("\n".join(map(json.dumps, ONE_LABEL)) if name == "a.jsonl" else ONE_LABEL)
    with pytest.warns(UserWarning, match=r"read as annotations \(.*'label'"):
        assert rows_of(path) == [("a mill", "STONE"), ("the river", "not STONE")]
    assert [text for text, _ in rows_of(path, labeled=False)] == ["a mill", "the river", "?"]
    assert [row.label for row in Classification(label="answer").read(str(path))] == ["accept", "reject", "ignore"]
    assert [row.label for row in Classification(dialect="plain").read(str(path))] == ["STONE"] * 3
    named = Classification(dialect="annotations")
    assert [row.label for row in named.read(str(path))] == ["STONE", "not STONE"]
    assert len(list(named.read(str(path), labeled=False))) == 3
    write_rows("\n".join(map(json.dumps, TWO_LABELS)) if name == "a.jsonl" else TWO_LABELS)
    assert [row.label for row in named.read(str(path))] == ["STONE", "WET"]
    several = [(row.text, row.label) for row in MultiLabel(dialect="annotations").read(str(path))]
    assert several == [("a mill", ("STONE",)), ("the river", ("WET",)), ("a road", ())]


def test_a_decision_about_several_labels_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [*ONE_LABEL, *decide(("no", ["x"], "accept"))])  # type: ignore[arg-type]
    with (
        pytest.warns(UserWarning, match="read as annotations"),
        pytest.raises(ValueError, match=r"line \d: expected a label that the 'answer' .*got list; .*--dialect plain"),
    ):
        rows_of(path)


@pytest.mark.filterwarnings("ignore:.*read as json-lists")
def test_labels_of_spacy_are_read_from_rows_that_are_lists(tmp_path: Path) -> None:
    pairs = [[text, {"cats": {"x": float(label == "x"), "y": float(label == "y")}}] for text, label in ROWS]
    path = write(tmp_path / "a.json", pairs)
    assert rows_of(path) == ROWS
    assert [row.label for row in MultiLabel().read(str(path))] == [("x",), ("y",)]


@pytest.mark.parametrize(
    ("names", "places"),
    [
        (("data/train-0.jsonl", "data/train-1.jsonl", "data/test-0.jsonl"), ("data/*train*", "data/*test*")),
        (("train/a_0.jsonl", "dev/a_0.jsonl"), ("train", "dev")),
        (("x/set.valid.jsonl", "x/set.training.jsonl"), ("x/*training*", "x/*valid*")),
    ],
)
def test_a_folder_whose_files_are_named_after_splits_is_noticed(
    tmp_path: Path, names: tuple[str, ...], places: tuple[str, str]
) -> None:
    for name in names:
        write(tmp_path / name, "\n".join(map(json.dumps, OBJECTS)))
    for path in (str(tmp_path), f"{tmp_path}/*/*.jsonl"):
        with pytest.warns(UserWarning, match="named after several splits.*--train") as warned:
            read_examples(Classification(), TaskSettings("classification", train=(path,)), "train")
        assert all(repr(str(tmp_path / place)) in str(warned[0].message) for place in places)
    alone = TaskSettings("classification", train=(str(tmp_path / places[0]),))
    expected = sum("train" in name for name in names) * len(OBJECTS)
    assert len(read_examples(Classification(), alone, "train")) == expected


def test_texts_of_windows_that_are_read_as_latin_1_are_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("text,label\n\u201ea mill\u201c,x\nthe river,y\n".encode("cp1252"))
    for encoding in ("latin-1", "cp1252"):
        task = Classification(encoding=encoding)
        notes = task.warnings(list(task.read(str(path))))
        assert any("1 example contains control characters" in note for note in notes) == (encoding == "latin-1")


@pytest.mark.filterwarnings("ignore:.*(read as|have the names)")
def test_lines_beside_labels_are_texts_whatever_tabs_they_have(tmp_path: Path) -> None:
    for folder in "ab":
        write(tmp_path / folder / "train_text.txt", "a\tmill\nthe\triver\n")
        write(tmp_path / folder / "train_labels.txt", "0\n1\n")
        write(tmp_path / folder / "mapping.txt", "0\tof stone\n1\twet\n")
    rows = [("a\tmill", "of stone"), ("the\triver", "wet")]
    for path in (tmp_path / "a/train_text.txt", tmp_path / "a"):
        with pytest.warns(UserWarning, match=r"mapping\.txt: the labels of .*train_labels\.txt "):
            assert rows_of(path) == rows
    assert rows_of(f"{tmp_path}/*/train_text.txt") == [*rows, *rows]
    write(tmp_path / "a/mapping.txt", "0\tof stone\n")
    assert rows_of(tmp_path / "a") == [("a\tmill", "0"), ("the\triver", "1")]


@pytest.mark.filterwarnings("ignore:.*read as class-")
@pytest.mark.parametrize("names", [("x.txt", "y.txt"), ("x/1.txt", "y/2.txt")])
def test_files_that_the_shell_names_are_read_as_their_glob(tmp_path: Path, names: tuple[str, str]) -> None:
    paths = [str(write(tmp_path / name, f"{text}\n")) for name, (text, _) in zip(names, ROWS, strict=True)]
    found = read_examples(Classification(), TaskSettings("classification", train=tuple(paths)), "train")
    assert [(example.text, example.label) for example in found] == ROWS
    write(tmp_path / f"z{names[0][1:]}", "another text\n")
    assert join_as_glob(paths) == tuple(paths)


@pytest.mark.parametrize(("name", "hint"), [("a.xlsx", "as .csv"), ("a.xml", ".jsonl"), ("d/a.xml", ".jsonl")])
def test_files_that_are_no_tables_are_named_with_the_way_out(tmp_path: Path, name: str, hint: str) -> None:
    path = write(tmp_path / name, "<x/>")
    write(path.with_name("b" + path.suffix), "<x/>")
    for place in (path, path.parent):
        with pytest.raises(ValueError, match=rf"a\{path.suffix}: \{path.suffix} is not read; .*{hint}"):
            rows_of(place)


def test_texts_in_quotes_that_stay_are_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"a mill"\tx\nthe river\ty\n')
    examples = list(Classification().read(str(path)))
    assert any("1 texts begin and end with a quote" in text for text in Classification().warnings(examples))


def test_tags_that_are_all_one_value_and_a_file_that_is_one_sentence_are_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.conll", "mill O\n" * 501)
    task = Tagging(labels=("O", "B-PER", "I-PER"), scheme="iob2")
    one, two = task.warnings(list(task.read(str(path))))
    assert f"501 words is all of {path}" in one
    assert "all 501 words have the tag 'O'" in two
