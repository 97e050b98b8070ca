"""GLUE's zip: the names, words and rows that gluebenchmark.com asks for, and nothing that it would refuse."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import bertwright
from bertwright.cli.render.terminal import TerminalReporter
from bertwright.inference.glue_submission import SUBMISSION_FILES, SubmissionSettings, submission
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.tasks.presets import PRESETS
from bertwright.tasks.task_folder import TASK_FILE, TaskModel, save_task_folder
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from helpers import CPU

Make = Callable[..., SubmissionSettings]

WORDS = {
    "cola": ("0", "1"),
    "sst2": ("0", "1"),
    "mrpc": ("0", "1"),
    "stsb": (),
    "qqp": ("0", "1"),
    "mnli": ("contradiction", "entailment", "neutral"),
    "qnli": ("entailment", "not_entailment"),
    "rte": ("entailment", "not_entailment"),
    "wnli": ("0", "1"),
}
# The files as published: their header, and of which columns the texts are.
PUBLISHED = {
    "CoLA/test.tsv": ("index\tsentence", (1,)),
    "SST-2/test.tsv": ("index\tsentence", (1,)),
    "MRPC/test.tsv": ("index\t#1 ID\t#2 ID\t#1 String\t#2 String", (3, 4)),
    "STS-B/test.tsv": ("index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2", (7, 8)),
    "QQP/test.tsv": ("id\tquestion1\tquestion2", (1, 2)),
    "MNLI/test_matched.tsv": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2",
        (8, 9),
    ),
    "MNLI/test_mismatched.tsv": (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
        "sentence2_parse\tsentence1\tsentence2",
        (8, 9),
    ),
    "QNLI/test.tsv": ("index\tquestion\tsentence", (1, 2)),
    "RTE/test.tsv": ("index\tsentence1\tsentence2", (1, 2)),
    "WNLI/test.tsv": ("index\tsentence1\tsentence2", (1, 2)),
    "diagnostic/diagnostic.tsv": ("index\tsentence1\tsentence2", (1, 2)),
}
NOUNS = "bear deer fish wolf crow hare duck seal lynx mole".split()


def texts(file: str, row: int) -> list[str]:
    """Return the one or two texts of a row, different in each file and row; one has a quote, which is a word."""
    start = sorted(PUBLISHED).index(file)
    first = f'the {NOUNS[(row + start) % 10]} sees "the {NOUNS[(3 * row + start) % 10]}'
    return [first, f"the {NOUNS[(7 * row) % 10]} fears the {NOUNS[(row + 2) % 10]} ."][: len(PUBLISHED[file][1])]


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE's folder, with 20 rows in each file; in WNLI's as many as it has."""
    folder = tmp_path_factory.mktemp("glue")
    for file, (header, indices) in PUBLISHED.items():
        lines = [header]
        for row in range(146 if file == "WNLI/test.tsv" else 20):
            fields = [str(row), *("x" for _ in header.split("\t")[1:])]
            for index, text in zip(indices, texts(file, row), strict=True):
                fields[index] = text
            lines.append("\t".join(fields))
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def model_of(vocabulary_folder: Path, name: str) -> TaskModel:
    """Random weights, large enough to answer differently to different texts, and the preset's task."""
    size = Tokenizer.load(vocabulary_folder).vocab_size
    config = BertConfig(size, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32, initializer_range=2.0)
    task: Any = PRESETS[name].task
    task = replace(task, labels=WORDS[name]) if WORDS[name] else task
    return TaskModel(EncoderForTask(BertEncoder(config, seed=5), task.head, seed=5), task)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, vocabulary_folder: Path) -> Path:
    """A folder with a model of each task."""
    folder = tmp_path_factory.mktemp("models")
    for name in WORDS:
        save_task_folder(folder / name, model_of(vocabulary_folder, name), Tokenizer.load(vocabulary_folder))
    return folder


@pytest.fixture
def make(glue: Path, models: Path, tmp_path: Path) -> Make:
    """Settings with models of these tasks, any field changed by name."""

    def build(*names: str, **changes: Any) -> SubmissionSettings:
        fields: dict[str, Any] = {
            "models": tuple(f"{name}={models / name}" for name in names),
            "data": glue,
            "output": tmp_path / "glue.zip",
            "ignore_row_count": True,
            "device": CPU,
        }
        return SubmissionSettings(**(fields | changes))

    return build


def read_zip(settings: SubmissionSettings) -> tuple[dict[str, list[str]], str]:
    """Submit; returns the lines of each file in the zip, and the printed text."""
    printed = io.StringIO()
    with zipfile.ZipFile(submission(settings, TerminalReporter(Console(file=printed, width=100)))) as archive:
        files = {name: archive.read(name).decode().split("\n") for name in archive.namelist()}
    assert all(lines.pop() == "" for lines in files.values())  # every line is ended
    return files, printed.getvalue()


# The zip


def test_a_whole_submission(make: Make, models: Path) -> None:
    files, printed = read_zip(make(*WORDS))
    assert set(files) == {
        *("CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv"),
        *("QNLI.tsv", "RTE.tsv", "WNLI.tsv", "AX.tsv"),
    }
    assert "11 of 11 files" in printed
    assert "the right model" not in printed
    assert "missing" not in printed
    for file in SUBMISSION_FILES:
        header, *rows = files[f"{file.name}.tsv"]
        assert header == "index\tprediction"
        asked = [texts(file.files[0], row) for row in range(len(rows))]
        model = bertwright.load(models / file.task, "cpu")
        found: list[Any] = model.classify([tuple(one) if len(one) > 1 else one[0] for one in asked])  # type: ignore[arg-type]
        if file.name == "STS-B":
            expected = [f"{max(0.0, min(5.0, number)):.3f}" for number in found]
            assert min(found) < 0 < 5 < max(found)  # so there was something to clip
        else:
            expected = [one.label for one in found]
            assert {*expected} <= {*WORDS[file.task]}
        assert len({*expected}) > 1
        assert rows == [f"{number}\t{answer}" for number, answer in enumerate(expected)]


def test_labels_of_the_hubs_copies_become_those_of_glue(
    make: Make, models: Path, vocabulary_folder: Path, tmp_path: Path
) -> None:
    hub = {
        "cola": ("unacceptable", "acceptable"),
        "sst2": ("negative", "positive"),
        "wnli": ("not_entailment", "entailment"),
    }
    tokenizer = Tokenizer.load(vocabulary_folder)
    for name, words in hub.items():
        model = model_of(vocabulary_folder, name)
        named: Any = replace(model.task, labels=words)  # type: ignore[type-var]
        save_task_folder(tmp_path / name, model._replace(task=named), tokenizer)
    renamed, _ = read_zip(make(models=tuple(f"{name}={tmp_path / name}" for name in hub)))
    expected, _ = read_zip(make(*hub, output=tmp_path / "plain.zip"))
    assert renamed == expected


def test_files_are_utf8_whatever_the_encoding_of_the_training_files(
    make: Make, vocabulary_folder: Path, tmp_path: Path
) -> None:
    model = model_of(vocabulary_folder, "rte")
    wide: Any = replace(model.task, encoding="utf-16")  # type: ignore[type-var]
    save_task_folder(tmp_path / "rte", model._replace(task=wide), Tokenizer.load(vocabulary_folder))
    expected, _ = read_zip(make("rte"))
    assert read_zip(make(models=(f"rte={tmp_path / 'rte'}",), output=tmp_path / "wide.zip"))[0] == expected


def test_equal_answers_make_equal_zips_that_anyone_may_read(make: Make, tmp_path: Path) -> None:
    one = submission(make("rte"), TerminalReporter(Console(file=io.StringIO())))
    other = submission(
        make("rte", output=tmp_path / "new" / "other.zip"), TerminalReporter(Console(file=io.StringIO()))
    )
    assert one.read_bytes() == other.read_bytes()
    with zipfile.ZipFile(one) as archive:
        assert [info.external_attr >> 16 for info in archive.infolist()] == [0o644]


def test_missing_files_are_reported_and_filled_on_request(make: Make, tmp_path: Path) -> None:
    files, printed = read_zip(make("wnli", ignore_row_count=False))  # it has GLUE's own number of rows
    assert list(files) == ["WNLI.tsv"]
    assert "1 of 11 files" in printed
    assert "missing: CoLA, SST-2, MRPC, STS-B, QQP, MNLI-m, MNLI-mm, QNLI, RTE, AX" in " ".join(printed.split())

    filled, printed = read_zip(make("wnli", ignore_row_count=False, fill_missing=True, output=tmp_path / "filled.zip"))
    assert filled["WNLI.tsv"] == files["WNLI.tsv"]
    counts = {name: len(lines) - 1 for name, lines in filled.items()}
    assert counts == {  # as gluebenchmark.com has them
        "CoLA.tsv": 1_063,
        "SST-2.tsv": 1_821,
        "MRPC.tsv": 1_725,
        "STS-B.tsv": 1_379,
        "QQP.tsv": 390_965,
        "MNLI-m.tsv": 9_796,
        "MNLI-mm.tsv": 9_847,
        "QNLI.tsv": 5_463,
        "RTE.tsv": 3_000,
        "WNLI.tsv": 146,
        "AX.tsv": 1_104,
    }
    assert filled["QQP.tsv"][-1] == "390964\t0"
    assert filled["RTE.tsv"][1] == "0\tentailment"
    assert "most frequent label throughout: CoLA" in printed
    for name, lines in filled.items():
        answers = {line.split("\t")[1] for line in lines[1:]}
        labels = next({*WORDS[file.task]} for file in SUBMISSION_FILES if f"{file.name}.tsv" == name)
        assert answers <= (labels or {"2.500"})


def test_the_diagnostic_file_alone_in_the_folder_is_found(make: Make, glue: Path, tmp_path: Path) -> None:
    (tmp_path / "MNLI").symlink_to(glue / "MNLI")
    (tmp_path / "AX.tsv").symlink_to(glue / "diagnostic" / "diagnostic.tsv")
    one, _ = read_zip(make("mnli"))
    other, _ = read_zip(make("mnli", data=tmp_path, output=tmp_path / "other.zip"))
    assert other == one


def test_a_folder_of_transformers_answers_without_saying_what_it_read(
    make: Make, tmp_path: Path, vocabulary_folder: Path
) -> None:
    expected, _ = read_zip(make("rte"))
    save_task_folder(tmp_path / "theirs", model_of(vocabulary_folder, "rte"), Tokenizer.load(vocabulary_folder))
    (tmp_path / "theirs" / TASK_FILE).unlink()
    (tmp_path / "theirs/checksums.json").unlink()
    found, _ = read_zip(make(models=(f"rte={tmp_path / 'theirs'}",), output=tmp_path / "other.zip"))
    assert found == expected


# Errors before anything is predicted or written


def check_rejected(settings: SubmissionSettings, message: str) -> None:
    before = sorted(settings.output.parent.rglob("*"))
    with pytest.raises(ValueError, match=message):
        submission(settings, TerminalReporter(Console(file=io.StringIO())))
    assert sorted(settings.output.parent.rglob("*")) == before


def test_files_that_differ_from_glue_s_are_rejected(
    make: Make, glue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertwright.inference.bert.load", lambda *_: pytest.fail("began before all was checked"))
    check_rejected(
        make("wnli", "rte", ignore_row_count=False), r"RTE/test\.tsv: expected 3,000 rows, got 20; .*--ignore-row-count"
    )
    check_rejected(make("rte", data=tmp_path), r"no RTE/test\.tsv; name the folder with GLUE's files")
    lines = (glue / "RTE" / "test.tsv").read_text().splitlines()
    copy = tmp_path / "data" / "RTE" / "test.tsv"
    copy.parent.mkdir(parents=True)
    copy.write_text("\n".join([*lines[:3], *lines[4:]]) + "\n")
    check_rejected(make("rte", data=tmp_path / "data"), r"RTE/test\.tsv, line 4: expected index 2, got '3'")
    copy.write_text("sentence1\tsentence2\tlabel\na\tb\tentailment\n")
    check_rejected(make("rte", data=tmp_path / "data"), r"RTE/test\.tsv, line 1: no column 'index'")
    copy.write_text("index\tsentence1\n0\ta\n")
    check_rejected(make("rte", data=tmp_path / "data"), r"no column 'sentence2'; .* \(is this GLUE's own file\?\)$")
    copy.write_text("\n".join([*lines[:3], f'{lines[3]}\t"extra"']) + "\n")  # quotes are words here, whatever is set
    check_rejected(make("rte", data=tmp_path / "data"), r"RTE/test\.tsv, line 4: expected 3 columns .*, got 4$")


def test_models_of_other_tasks_are_rejected(make: Make, models: Path, tiny_bert: Path) -> None:
    check_rejected(make(models=(f"rte={models / 'qqp'}",)), r"qqp: rte .*'entailment', 'not_entailment'; ")
    check_rejected(make(models=(f"stsb={models / 'rte'}",)), r"rte: stsb .*number; .*classification with")
    check_rejected(make(models=(f"wnli={models / 'stsb'}",)), r"stsb: wnli .*'0', '1'; .*regress")
    check_rejected(make(models=(f"wnli={models / 'cola'}",)), r"cola: fine-tuned on single texts, which wnli is not")
    check_rejected(make(models=(f"sst2={models / 'qqp'}",)), r"qqp: fine-tuned on pairs of texts, which sst2 is not")
    check_rejected(make(models=(f"rte={tiny_bert}",)), r"rte .* not fine-tuned")


def test_a_model_of_another_task_with_the_same_labels_gives_a_notice(
    make: Make, models: Path, vocabulary_folder: Path, tmp_path: Path
) -> None:
    of_the_hub = model_of(vocabulary_folder, "mrpc")
    task = replace(of_the_hub.task, text="sentence1", text_pair="sentence2", label="label")
    task = replace(task, labels=("not_equivalent", "equivalent"), pos_label="equivalent")
    save_task_folder(tmp_path / "mrpc", of_the_hub._replace(task=task), Tokenizer.load(vocabulary_folder))
    chosen = (f"rte={models / 'qnli'}", f"cola={models / 'sst2'}", f"mrpc={tmp_path / 'mrpc'}")
    _, printed = read_zip(make(models=chosen))
    flowing = " ".join(printed.split())
    assert "qnli: trained on the columns of qnli, not of rte" in flowing
    assert "sst2: trained on the columns of sst2, not of cola" in flowing
    assert (
        flowing.count("is it the right model?") == 2
    )  # MRPC's copy on the hub has columns as RTE's, and its own labels


def test_truncated_examples_are_counted(make: Make, vocabulary_folder: Path, tmp_path: Path) -> None:
    short = model_of(vocabulary_folder, "rte")
    save_task_folder(
        tmp_path / "rte", short._replace(task=replace(short.task, max_length=8)), Tokenizer.load(vocabulary_folder)
    )
    answers, printed = read_zip(make(models=(f"rte={tmp_path / 'rte'}",)))
    assert len(answers["RTE.tsv"]) == 21
    assert f"RTE: 20 of 20 examples lose tokens; {tmp_path / 'rte'} reads 8 of each" in " ".join(printed.split())


def test_a_model_that_gives_no_number(make: Make, tmp_path: Path, vocabulary_folder: Path) -> None:
    broken = model_of(vocabulary_folder, "stsb")
    torch.nn.init.constant_(broken.model.head.classifier.bias, float("nan"))
    save_task_folder(tmp_path / "broken", broken, Tokenizer.load(vocabulary_folder))
    check_rejected(make(models=(f"stsb={tmp_path / 'broken'}",)), r"broken: the model's outputs are not finite")


def test_an_existing_zip_is_not_replaced(make: Make, tmp_path: Path) -> None:
    (tmp_path / "glue.zip").write_text("mine")
    check_rejected(make("rte"), "already exists")
    assert (tmp_path / "glue.zip").read_text() == "mine"


def test_a_path_that_cannot_be_written_is_an_error_before_the_work(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bertwright.inference.bert.load", lambda *_: pytest.fail("began before the path was tried"))
    (tmp_path / "file").touch()
    for path in (Path("/sys/glue.zip"), tmp_path / "file" / "glue.zip"):
        with pytest.raises(OSError, match=r"Permission denied|Read-only file system|a file, but a folder"):
            submission(make("rte", output=path), TerminalReporter(Console(file=io.StringIO())))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"models": ()}, "no model given; for example: cola="),
        ({"models": ("rte",)}, "'rte': expected TASK=MODEL"),
        ({"models": ("rte=",)}, "'rte=': expected TASK=MODEL"),
        ({"models": ("mnil=runs/mnli",)}, 'no task "mnil" in GLUE; did you mean "mnli"'),
        ({"models": ("rte=a", "rte=b")}, "given twice"),
        ({"models": ("rte=a",), "output": Path("glue.tar")}, r"glue\.tar: .*\.zip"),
    ],
)
def test_settings_that_make_no_submission(make: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)
