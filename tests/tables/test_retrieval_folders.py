"""Retrieval sets in BEIR's layout, and the messages for damaged ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bertwright.tables.neighbours import is_retrieval_folder, join_as_glob
from bertwright.tables.retrieval_folders import read_documents, read_retrieval_folder
from bertwright.tables.text_roles import read_text_table
from helpers import write_file

DOCUMENTS = [{"_id": "1", "title": "On cats", "text": "Cats sleep."}, {"_id": 2, "text": "Dogs bark.", "metadata": {}}]
QUERIES = [{"_id": "q1", "text": "who sleeps?"}, {"_id": "q2", "text": "not judged"}]
QRELS = "query-id\tcorpus-id\tscore\nq1\t1\t2\nq1\t2\t0\n"


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_lines(tmp_path / "corpus.jsonl", DOCUMENTS)
    write_lines(tmp_path / "queries.jsonl", QUERIES)
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text(QRELS)
    return tmp_path


def test_folder_is_read(folder: Path) -> None:
    assert is_retrieval_folder(str(folder))
    assert not is_retrieval_folder(str(folder / "qrels"))
    read = read_retrieval_folder(folder)
    assert read.documents == {"1": "On cats Cats sleep.", "2": "Dogs bark."}
    assert read.queries == {"q1": "who sleeps?"}
    assert read.judgements == {"q1": {"1": 2, "2": 0}}


def test_compressed_documents_are_read(folder: Path) -> None:
    plain = folder / "corpus.jsonl"
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert len(read_retrieval_folder(folder).documents) == 2


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ("q1\t3\t1\n", "document '3' is not in corpus.jsonl"),
        ("q3\t1\t1\n", "query 'q3' is not in queries.jsonl"),
        ("q1\t1\thigh\n", "a whole number in 'score', got 'high'"),
        ("q1\t1\t0.5\n", "a whole number in 'score', got '0.5'"),
        ("q1\t1\t1\n", "another grade before"),
    ],
)
def test_bad_judgements_are_named_with_their_line(folder: Path, row: str, place: str) -> None:
    (folder / "qrels" / "test.tsv").write_text(QRELS + row)
    with pytest.raises(ValueError, match=rf"test\.tsv, line 4: .*{place}"):
        read_retrieval_folder(folder)


def test_missing_split_and_file_are_named(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"no judgements of a split 'tset' .* did you mean \"test\"\?"):
        read_retrieval_folder(folder, "tset")
    (folder / "queries.jsonl").unlink()
    with pytest.raises(ValueError, match=r"queries\.jsonl: missing"):
        read_retrieval_folder(folder)


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({"_id": "1", "text": "again"}, "_id '1' occurs twice"),
        ({"text": "no id"}, "no column '_id'"),
        ({"_id": "3", "text": ["a", 1]}, "expected a string in 'text'"),
    ],
)
def test_bad_documents_are_named_with_their_line(folder: Path, row: dict[str, Any], place: str) -> None:
    write_lines(folder / "corpus.jsonl", [*DOCUMENTS, row])
    with pytest.raises(ValueError, match=rf"corpus\.jsonl, line 3: .*{place}"):
        read_retrieval_folder(folder)


def test_empty_query_is_named(folder: Path) -> None:
    write_lines(folder / "queries.jsonl", [*QUERIES, {"_id": "q3", "text": " "}])
    with pytest.raises(ValueError, match=r"queries\.jsonl, line 3: the text of query 'q3' is empty"):
        read_retrieval_folder(folder)


def test_documents_without_an_id_have_the_name_of_their_file_and_a_number(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Cats sleep.\nDogs bark.\n")
    (tmp_path / "b.csv").write_text("title,text\nOn bears,Bears eat.\n")
    assert [*read_documents(str(tmp_path / "a.txt"))] == [("a.txt:1", "Cats sleep."), ("a.txt:2", "Dogs bark.")]
    assert [*read_documents(str(tmp_path / "b.csv"))] == [("b.csv:1", "On bears Bears eat.")]


def test_retrieval_sets_are_not_joined_as_one_path(folder: Path) -> None:
    for name in ("train", "dev"):
        (folder / "qrels" / f"{name}.tsv").write_text(QRELS)
    other = folder / "other"
    (other / "qrels").mkdir(parents=True)
    (other / "corpus.jsonl").write_text("")
    for paths in (
        [str(folder / "qrels" / f"{name}.tsv") for name in ("dev", "test", "train")],
        [str(folder / "other"), str(folder / "qrels")],
    ):
        assert join_as_glob(paths) == tuple(paths)


def test_judgements_away_from_their_texts_are_no_table(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text(QRELS)
    with pytest.raises(ValueError, match=r"train\.tsv: judgements without texts"):
        read_text_table(str(tmp_path / "train.tsv"))


def test_paragraphs_of_squad_are_documents(tmp_path: Path) -> None:
    texts = ("One.", "Two.", "One.")
    paragraphs = [{"context": text, "qas": [{"id": str(n), "question": "?"}]} for n, text in enumerate(texts)]
    path = write_file(tmp_path, json.dumps({"data": [{"paragraphs": paragraphs}]}), "squad.json")
    assert [*read_documents(path)] == [("squad.json:1", "One."), ("squad.json:2", "Two.")]
