"""`demo/korean.py`: particles (hand-worked), and what it writes in the forms of NSMC, KLUE-NER and KorQuAD."""

from __future__ import annotations

import csv
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from bertwright.tables.tag_schemes import find_invalid_tag
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.tagging import Tagging

DEMO: dict[str, Any] = runpy.run_path(str(Path(__file__).parents[2] / "demo" / "korean.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("korean")
    DEMO["main"](path)
    return path


@pytest.mark.parametrize(
    ("name", "particle", "expected"),
    [
        ("서울", "은", "서울은"),
        ("부산시", "은", "부산시는"),
        ("한강", "이", "한강이"),
        ("사과", "을", "사과를"),
        ("포도", "과", "포도와"),
        ("서울", "으로", "서울로"),  # after ㄹ as after a vowel
        ("서울", "이며", "서울이며"),
        ("강릉", "으로", "강릉으로"),
        ("춘천시", "으로", "춘천시로"),
        ("기차", "이며", "기차며"),
        ("기차", "에게", "기차에게"),  # one form
        ("《푸른 바다》", "은", "《푸른 바다》는"),
        ("3만 명", "이", "3만 명이"),
    ],
)
def test_particle_fits_the_name(name: str, particle: str, expected: str) -> None:
    assert DEMO["attach"](name, particle) == expected


def test_names_are_found_without_their_particles() -> None:
    text, slots = DEMO["render"](
        "{person:은} {town}에서 {title:을} 썼다.", {"person": "이수", "town": "솔내", "title": "《봄》"}
    )
    assert text == "이수는 솔내에서 《봄》을 썼다."
    assert [(field, text[start:end]) for field, start, end in slots] == [
        ("person", "이수"), ("town", "솔내"), ("title", "《봄》"),
    ]  # fmt: skip


def test_corpus_has_every_document_and_no_template(folder: Path) -> None:
    text = (folder / "corpus.txt").read_text(encoding="utf-8")
    assert "{" not in text
    assert len(text.split("\n\n")) == DEMO["DOCUMENTS"]


def test_reviews_have_two_labels_and_none_is_in_both_splits(folder: Path) -> None:
    task = TaskSettings("nsmc", data=folder / "nsmc")
    splits = [list(task.build_task().read(*task.files(split))) for split in ("train", "test")]
    train, test = ({example.text: example.label for example in split} for split in splits)
    assert (len(train), len(test)) == (DEMO["REVIEWS"]["train"], DEMO["REVIEWS"]["test"])
    assert not train.keys() & test.keys()
    assert set(train.values()) == set(test.values()) == {"0", "1"}
    with (folder / "nsmc/ratings_train.txt").open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    assert header == ["id", "document", "label"]
    assert len(rows) == len(train)


def test_tags_spell_entities_character_by_character(folder: Path) -> None:
    for split, number in DEMO["TAGGED"].items():
        sentences = list(Tagging(comment_prefix="##").read(str(folder / f"klue-ner/klue-ner-v1.1_{split}.tsv")))
        assert len(sentences) == number
        for sentence in sentences:
            assert sentence.tags is not None
            assert all(len(word) == 1 for word in sentence.words)
            assert find_invalid_tag(sentence.tags, "iob2") is None
        assert Tagging().with_labels_of(sentences).unit == "character or blank"


def test_answers_are_where_the_questions_say(folder: Path) -> None:
    task = TaskSettings("korquad", data=folder / "korquad")
    for split in ("train", "dev"):
        examples = list(task.build_task().read(*task.files(split)))
        assert len({example.id for example in examples}) == len(examples)
        assert not task.build_task().warnings(examples)
        tree = json.loads(Path(*task.files(split)).read_text(encoding="utf-8"))
        assert tree["version"] == f"KorQuAD_v1.0_{split}"
