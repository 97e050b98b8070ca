"""`evaluate_examples` and `predict` as a user types them: files of any size, texts, and what is refused."""

from __future__ import annotations

import csv
import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from bertwright.commands import evaluate as evaluating
from bertwright.commands.evaluate import EvaluateSettings, evaluate
from bertwright.commands.predict import PredictSettings, predict
from bertwright.inference.model import Bert
from bertwright.io.tables import TableSchema, read_rows
from bertwright.models.config import BertConfig
from bertwright.models.encoder import BertEncoder
from bertwright.models.heads import EncoderForTask
from bertwright.tasks import prediction
from bertwright.tasks.classification import Classification
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.presentation import truncation_warnings
from bertwright.tasks.presets import TaskOptions
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task_io import AnyTask
from bertwright.training.settings import DeviceSettings
from bertwright.vocabulary.tokenizer import Tokenizer

CPU = DeviceSettings("cpu", "float32", 1)
TAGGING = Tagging(labels=("O", "B-PER", "I-PER"), scheme="iob2", max_length=16)
QUESTIONS = QuestionAnswering(max_length=32, max_query_length=8)


@pytest.fixture
def console() -> Console:
    return Console(file=StringIO(), width=100)


def printed(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def small(vocabulary_folder: Path, task: AnyTask, folder: Path) -> tuple[Bert, str]:
    """A task's model with random weights, and the folder that it was saved in."""
    tokenizer = Tokenizer.load(vocabulary_folder)
    config = BertConfig(tokenizer.vocab_size, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
    bert = Bert(EncoderForTask(BertEncoder(config, seed=1), task.head, seed=1), tokenizer, task=task)
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
    monkeypatch.setattr(prediction, "MAX_CHUNK_EXAMPLES", 3)
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


def conllu(*rows: str) -> str:
    return "".join(f"{row}\t_\t_\tX\t_\t_\t_\t_\t_\t_\n" if row else "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.conll", "the X\nbear X\n\nwolf X\n"),
        ("a.conllu", conllu("1\tthe", "2-3\tbears", "2\tbear", "", "1\twolf")),  # whose lines do not follow one another
    ],
)
def test_tags_are_written_as_columns(
    name: str, text: str, tmp_path: Path, vocabulary_folder: Path, console: Console
) -> None:
    bert, model = small(vocabulary_folder, TAGGING, tmp_path / "model")
    (tmp_path / name).write_text(text)
    predict(PredictSettings(model, inputs=(str(tmp_path / name),), output=tmp_path / "o.conll", device=CPU), console)
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
    with pytest.raises(ValueError, match=r"a\.tsv, line 3: label 'ugly' is not one of the training data"):
        evaluate(EvaluateSettings(model, (str(tmp_path / "a.tsv"),), device=CPU), console)


def test_a_place_for_scores_is_tried_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, console: Console
) -> None:
    monkeypatch.setattr(evaluating, "load", lambda *_: pytest.fail("began before the place was tried"))
    (tmp_path / "s.json").touch()
    for place, message in ((Path("/sys/s.json"), "denied|Read-only"), (tmp_path / "s.json", "already exists")):
        with pytest.raises((OSError, ValueError), match=message):
            evaluate(EvaluateSettings("model", ("a.tsv",), place, device=CPU), console)


def test_what_is_overridden_holds_for_texts_too(tmp_path: Path, vocabulary_folder: Path, console: Console) -> None:
    _, model = small(vocabulary_folder, QUESTIONS, tmp_path / "model")
    texts, overrides = ("the bear sees", "the wolf sees the bear"), TaskOptions(n_best_size=2)
    predict(PredictSettings(model, texts, overrides=overrides, device=CPU), console)
    assert printed(console).count("%") == 2


@pytest.mark.parametrize("task", [Regression(text_pair="pair"), Classification(text_pair="pair", labels=("no", "yes"))])
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
    with pytest.raises(ValueError, match=r'b\.jsonl, line 1: the id "1" is that of an earlier question'):
        predict(PredictSettings(model, inputs=files, output=output, device=CPU), console)
    assert not output.exists()
    predict(PredictSettings(model, inputs=files[:1], output=output, device=CPU), console)
    assert list(json.loads(output.read_text())) == ["1"]


def test_a_form_of_another_kind_is_refused(tmp_path: Path, vocabulary_folder: Path, console: Console) -> None:
    _, model = small(vocabulary_folder, Classification(labels=("bad", "good")), tmp_path / "model")
    for name, kind in (("o.conll", "tagging"), ("o.json", "question-answering")):
        with pytest.raises(ValueError, match=rf"{name}: \.\w+ is the form of {kind}"):
            predict(PredictSettings(model, inputs=("a.tsv",), output=tmp_path / name, device=CPU), console)


GOOD = {"a.tsv": "text\nthe bear\n", "a.conll": "the\tX\n", "a.jsonl": '{"prompt": "the", "all": ["bear", "wolf"]}\n'}
CLASSES = Classification(labels=("bad", "good"))


@pytest.mark.parametrize(
    ("task", "names", "last", "output", "message"),
    [
        (CLASSES, "a.tsv gone.tsv", "", "o.jsonl", "gone.tsv: no such file"),
        (CLASSES, "a.tsv b.tsv", "text\n" + "the wolf\n" * 5 + "the\twolf\n", "o.tsv", "b.tsv, line 7: 1 columns exp"),
        (
            TAGGING,
            "a.conll b.jsonl",
            '{"words": ["the", "-DOCSTART-"]}\n',
            "o.conll",
            "b.jsonl, line 1: the word '-DOCSTART-' cannot",
        ),
        (
            MultipleChoice(endings=("all",)),
            "a.jsonl b.jsonl",
            '{"prompt": "the", "all": ["bear", "wolf", "deer"]}\n',
            "o.csv",
            "b.jsonl, line 1: expected 2 endings, as in the file before, got 3",
        ),
    ],
)
def test_what_is_wrong_with_the_last_file_shows_before_the_first_prediction(
    task: AnyTask,
    names: str,
    last: str,
    output: str,
    message: str,
    tmp_path: Path,
    vocabulary_folder: Path,
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prediction, "MAX_CHUNK_EXAMPLES", 1)
    monkeypatch.setattr(prediction, "predict_logits", lambda *_: pytest.fail("began before all files were read"))
    _, model = small(vocabulary_folder, task, tmp_path / "model")
    first, second = (tmp_path / name for name in names.split())
    first.write_text(GOOD[first.name])
    if last:
        second.write_text(last)
    with pytest.raises(ValueError, match=message):
        predict(PredictSettings(model, inputs=(str(first), str(second)), output=tmp_path / output, device=CPU), console)
    assert {path.name for path in tmp_path.iterdir()} <= {"model", *names.split()}


def test_examples_that_lose_tokens_are_counted(tmp_path: Path, vocabulary_folder: Path, console: Console) -> None:
    _, model = small(vocabulary_folder, Classification(labels=("bad", "good"), max_length=6), tmp_path / "model")
    long, path = "the bear sees the wolf in the forest", tmp_path / "a.tsv"
    path.write_text(f"text\tlabel\n{long}\tgood\nthe bear\tbad\n{long}\tgood\n")
    told = "! 2 of 3 examples (66.7%) lose tokens: max_length is 6; raise max_length to keep them whole"
    for number, overrides in enumerate((TaskOptions(), TaskOptions(max_length=16))):
        evaluate(EvaluateSettings(model, (str(path),), overrides=overrides, device=CPU), console)
        output = tmp_path / f"{number}.jsonl"
        predict(PredictSettings(model, inputs=(str(path),), output=output, overrides=overrides, device=CPU), console)
        predict(PredictSettings(model, (long, "the bear", long), overrides=overrides, device=CPU), console)
        assert printed(console).count(told) == 3


def test_the_model_s_positions_are_no_setting_to_be_raised() -> None:
    (sentence,) = truncation_warnings(QuestionAnswering(max_query_length=8), 2_000, 1_000, 512)
    assert sentence == (
        "1,000 of 2,000 examples (50.0%) lose tokens: max_query_length is 8; raise max_query_length to keep them whole"
    )
    assert truncation_warnings(CLASSES, 2, 1, CLASSES.max_length)[0].endswith("128; the model has no more positions")


def test_a_tsv_is_read_again_as_it_was_written(tmp_path: Path, vocabulary_folder: Path, console: Console) -> None:
    bert, model = small(vocabulary_folder, Classification(labels=('5" disc', 'a\t"b"\r\nc')), tmp_path / "model")
    texts = [f"the {word}" for word in "bear deer fish wolf crow hare duck".split()]
    (tmp_path / "a.tsv").write_text("text\n" + "".join(f"{text}\n" for text in texts))
    for name in ("o.jsonl", "o.csv", "o.tsv"):
        assert "tabs" not in printed(console)
        settings = PredictSettings(model, inputs=(str(tmp_path / "a.tsv"),), output=tmp_path / name, device=CPU)
        predict(settings, console)
    said = [one.label for one in bert.classify(texts)]
    columns = TableSchema(("label", 'p(5" disc)', 'p(a "b" c)'))
    rows = [values for _, values in read_rows(str(tmp_path / "o.tsv"), columns)]
    assert [label for label, *_ in rows] == ['a "b" c' if "b" in label else label for label in said]
    assert [sum(map(float, shares)) for _, *shares in rows] == pytest.approx([1] * 7, abs=1e-5)
    kept = [label for _, (label,) in read_rows(str(tmp_path / "o.csv"), TableSchema(("label",)))]
    assert kept == said
    fields = 1 + sum("b" in label for label in said)  # and the header's
    assert f"! {fields} fields held tabs or line breaks, now spaces; .jsonl and .csv keep them" in printed(console)


@pytest.mark.parametrize("scheme", ["iob2", "none"])
def test_every_text_that_was_tagged_has_a_place_of_its_own(
    scheme: str, tmp_path: Path, vocabulary_folder: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bears(found: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(found))[:, None] == 1, [0, 1, 0], [1, 0, 0]).astype(np.float32) * 99

    task = Tagging(labels=("O", "B-PER", "I-PER"), scheme=scheme)
    _, model = small(vocabulary_folder, task, tmp_path / "model")
    monkeypatch.setattr(
        prediction, "predict_logits", lambda _, encoded: bears(encoded.positions)
    )  # the second of all words
    predict(PredictSettings(model, ("the bear", "the [wolf]", " "), device=CPU), console)
    shown = [" ".join(line.split()) for line in printed(console).splitlines()]
    shown = [line for line in shown if line and "──" not in line]
    header = "text label characters probability"
    if scheme == "iob2":
        entity = "bear PER 4-8 100.0%"
        assert shown == ["the bear", header, entity, "the [wolf]", "no entities", "(no text)", "no entities"]
    else:
        first = ["the bear", header, "the O 0-3 100.0%", "bear B-PER 4-8 100.0%"]
        assert shown[:5] == [*first, "the [wolf]"]
        assert shown[-2:] == ["(no text)", "no words"]


def test_scores_are_those_of_the_model_s_own_threshold(
    tmp_path: Path, vocabulary_folder: Path, console: Console
) -> None:
    task = QuestionAnswering(max_length=32, max_query_length=8, allow_no_answer=True, threshold=1e6)
    _, model = small(vocabulary_folder, task, tmp_path / "model")
    path = questions(tmp_path / "q.jsonl", ("the bear", "bear", [{"text": "bear"}]), ("the wolf", "wolf", []))
    scores = evaluate(EvaluateSettings(model, (path,), device=CPU), console)
    # Neither is answered. With the threshold that suits this file best, the first would be, and more would be right.
    assert (scores["exact_match"], scores["f1"]) == (0.5, 0.5)
