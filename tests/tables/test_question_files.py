"""SQuAD's JSON, JSON lines and Parquet: reading, alignment of answers, misuse."""

from __future__ import annotations

import gzip
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import polars
import pytest

from bertwright.tables.qa_example import GoldAnswer, QaExample, align_answers
from bertwright.tables.question_files import read_questions
from bertwright.tasks.presets import TaskSettings
from helpers import PUBLISHED, SAMPLES, needs_data

CONTEXT = "Ann lives in Rome. Bob lives in Oslo."
NO_ID = object()


def tree(*questions: Any, context: Any = CONTEXT, title: str = "People") -> dict[str, Any]:
    return {"data": [{"title": title, "paragraphs": [{"context": context, "qas": list(questions)}]}]}


def question(**changes: Any) -> dict[str, Any]:
    values = {"id": "q1", "question": "Where is Bob?", "answers": [{"text": "Oslo", "answer_start": 32}]}
    return {key: value for key, value in (values | changes).items() if value is not NO_ID}


def line(**changes: Any) -> dict[str, Any]:
    return question(**({"id": NO_ID, "context": CONTEXT} | changes))


def write(folder: Path, content: Any, name: str = "dev.json") -> str:
    path = folder / name
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


def test_squad_json_with_and_without_answers(tmp_path: Path) -> None:
    content = tree(
        question(),
        question(id="q2", question="Where is Eve?", answers=[], is_impossible=True, plausible_answers=[]),
        question(id="q3", answers=[{"text": "Bob", "answer_start": 19}, {"text": "lives", "answer_start": 4}]),
    )
    path = write(tmp_path, content)
    first, second, third = read_questions(path)
    assert first == QaExample(
        "q1", "Where is Bob?", CONTEXT, (GoldAnswer("Oslo", 32),), False, f"{path}, article 1 (People), question q1"
    )
    assert second.is_impossible
    assert second.answers == ()
    assert third.answers == (
        GoldAnswer("Bob", 19),
        GoldAnswer("lives", 4),
    )  # the second one occurs twice: its start decides
    assert first.context is second.context
    assert [example.answers for example in read_questions(path, labeled=False)] == [(), (), ()]


@pytest.mark.parametrize(
    "answers",
    [
        [{"text": "Oslo", "start": 32}],
        [{"text": "Oslo", "answer_start": 32}],
        [{"text": "Oslo"}],
        {"text": ["Oslo"], "answer_start": [32]},
    ],
)
def test_json_lines_spell_answers_in_several_ways(tmp_path: Path, answers: Any) -> None:
    path = write(tmp_path, json.dumps(line(answers=answers)) + "\r\n\n" + json.dumps(line(answers=[])), "own.jsonl")
    first, second = read_questions(path)
    assert first == QaExample("1", "Where is Bob?", CONTEXT, (GoldAnswer("Oslo", 32),), False, f"{path}, line 1")
    assert (second.id, second.answers, second.location) == ("3", (), f"{path}, line 3")
    assert first.context is second.context


def test_id_may_be_a_number(tmp_path: Path) -> None:
    assert next(read_questions(write(tmp_path, tree(question(id=7))))).id == "7"


def test_compressed_files_and_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "dev.json.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps(tree(question())).encode()))
    assert [example.id for example in read_questions(str(path))] == ["q1"]


def test_parquet_of_the_hub_is_read(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    rows = [line(id="a", answers={"text": ["Oslo"], "answer_start": [32]}), line(id="b", answers=[{"text": "Rome"}])]
    for row in rows:
        polars.DataFrame([row]).write_parquet(path)
        (example,) = read_questions(str(path))
        assert example.id == row["id"]
        assert example.target == (GoldAnswer("Oslo", 32) if row["id"] == "a" else GoldAnswer("Rome", 13))
        assert example.location == f"{path}, row 1"
    polars.DataFrame([row]).drop("answers").write_parquet(path)
    (example,) = read_questions(str(path), labeled=False)
    assert example.answers == ()


FLAT = line(answers=[{"text": "Oslo", "answer_start": 32}])
PARAGRAPH = tree(question())["data"][0]["paragraphs"][0]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", tree(question())["data"]),
        ("a.json", tree(question())["data"][0]),
        ("a.json", [PARAGRAPH]),
        ("a.json", PARAGRAPH),
        ("a.json", {"data": [PARAGRAPH]}),
        ("a.json", {"data": [FLAT]}),
        ("a.json", [FLAT]),
        ("a.json", f"{json.dumps(FLAT)}\n{json.dumps(FLAT | {'question': 'Who?'})}\n"),
        ("a.jsonl", f'{{"header": {{"split": "dev"}}}}\n{json.dumps(PARAGRAPH)}\n'),
        ("a.jsonl", FLAT | {"answers": ["Oslo"]}),
        ("a.jsonl", FLAT | {"answers": "Oslo"}),
        ("a.jsonl", FLAT | {"answers": {"text": "Oslo", "answer_start": 32}}),
        ("a.jsonl", {key: value for key, value in FLAT.items() if key != "answers"} | {"answer": "Oslo"}),
    ],
)
def test_relatives_of_squad_are_read_from_any_level(tmp_path: Path, name: str, content: Any) -> None:
    first = next(read_questions(write(tmp_path, content, name)))
    assert (first.question, first.context, first.answers) == ("Where is Bob?", CONTEXT, (GoldAnswer("Oslo", 32),))


@pytest.mark.parametrize("name", ["id", "guid", "qid", "query_id", "question_id", "_id", "uuid", "idx"])
def test_id_may_have_another_name_or_none(tmp_path: Path, name: str) -> None:
    content = tree(question(id=NO_ID) | {name: "k7", "document_id": 3}, question(id=NO_ID), question(id=None))
    assert [example.id for example in read_questions(write(tmp_path, content))] == ["k7", "2", "3"]


def test_parquet_may_have_an_id_of_another_name_or_none(tmp_path: Path) -> None:
    for name, identity in (("guid", "a"), ("source", "1")):
        polars.DataFrame([line() | {name: "a"}]).write_parquet(tmp_path / "a.parquet")
        assert [example.id for example in read_questions(str(tmp_path / "a.parquet"))] == [identity]


def test_detected_answers_of_mrqa_have_their_start(tmp_path: Path) -> None:
    found = {"text": "lives", "char_spans": [[23, 27]], "token_spans": [[6, 6]]}
    item = {"qid": "q1", "question": "What?", "answers": ["lives", "Rome"], "detected_answers": [found]}
    header = '{"header": {"dataset": "SQuAD"}}'
    path = write(tmp_path, f"{header}\n{json.dumps({'context': CONTEXT, 'qas': [item]})}\n", "dev.jsonl")
    (example,) = read_questions(path)
    assert example.answers == (GoldAnswer("lives", 23), GoldAnswer("Rome", 13))


def test_newsqa_is_read_by_the_consensus_of_its_annotators_and_by_split(tmp_path: Path) -> None:
    agreed = [{"s": 32, "e": 37}, {"noAnswer": True}, {"badQuestion": True}]
    questions = [{"q": f"Q{number}?", "consensus": consensus} for number, consensus in enumerate(agreed)]
    stories = [{"storyId": f"{kind}.story", "text": CONTEXT, "type": kind} for kind in ("train", "dev")]
    path = write(tmp_path, {"data": [story | {"questions": questions} for story in stories], "version": "1"})
    settings = TaskSettings("question-answering", train=(path,), dev=(path,))
    assert settings.files("dev") == (f"{path}#dev",)
    first, second = read_questions(f"{path}#dev")
    assert (first.id, first.question, first.answers) == ("dev.story#0", "Q0?", (GoldAnswer("Oslo.", 32),))
    assert (second.is_impossible, second.answers) == (True, ())


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ({"data": [{"story": CONTEXT, "questions": [], "answers": []}]}, "CoQA"),
        ([{"context": [["Bob", [CONTEXT]]], "question": "Q?", "answer": "yes", "supporting_facts": []}], "HotpotQA"),
    ],
)
def test_questions_whose_answers_are_no_spans_of_one_text_are_refused_by_name(
    tmp_path: Path, content: Any, name: str
) -> None:
    with pytest.raises(ValueError, match=rf"dev\.json, .*: {name}'s .* expected answers that are spans"):
        list(read_questions(write(tmp_path, content)))


def test_one_split_of_several_is_read_by_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, {"train": [FLAT], "dev": {"data": [PARAGRAPH]}})
    assert [example.id for name in ("train", "dev") for example in read_questions(f"{path}#{name}")] == ["1", "q1"]


@pytest.mark.parametrize("answers", [[{"text": "", "answer_start": 0}], {"text": [""], "answer_start": [-1]}, NO_ID])
def test_impossible_question_may_have_empty_answers_only(tmp_path: Path, answers: Any) -> None:
    (example,) = read_questions(write(tmp_path, tree(question(answers=answers, is_impossible=True))))
    assert (example.is_impossible, example.answers) == (True, ())


def test_repeated_ids_matter_for_predictions_only(tmp_path: Path) -> None:
    path = write(tmp_path, tree(question(), question(question="Who?"), question(id="q2")))
    with pytest.warns(UserWarning, match=r"dev\.json: 1 question .*question q1"):
        assert [example.id for example in read_questions(path)] == ["q1", "q1", "q2"]
    with pytest.raises(ValueError, match=r'question q1: the id "q1"'):
        list(read_questions(path, labeled=False))


@pytest.mark.parametrize(
    ("text", "start", "gold"),
    [
        ("Oslo", 32, GoldAnswer("Oslo", 32)),
        ("Oslo", 31, GoldAnswer("Oslo", 32, moved=True)),
        ("Oslo", -5, GoldAnswer("Oslo", 32, moved=True)),
        ("Oslo", 99_999, GoldAnswer("Oslo", 32, moved=True)),
        ("lives", 5, GoldAnswer("lives", None)),  # occurs twice, neither time at the given start
        ("oslo", 32, GoldAnswer("oslo", 32)),  # as in TriviaQA, whose answers are in lower case
        ("oslo", 31, GoldAnswer("oslo", None)),
        ("Paris", 0, GoldAnswer("Paris", None)),
    ],
)
def test_answers_at_other_positions_than_the_file_says(tmp_path: Path, text: str, start: int, gold: GoldAnswer) -> None:
    (example,) = read_questions(write(tmp_path, tree(question(answers=[{"text": text, "answer_start": start}]))))
    assert example.answers == (gold,)  # an answer without a position still counts in the score
    assert example.learnable == (gold.start is not None)
    assert align_answers([example]) == (
        (example.location,) if gold.moved else (),
        () if example.learnable else (example.location,),
        (),
    )


def test_first_answer_with_a_position_is_learned(tmp_path: Path) -> None:
    answers = [{"text": "lives", "answer_start": 0}, {"text": "Rome", "answer_start": 13}]
    (example,) = read_questions(write(tmp_path, tree(question(answers=answers))))
    assert example.target == GoldAnswer("Rome", 13)
    assert align_answers([example]) == ((), (), ())


def test_triviaqa_as_its_authors_convert_it_is_read(tmp_path: Path) -> None:
    """Articles without title, of a question and a document each; answers in lower case, or none; other members, too."""
    contexts = ["Sunset Boulevard ( film ) \n\n It opened in 1950 . \n Billy Wilder directed it .", "No hint \n here ."]
    answers = [[{"text": "billy wilder", "answer_start": contexts[0].index("Billy")}], []]
    articles = [
        {"paragraphs": [{"context": context, "qas": [question(id=f"tc_1--{n}.txt", qid="tc_1", answers=answers[n])]}]}
        for n, context in enumerate(contexts)
    ]
    found, unanswered = read_questions(write(tmp_path, {"data": articles, "version": "1.2"}))
    assert found.target == GoldAnswer("billy wilder", contexts[0].index("Billy"))
    assert not unanswered.learnable
    alignment = align_answers([found, unanswered])
    assert alignment == ((), (), (unanswered.location,))
    (note,) = alignment.warnings()
    assert note.startswith("1 questions without an answer")
    assert note.endswith("--allow-no-answer True (" + unanswered.location + ")")


def test_alignment_warnings_count_and_name_questions() -> None:
    def example(number: int, gold: GoldAnswer) -> QaExample:
        return QaExample(str(number), "?", "", (gold,), location=f"question {number}")

    assert align_answers([example(1, GoldAnswer("x", 3))]).warnings() == []
    found = align_answers(
        [example(0, GoldAnswer("x", 1, moved=True)), *(example(n, GoldAnswer("x", None)) for n in range(1, 8))]
    )
    moved, left_out = found.warnings()
    assert moved.startswith("1 questions whose answer is not at the given start, but occurs once elsewhere")
    assert moved.endswith("(question 0)")
    assert left_out.startswith("7 questions")
    assert left_out.endswith("(question 1; question 2; question 3; question 4; question 5; and 2 more)")
    assert found.left_out[-1] == "question 7"  # report.json has all
    assert "not trained on; see report.json (" in left_out
    assert "report.json" not in moved


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [\n}', ", line 2: not valid JSON (Expecting value at character 1)"),
        ("", ": not valid JSON (Expecting value at character 1)"),
        (DEEP, ": not readable as JSON"),
        ([], ": no questions"),
        ({"version": "2.0"}, ': "data" is missing; found are version'),
        ({"data": {}}, ': "data": expected a list, got {}'),
        ({"data": []}, ": no questions"),
        ({"data": ["x"]}, ', article 1: expected a JSON object, got "x"'),
        ({"data": [{"title": "A\nB"}]}, ', article 1 (A B): "paragraphs" is missing; found are title'),
        ({"data": [{"paragraphs": [{"qas": []}]}]}, ', article 1, paragraph 1: "context" is missing; found are qas'),
        (tree(context=3), ', article 1 (People), paragraph 1: "context": expected a text, got 3'),
        (tree({}), ', article 1 (People), paragraph 1, question 1: "question" is missing; found are none'),
        (tree(question(id=True)), 'question 1: "id": expected a text or a whole number, got true'),
        (tree(question(question=NO_ID)), ', question q1: "question" is missing; found are id, answers'),
        (tree(question(question=["Where?"])), ', question q1: "question": expected a text, got ["Where?"]'),
        (tree(question(question=" ")), ", question q1: the question is empty"),
        (tree(question(), context="\n"), ", question q1: the context is empty"),
        (tree(question(answers=NO_ID)), ', question q1: "answers" is missing; found are id, question'),
        (tree(question(answers=3)), ', question q1: "answers": expected a list, got 3'),
        (tree(question(answers=[3])), ", question q1, answers: expected a JSON object, got 3"),
        (tree(question(answers=[{"answer_start": 3}])), ', question q1, answers: "text" is missing'),
        (tree(question(answers=[{"text": "", "answer_start": 3}])), ", question q1: an answer is empty"),
        (tree(question(answers=[{"text": "a", "answer_start": "3a"}])), '"answer_start": expected a whole number'),
        (tree(question(answers={"text": ["a"], "answer_start": []})), '1 in "text" but 0 in "answer_start"'),
        (tree(question(is_impossible=2)), ', question q1: "is_impossible": expected true or false, got 2'),
        (json.dumps(tree(question(question="\ud800"))), '\\ud800 in "question" is half a surrogate pair'),
    ],
)
def test_invalid_question_is_rejected_with_its_location(tmp_path: Path, content: Any, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        list(read_questions(path))
    assert str(raised.value).startswith(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{}"], ', line 1: "context" is missing; found are none'),
        ([json.dumps(line()), "{"], ", line 2: not valid JSON"),
        (
            ['{"question": "a", "context": "b", "context": "c"}'],
            ", line 1: not readable as JSON ('context' occurs twice)",
        ),
        (["[1]"], ", line 1: expected a JSON object, got [1]"),
        (["", " "], ": no questions"),
    ],
)
def test_invalid_json_lines_are_rejected(tmp_path: Path, lines: list[str], message: str) -> None:
    path = write(tmp_path, "\n".join(lines), "own.jsonl")
    with pytest.raises(ValueError, match=f"^{re.escape(path + message)}"):
        list(read_questions(path))


def test_unreadable_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"own\.txt: expected \.csv or \.json or "):
        list(read_questions(write(tmp_path, "x", "own.txt")))
    with pytest.raises(ValueError, match=r"none\.json: no such file"):
        list(read_questions(str(tmp_path / "none.json")))
    path = tmp_path / "latin.jsonl"
    path.write_bytes(json.dumps(line()).encode() + b'\n{"question": "Caf\xe9"}\n')
    with pytest.raises(ValueError, match=r"latin\.jsonl, byte \d+: e9 is not UTF-8 text"):
        list(read_questions(str(path)))


def test_question_and_context_may_be_empty_for_prediction(tmp_path: Path) -> None:
    rows = [{"question": "", "context": "x"}, {"question": "?", "context": ""}]
    path = write(tmp_path, "\n".join(map(json.dumps, rows)), "own.jsonl")
    assert [(e.question, e.context) for e in read_questions(path, labeled=False)] == [("", "x"), ("?", "")]


@pytest.mark.parametrize(
    ("path", "questions", "impossible"),
    [
        (SAMPLES / "squad/dev-v1.1.json", 20, 0),
        (SAMPLES / "squad/dev-v2.0.json", 21, 9),
        pytest.param(PUBLISHED / "squad/dev-v1.1.json", 10_570, 0, marks=needs_data),
        pytest.param(PUBLISHED / "squad/dev-v2.0-part-dev.json", 2_580, 1_316, marks=needs_data),
    ],
)
def test_published_files_have_their_numbers_of_questions(path: Path, questions: int, impossible: int) -> None:
    found = list(read_questions(str(path)))
    assert len(found) == questions
    assert sum(example.is_impossible for example in found) == impossible
    assert align_answers(found) == ((), (), ())
    assert len({id(example.context) for example in found}) == len({example.context for example in found})


def test_json_in_a_zip_is_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("train.json", json.dumps(tree(question())))
    assert [example.id for example in read_questions(str(tmp_path / "a.zip"))] == ["q1"]


def test_contradictory_questions_are_left_out_and_counted(tmp_path: Path) -> None:
    both = [
        question(id="q1"),
        question(id="q2", is_impossible=True),
        question(id="q3", answers=[], is_impossible=False),
        question(id="q4", answers=None),
    ]
    with pytest.warns(UserWarning, match=r"2 questions left out, .* 'is_impossible' \(.*q2.*q3\)"):
        assert [example.id for example in read_questions(write(tmp_path, tree(*both)))] == ["q1", "q4"]
    with (
        pytest.warns(UserWarning, match="1 question left out"),
        pytest.raises(ValueError, match="no questions without contradictions"),
    ):
        list(read_questions(write(tmp_path, tree(both[1]))))


@pytest.mark.parametrize("start", ["4", "4.0", 4, 4.0])
@pytest.mark.parametrize("names", [("answer_text", "answer_start"), ("answer", "start")])
def test_a_table_of_questions_has_an_answer_per_row(tmp_path: Path, start: Any, names: tuple[str, str]) -> None:
    row = {"qid": "1", "context": "the mill, the mill", "question": "What?", names[0]: "mill", names[1]: start}
    none = row | {"qid": "2", names[0]: "", names[1]: ""}
    columns = "\t".join(row) + "\tis_impossible\n"
    lines = ["\t".join(map(str, one.values())) + f"\t{flag}\n" for one, flag in ((row, "False"), (none, "True"))]
    for path in (
        write(tmp_path, columns + "".join(lines), "a.tsv"),
        write(tmp_path, json.dumps(row) + "\n" + json.dumps(none | {"is_impossible": True}), "a.jsonl"),
    ):
        first, second = read_questions(path)
        assert (first.id, first.answers, first.is_impossible) == ("1", (GoldAnswer("mill", 4),), False)
        assert (second.answers, second.is_impossible) == ((), True)
        assert [example.answers for example in read_questions(path, labeled=False)] == [(), ()]


def test_questions_of_a_folder_and_of_a_glob_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in "ba":
        write(tmp_path, json.dumps({"question": name, "context": "c", "answers": ["c"]}), f"d/{name}.jsonl")
    for path in (tmp_path / "d", tmp_path / "d/*.jsonl"):
        found = [(example.question, example.id) for example in read_questions(str(path), labeled=False)]
        assert found == [("a", "a.jsonl:1"), ("b", "b.jsonl:1")]
