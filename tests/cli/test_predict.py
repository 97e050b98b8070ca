"""`bertwright predict`: files of any size and texts, and errors."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from task_models import CLASSES, QUESTIONS, TAGGING, save_random_model, write_questions

from bertwright.cli.render.terminal import TerminalReporter
from bertwright.inference import predict_inputs
from bertwright.inference.evaluate import EvaluateSettings, evaluate
from bertwright.inference.predict import predict
from bertwright.inference.predict_settings import PredictSettings
from bertwright.tables.schema import TableSchema
from bertwright.tables.tables import read_rows
from bertwright.tasks import ensemble, prediction
from bertwright.tasks.classification import Classification
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_types import TaskOptions
from helpers import CPU, read_output


@pytest.mark.parametrize("suffix", [".jsonl", ".tsv", ".csv"])
def test_predict_writes_files_in_order_chunk_by_chunk(
    suffix: str, tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "MAX_CHUNK_EXAMPLES", 3)
    bert, model = save_random_model(vocabulary_folder, CLASSES, tmp_path / "model")
    texts = [f"the {word} in the forest" for word in "bear deer fish wolf crow hare duck".split()]
    paths = [tmp_path / "a.tsv", tmp_path / "b.tsv"]
    for path, lines in zip(paths, (texts[:5], texts[5:]), strict=True):
        path.write_text("text\n" + "".join(f"{text}\n" for text in lines))
    output = tmp_path / f"out{suffix}"
    predict(PredictSettings(model, inputs=tuple(map(str, paths)), output=output, device=CPU), reporter)
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
    assert "7 predictions" in read_output(reporter)


def test_limit_predicts_the_first_examples_of_the_files_with_their_columns(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    bert, model = save_random_model(vocabulary_folder, CLASSES, tmp_path / "model")
    texts = [f"the {word} in the forest" for word in "bear deer fish wolf crow".split()]
    for name, lines in (("a", texts[:2]), ("b", texts[2:])):
        rows = "".join(f"{text}\t{name}{number}\n" for number, text in enumerate(lines))
        (tmp_path / f"{name}.tsv").write_text(f"text\tid\n{rows}")
    files = tuple(str(tmp_path / f"{name}.tsv") for name in "ab")
    settings = PredictSettings(
        model, inputs=files, limit=3, output=tmp_path / "o.jsonl", keep_columns=("id",), device=CPU
    )
    predict(settings, reporter)
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [(row["id"], row["label"]) for row in rows] == list(
        zip(("a0", "a1", "b0"), (answer.label for answer in bert.classify(texts[:3])), strict=True)
    )
    with pytest.raises(ValueError, match="--limit 3: expected --inputs"):
        PredictSettings(model, ("the bear",), limit=3)
    with pytest.raises(ValueError, match="limit"):
        replace(settings, limit=0)


def conllu(*rows: str) -> str:
    return "".join(f"{row}\t_\t_\tX\t_\t_\t_\t_\t_\t_\n" if row else "\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.conll", "the X\nbear X\n\nwolf X\n"),
        (
            "a.conllu",
            conllu("1\tthe", "2-3\tbears", "2\tbear", "", "1\twolf"),
        ),  # the numbers of its lines are not consecutive
    ],
)
def test_predict_writes_tags_as_columns(
    name: str, text: str, tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    bert, model = save_random_model(vocabulary_folder, TAGGING, tmp_path / "model")
    (tmp_path / name).write_text(text)
    predict(PredictSettings(model, inputs=(str(tmp_path / name),), output=tmp_path / "o.conll", device=CPU), reporter)
    first, second = bert.tag([("the", "bear"), ("wolf",)])
    expected = f"the\t{first.tags[0]}\nbear\t{first.tags[1]}\n\nwolf\t{second.tags[0]}\n\n"
    assert (tmp_path / "o.conll").read_text() == expected


def test_predict_applies_overrides_to_texts(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    _, model = save_random_model(vocabulary_folder, QUESTIONS, tmp_path / "model")
    texts, overrides = ("the bear sees", "the wolf sees the bear"), TaskOptions(n_best_size=2)
    predict(PredictSettings(model, texts, overrides=overrides, device=CPU), reporter)
    assert read_output(reporter).count("%") == 2


@pytest.mark.parametrize("task", [Regression(text_pair="pair"), Classification(text_pair="pair", labels=("no", "yes"))])
def test_predict_reads_two_texts_as_a_pair_for_a_task_on_pairs(
    task: AnyTask, tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    _, model = save_random_model(vocabulary_folder, task, tmp_path / "model")
    predict(PredictSettings(model, ("the bear", "the wolf"), device=CPU), reporter)
    assert "the bear / the wolf" in read_output(reporter)
    with pytest.raises(ValueError, match="about pairs: give two texts, not 3"):
        predict(PredictSettings(model, ("the bear", "the wolf", "the deer"), device=CPU), reporter)


def test_predict_rejects_equal_ids_in_two_files(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    _, model = save_random_model(vocabulary_folder, QUESTIONS, tmp_path / "model")
    asked = ("the bear sees", "the wolf sees", [{"text": "the wolf"}])
    files = tuple(write_questions(tmp_path / name, asked) for name in ("a.jsonl", "b.jsonl"))
    output = tmp_path / "answers.json"
    with pytest.raises(ValueError, match=r'b\.jsonl, line 1: .*id "1" belongs to two'):
        predict(PredictSettings(model, inputs=files, output=output, device=CPU), reporter)
    assert not output.exists()
    predict(PredictSettings(model, inputs=files[:1], output=output, device=CPU), reporter)
    assert list(json.loads(output.read_text())) == ["1"]


def test_predict_rejects_a_format_of_another_task_type(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    _, model = save_random_model(vocabulary_folder, CLASSES, tmp_path / "model")
    for name, kind in (("o.conll", "tagging"), ("o.json", "question-answering")):
        with pytest.raises(ValueError, match=rf"{name}: \.\w+ is a format for {kind}"):
            predict(PredictSettings(model, inputs=("a.tsv",), output=tmp_path / name, device=CPU), reporter)


GOOD = {"a.tsv": "text\nthe bear\n", "a.conll": "the\tX\n", "a.jsonl": '{"prompt": "the", "all": ["bear", "wolf"]}\n'}


@pytest.mark.parametrize(
    ("task", "names", "last", "output", "message"),
    [
        (CLASSES, "a.tsv gone.tsv", "", "o.jsonl", "gone.tsv: no such file"),
        (CLASSES, "a.tsv b.tsv", "text\n" + "the wolf\n" * 5 + "the\twolf\n", "o.tsv", "b.tsv, line 7: expected 1 c"),
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
def test_predict_reports_errors_in_the_last_file_before_the_first_prediction(
    task: AnyTask,
    names: str,
    last: str,
    output: str,
    message: str,
    tmp_path: Path,
    vocabulary_folder: Path,
    reporter: TerminalReporter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prediction, "MAX_CHUNK_EXAMPLES", 1)
    monkeypatch.setattr(ensemble, "predict_logits", lambda *_: pytest.fail("predicted before all files were read"))
    _, model = save_random_model(vocabulary_folder, task, tmp_path / "model")
    first, second = (tmp_path / name for name in names.split())
    first.write_text(GOOD[first.name])
    if last:
        second.write_text(last)
    with pytest.raises(ValueError, match=message):
        predict(
            PredictSettings(model, inputs=(str(first), str(second)), output=tmp_path / output, device=CPU), reporter
        )
    assert {path.name for path in tmp_path.iterdir()} <= {"model", *names.split()}


@pytest.mark.filterwarnings("ignore:.*read as class-files")
def test_inputs_that_the_shell_names_are_read_as_their_glob_in_its_order(tmp_path: Path) -> None:
    for name in ("pos", "neg"):
        (tmp_path / f"rt.{name}").write_text(f"a {name} text\n")
    paths = (f"{tmp_path}/rt.neg", f"{tmp_path}/rt.pos")
    settings = PredictSettings(Path("model"), inputs=paths, output=tmp_path / "o.jsonl")
    assert [one.text for one in predict_inputs.read_examples(settings, CLASSES)] == ["a neg text", "a pos text"]
    with pytest.raises(ValueError, match="unknown suffix"):
        list(predict_inputs.read_examples(replace(settings, inputs=paths[::-1]), CLASSES))


def test_examples_that_lose_tokens_are_counted(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    _, model = save_random_model(
        vocabulary_folder, Classification(labels=("bad", "good"), max_length=6), tmp_path / "model"
    )
    long, path = "the bear sees the wolf in the forest", tmp_path / "a.tsv"
    path.write_text(f"text\tlabel\n{long}\tgood\nthe bear\tbad\n{long}\tgood\n")
    warning = "! 2 of 3 examples (66.7%) lose tokens: max_length is 6; raise max_length to keep them whole"
    for number, overrides in enumerate((TaskOptions(), TaskOptions(max_length=16))):
        evaluate(EvaluateSettings(model, (str(path),), overrides=overrides, device=CPU), reporter)
        output = tmp_path / f"{number}.jsonl"
        predict(PredictSettings(model, inputs=(str(path),), output=output, overrides=overrides, device=CPU), reporter)
        predict(PredictSettings(model, (long, "the bear", long), overrides=overrides, device=CPU), reporter)
        assert read_output(reporter).count(warning) == 3


@pytest.mark.parametrize("labels", [("LABEL_0",), ("Entailment", "neutral"), ("good", "bad")])
def test_two_texts_for_a_model_that_may_be_for_pairs_are_said_to_be_scored_singly(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter, labels: tuple[str, ...]
) -> None:
    task = Regression() if len(labels) == 1 else replace(CLASSES, labels=labels)
    _, model = save_random_model(vocabulary_folder, task, tmp_path / "model")
    (tmp_path / "model/task.json").unlink()
    (tmp_path / "model/checksums.json").unlink()
    predict(PredictSettings(model, ("the bear", "the deer"), device=CPU), reporter)
    predict(PredictSettings(model, ("the bear",), device=CPU), reporter)
    options = TaskOptions(text_pair="b")
    predict(PredictSettings(model, ("the bear", "the deer"), overrides=options, device=CPU), reporter)
    assert read_output(reporter).count("--text-pair b") == (0 if "good" in labels else 1)


def test_truncation_warning_names_the_setting_unless_the_model_has_no_more_positions() -> None:
    (sentence,) = QuestionAnswering(max_query_length=8).truncation_warnings(2_000, 1_000, 512)
    assert sentence == (
        "1,000 of 2,000 examples (50.0%) lose tokens: max_query_length is 8; raise max_query_length to keep them whole"
    )
    assert CLASSES.truncation_warnings(2, 1, CLASSES.max_length)[0].endswith("128; the model has no more positions")


def test_predict_writes_tables_that_are_read_back_equal(
    tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    bert, model = save_random_model(
        vocabulary_folder, Classification(labels=('5" disc', 'a\t"b"\r\nc')), tmp_path / "model"
    )
    texts = [f"the {word}" for word in "bear deer fish wolf crow hare duck".split()]
    (tmp_path / "a.tsv").write_text("text\n" + "".join(f"{text}\n" for text in texts))
    for name in ("o.jsonl", "o.csv", "o.tsv"):
        assert "tabs" not in read_output(reporter)
        settings = PredictSettings(model, inputs=(str(tmp_path / "a.tsv"),), output=tmp_path / name, device=CPU)
        predict(settings, reporter)
    labels = [one.label for one in bert.classify(texts)]
    columns = TableSchema(("label", 'p(5" disc)', 'p(a "b" c)'))
    rows = [values for _, values in read_rows(str(tmp_path / "o.tsv"), columns)]
    assert [label for label, *_ in rows] == ['a "b" c' if "b" in label else label for label in labels]
    assert [sum(map(float, shares)) for _, *shares in rows] == pytest.approx([1] * 7, abs=1e-5)
    read = [label for _, (label,) in read_rows(str(tmp_path / "o.csv"), TableSchema(("label",)))]
    assert read == labels
    fields = 1 + sum("b" in label for label in labels)  # and the header's
    assert f"! {fields} fields had tabs or line breaks, which are now spaces; .jsonl and .csv keep them" in read_output(
        reporter
    )


@pytest.mark.parametrize("scheme", ["iob2", "none"])
def test_predict_prints_a_table_for_each_tagged_text(
    scheme: str, tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bears(found: np.ndarray) -> np.ndarray:
        return np.where(np.arange(len(found))[:, None] == 1, [0, 1, 0], [1, 0, 0]).astype(np.float32) * 99

    task = Tagging(labels=("O", "B-PER", "I-PER"), scheme=scheme)
    _, model = save_random_model(vocabulary_folder, task, tmp_path / "model")
    monkeypatch.setattr(
        ensemble, "predict_logits", lambda _, encoded, __: bears(encoded.positions)
    )  # the second word of each text
    predict(PredictSettings(model, ("the bear", "the [wolf]", " "), device=CPU), reporter)
    shown = [" ".join(line.split()) for line in read_output(reporter).splitlines()]
    shown = [line for line in shown if line and "──" not in line and "[UNK]: the model" not in line]
    header = "text label characters probability"
    if scheme == "iob2":
        entity = "bear PER 4-8 100.0%"
        assert shown == ["the bear", header, entity, "the [wolf]", "no entities", "(no text)", "no entities"]
    else:
        first = ["the bear", header, "the O 0-3 100.0%", "bear B-PER 4-8 100.0%"]
        assert shown[:5] == [*first, "the [wolf]"]
        assert shown[-2:] == ["(no text)", "no words"]


FORMULAS = ["=1+2", "+1", "-1", "@SUM(A1)", "\tx", "\rx"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_safe_csv_writes_formulas_as_texts(
    suffix: str, tmp_path: Path, vocabulary_folder: Path, reporter: TerminalReporter
) -> None:
    _, model = save_random_model(vocabulary_folder, Regression(), tmp_path / "model")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in [*FORMULAS, "a = 1"]))
    columns = TableSchema(("text", "score"))
    for safe_csv in (False, True):
        output = tmp_path / f"{safe_csv}{suffix}"
        inputs, copied = (str(tmp_path / "a.jsonl"),), ("text",)
        settings = PredictSettings(
            model, inputs=inputs, output=output, keep_columns=copied, safe_csv=safe_csv, device=CPU
        )
        predict(settings, reporter)
        texts, scores = zip(*(values for _, values in read_rows(str(output), columns)), strict=True)
        prefix = "'" if safe_csv else ""
        written = [text.replace("\t", " ").replace("\r", " ") if suffix == ".tsv" else text for text in FORMULAS]
        assert texts == (*(prefix + text for text in written), "a = 1")
        assert all(abs(float(score)) < 10 for score in scores)  # numbers are not changed, negative ones included


def test_safe_csv_is_for_tables() -> None:
    with pytest.raises(ValueError, match=r"--safe-csv is for \.csv and \.tsv output"):
        PredictSettings("model", inputs=("a.tsv",), output=Path("o.jsonl"), safe_csv=True)
