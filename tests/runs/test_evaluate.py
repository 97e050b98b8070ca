"""`evaluate` and `predict` as a user types them: files of any size, texts, and what is refused."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bertwright.inference.model import Bert
from bertwright.models.config import BertConfig
from bertwright.models.heads import BertForTask
from bertwright.runs import evaluate as runs
from bertwright.runs.evaluate import EvaluateSettings, PredictSettings, evaluate, predict
from bertwright.tasks.classification import Classification, Regression
from bertwright.tasks.kinds import AnyTask
from bertwright.tasks.presets import Overrides
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.tagging import Tagging
from bertwright.training.device import DeviceSettings
from bertwright.vocabulary.tokenizer import Tokenizer

CPU = DeviceSettings("cpu", "float32", 1)
TAGGING = Tagging(labels=("O", "B-PER", "I-PER"), scheme="iob2", max_length=16)
QUESTIONS = QuestionAnswering(max_length=32, max_question=8)


@pytest.fixture
def console() -> Console:
    return Console(file=StringIO(), width=100)


def printed(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def small(vocabulary_folder: Path, task: AnyTask, folder: Path) -> tuple[Bert, str]:
    """A task's model with random weights, and the folder that it was saved in."""
    tokenizer = Tokenizer.load(vocabulary_folder)
    config = BertConfig(tokenizer.vocab_size, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
    bert = Bert(BertForTask(config, task.head, seed=1), tokenizer, task=task)
    bert.save(folder)
    return bert, str(folder)


def questions(path: Path, *rows: tuple[str, str, list[dict[str, object]]]) -> str:
    records = [dict(zip(("question", "context", "answers"), row, strict=True)) for row in rows]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".tsv", ".csv"])
def test_files_are_answered_in_order_chunk_by_chunk(
    suffix: str, tmp_path: Path, vocabulary_folder: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "AT_ONCE", 3)
    bert, model = small(vocabulary_folder, Classification(labels=("bad", "good")), tmp_path / "model")
    texts = [f"the {word} in the forest" for word in "bear deer fish wolf crow hare duck".split()]
    paths = [tmp_path / "a.tsv", tmp_path / "b.tsv"]
    for path, part in zip(paths, (texts[:5], texts[5:]), strict=True):
        path.write_text("text\n" + "".join(f"{text}\n" for text in part))
    output = tmp_path / f"out{suffix}"
    predict(PredictSettings(model, inputs=tuple(map(str, paths)), output=output, device=CPU), console)
    with output.open(newline="") as file:
        rows = (
            [json.loads(line) for line in file]
            if suffix == ".jsonl"
            else list(csv.DictReader(file, delimiter="\t" if suffix == ".tsv" else ","))
        )
    assert [row["label"] for row in rows] == [one.label for one in bert.classify(texts)]
    assert [float(row["p(good)"]) for row in rows] == pytest.approx(
        [one.probabilities["good"] for one in bert.classify(texts)], abs=1e-6
    )
    assert "7 predictions" in printed(console)


def test_tags_are_written_as_columns(tmp_path: Path, vocabulary_folder: Path, console: Console) -> None:
    bert, model = small(vocabulary_folder, TAGGING, tmp_path / "model")
    (tmp_path / "a.conll").write_text("the X\nbear X\n\nwolf X\n")
    predict(
        PredictSettings(model, inputs=(str(tmp_path / "a.conll"),), output=tmp_path / "o.conll", device=CPU), console
    )
    first, second = bert.tag([("the", "bear"), ("wolf",)])
    expected = f"the\t{first.tags[0]}\nbear\t{first.tags[1]}\n\nwolf\t{second.tags[0]}\n\n"
    assert (tmp_path / "o.conll").read_text() == expected


def test_an_answer_without_a_place_is_scored(tmp_path: Path, vocabulary_folder: Path, console: Console) -> None:
    _, model = small(vocabulary_folder, QUESTIONS, tmp_path / "model")
    twice = ("the bear sees", "the bear sees the bear", [{"text": "bear"}])
    nowhere = ("the bear sees", "the wolf sees", [{"text": "the deer"}])
    scores = evaluate(
        EvaluateSettings(model, (questions(tmp_path / "q.jsonl", twice, nowhere),), tmp_path / "s.json", device=CPU),
        console,
    )
    assert 0 <= scores["exact_match"] <= scores["f1"] <= 1
    assert json.loads((tmp_path / "s.json").read_text()) == scores
    assert "2 examples" in printed(console)


def test_an_unknown_label_is_refused(tmp_path: Path, vocabulary_folder: Path, console: Console) -> None:
    _, model = small(vocabulary_folder, Classification(labels=("bad", "good")), tmp_path / "model")
    (tmp_path / "a.tsv").write_text("text\tlabel\nthe bear\tgood\nthe wolf\tugly\n")
    with pytest.raises(ValueError, match=r"a\.tsv, line 3: the label 'ugly' is not one of the training data"):
        evaluate(EvaluateSettings(model, (str(tmp_path / "a.tsv"),), device=CPU), console)


def test_a_place_for_scores_is_tried_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    monkeypatch.setattr(runs, "load", lambda *_: pytest.fail("began before the place was tried"))
    (tmp_path / "s.json").touch()
    for place, message in ((Path("/sys/s.json"), "denied|Read-only"), (tmp_path / "s.json", "is there already")):
        with pytest.raises((OSError, ValueError), match=message):
            evaluate(EvaluateSettings("model", ("a.tsv",), place, device=CPU), console)


def test_what_is_overridden_holds_for_texts_too(tmp_path: Path, vocabulary_folder: Path, console: Console) -> None:
    _, model = small(vocabulary_folder, QUESTIONS, tmp_path / "model")
    texts, overrides = ("the bear sees", "the wolf sees the bear"), Overrides(n_best=2)
    predict(PredictSettings(model, texts, overrides=overrides, device=CPU), console)
    assert printed(console).count("%") == 2


@pytest.mark.parametrize("task", [Regression(pair="pair"), Classification(pair="pair", labels=("no", "yes"))])
def test_two_texts_are_a_pair_where_the_task_is_about_pairs(
    task: AnyTask, tmp_path: Path, vocabulary_folder: Path, console: Console
) -> None:
    _, model = small(vocabulary_folder, task, tmp_path / "model")
    predict(PredictSettings(model, ("the bear", "the wolf"), device=CPU), console)
    assert "the bear / the wolf" in printed(console)
    with pytest.raises(ValueError, match="about pairs: give two texts, not 3"):
        predict(PredictSettings(model, ("the bear", "the wolf", "the deer"), device=CPU), console)


def test_equal_ids_in_two_files_lose_no_answer_in_silence(
    tmp_path: Path, vocabulary_folder: Path, console: Console
) -> None:
    _, model = small(vocabulary_folder, QUESTIONS, tmp_path / "model")
    asked = ("the bear sees", "the wolf sees", [{"text": "the wolf"}])
    files = tuple(questions(tmp_path / name, asked) for name in ("a.jsonl", "b.jsonl"))
    output = tmp_path / "answers.json"
    with pytest.raises(ValueError, match=r'b\.jsonl, line 1: the id "1" is that of a question before'):
        predict(PredictSettings(model, inputs=files, output=output, device=CPU), console)
    assert not output.exists()
    predict(PredictSettings(model, inputs=files[:1], output=output, device=CPU), console)
    assert list(json.loads(output.read_text())) == ["1"]


def test_a_form_of_another_kind_is_refused(tmp_path: Path, vocabulary_folder: Path, console: Console) -> None:
    _, model = small(vocabulary_folder, Classification(labels=("bad", "good")), tmp_path / "model")
    for name, kind in (("o.conll", "tagging"), ("o.json", "question-answering")):
        with pytest.raises(ValueError, match=rf"{name}: \.\w+ is the form of {kind}"):
            predict(PredictSettings(model, inputs=("a.tsv",), output=tmp_path / name, device=CPU), console)
