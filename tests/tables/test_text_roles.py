"""Roles of the columns of texts that belong together: real headers are read right, or refused with the way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertwright.tables.text_roles import TableOptions, TextRow, read_text_table
from helpers import write_file

# Headers of data sets of sentence-transformers, FlagEmbedding, BEIR, SemEval, GLUE and KLUE, with the columns that are
# anchor, positive, negatives, score and label ("-": none), and the ones that are not read.
HEADERS = [
    ("anchor positive", "anchor positive - - -"),
    ("anchor positive negative", "anchor positive negative - -"),
    ("anchor pos neg", "anchor pos neg - -"),
    ("query positive negative", "query positive negative - -"),
    ("query positive negative_1 negative_2 negative_3", "query positive negative_1,negative_2,negative_3 - -"),
    ("query pos neg", "query pos neg - -"),
    ("query answer", "query answer - -"),
    ("question answer", "question answer - -"),
    ("question context", "question context - -"),
    ("answer question", "question answer - -"),
    ("passage query", "query passage - -"),
    ("query passage", "query passage - -"),
    ("query document", "query document - -"),
    ("positive anchor", "anchor positive - -"),
    ("sentence1 sentence2", "sentence1 sentence2 - -"),
    ("sentence1 sentence2 score", "sentence1 sentence2 - score -"),
    ("score sentence2 sentence1", "sentence1 sentence2 - score -"),
    ("dataset score sentence1 sentence2", "sentence1 sentence2 - score -", "dataset"),
    ("sentence1 sentence2 similarity_score", "sentence1 sentence2 - similarity_score -"),
    ("sentence_A sentence_B relatedness_score", "sentence_A sentence_B - relatedness_score -"),
    ("pair_ID sentence_A sentence_B relatedness_score", "sentence_A sentence_B - relatedness_score -", "pair_ID"),
    ("genre filename year id score sentence1 sentence2", "sentence1 sentence2 - score -", "genre filename year id"),
    ("index source1 source2 sentence1 sentence2 score", "sentence1 sentence2 - score -", "index source1 source2"),
    ("text1 text2 label", "text1 text2 - label -"),
    ("sentence1 sentence2 label", "sentence1 sentence2 - label -"),
    ("premise hypothesis label", "premise hypothesis - label -"),
    ("question1 question2 is_duplicate", "question1 question2 - is_duplicate -"),
    ("id qid1 qid2 question1 question2 is_duplicate", "question1 question2 - is_duplicate -", "id qid1 qid2"),
    ("Quality #1_ID #2_ID #1_String #2_String", "#1_String #2_String - Quality -", "#1_ID #2_ID"),
    ("QuestionID Question Sentence Label", "Question Sentence - Label -", "QuestionID"),
    ("Q A", "Q A - -"),
    ("english non_english", "english non_english - -"),
    ("english non-english", "english non-english - -"),
    ("Anchor Positive", "Anchor Positive - -"),
    ("source target", "source target - -"),
    ("text label", "text - - - label"),
    ("text category", "text - - - category"),
    ("label sentence", "sentence - - - label"),
    ("text", "text - - - -"),
    ("sentence", "sentence - - - -"),
    ("content", "content - - - -"),
    ("title body", "title body - - -"),
    ("title body other", "title body other - -"),
]  # fmt: skip
TEXT_VALUES = {"label": "1", "Label": "1", "is_duplicate": "1", "Quality": "1"}


def write_table(path: Path, header: str, rows: int = 2) -> str:
    """Write rows of texts, numbers and classes under some names."""
    names = header.split()
    is_number = [("score" in name or "label" in name.lower() or name in TEXT_VALUES) for name in names]
    lines = ["\t".join(names)]
    for row in range(rows):
        values = [str(row) if number else f"a {name} {row}" for name, number in zip(names, is_number, strict=True)]
        lines.append("\t".join(values))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def write_objects(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("case", HEADERS, ids=lambda case: case[0])
def test_roles_of_real_headers(case: tuple[str, ...], tmp_path: Path) -> None:
    header, expected, *unread = case
    roles, rows = read_text_table(write_table(tmp_path / "pairs.tsv", header))
    anchor, positive, negatives, score, *label = [None if name == "-" else name for name in expected.split()]
    assert (roles.anchor, roles.positive, roles.score) == (anchor, positive, score)
    assert ",".join(roles.negatives) == (negatives or "")
    assert roles.label == (label[0] if label else None)
    assert " ".join(roles.ignored) == " ".join(unread)
    assert rows[1].anchor == f"a {anchor} 1"
    assert rows[1].positives == (() if positive is None else (f"a {positive} 1",))
    assert rows[1].location == f"{tmp_path / 'pairs.tsv'}, line 3"


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ("_id title text", "title"),  # a corpus of BEIR
        ("question body", "body"),
        ("question negative", "negative"),
        ("A_plane_is_taking_off. An_air_plane 5.0", "--header False"),
        ("1 2 3", "--header False"),
    ],
)
def test_headers_without_clear_roles_are_refused_with_the_way_out(header: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=named) as caught:
        read_text_table(write_table(tmp_path / "pairs.tsv", header))
    assert "--columns" in str(caught.value)
    assert str(tmp_path / "pairs.tsv") in str(caught.value)


def test_rows_of_flag_embedding_have_lists_and_scores(tmp_path: Path) -> None:
    path = write_objects(
        tmp_path / "mined.jsonl",
        {"query": "q", "pos": ["p", "r"], "neg": ["n"], "pos_scores": [1, 0.5], "neg_scores": [0.1], "prompt": "find"},
        {"query": "s", "pos": ["t"], "neg": []},
    )
    roles, rows = read_text_table(path)
    assert roles.ignored == ("prompt",)
    assert rows[0][2:4] == (("p", "r"), ("n",))
    assert (rows[0].positive_scores, rows[0].negative_scores) == ((1.0, 0.5), (0.1,))
    assert rows[1].negatives == rows[1].positive_scores == ()


def test_a_list_of_anchors_makes_a_row_of_each(tmp_path: Path) -> None:
    rows = read_text_table(
        write_objects(tmp_path / "faq.jsonl", {"question": ["a", None, "b"], "answer": ["c", "d"]})
    ).rows
    assert [(row.anchor, row.positives) for row in rows] == [("a", ("c", "d")), ("b", ("c", "d"))]


def test_objects_may_have_different_numbers_of_negatives(tmp_path: Path) -> None:
    path = write_objects(
        tmp_path / "mined.jsonl",
        {"anchor": "a", "positive": "p"},
        {"anchor": "b", "positive": "p", "negative_1": "n", "negative_2": None},
        {"anchor": "c", "positive": "p", "negative_1": "n", "negative_2": "m"},
    )
    assert [row.negatives for row in read_text_table(path).rows] == [(), ("n",), ("n", "m")]


def test_columns_are_read_as_the_user_states_them(tmp_path: Path) -> None:
    path = write_table(tmp_path / "pairs.tsv", "question answer title label")
    roles, rows = read_text_table(path, TableOptions(("anchor=title", "positive=answer", "negative_1=question")))
    assert rows[0][:4:2] == ("a title 0", ("a answer 0",))
    assert rows[0].negatives == ("a question 0",)
    assert roles.describe() == "anchor = title, positive = answer, negative = question; not read: label"


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (("anchor",), "ROLE=COLUMN"),
        (("anker=title",), "anchor"),
        (("anchor=titel",), "title"),
        (("positive=title",), "no anchor"),
        (("anchor=title", "positive=title"), "two roles"),
        (("anchor=title", "anchor=text"), "given twice"),
    ],
)
def test_wrong_columns_are_refused(columns: tuple[str, ...], named: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=named) as caught:
        read_text_table(write_table(tmp_path / "pairs.tsv", "title text"), TableOptions(columns))
    assert "--columns" in str(caught.value)


def test_files_without_header_are_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "sts.csv"
    path.write_text("A plane.,An air plane.,5.0\nA cat.,A dog.,1.5\n")
    assert read_text_table(str(path), TableOptions(header=False)).rows == [
        TextRow("A plane.", f"{path}, line 1", ("An air plane.",), score=5.0),
        TextRow("A cat.", f"{path}, line 2", ("A dog.",), score=1.5),
    ]


def test_a_text_file_has_a_text_per_line(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("First sentence.\n\nA label, a tab and a comma\n")
    roles, rows = read_text_table(str(path))
    assert [(row.anchor, row.location) for row in rows] == [
        ("First sentence.", f"{path}, line 1"),
        ("A label, a tab and a comma", f"{path}, line 3"),
    ]
    assert roles.named == {"anchor": "text"}


@pytest.mark.parametrize(
    ("labels", "scores"), [(["0", "1"], [0.0, 1.0]), (["3.5", "5"], [3.5, 5.0]), (["-1", "0.5"], [-1.0, 0.5])]
)
def test_labels_of_pairs_are_scores(labels: list[str], scores: list[float], tmp_path: Path) -> None:
    path = write_objects(tmp_path / "a.jsonl", *[{"text1": "a", "text2": "b", "label": label} for label in labels])
    roles, rows = read_text_table(path)
    assert [row.score for row in rows] == scores
    assert (roles.score, roles.label) == ("label", None)


@pytest.mark.parametrize("label", ["entailment", "2"])
def test_classes_of_pairs_are_refused(label: str, tmp_path: Path) -> None:
    """The three classes of inference are no scores."""
    path = write_objects(tmp_path / "a.jsonl", *[{"premise": "a", "hypothesis": "b", "label": y} for y in ("0", label)])
    with pytest.raises(ValueError, match=label) as caught:
        read_text_table(path)
    assert f"{path}, line 2" in str(caught.value)
    assert "--columns anchor=premise positive=hypothesis" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"query": " ", "answer": "b"}, "'query'"),
        ({"query": "a", "answer": None}, "'answer'"),
        ({"query": "a", "answer": 3}, "'answer'"),
        ({"query": [], "answer": "c"}, "'query'"),
        ({"query": "a", "answer": ["b", ""]}, "'answer'"),
        ({"query": "a", "answer": "b", "negative": 1}, "'negative'"),
        ({"query": "a"}, "'answer'"),
    ],
)
def test_missing_and_empty_texts_are_refused_with_their_line(row: dict[str, Any], named: str, tmp_path: Path) -> None:
    path = write_objects(tmp_path / "a.jsonl", {"query": "q", "answer": "a", "negative": "n"}, row)
    with pytest.raises(ValueError, match=named) as caught:
        read_text_table(path)
    assert f"{path}, line 2" in str(caught.value)


def test_scores_that_are_no_numbers_are_refused_with_their_line(tmp_path: Path) -> None:
    rows = [{"sentence1": "a", "sentence2": "b", "score": score} for score in (1, "high")]
    with pytest.raises(ValueError, match=r"line 2: .*'score', got 'high'"):
        read_text_table(write_objects(tmp_path / "a.jsonl", *rows))


def test_texts_that_no_role_has_are_named(tmp_path: Path) -> None:
    rows = [
        {"question": "How old are bears?", "answer": "Up to 30 years.", "rephr": ["What age", "How old"], "id": "q1"}
    ]
    path = write_file(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "faq.jsonl")
    with pytest.warns(
        UserWarning, match=r"faq\.jsonl: not read: the texts of .?rephr.?; to read them, name the columns"
    ):
        read_text_table(path, TableOptions())


SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Bank",
            "paragraphs": [
                {
                    "context": "The river bank is wet.",
                    "qas": [
                        {
                            "id": "1",
                            "question": "What is wet?",
                            "answers": [{"text": "The river bank", "answer_start": 0}],
                        },
                        {"id": "2", "question": "What is dry?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}


def test_questions_that_have_an_answer_are_read_with_their_paragraph(tmp_path: Path) -> None:
    path = write_file(tmp_path, json.dumps(SQUAD), "squad.json")
    with pytest.warns(UserWarning, match="1 question without an answer"):
        table = read_text_table(path)
    assert [(row.anchor, row.positives) for row in table.rows] == [("What is wet?", ("The river bank is wet.",))]
    assert table.roles.describe() == "anchor = question, positive = paragraph"


def test_questions_without_any_answer_are_refused(tmp_path: Path) -> None:
    unanswered = json.loads(json.dumps(SQUAD))
    del unanswered["data"][0]["paragraphs"][0]["qas"][0]
    path = write_file(tmp_path, json.dumps(unanswered), "squad.json")
    with pytest.raises(ValueError, match="no question has an answer"):
        read_text_table(path)
