"""Entities as character spans in the forms of annotation tools, and tags of words that do not fit them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.tables.char_spans import CharSpan, parse_spans, tags_of_spans
from bertwright.tables.tag_example import TagExample
from bertwright.tables.tagged_sentences import read_sentences
from bertwright.tasks.tagging import Tagging

TEXT = "Anna Weber lives in Graz."
SPANS = [(0, 10, "PER"), (20, 24, "LOC")]
OBJECTS = [{"start": start, "end": end, "label": label} for start, end, label in SPANS]
STUDIO = [
    {"value": {"start": s, "end": e, "text": TEXT[s:e], "labels": [label]}, "type": "labels"} for s, e, label in SPANS
]
FORMS = {
    "doccano.jsonl": {"id": 1, "text": TEXT, "label": SPANS, "Comments": []},
    "doccano-old.jsonl": {"text": TEXT, "labels": SPANS},
    "doccano-relations.jsonl": {
        "text": TEXT,
        "entities": [{"id": 3, "start_offset": s, "end_offset": e, "label": label} for s, e, label in SPANS],
        "relations": [],
    },
    "studio.json": [
        {
            "data": {"text": TEXT},
            "annotations": [
                {"was_cancelled": True, "result": []},
                {"was_cancelled": False, "result": [*STUDIO, {"type": "relation", "from_id": "a", "to_id": "b"}]},
                {"result": STUDIO[:1]},
            ],
        }
    ],
    "studio-min.json": [{"text": TEXT, "label": [one["value"] for one in STUDIO], "annotator": 1}],
    "prodigy.jsonl": {"text": TEXT, "tokens": [{"text": "Anna", "start": 0, "end": 4}], "spans": OBJECTS},
    "spacy.json": [[TEXT, {"entities": SPANS}]],
    "annotator.json": {"classes": ["PER"], "annotations": [[TEXT, {"entities": SPANS}]]},
    "doc.json": [{"text": TEXT, "ents": OBJECTS, "tokens": [{"id": 0, "start": 0, "end": 4}]}],
}


def write(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content) + "\n")
    return str(path)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FORMS)
def test_every_export_gives_the_same_tags(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, FORMS[name])
    (example,) = Tagging().read(path)
    assert example.words == ("Anna", "Weber", "lives", "in", "Graz", ".")
    assert example.tags == ("B-PER", "I-PER", "O", "O", "B-LOC", "O")
    assert Tagging().with_labels_of([example]).warnings([example]) == []
    (unlabeled,) = Tagging().read(path, labeled=False)
    assert (unlabeled.words, unlabeled.tags) == (example.words, None)


def test_columns_are_chosen_by_the_user_or_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"body": TEXT, "marks": SPANS, "text": "x", "labels": []})
    (example,) = Tagging(words="body", tags="marks").read(path)
    assert example.tags is not None
    assert "B-LOC" in example.tags
    with pytest.warns(UserWarning, match=r"a\.jsonl: read as char-spans .*'text' and 'labels'"):
        assert [example.tags for example in Tagging().read(path)] == [("O",)]


def test_spans_that_are_not_words_are_read_as_the_words_they_touch_and_counted() -> None:
    offsets = TagExample.from_text(TEXT).offsets
    spans = [CharSpan(2, 8, "PER"), CharSpan(19, 24, "LOC"), CharSpan(20, 24, "ORG"), CharSpan(70, 80, "LOC")]
    tags, changed = tags_of_spans(TEXT, offsets, spans)
    assert tags == ("B-PER", "I-PER", "O", "O", "B-LOC", "O")
    assert sorted(changed) == ["", " Graz", "Graz", "na Web"]
    example = TagExample.from_text(TEXT, "a.jsonl, line 1")
    bad = TagExample(example.words, tags, "a.jsonl, line 1", text=TEXT, offsets=offsets, changed_spans=changed)
    (note,) = Tagging().with_labels_of([bad]).warnings([bad])
    assert note.startswith("4 spans are not exactly words")
    assert "a.jsonl, line 1" in note
    assert "--unit character" in note


def test_spans_in_a_language_without_spaces_are_read_by_character(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", {"text": "我住在北京", "spans": [[3, 5, "LOC"]]})
    task = Tagging(unit="character", words="text", tags="spans")
    (example,) = task.read(path)
    assert (example.words, example.tags) == (tuple("我住在北京"), ("O", "O", "O", "B-LOC", "I-LOC"))
    assert example.changed_spans == ()
    assert task.with_labels_of([example]).unit == "character"


def test_prediction_of_a_text_can_be_read_again(tmp_path: Path) -> None:
    task = Tagging(scheme="iob2", labels=("O", "B-PER", "I-PER"))
    (example,) = task.examples_from_texts([TEXT], "here")
    prediction = task._predict(example, ("B-PER", "I-PER", *"OOOO"), (1.0,) * 6)
    path = write(tmp_path / "a.jsonl", task.to_record(example, prediction))
    (again,) = Tagging(words="text", tags="entities").read(path)
    assert (again.text, again.tags) == (TEXT, prediction.tags)


@pytest.mark.parametrize("value", ["O", [1, 2], [[0, 4]], {"start": "0", "end": 4, "label": "X"}, [{"start": 0}], 3])
def test_anything_else_is_an_error_that_names_the_place(value: Any) -> None:
    with pytest.raises(ValueError, match=re.escape("line 3: expected spans as")):
        parse_spans(value, "a.jsonl, line 3")


def test_many_spans_of_one_long_text_are_read_at_once() -> None:
    """Tens of thousands of spans in a text of tens of thousands of words once took hours."""
    text, spans = "ab " * 30_000, [CharSpan(3 * n, 3 * n + 2, "X") for n in range(30_000)]
    offsets = [(3 * n, 3 * n + 2) for n in range(30_000)]
    tags, changed = tags_of_spans(text, offsets, [*spans, *(CharSpan(0, len(text), "X") for _ in range(20_000))])
    assert tags == ("B-X", *["I-X"] * 29_999)
    assert len(changed) == 50_000
    assert max(map(len, changed)) <= 60


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-2, 14), st.integers(-2, 14)), max_size=6))
def test_tags_equal_those_of_a_search_through_all_words(limits: list[tuple[int, int]]) -> None:
    text, offsets = "ab c, def gh", [(0, 2), (3, 4), (4, 5), (6, 9), (10, 12)]
    spans = [CharSpan(start, end, str(n)) for n, (start, end) in enumerate(limits)]
    expected = ["O"] * len(offsets)
    for start, end, label, _ in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        touched = [n for n, (first, last) in enumerate(offsets) if first < end and last > start]
        if touched and all(expected[n] == "O" for n in touched):
            expected[touched[0] : touched[-1] + 1] = [f"B-{label}"] + [f"I-{label}"] * (len(touched) - 1)
    assert tags_of_spans(text, offsets, spans)[0] == tuple(expected)


def test_examples_that_an_annotator_of_prodigy_rejected_are_left_out_of_training(tmp_path: Path) -> None:
    rows = [
        {
            "text": f"Paris {answer}",
            "spans": [{"start": 0, "end": 5, "label": "LOC"}],
            "_input_hash": 1,
            "answer": answer,
        }
        for answer in ("accept", "reject", "ignore", "accept")
    ]
    path = tmp_path / "prodigy.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.warns(UserWarning, match="left out because their 'answer' is reject or ignore: 2$"):
        read = list(read_sentences(str(path), labeled=True))
    assert [example.words for example in read] == [("Paris", "accept")] * 2
    assert len(list(read_sentences(str(path), labeled=False))) == 4


LONG = "🎉🎉 Anna Weber\r\nlives — in Graz ."
ENTITIES = [("Anna Weber", "PER"), ("Graz", "LOC")]


@pytest.mark.parametrize("has_texts", [True, False])
@pytest.mark.parametrize(
    ("unit", "text", "annotated"),
    [
        ("utf-16-le", LONG, LONG),
        ("utf-32-le", LONG.replace("\r", ""), LONG),
        ("utf-16-le", LONG.replace("\r", ""), LONG),
        ("utf-32-le", LONG, LONG.replace("\r", "")),
        ("utf-16-le", LONG, LONG.replace("\r", "")),
        ("utf-8", LONG, LONG),
    ],
)
def test_spans_that_count_something_else_are_converted(
    tmp_path: Path, unit: str, text: str, annotated: str, has_texts: bool
) -> None:
    size = len("a".encode(unit))
    spans = []
    for name, label in ENTITIES:
        start = len(annotated[: annotated.index(name)].encode(unit)) // size
        span = {"start": start, "end": start + len(name), "label": label}
        spans.append(span | {"text": name} if has_texts else span)
    with pytest.warns(UserWarning, match="the spans of 1 texts count .*; converted to characters"):
        (example,) = Tagging().read(write(tmp_path / "a.jsonl", {"text": text, "spans": spans}))
    assert example.tags is not None
    assert [
        word for word, tag in zip(example.words, example.tags, strict=True) if tag != "O"
    ] == "Anna Weber Graz".split()
    assert not example.changed_spans


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_spans_whose_texts_are_elsewhere_are_found_by_these_or_are_an_error(tmp_path: Path) -> None:
    span = {"start": 1, "end": 5, "label": "LOC", "text": "Graz"}
    (example,) = Tagging().read(write(tmp_path / "a.jsonl", {"text": TEXT, "spans": [span]}))
    assert example.tags == ("O", "O", "O", "O", "B-LOC", "O")
    for odd in (span | {"text": "Linz"}, {"start": 70, "end": 75, "label": "Linz"}):
        with pytest.raises(ValueError, match=r"a\.jsonl, line 1: 'spans': expected 'Linz' from \d+ to \d+, got"):
            list(Tagging().read(write(tmp_path / "a.jsonl", {"text": TEXT, "spans": [odd]})))


def test_brat_and_pubtator_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "brat"
    folder.mkdir()
    brat = "T1\tPER 0 10\tAnna Weber\nT2\tLOC 20 24\tGraz\nT3\tPER 0 4;5 10\tAnna Weber\nR1\tlives Arg1:T1 Arg2:T2\n"
    text = TEXT.replace("lives in", "lives\nin")
    for name, content in {"a.txt": text, "a.ann": brat, "b.txt": TEXT, "b.ann": brat, "annotation.conf": "[x]"}.items():
        (folder / name).write_text(content)
    pubtator = tmp_path / "pubtator.txt"
    title, abstract = text.split("\n")
    pubtator.write_text(f"7|t|{title}\n7|a|{abstract}\n7\t0\t10\tAnna Weber\tPER\tD1\n7\t20\t24\tGraz\tLOC\n\n8|t|x\n")
    halves = [("B-PER", "I-PER", "O"), ("O", "B-LOC", "O")]
    with pytest.warns(UserWarning, match=f"{folder}: read as brat"):
        assert [one.tags for one in Tagging().read(str(folder))] == [*halves, sum(halves, ())]
    with pytest.warns(UserWarning, match="read as brat"):
        assert [one.tags for one in Tagging().read(str(folder / "a.ann"))] == halves
    with pytest.warns(UserWarning, match=r"pubtator\.txt: read as pubtator"):
        assert [(one.tags, one.document) for one in Tagging().read(str(pubtator))] == [
            (halves[0], 0), (halves[1], 0), (("O",), 1)
        ]  # fmt: skip
    (folder / "a.ann").write_text("T1\tLOC 11 19\tlives in\n")
    with pytest.warns(UserWarning, match="brat"):
        (cut, _) = Tagging().read(str(folder / "a.ann"))
    assert (cut.tags, cut.changed_spans) == (("O", "O", "B-LOC"), ("lives",))
    (folder / "a.ann").write_text("T1\tPER x 10\tAnna\n")
    with (
        pytest.warns(UserWarning, match="brat"),
        pytest.raises(ValueError, match=r"a\.ann, line 1: expected an entity"),
    ):
        list(Tagging().read(str(folder / "a.txt")))


@pytest.mark.filterwarnings("ignore:.*read as char-spans")
def test_entities_of_which_none_is_understood_are_noticed(tmp_path: Path) -> None:
    row = {"text": TEXT, "spans": [{"type": "PER", "from": 0, "to": 10}]}
    with pytest.warns(UserWarning, match=r"no entity is understood, such as .*line 1: .*'from': 0"):
        list(Tagging().read(write(tmp_path / "a.jsonl", row)))
