"""A reader of questions from whole words (BCN with a span head): trained, read back, asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertwright
from bertwright.base.settings import from_table
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from harness import run_and_capture

NAMES, PLACES = "Ann Bob Cleo Dan Eve Finn".split(), "Rome Paris Oslo Bern Kyiv Riga Cairo Lima".split()


def write_questions(path: Path, count: int, seed: int) -> None:
    """Write questions in SQuAD's format: two people and their towns, of which one is asked for."""
    rng, paragraphs = np.random.default_rng(seed), []
    for number in range(count):
        people, towns = rng.choice(NAMES, 2, replace=False), rng.choice(PLACES, 2, replace=False)
        context = " ".join(f"{who} lives in {town}." for who, town in zip(people, towns, strict=True))
        asked = int(rng.integers(2))
        answer = {"text": towns[asked], "answer_start": context.index(towns[asked])}
        question = {"id": str(number), "question": f"Where does {people[asked]} live?", "answers": [answer]}
        paragraphs.append({"context": context, "qas": [question]})
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "", "paragraphs": paragraphs}]}))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("questions")
    for seed, (split, count) in enumerate({"train": 320, "dev": 60}.items()):
        write_questions(folder / f"{split}.json", count, seed)
    return {
        "run": str(folder / "run"),
        "task": {"task": "question-answering", "train": [f"{folder}/train.json"], "dev": [f"{folder}/dev.json"]},
        "architecture": "bcn",
        "words": {"word_size": 24, "lstm_size": 16},
        "epochs": 14.0,
        "batch_size": 16,
        "optimizer": {"learning_rate": 0.005},
        "tuning": {"dropout": 0.0},
        "device": {"device": "cpu", "dtype": "float32", "threads": 1},
    }


def test_the_answer_depends_on_the_question(table: dict[str, Any]) -> None:
    run_and_capture(finetune, from_table(FinetuneSettings, table, "table"))
    reader = bertwright.load(table["run"])
    context = "Dan lives in Lima. Ann lives in Kyiv."
    answers = reader.answer(["Where does Ann live?", "Where does Dan live?"], context)
    assert [answer.text for answer in answers] == ["Kyiv", "Lima"]
    assert [context[answer.start : answer.end] for answer in answers] == ["Kyiv", "Lima"]


def test_a_model_that_reads_texts_alone_is_rejected(table: dict[str, Any], tmp_path: Path) -> None:
    settings = from_table(FinetuneSettings, table | {"run": str(tmp_path / "run"), "architecture": "bilstm"}, "table")
    with pytest.raises(ValueError, match=r"--architecture: expected bcn for question-answering, got bilstm.*--model"):
        run_and_capture(finetune, settings)
    assert not (tmp_path / "run" / "settings.toml").exists()
