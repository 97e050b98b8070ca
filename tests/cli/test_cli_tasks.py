"""Commands for tasks as a user types them, right and wrong: fine-tune, score, predict, probe, submit."""

from __future__ import annotations

import csv
import datetime
import json
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import torch
from test_cli import HOSTILE, files, run_command, run_failing, run_successfully, start_command

from bertwright.base.files import lock_folder, read_json
from bertwright.base.messages import CONTROL
from bertwright.finetuning.run import FinetuneRun
from bertwright.interop.huggingface import load_model, save_model
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.tables.tagged_sentences import read_sentences
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from helpers import full_disk

ANIMALS = "bear wolf crow hare".split()
LOCATIONS = "forest river".split()
WET, DRY = "very wet 👍", "dry"  # a label is any text
HERE = "--device cpu --threads 1"
QUICK = f"{HERE} --epochs 1 --batch-size 8 --learning-rate 1e-2"
WINDOW = "--max-length 24 --max-query-length 8"

# By kind: the options after `finetune --task KIND`, without the files; the suffix of the files; the field of its
# predictions with the answer; and the right answer, from the numbers of a sentence's animal and location.
KINDS = {
    "classification": ("", ".tsv", "label", lambda animal, location: (DRY, WET)[location]),
    "regression": (
        "--text first --text-pair second --label alike",
        ".csv",
        "score",
        lambda animal, location: animal + 0.5,
    ),
    "multiple-choice": ("--endings a b c --label right", ".jsonl", "choice", lambda animal, location: animal % 3),
    "tagging": ("", ".conll", "tags", lambda animal, location: "O B-ANIMAL O B-LOC I-LOC".split()),
    "question-answering": (WINDOW, ".json", "answer", lambda animal, location: ANIMALS[animal]),
}
CLASSIFY, TAG, ANSWER = (
    f"finetune --task {kind} {KINDS[kind][0]} --model bert --run new {QUICK} --train"
    for kind in ("classification", "tagging", "question-answering")
)


def sentences(count: int, seed: int) -> Iterator[tuple[str, int, int]]:
    """Yield sentences, each with the numbers of its animal and of its location."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        animal, location = int(rng.integers(4)), int(rng.integers(2))
        yield f"the {ANIMALS[animal]} sees the {LOCATIONS[location]}", animal, location


def format_examples(kind: str, count: int, seed: int) -> str:
    """Return a file of a kind's examples."""
    right = KINDS[kind][-1]
    rows = [(text, right(*numbers)) for text, *numbers in sentences(count, seed)]
    if kind == "classification":
        return "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)
    if kind == "regression":
        return "first,alike,second\n" + "".join(f"{text},{number},the {LOCATIONS[0]}\n" for text, number in rows)
    if kind == "multiple-choice":
        endings = dict(zip("abc", ANIMALS[:3], strict=True))
        return "".join(json.dumps({"prompt": text, "right": label} | endings) + "\n" for text, label in rows)
    if kind == "tagging":
        return "\n".join(
            "".join(f"{word} {tag}\n" for word, tag in zip(text.split(), tags, strict=True)) for text, tags in rows
        )
    return squad(*((text, answer, text.index(answer)) for text, answer in rows))


def squad(*rows: tuple[str, str, int]) -> str:
    """Return SQuAD's JSON of contexts, each with an answer and the start that the file gives for it."""
    paragraphs = []
    for number, (context, answer, start) in enumerate(rows):
        asked = {"id": f"q{number}", "question": "who", "answers": [{"text": answer, "answer_start": start}]}
        paragraphs.append({"context": context, "qas": [asked]})
    return json.dumps({"version": "1.1", "data": [{"title": "Animals", "paragraphs": paragraphs}]})


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a random BERT, and files and a run of every kind, written by the commands."""
    zoo = tmp_path_factory.mktemp("zoo")
    words = [*SPECIAL_TOKENS, "the", "sees", "who", "a", *ANIMALS, *LOCATIONS]
    tokenizer = Tokenizer.from_tokens(words, lowercase=True)
    config = BertConfig(
        tokenizer.vocab_size, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, max_positions=32
    )
    model = BertForPretraining(config)
    torch.nn.init.constant_(model.pooler.dense.bias, 1e-3)  # as if it was trained
    save_model(zoo / "bert", model, tokenizer)
    tokenizer.save(zoo / "vocabulary")
    for kind, (flags, suffix, *_) in KINDS.items():
        for split, count, seed in (("train", 24, 1), ("dev", 12, 2)):
            (zoo / f"{split}{suffix}").write_text(format_examples(kind, count, seed), encoding="utf-8")
        data = f"--train {zoo}/train{suffix} --dev {zoo}/dev{suffix}"
        run_successfully(f"finetune --task {kind} {flags} {data} --model {zoo}/bert --run {zoo}/{kind} {QUICK}")
    return zoo


@pytest.fixture
def at(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory with links to the content of `zoo`."""
    for path in zoo.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# --- correct use


@pytest.mark.parametrize("kind", KINDS)
def test_model_of_every_kind_is_scored_used_described_and_converted(at: Path, kind: str) -> None:
    _, suffix, name, right = KINDS[kind]
    dev = f"dev{suffix}"
    shown = run_successfully(f"evaluate {kind} {dev} --output scores.json {HERE}")
    assert shown.startswith(f"{kind} on 12 examples\n")
    scores, expected = read_json(at / "scores.json"), read_json(at / kind / "report.json")["scores"]["dev"]
    assert {name: scores[name] for name in expected} == pytest.approx(expected)

    for output in ("found.jsonl", "found.tsv", "found.csv"):
        assert run_successfully(f"predict {kind} --inputs {dev} --output {output} {HERE}").startswith(
            f"{output}: 12 predictions"
        )
    found = lines(at / "found.jsonl")
    for output, delimiter in (("found.tsv", "\t"), ("found.csv", ",")):
        with (at / output).open(encoding="utf-8", newline="") as file:
            table = list(csv.DictReader(file, delimiter=delimiter))
        assert [list(row) for row in table] == [list(one) for one in found]
        cells = [row[name] if name in ("label", "answer") else json.loads(row[name]) for row in table]
        assert cells == [one[name] if name != "score" else pytest.approx(one[name], abs=1e-6) for one in found]

    # The same scores, from the file of predictions and the right answers.
    pairs = [(one[name], right(*numbers)) for one, (_, *numbers) in zip(found, sentences(12, seed=2), strict=True)]
    if kind == "regression":
        assert scores["mse"] == pytest.approx(np.mean([(number - truth) ** 2 for number, truth in pairs]))
    elif kind == "tagging":
        assert scores["accuracy"] == pytest.approx(np.mean([np.equal(tags, truth).mean() for tags, truth in pairs]))
    elif kind == "question-answering":
        share = np.mean([answer.removeprefix("the ") == truth for answer, truth in pairs])  # articles are ignored
        assert scores["exact_match"] == pytest.approx(share)
    else:
        assert scores["accuracy"] == pytest.approx(np.mean([label == truth for label, truth in pairs]))

    assert kind in run_successfully(f"info {kind}")
    run_successfully(f"convert {kind} copy")
    assert f"copy: model for {kind}" in run_successfully("info copy")
    run_successfully(f"predict copy --inputs {dev} --output again.jsonl {HERE}")
    assert (at / "again.jsonl").read_bytes() == (at / "found.jsonl").read_bytes()


def test_tags_are_written_as_columns_and_answers_in_the_format_of_squad(at: Path) -> None:
    run_successfully(f"predict tagging --inputs dev.conll --output found.conll {HERE}")
    run_successfully(f"predict tagging --inputs dev.conll --output found.jsonl {HERE}")
    again = list(read_sentences("found.conll", labeled=True))
    assert [(list(one.words), list(one.tags or ())) for one in again] == [
        (one["words"], one["tags"]) for one in lines(at / "found.jsonl")
    ]
    run_successfully(f"predict question-answering --inputs dev.json --output found.json {HERE}")
    run_successfully(f"predict question-answering --inputs dev.json --output answers.jsonl {HERE}")
    assert read_json(at / "found.json") == {one["id"]: one["answer"] for one in lines(at / "answers.jsonl")}


def test_texts_and_predictions_may_be_piped(at: Path, pipe_in: Callable[[str | bytes | None], None]) -> None:
    texts = ["the bear sees the forest", "", "the wolf\tsees", "tüte"]
    (at / "table.tsv").write_text("\n".join(["text", *texts]).replace("\tsees", " sees") + "\n", encoding="utf-8")
    run_successfully(f"predict classification --inputs table.tsv --output found.jsonl {HERE}")
    for ends in ("\n", "\r\n"):
        pipe_in(ends.join(texts))
        done = run_command(f"predict classification --inputs - --output - {HERE}")
        assert done.code == 0
        assert done.out == (at / "found.jsonl").read_text(encoding="utf-8")
        assert done.err.startswith("standard output: 4 predictions, ")

    pipe_in("the bear sees\n\nthe wolf")
    assert json.loads(run_command(f"predict tagging --inputs - --output - {HERE}").out.split("\n")[1])["words"] == []
    pipe_in("the bear\nthe wolf\n")
    assert re.search(
        r"the bear +(dry|very wet 👍) .*\n +the wolf ", run_successfully(f"predict classification - {HERE}")
    )


def save_with_trained_nsp(folder: Path, output: Path) -> None:
    """Write a model with the biases that only next-sentence prediction gives it."""
    model = load_model(folder, heads="required").model
    assert isinstance(model, BertForPretraining)
    for layer in (model.pooler.dense, model.next_sentence):
        torch.nn.init.constant_(layer.bias, 0.1)
    save_model(output, model, Tokenizer.load(folder))


def test_output_on_tasks_has_no_control_characters(at: Path) -> None:
    """Labels, texts, tags, file names and folders are printed as escapes."""
    rows = [f"the {animal} sees {HOSTILE}\t{label}{HOSTILE}" for animal in ANIMALS for label in "ab"]
    (at / f"{HOSTILE}.tsv").write_text("\n".join(["text\tlabel", *rows, ""]))
    (at / f"{HOSTILE}.conll").write_text(f"the O\n{HOSTILE} B-{HOSTILE}\n\n" * 4)
    (at / f"{HOSTILE}-bert").symlink_to(at / "bert")
    save_with_trained_nsp(at / "bert", at / f"{HOSTILE}-nsp")
    evil, text = shlex.quote(HOSTILE), shlex.quote(f"the bear {HOSTILE}")
    tags = f"--train {evil}.conll --dev {evil}.conll"
    for command in (
        f"finetune --task classification --train {evil}.tsv --dev {evil}.tsv --model {evil}-bert --run {evil} {QUICK}",
        f"finetune --task tagging {tags} --model {evil}-bert --run {evil}-tags {QUICK}",
        f"grid --task classification --train {evil}.tsv --dev {evil}.tsv --model {evil}-bert --run {evil}-grid "
        f"--dry-run {HERE}",
        f"evaluate {evil} {evil}.tsv --output {evil}.json {HERE}",
        f"predict {evil} {text} {HERE}",
        f"predict {evil} --inputs {evil}.tsv --output {evil}.csv {HERE}",
        f"predict {evil}-tags {text} {HERE}",
        f"next-sentence {evil}-nsp {text} 'the wolf' {HERE}",
        f"attention {evil}-bert {text} --output {evil}.png {HERE}",
        f"info {evil}",
    ):
        printed = run_successfully(command)
        assert r"\x1b" in printed, command
        assert not CONTROL.search(printed.replace("\n", "")), command


@pytest.mark.parametrize("kind", ["classification", "regression", "multiple-choice"])
def test_passed_columns_are_beside_their_predictions(at: Path, kind: str) -> None:
    _, suffix, *_ = KINDS[kind]
    names = {"classification": ["text"], "regression": ["second", "alike"], "multiple-choice": ["right", "prompt"]}[
        kind
    ]
    run_successfully(f"predict {kind} --inputs train{suffix} dev{suffix} --output plain.jsonl {HERE}")
    options = f"--keep-columns {' '.join(names)} {HERE}"
    run_successfully(f"predict {kind} --inputs train{suffix} dev{suffix} --output found.jsonl {options}")
    for before, one, (text, *numbers) in zip(
        lines(at / "plain.jsonl"), lines(at / "found.jsonl"), [*sentences(24, 1), *sentences(12, 2)], strict=True
    ):
        right = KINDS[kind][-1](*numbers)
        values = {"text": text, "prompt": text, "second": f"the {LOCATIONS[0]}", "alike": str(right), "right": right}
        assert list(one.items()) == [*((name, values[name]) for name in names), *before.items()]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv"])
def test_passed_columns_are_not_changed(at: Path, suffix: str) -> None:
    columns = {
        "text": ["the bear", "", "the wolf"],
        "day": [datetime.date(2026, 11, 22), None, datetime.date(1999, 1, 2)],
        "number": [0.123456789012, float("nan"), 1e-9],
    }
    polars.DataFrame(columns).write_parquet(at / "a.parquet")
    run_successfully(
        f"predict classification --inputs a.parquet --output found{suffix} --keep-columns number day {HERE}"
    )
    if suffix == ".jsonl":
        values = [(one["number"], one["day"]) for one in lines(at / "found.jsonl")]
        assert values == [(0.123456789012, "2026-11-22"), (None, None), (1e-9, "1999-01-02")]
    else:
        with (at / f"found{suffix}").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="," if suffix == ".csv" else "\t"))
        values = [(one["number"], one["day"]) for one in rows]
        assert values == [("0.123456789012", "2026-11-22"), ("", ""), ("1e-09", "1999-01-02")]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("classification 'the bear' ''", "the bear +(dry|very wet 👍) +[0-9.]+%"),
        (f"classification {'bear ' * 30_000!r}", "bear +(dry|very wet 👍) +[0-9.]+%"),
        ("classification dev.tsv", "! dev.tsv is a file, but was read as a text; .* --inputs dev.tsv"),
        ("regression 'the bear' 'the wolf'", r"the bear / the wolf +-?[0-9]+\.[0-9]{3}"),
        ("multiple-choice 'the bear' sees 'the [bold] wolf'", r"the \[bold\] wolf +[0-9.]+%"),
        ("tagging 'the bear sees' ''", "text +label +characters +probability"),
        ("question-answering who 'the bear sees'", "(bear|the|sees) +[0-9]+-[0-9]+ +[0-9.]+%"),
        ("question-answering who ''", r"\(no answer\) +100.0%"),
    ],
)
def test_texts_are_printed_with_their_predictions(at: Path, command: str, shown: str) -> None:
    assert re.search(shown, " ".join(run_successfully(f"predict {command} {HERE}").split()))


def test_grid_resumes_after_ctrl_c_and_its_folder_is_a_model(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (
        "grid --task classification --train train.tsv --dev dev.tsv --model bert "
        f"--learning-rates 1e-2 --batch-sizes 8 --epochs 1 --seeds 2 {HERE} --run"
    )
    planned = run_successfully(f"{command} new --dry-run")
    assert "2, 6 steps in total" in planned
    assert not (at / "new").exists()
    with interrupt_evaluation(monkeypatch, after=1):
        done = run_command(f"{command} new")
    assert done.code == 130
    assert (
        done.err
        == "bertwright: interrupted: 1 of 2 runs are finished; resume with: bertwright grid --run new --resume\n"
    )
    printed = run_successfully("info new")
    assert re.search(r"new: grid of fine-tuning runs\s+state +not finished\s+runs done +1 of 2", printed)
    (at / "started").mkdir()
    shutil.copyfile("new/settings.toml", "started/settings.toml")
    assert re.search(r"not finished\s+runs done +0 of 2", run_successfully("info started"))
    run_successfully("grid --run new --resume")
    assert re.search(r"state +finished\s+runs done +2 of 2", run_successfully("info new"))
    assert "(the folder was written by `bertwright grid`)" in run_failing("finetune --run new --resume")
    run_successfully(f"{command} whole")
    assert (at / "new/report.json").read_bytes() == (at / "whole/report.json").read_bytes()
    assert files(at / "new/model") == files(at / "whole/model")
    assert run_successfully(f"evaluate new dev.tsv {HERE}").startswith("new on 12 examples")


def test_help_of_a_list_of_choices_names_the_choices() -> None:
    shown = " ".join(run_successfully("probe --help").split())
    names = "embeddings, second-to-last, last, sum-last-four, concat-last-four, sum-all, each-layer"
    assert f"--representations {{{names}}} ... (default" in shown


def test_published_task_prints_the_settings_of_the_paper(at: Path) -> None:
    shown = " ".join(run_successfully("finetune --task squad_v2 --help").split())
    for flag, default in (("epochs", "2.0"), ("batch-size", "48"), ("learning-rate", "5e-05")):
        assert re.search(rf"--{flag} [A-Z]+ \(default: {re.escape(default)}\)", shown), flag
    before = files(at)
    command = f"finetune --task squad_v2 --train train.json --dev dev.json --model bert --run new {WINDOW} {HERE}"
    planned = " ".join(run_successfully(f"{command} --epochs 1 --dry-run").split())
    rate = "learning rate 0.0003 (chosen by the hidden size, 16; BASE: 5e-05)"
    assert f"batch size 48, 1 epoch, {rate} (paper, 4.3: 48, 2, 5e-05)" in planned
    assert "estimated time" in planned
    assert files(at) == before
    grid = " ".join(run_successfully("grid --task mrpc --help").split())
    assert "--batch-sizes INT ... (default: 32)" in grid


# --- odd, but right: reported, not rejected


def test_long_and_empty_contexts_are_answered(at: Path) -> None:
    long = f"{'the river sees a forest ' * 4_500}the bear"
    assert len(long) > 100_000
    rows = [{"question": "who", "context": context} for context in (long, "", "the bear")]
    (at / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_successfully(f"predict question-answering --inputs long.jsonl --output found.jsonl {HERE}")
    for row, one in zip(rows, lines(at / "found.jsonl"), strict=True):
        assert one["answer"] == row["context"][one["start"] : one["end"]]
        assert bool(one["answer"]) == bool(row["context"])


def test_empty_texts_are_reported(at: Path) -> None:
    (at / "odd.tsv").write_text("text\tlabel\n\tdry\nthe bear\twet\n")
    shown = " ".join(run_successfully(f"{CLASSIFY} odd.tsv --dev odd.tsv").split())
    assert "1 example has an empty text" in shown
    assert "! odd.tsv: used for training and for scoring" in shown


# --- misuse

MISUSE: dict[str, tuple[str, str]] = {
    # tables
    "unknown label, evaluate": ("evaluate classification unknown.tsv",
        "unknown.tsv, line 2: label 'ugly' is not one of the training data: 'dry', 'very wet"),
    "label spaces": (f"{CLASSIFY} spaced.tsv", "spaced.tsv, line 4: labels 'dry ' and 'dry' differ in white space"),
    "no such file": (f"{CLASSIFY} gone.tsv", "gone.tsv: no such file or folder"),
    "an unset variable": (f"{CLASSIFY} train.tsv --run ''", "--run has an empty value; is a variable"),
    "named twice to evaluate": ("evaluate sentences one.tsv one.tsv", "one.tsv: named twice; its examples would"),
    "a file and its glob to evaluate": ("evaluate sentences one.tsv on?.tsv", "on?.tsv: named twice; its examples"),
    "below every seed": (f"{CLASSIFY} train.tsv --seed -1", "seed: expected 0 to 4,294,967,295, got -1"),
    "a pipe": ("predict classification --inputs pipe.tsv --output found.tsv", "pipe.tsv: a pipe or a device, which"),
    "a link to nothing": (
        "predict classification --inputs dev.tsv --output nowhere.tsv",
        "nowhere.tsv: already exists",
    ),
    # tags
    "ragged columns": (f"{TAG} ragged.conll",
        "ragged.conll, line 4: expected 2 columns, as in the other lines of the sentence, got 4: 'the bear X O'"),
    "one line of text": ("predict tagging --inputs line.txt --output found.tsv", "line.txt, line 1: running text?"),
    "running text": ("predict tagging --inputs text.txt --output found.tsv", "text.txt, line 3: running text?"),
    # questions
    "no questions": (f"{ANSWER} no-data.json", "no-data.json: no questions"),
    "no room": (f"{ANSWER} train.json --max-query-length 40", "leave no token for the context"),
    # settings, models
    "no such task": ("finetune --task clasification --run new", 'no task "clasification"; did you mean "classif'),
    "no published file": ("finetune --task mrpc --data vocabulary --model bert --run new", "vocabulary: no train.tsv"),
    "no model": ("finetune --task classification --run new --train one.tsv", "no model given: --model FOLDER"),
    "other settings": ("finetune --run classification --resume --seed 3", "seed was 0, now 3: a resumed run keeps"),
    "wrong key in TOML": ("finetune --config a.toml --run new", 'a.toml: task: unknown setting "taks"; did you mean'),
    # evaluate, predict
    "not fine-tuned": ("evaluate bert dev.tsv", "bert: not fine-tuned on a task yet; bertwright finetune"),
    "no files": ("evaluate classification", "no file given; for example: bertwright evaluate MODEL dev.tsv"),
    "files of another kind": ("evaluate question-answering dev.tsv", "no column 'question'"),
    "scores exist": ("evaluate classification header.tsv --output one.tsv", "one.tsv: already exists"),
    "texts and files": ("predict classification a --inputs one.tsv --output found.tsv", "give either texts, or files"),
    "neither": ("predict classification", "give either texts, or files with --inputs"),
    "no output": ("predict classification --inputs one.tsv", "--inputs needs a file for the predictions"),
    "output of texts": ("predict classification a --output found.tsv", "--output: expected --inputs, got texts"),
    "piped beside a file": ("predict classification --inputs - one.tsv --output found.tsv", "no inputs beside"),
    "piped pairs": ("predict regression --inputs - --output found.tsv", "a task that reads single texts"),
    "nothing piped": ("predict classification --inputs - --output found.tsv", "expected at least one text, got none"),
    "columns of texts": ("predict classification a --keep-columns text", "--keep-columns is for tables"),
    "columns of questions": ("predict question-answering --inputs dev.json --output found.jsonl --keep-columns id",
        "--keep-columns: expected a task that reads tables"),
    "unknown column": ("predict classification --inputs one.tsv --output found.tsv --keep-columns txet",
        "one.tsv, line 1: no column 'txet'; did you mean"),
    "a column twice": (
        "predict classification --inputs one.tsv --output found.tsv --keep-columns text text",
        "'text' twice",
    ),
    "bytes to keep": ("predict classification --inputs bytes.parquet --output found.tsv --keep-columns raw",
        "bytes.parquet, row 1: --keep-columns raw: bytes values cannot be written"),
    "a column named as the answer": ("predict classification --inputs one.tsv --output found.tsv --keep-columns label",
        "--keep-columns label: predictions have a field of that name"),
    "format": ("predict classification --inputs one.tsv --output found.xls", "expected one of the suffixes"),
    "bad row far down": ("predict classification --inputs one.tsv few.tsv --output found.tsv", "few.tsv, line 4: e"),
    "task of no kind": ("predict unknown a", 'unknown/task.json: no task type "clasification"; did you'),
    "task without labels": ("predict unfitted a", "unfitted/task.json: labels is empty"),
    "values given twice": ("predict classification --inputs one.tsv --inputs=bare.tsv --output found.tsv",
        "--inputs: given twice; give all values after one --inputs"),
    "hidden numbers": ("evaluate regression secret.csv", "secret.csv, line 2: this number is -1"),
    # grid, probe, submission
    "rate for rates": ("grid --task classification --run new --learning-rate 1", "--learning-rates 1"),
    "too few layers": ("probe --task tagging --train all-o.conll --dev all-o.conll --model bert --run new",
        "--representations: sum-last-four needs 4 layers, got a model with 2; omit it"),
}  # fmt: skip

ROW = "the bear\tdry\nthe wolf\twet\n"
BAD = {
    "secret.csv": "first,alike,second\nthe bear,-1,a\nthe wolf,-1.0,b\n",
    "few.tsv": f"text\tlabel\n{ROW}the bear\n",
    "unknown.tsv": "text\tlabel\nthe bear\tugly\n",
    "one.tsv": "text\tlabel\nthe bear\tdry\nthe wolf\tdry\n",
    "spaced.tsv": f"text\tlabel\n{ROW}the bear\tdry \n",
    "header.tsv": "text\tlabel\n",
    "bare.tsv": ROW,
    "ragged.conll": "the O\nbear B-ANIMAL\n\nthe bear X O\nsees O\nthe O\n",
    "all-o.conll": "the O\nbear O\n",
    "line.txt": "The bear sees the wolf.\n",
    "text.txt": "The bear sees the wolf.\n\nThe wolf sees.\n",
    "nowhere.json": squad(("the bear", "hare", 0)),
    "no-data.json": "[]",
    "a.toml": '[task]\ntask = "classification"\ntaks = 1\n',
}


@pytest.fixture
def bad(at: Path) -> Path:
    """Return the working directory with files that are wrong in ways that occur in practice."""
    for name, content in BAD.items():
        (at / name).write_text(content)
    polars.DataFrame({"text": ["the bear"], "raw": [b"a"]}).write_parquet(at / "bytes.parquet")
    os.mkfifo(at / "pipe.tsv")
    (at / "nowhere.tsv").symlink_to("gone")
    for name, kind in {"unfitted": "tagging", "unknown": "classification"}.items():
        (at / name).mkdir()
        for path in (at / "classification/model").iterdir():
            (at / name / path.name).write_bytes(path.read_bytes())
        (at / name / "checksums.json").unlink()
        task = {"kind": kind} if name != "unknown" else {"kind": "clasification"}
        (at / name / "task.json").write_text(json.dumps(task))
    return at


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_one_line_and_writes_nothing(
    bad: Path, name: str, pipe_in: Callable[[str | bytes | None], None]
) -> None:
    command, message = MISUSE[name]
    pipe_in("")
    before = files(bad)
    assert message in run_failing(command)
    after = files(bad)
    assert {path: after.get(path) for path in before} == before
    # A run's folder is created to be locked; no result is left in it, or elsewhere.
    assert [path for path in after if path not in before and path not in ("new", "new/.lock")] == []


def test_unreachable_hub_is_one_line(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = type("ConnectError", (Exception,), {"__module__": "httpx"})

    class Hub:
        def __getattr__(self, name: str) -> Any:
            raise failure("Name or service not known\nand a long trace")

    monkeypatch.setattr("huggingface_hub.HfFileSystem", Hub)
    assert "Hugging Face hub (Name or service not known)" in run_failing(f"{CLASSIFY} hf://datasets/a/b.csv")


# --- interrupted runs


@contextmanager
def interrupt_evaluation(monkeypatch: pytest.MonkeyPatch, after: int) -> Iterator[None]:
    """Send SIGINT at the end of this evaluation on dev, counted from 1."""
    evaluate, counts = FinetuneRun.evaluate, []

    def evaluate_and_interrupt(run: FinetuneRun) -> dict[str, float]:
        scores = evaluate(run)
        counts.append(1)
        if len(counts) == after:
            os.kill(os.getpid(), signal.SIGINT)
        return scores

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(FinetuneRun, "evaluate", evaluate_and_interrupt)
            yield
    finally:
        signal.signal(signal.SIGINT, handler)


def test_run_resumed_after_ctrl_c_has_the_same_bits(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = "train.tsv --dev dev.tsv --eval-every 2"
    with interrupt_evaluation(monkeypatch, after=1):
        done = run_command(f"{CLASSIFY} {data}")
    assert done.code == 130
    assert done.err == (
        "bertwright: interrupted: step 2 is saved; resume with: bertwright finetune --run new --resume\n"
    )
    assert not (at / "new/model").exists()
    rejected = {
        f"{CLASSIFY} {data}": "new: already holds a run; resume it with --resume",
        "finetune --run new --resume --epochs 7": "new/settings.toml: epochs was 1.0, now 7.0",
        "finetune --run new --resume --config a.toml": "omit --config",
    }
    for command, message in rejected.items():
        assert message in run_failing(command)
    with lock_folder(Path("new")):
        assert "new: another process is writing there" in run_command("finetune --run new --resume").err
    run_successfully("finetune --run new --resume")
    run_successfully(f"{CLASSIFY} {data} --run whole")
    assert files(at / "new/model") == files(at / "whole/model")
    assert run_successfully("finetune --run new --resume").startswith("new: finished already")


def test_passed_columns_are_valid_json(at: Path) -> None:
    (at / "n.jsonl").write_text('{"text": "a", "x": 1e999, "y": [NaN, 1.5], "z": {"a": -1e999}}\n')
    run_successfully(f"predict classification --inputs n.jsonl --output found.jsonl --keep-columns x y z {HERE}")
    (found,) = lines(at / "found.jsonl")
    assert (found["x"], found["y"], found["z"]) == (None, [None, 1.5], {"a": None})


def test_ctrl_c_while_libraries_load_is_one_line(at: Path) -> None:
    """An exception in the middle of importing C extensions would end in a traceback, or worse."""
    for library in ("numpy", "torch"):
        with start_command(f"predict classification a {HERE}", env=os.environ | {"PYTHONVERBOSE": "1"}) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if f"import '{library}" in line or f"/{library}/" in line:
                    break
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
            process.wait(timeout=60)
        assert process.returncode == 130
        assert "bertwright: interrupted\n" in rest  # perhaps after half a line of Python's own
        assert "Traceback" not in rest


def test_ctrl_c_while_predicting_leaves_no_files(at: Path) -> None:
    (at / "long.tsv").write_text("text\n" + "the bear sees the wolf\n" * 400_000)
    before = files(at)
    with start_command(f"predict classification --inputs long.tsv --output found.jsonl {HERE}") as process:
        until = time.monotonic() + 60
        while not [path for path in at.glob(".found.jsonl.part-*") if path.stat().st_size]:
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "bertwright: interrupted\n")
    assert files(at) == before


@pytest.mark.parametrize(
    "command",
    [
        f"predict classification --inputs dev.tsv --output found.jsonl {HERE}",
        f"predict question-answering --inputs dev.json --output found.json {HERE}",
        f"evaluate classification dev.tsv --output scores.json {HERE}",
        "convert classification copy",
    ],
)
def test_full_disk_leaves_no_files(at: Path, command: str) -> None:
    before = files(at)
    with full_disk(50):
        message = run_failing(command, code=1)
    assert message.removeprefix("bertwright: error: ").startswith(("found", "scores", "copy"))
    assert files(at) == before


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("predict classification --inputs dev.tsv --output /sys/found.jsonl", "/sys/found.jsonl: "),
        ("predict classification --inputs dev.tsv --output vocabulary/vocab.txt/a.tsv", "vocabulary/"),
        ("evaluate classification dev.tsv --output /sys/scores.json", "/sys/scores.json: "),
        (f"{CLASSIFY} train.tsv --run /sys/run", "/sys/run: "),
        (f"{CLASSIFY} train.tsv --run dev.tsv", "dev.tsv: "),
        ("convert classification /sys/copy", "/sys/copy: "),
    ],
)
def test_unwritable_path_is_one_line(at: Path, command: str, message: str) -> None:
    before = files(at)
    assert run_failing(command).startswith(f"bertwright: error: {message}")
    assert files(at) == before


def test_infinite_weights_are_a_failure_not_misuse(at: Path) -> None:
    assert "not finite" in run_failing(f"{CLASSIFY} train.tsv --learning-rate 1e30", code=1)
    assert not (at / "new/model").exists()
