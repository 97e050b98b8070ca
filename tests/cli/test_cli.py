"""Front door: commands as a user types them, their output, files and exit codes."""

from __future__ import annotations

import compileall
import contextlib
import dataclasses
import io
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple, get_type_hints

import numpy as np
import pytest
import torch

import bertwright
from bertwright.base.messages import CONTROL
from bertwright.base.settings import field_docs, iter_fields, read_toml
from bertwright.cli.main import run
from bertwright.cli.options import read_settings, singular
from bertwright.cli.verbs import VERBS, Verb
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.inference.text_settings import FillMaskSettings
from bertwright.pretraining.settings import PretrainSettings
from helpers import full_disk

PAIRS = [(first, second) for first in ("baker", "cook", "smith") for second in ("king", "queen", "monk")]
TEXT = "\n\n".join(
    f"The {first} met the {second} in town. It was {number} o'clock. They spoke of [bold] plans, and the {first} left."
    for number, (first, second) in enumerate(PAIRS * 7)
)
TINY = "--size tiny --hidden-size 16 --num-heads 2 --max-positions 32 --max-length 24 --batch-size 4 --long-ratio 0"
BRIEF = "--steps 4 --log-every 2 --eval-every 2 --eval-sequences 8 --save-every 2 --threads 1 --device cpu"


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def run_command(command: str) -> Ran:
    """Run a command line in this process, with an output of 80 columns that is no terminal."""
    written, err = io.BytesIO(), io.StringIO()
    with contextlib.redirect_stdout(io.TextIOWrapper(written, "utf-8", write_through=True)) as out:
        with contextlib.redirect_stderr(err):
            code = run(shlex.split(command))
        out.flush()
        return Ran(code, written.getvalue().decode(), err.getvalue())


def run_successfully(command: str) -> str:
    """Run a command that must succeed; return what it printed."""
    done = run_command(command)
    assert (done.code, done.err) == (0, "")
    return done.out


def run_failing(command: str, code: int = 2) -> str:
    """Run a command that must fail with an exit code and a message of one line; return the message."""
    done = run_command(command)
    assert done.code == code
    assert done.err.startswith("bertwright: error: ")
    assert done.err.count("\n") == 1
    assert "part-" not in done.err  # the name of a temporary file
    return done.err


def files(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture(autouse=True)
def set_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with text, vocabulary, store and run, which the commands have made."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    run_successfully(f"vocabulary {folder}/text.txt --output {folder}/vocabulary --size 200 --min-frequency 2")
    run_successfully(
        f"prepare {folder}/text.txt --vocabulary {folder}/vocabulary --store {folder}/store --workers 1 --held-out 0.1"
    )
    run_successfully(f"pretrain --store {folder}/store --run {folder}/run {TINY} {BRIEF}")
    return folder


@pytest.fixture
def at(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with links to the project under short names."""
    for name in ("text.txt", "vocabulary", "store", "run"):
        (tmp_path / name).symlink_to(project / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Commands


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "out of memory; .*--micro-batch-size"),
        (torch.OutOfMemoryError("Tried to allocate 2 GiB"), "out of memory; .*--micro-batch-size"),
        (RuntimeError("can't start new thread"), ".*ulimit -u"),
        (BlockingIOError(11, "try again"), ".*ulimit -u"),
    ],
)
def test_missing_memory_and_limits_of_the_system_are_one_line(
    error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("bertwright.inference.info.info", fails)
    assert re.match(f"bertwright: error: {message}", run_failing("info .", code=1))


def test_lost_rank_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:31544"

    def fails(*_: object) -> None:
        raise RuntimeError(words)

    monkeypatch.setattr("bertwright.inference.info.info", fails)
    with pytest.raises(RuntimeError, match="Connection closed"):  # a single process has no other ranks: a defect
        run_command("info .")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    done = run_command("info .")
    assert (done.code, done.out) == (1, "")
    assert re.fullmatch("bertwright, rank 1: error: another rank has ended; .*--resume.*\n", done.err)


def test_usage_lists_every_command() -> None:
    shown = run_successfully("--help")
    assert run_command("") == (2, shown, "")
    for verb in VERBS:
        assert re.search(rf"^  {verb.name} +{re.escape(verb.summary)}$", shown, re.MULTILINE)
    places = [shown.index(f"\n  {name} ") for name in ("survey", "vocabulary", "prepare", "pretrain", "finetune")]
    assert places == sorted(places)  # from raw text to a task
    assert max(map(len, shown.split("\n"))) <= 80


def test_version() -> None:
    assert run_successfully("--version").startswith("bertwright 1.")


def flags(record: type) -> dict[str, str]:
    """Return the text of every setting by name, those of nested records included."""
    docs, found = field_docs(record), {}
    for name, kind in get_type_hints(record).items():
        if dataclasses.is_dataclass(kind):
            found |= flags(kind)  # type: ignore[arg-type]
        else:
            found[name] = docs[name]  # every field must have one
    return found


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_help_explains_every_setting(verb: Verb) -> None:
    shown = run_successfully(f"{verb.name} --help all")
    words = " ".join(shown.split())
    for flag, text in flags(verb.load_settings()).items():
        positional = f" {singular(flag).upper()} " in words
        assert positional or f"--{flag.replace('_', '-')} " in words or f"--{flag.replace('_', '-')}, " in words
        assert text in words
    assert "--config FILE.toml" in words
    assert "None" not in re.sub("`None`|called None", "", shown)
    assert max(map(len, shown.split("\n"))) <= 80


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb.usual], ids=lambda verb: verb.name)
def test_help_begins_with_the_usual_settings(verb: Verb) -> None:
    shown = run_successfully(f"{verb.name} --help")
    listed = re.findall(r"^  (?:--)?([A-Za-z0-9-]+)", shown, re.MULTILINE)
    singular = [name.lower().replace("-", "_").rstrip("s") for name in listed]  # a positional INPUT is the field inputs
    assert singular == [field.rstrip("s") for field in verb.usual.split()]
    assert f"bertwright {verb.name} --help all" in shown
    assert shown.count("\n") <= 100


def test_vocabulary(at: Path) -> None:
    shown = run_successfully("vocabulary text.txt --output new --size 150 --min-frequency 2")
    assert shown.startswith("Vocabulary new\n")
    assert "words that are [UNK]" in shown
    assert {path.name for path in (at / "new").iterdir()} >= {"vocab.txt", "tokenizer.json", "settings.toml"}
    few = run_successfully("vocabulary text.txt --output few --size 9_000 --min-frequency 50")
    assert "tokens instead of 9,000" in few


def test_last_of_two_tasks_decides_the_defaults() -> None:
    given = "--task mrpc --task squad_v2 --run new --model bert --train a.json --dev b.json"
    settings = read_settings(FinetuneSettings, "finetune", given.split(), "")
    assert (settings.task.task, settings.epochs, settings.batch_size) == ("squad_v2", 2, 48)


def test_pretrain_and_resume(at: Path) -> None:
    shown = run_successfully(f"pretrain --store store --run new {TINY} {BRIEF}")
    assert 'bertwright fill-mask new/model "Some text with a [MASK] in it."' in shown
    assert "finished already" in run_successfully("pretrain --run new --resume")
    assert "finished already" in run_successfully("pretrain --resume --run=new --keep-last 1")


def test_fill_mask(at: Path) -> None:
    shown = run_successfully(
        'fill-mask run "The [MASK] met :fire: [bold]the [MASK][/bold]." "[UNK] the [MASK]" --top-k 3'
    )
    assert ":fire: [bold]the" in shown
    assert "[UNK] " in shown
    assert "[MASK] 1" in shown
    assert percents(shown) == 9
    many = run_successfully(f"fill-mask run '{'[MASK] ' * 7}'")
    assert "[MASK] 7" in many
    assert max(map(len, many.split("\n"))) <= 80


def percents(shown: str) -> int:
    return len(re.findall(r"\d%", shown))  # "%" alone is a token too


def test_embed(at: Path) -> None:
    shown = run_successfully('embed run "the baker" "the [red]cook" "the baker"')
    assert "the [red]cook" in shown
    assert shown.count("1.000") >= 5  # the diagonal, and the two equal texts
    many = run_successfully(f"embed run {' '.join(map(str, range(30)))}")
    assert max(map(len, many.split("\n"))) <= 80
    assert "5 of 30 columns fit" in many


def test_embed_files(at: Path) -> None:
    (at / "lines.txt").write_text("the baker\n\nthe cook\n")
    (at / "rows.jsonl").write_text('{"body": "the cook"}\n{"body": null}\n{"body": "a king"}\n')
    assert "2 vectors of 16 numbers" in run_successfully("embed run --inputs lines.txt --output a.npy")
    shown = run_successfully(
        "embed run --inputs rows.jsonl --column body --output b.npy --pooling max --normalize False"
    )
    assert "1 row without a text: no vector" in shown
    assert np.load(at / "a.npy").shape == np.load(at / "b.npy").shape == (2, 16)
    run_successfully("embed run 'the cook' --output c.npy")
    np.testing.assert_allclose(np.load(at / "c.npy")[0], np.load(at / "a.npy")[1], rtol=1e-5)


def test_convert(at: Path) -> None:
    assert "new: written" in run_successfully("convert run new")
    (at / "older").mkdir()
    shutil.copytree(at / "run" / "model", at / "older" / "model")
    run_successfully("convert older/model again")
    assert files(at / "new") == files(at / "again")
    text = "The [MASK] left."
    assert bertwright.load(at / "new").fill_mask(text) == bertwright.load(at / "run/model").fill_mask(text)


# Settings from files


def test_flags_override_the_settings_file(at: Path) -> None:
    (at / "a.toml").write_text(
        'output = "one"\n[corpus]\ninputs = ["text.txt"]\n[vocabulary]\nsize = 130\nmin_frequency = 2\n'
    )
    run_successfully("vocabulary --config a.toml")
    run_successfully("vocabulary --config=a.toml --output two --size 120")
    assert len((at / "one/vocab.txt").read_text().splitlines()) == 130
    assert len((at / "two/vocab.txt").read_text().splitlines()) == 120
    assert read_toml(at / "two/settings.toml")["vocabulary"]["size"] == 120


def test_saved_settings_repeat_the_command(at: Path) -> None:
    run_successfully("vocabulary --config vocabulary/settings.toml --output again")
    assert (at / "again/vocab.txt").read_bytes() == (at / "vocabulary/vocab.txt").read_bytes()
    run_successfully("prepare --config store/settings.toml --store again-store")
    assert files(at / "again-store/train") == files(at / "store/train")


def test_required_values_come_from_file_or_arguments(at: Path) -> None:
    (at / "a.toml").write_text('model = "run"\ntop_k = 1\n')
    assert percents(run_successfully("fill-mask --config a.toml run 'The [MASK].'")) == 1
    (at / "b.toml").write_text('model = "run"\ntexts = ["The [MASK]."]\n')
    assert percents(run_successfully("fill-mask --config b.toml")) == 5
    (at / "c.toml").write_text('source = "run"\n')
    assert "new: written" in run_successfully("convert --config c.toml run new")
    (at / "d.toml").write_text('folder = "run"\n')
    assert "pre-training run" in run_successfully("info --config d.toml")
    (at / "e.toml").write_text('model = "run"\ntexts = ["a", "b"]\npooling = "cls"\n[device]\nthreads = 1\n')
    assert "Cosines of 2 texts" in run_successfully("embed --config e.toml")
    (at / "f.toml").write_text('[corpus]\ninputs = ["nowhere"]\ndocument_unit = "line"\n')
    assert "Survey of text.txt" in run_successfully("survey --config f.toml text.txt")


# Misuse

MISUSE = {
    "unknown command": ("survei text.txt", 'no command "survei"; did you mean "survey"?'),
    "empty file": ("survey empty.txt", "empty.txt: empty file (0 bytes)"),
    "empty corpus, vocabulary": ("vocabulary blank.txt --output new", "no documents in blank.txt"),
    "no input": ("survey", "no input given: name at least one file"),
    "named twice": ("survey text.txt text.txt", "named twice"),
    "vocabulary smaller than the alphabet": ("vocabulary text.txt --output new --size 20", "size is 20, but 5 special"),
    "vocabulary is there": ("vocabulary text.txt --output vocabulary", "vocabulary: already exists"),
    "not UTF-8": ("survey caf\udce9.txt", "not UTF-8; rename the file"),
    "figures are there": ("survey text.txt --json text.txt", "text.txt: already exists"),
    "no such vocabulary": ("prepare text.txt --vocabulary nowhere --store new", "nowhere: no such folder"),
    "store of other inputs": ("prepare blank.txt text.txt --vocabulary vocabulary --store other", "other inputs"),
    "share": ("prepare text.txt --vocabulary vocabulary --store new --held-out 2", "held_out: expected a number"),
    "not a store": ("pretrain --store vocabulary --run new", "vocabulary"),
    "store of another vocabulary": (f"pretrain --store mixed --run new {TINY}", "vocabulary"),
    "run is there": (f"pretrain --store store --run run {TINY}", "run: already holds a run; resume it with --resume"),
    "nothing to resume": ("pretrain --run new --resume", "new: no run to resume"),
    "resume with a file": ("pretrain --run run --resume --config a.toml", "omit --config"),
    "resume otherwise": ("pretrain --run run --resume --learning-rate 1", "learning_rate was 0.0001, now 1.0"),
    "checkpoint of another size": ("fill-mask other-size 'a [MASK]'",
        "other-size/model.safetensors: intermediate_size"),
    "truncated weights": ("fill-mask truncated 'a [MASK]'", "truncated/model.safetensors: expected crc32c"),
    "no such model": ("fill-mask nowhere 'a [MASK]'", "nowhere: no such folder"),
    "no text": ("fill-mask run", "no text given; for example"),
    "nothing to embed": ("embed run", "give either texts, or files with --inputs"),
    "one text": ("embed run lonely", "one text has nothing to compare with"),
    "empty text": ("embed run a ' '", "text 2 of 2 is empty"),
    "no place for vectors": ("embed run --inputs text.txt", "--output vectors.npy"),
    "vectors are there": ("embed run a b --output text.txt", "text.txt: already exists"),
    "vectors to a screen": ("embed run a b --output -", "-: expected the name of a file"),
    "info on nothing": ("info nowhere", "nowhere: no such folder"),
    "info on a file": ("info text.txt", "text.txt: a file; name its folder"),
    "info on any folder": ("info .", "neither a run"),
    "nothing to verify": ("info vocabulary --verify", "vocabulary: --verify: expected a token store, a run"),
    "source is no model": ("convert vocabulary new", "vocabulary: no config.json"),
    "unknown nested key": ("pretrain --config b.toml", 'b.toml: data: unknown setting "max_lenght"; did you mean'),
    "a folder for a settings file": ("survey text.txt --config vocabulary", "--config vocabulary: expected a TOML"),
    "settings file not named": ("survey text.txt --config", "--config: expected one argument"),
    "dashes as the settings file": ("survey text.txt --config=--", "--config has no value"),
    "dashes as a text": ("survey text.txt --encoding=--", "--encoding has no value"),
    "dashes as a number": ("survey text.txt --workers=-- --encoding=utf-8", "--workers has no value"),
    "dashes as a list": ("train-translation --run r --train-source=--", "--train-source has no value"),
    "dashes as a switch": ("pretrain --run r --resume=--", "--resume has no value"),
}  # fmt: skip


@pytest.fixture
def bad(at: Path) -> Path:
    """Return the working directory with invalid files of many kinds."""
    (at / "empty.txt").write_text("")
    (at / "blank.txt").write_text(" \n\n \n")
    (at / "a.toml").write_text("stepz = 3\n")
    (at / "b.toml").write_text("[data]\nmax_lenght = 3\n")
    for name in ("truncated", "other-size"):
        shutil.copytree(at / "run/model", at / name)
    (at / "other-size/checksums.json").unlink()
    weights = at / "truncated/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    config = at / "other-size/config.json"
    config.write_text(config.read_text().replace('"intermediate_size": 64', '"intermediate_size": 128'))
    shutil.copytree(at / "store", at / "other")
    shutil.copytree(at / "store", at / "mixed")
    words = at / "mixed/tokenizer/tokenizer.json"
    words.write_text(words.read_text().replace('"baker"', '"bakers"'))
    return at


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_one_line_with_exit_code_2_and_leaves_nothing(bad: Path, name: str) -> None:
    command, message = MISUSE[name]
    before = files(bad)
    assert message in run_failing(command)
    after = files(bad)
    assert {path: after.get(path) for path in before} == before
    # Hidden files may remain: locks, and what an interrupted `prepare` resumes from. No file looks like a result.
    assert [path for path in after if path not in before and path != "new" and "/." not in path] == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("pretrain --run new --stepz 3", ["unknown: --stepz", "did you mean --steps?"]),
        ("pretrain --run new --task mrpc", ["unknown: --task"]),
        ("pretrain --run new --steps many", ["--steps: expected a whole number, got 'many'"]),
        (
            "prepare text.txt --vocabulary vocabulary --store new --held-out 1%",
            ["--held-out: expected a number, got '1%'"],
        ),
        ("pretrain --run new --size huge", ["--size: expected one of", "'tiny'", "got 'huge'"]),
        ("pretrain --run new --mask-mix 1 2", ["--mask-mix: expected 3"]),
        ("pretrain --store store", ["missing: --run PATH (see bertwright pretrain --help)"]),
        ("fill-mask", ["missing: MODEL (see"]),
        ("vocabulary text.txt", ["missing: --output PATH (see"]),
        ("survey text.txt --column", ["--column: expected 1"]),
        ("finetune --task classification --run new --trian a.tsv", ["unknown: --trian; did you mean --train"]),
        ("finetune --task classification --run new --epochs many", ["--epochs: expected a number, got 'many'"]),
        ("finetune --task mrpc --run new --header maybe", ["--header: expected True or False", "got 'maybe'"]),
        ("finetune --resume", ["missing: --run PATH"]),
        ("probe --task tagging --run new --representations sum-four", ["'sum-four'", "'sum-last-four'"]),
        ("glue-submission cola=bert", ["missing: --data PATH, --output PATH (see"]),
    ],
)
def test_invalid_arguments_are_explained(at: Path, command: str, words: list[str]) -> None:
    before = files(at)
    error = run_failing(command)
    assert all(word in error for word in words)
    assert files(at) == before


def test_unreachable_hub_is_one_line(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("Name or service not known\nand a long trace")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    error = run_failing("convert google-bert/nothing new")
    assert error.endswith("from the Hugging Face hub (Name or service not known)\n")
    assert not (at / "new").exists()


# Arguments


def read(arguments: list[str]) -> FillMaskSettings:
    return read_settings(FillMaskSettings, "fill-mask", arguments, "")  # type: ignore[no-any-return]


def test_text_that_begins_with_a_dash_is_a_text_after_two_dashes() -> None:
    for text in ("--a=", "--top-k", "-x", "--", "--top-k=7"):
        settings = read(["--top-k", "3", "model", "--", text])
        assert (settings.model, settings.texts, settings.top_k) == ("model", (text,), 3)
    for text in ("-", "- a [MASK]", "-5", "-.5e-3", ""):
        assert read(["model", text, "--top-k=3"]).texts == (text,)


@pytest.mark.parametrize("text", ["--a=", "-x", "--a"])
def test_unknown_flag_suggests_two_dashes_for_a_text(text: str) -> None:
    with pytest.raises(
        ValueError, match=rf"^unknown: {text}; .*write -- before it \(see bertwright fill-mask --help\)$"
    ):
        read(["model", text])


def test_options_may_stand_between_positional_arguments() -> None:
    settings = read(["--device", "cpu", "model", "--top-k", "3", "a", "--threads=2", "b"])
    assert (settings.model, settings.texts, settings.device.threads) == ("model", ("a", "b"), 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--threads= m a", "--threads has an empty value; is a variable"),
        (f"m a --top-k {'9' * 30}", "--top-k: expected at most 9,223,372,036,854,775,807, got 9999"),
        ("m a --top-k 1.5", "--top-k: expected a whole number, got '1.5'"),
        ("m a --top-k", "--top-k: expected 1 argument"),
        ("m a --device gpu", "--device: expected one of 'auto', 'cpu', 'cuda', got 'gpu'"),
    ],
)
def test_wrong_values_name_flag_and_value(arguments: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read(arguments.split())


def test_none_unsets_a_number_and_is_a_text_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[device]\nthreads = 3\n")
    config = f"--config={tmp_path}/a.toml"
    assert read([config, "m", "a"]).device.threads == 3
    assert read([config, "m", "None", "--threads", "None"]) == FillMaskSettings("m", ("None",))
    given = "--task classification --label None --header True --run new --model m --train a.tsv"
    overrides = read_settings(FinetuneSettings, "finetune", given.split(), "").task.overrides
    assert (overrides.label, overrides.header) == ("None", True)


def test_switches_and_tuples_are_read() -> None:
    given = "--run r --store s --pad-batches --no-bias-correction --mask-mix 0.5 0.25 0.25 --size tiny"
    given += " --learning-rate -1e-3"
    with pytest.raises(ValueError, match=r"^learning_rate: .*got -0.001$"):
        read_settings(PretrainSettings, "pretrain", given.split(), "")
    settings = read_settings(PretrainSettings, "pretrain", [*given.split(), "--learning-rate=2e-3"], "")
    assert (settings.pad_batches, settings.optimizer.bias_correction) == (True, False)
    assert (settings.data.mask_mix, settings.model.size) == ((0.5, 0.25, 0.25), "tiny")
    assert settings.optimizer.learning_rate == 2e-3


def test_error_of_a_settings_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[device]\nthreads = 'x'\n")
    with pytest.raises(ValueError, match=r"a\.toml: device: threads: expected int, got 'x'"):
        read(["--config", f"{tmp_path}/a.toml", "m", "a", "--threads", "2"])


# Errors of the system


@pytest.mark.parametrize("closed", [False, True], ids=["open output", "closed output"])
def test_exit_of_a_library_keeps_its_code(closed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertwright.inference.info.info", lambda *_: sys.exit(3))
    if closed:
        monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as raised:
        run(["info", "."])
    assert raised.value.code == 3


def test_broken_pipe_without_standard_output_has_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("bertwright.inference.info.info", fails)
    monkeypatch.setattr(sys, "stdout", None)
    assert run(["info", "."]) == 141


@pytest.mark.parametrize(
    "command",
    [
        "vocabulary text.txt --output new",
        "convert run new",
        "convert run new --format google",
        "word-vectors text.txt --output new --size 4 --epochs 1 --threads 1 --min-count 1",
        "embed run --inputs many.txt --output new",
        "survey text.txt --json new",
    ],
)
def test_full_disk_leaves_nothing(at: Path, command: str) -> None:
    (at / "many.txt").write_text("\n".join(f"the cook {number}" for number in range(3_000)))
    before = files(at)
    with full_disk(500):
        message = run_failing(command, code=1)
    assert message.startswith("bertwright: error: new")
    assert files(at) == before


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("convert run text.txt/new", "text.txt"),
        ("vocabulary text.txt --output text.txt/new", "text.txt"),
        ("vocabulary text.txt --output /sys/new", "/sys/new: "),  # not even root may write there
        ("survey text.txt --json /sys/new", "/sys/new: "),
        ("survey text.txt --json text.txt/new.json", "text.txt"),
        ("prepare text.txt --vocabulary vocabulary --store text.txt", "text.txt: "),
    ],
)
def test_unwritable_output_is_one_line(at: Path, command: str, message: str) -> None:
    assert run_failing(command).startswith(f"bertwright: error: {message}")


# Control characters, limits


HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\u202ex"


def commands_with(text: str) -> dict[str, str]:
    """Return a failing command line per command, with a text among its arguments."""
    quoted = shlex.quote(text)
    return {
        "survey": f"survey {quoted}.txt",
        "survey --pairs": f"survey --pairs {quoted}.tsv --model run",
        "vocabulary": f"vocabulary text.txt --output {quoted} --size {quoted}",
        "prepare": f"prepare text.txt --vocabulary {quoted} --store new",
        "pretrain": f"pretrain --run {quoted} --store {quoted}",
        "finetune": f"finetune --task {quoted} --run new --model run",
        "grid": f"grid --task {quoted} --run new --model run",
        "evaluate": f"evaluate {quoted} text.txt",
        "predict": f"predict {quoted} {quoted}",
        "push": f"push {quoted} me/model",
        "report": f"report {quoted} --output new.html",
        "check-labels": f"check-labels {quoted}",
        "probe": f"probe --task {quoted} --run new --model run",
        "glue-submission": f"glue-submission {quoted} --data . --output new.zip",
        "fill-mask": f"fill-mask run {quoted}",
        "embed": f"embed {quoted} a b",
        "info": f"info {quoted}",
        "convert": f"convert {quoted} new",
        "export": f"export {quoted} new",
        "train-translation": f"train-translation --run new --train-source {quoted} --train-target text.txt",
        "translate": f"translate {quoted} a",
        "attention": f"attention {quoted} a --output new.png",
        "experiment": f"experiment {quoted} --work new",
        "explain": f"explain {quoted} a b",
        "distill": f"distill {quoted} --static 8 --run new",
        "generate": f"generate {quoted} a",
        "ladder": f"ladder --task {quoted} --run new",
        "nearest-words": f"nearest-words {quoted} a",
        "mine-negatives": f"mine-negatives {quoted} --train text.txt --output new.jsonl",
        "quantize": f"quantize {quoted} new --dev text.txt",
        "next-sentence": f"next-sentence {quoted} a b",
        "plan": f"plan --hours 1 --text {quoted}",
        "score": f"score {quoted} a",
        "serve": f"serve {quoted}",
        "search build": f"search build {quoted} text.txt --index new",
        "search query": f"search query {quoted} a",
        "score-vectors": f"score-vectors {quoted} {quoted}",
        "tokenize": f"tokenize {quoted} a",
        "word-vectors": f"word-vectors {quoted} --output new",
        "no command": quoted,
        "no flag": f"survey text.txt --{quoted}",
        "no config": f"survey text.txt --config {quoted}",
    }


def test_each_command_has_a_failing_command_line() -> None:
    assert {verb.name for verb in VERBS} <= commands_with("").keys()


@pytest.mark.parametrize("name", commands_with(""))
def test_errors_have_no_control_characters(at: Path, name: str) -> None:
    done = run_command(commands_with(HOSTILE)[name])
    assert done.code == 2
    assert r"\x1b" in done.err
    assert not CONTROL.search((done.out + done.err).replace("\n", ""))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_help_has_no_control_characters(at: Path, verb: Verb) -> None:
    """A TOML file's values are the defaults that the help prints."""
    tables: dict[tuple[str, ...], list[str]] = {}
    for parents, field, kind in iter_fields(verb.load_settings()):
        if kind in (str, str | None, Path, Path | None, tuple[str, ...]) and field != "task":
            value = json.dumps(HOSTILE)  # \u001b and so on, as in TOML
            tables.setdefault(parents, []).append(f"{field} = {f'[{value}]' if 'tuple' in str(kind) else value}\n")
    heads = {parents: f"[{'.'.join(parents)}]\n" if parents else "" for parents in sorted(tables)}
    (at / "evil.toml").write_text("".join(head + "".join(tables[parents]) for parents, head in heads.items()))
    done = run_command(f"{verb.name} --config evil.toml --help all")
    assert (done.code, done.err) == (0, "")
    assert r"\x1b" in done.out
    assert not CONTROL.search(done.out.replace("\n", ""))


def test_output_has_no_control_characters(at: Path) -> None:
    (at / f"{HOSTILE}.txt").write_text(f"{TEXT}\n\n" + f"{HOSTILE} is a sentence that is repeated.\n\n" * 30)
    (at / HOSTILE).symlink_to(at / "run")
    quoted = shlex.quote(HOSTILE)
    for command in (
        f"survey {quoted}.txt --json {quoted}.json",
        f"vocabulary {quoted}.txt --output {quoted}-vocabulary --size 200",
        f"prepare {quoted}.txt --vocabulary vocabulary --store {quoted}-store --workers 1",
        f"fill-mask {quoted} {shlex.quote(f'a [MASK] {HOSTILE}')}",
        f"embed run {quoted} b",
        f"info {quoted}",
        f"convert {quoted} {quoted}-model",
    ):
        printed = run_successfully(command)
        assert r"\x1b" in printed, command
        assert not CONTROL.search(printed.replace("\n", "")), command


@pytest.mark.parametrize("threads", ["100000", "0", "99999999999", "9" * 40])
def test_threads_out_of_range_are_rejected(at: Path, threads: str) -> None:
    done = run_command(f"fill-mask run 'a [MASK]' --threads {threads}")
    assert done.code == 2
    assert re.search(rf"threads: expected .*{threads}", done.err)


def test_too_long_file_name_is_misuse() -> None:
    assert run_command(f"survey {'a' * 300}.txt").code == 2


# In another process


def accept_ctrl_c() -> None:
    """Undo what a shell does to background processes: they and their children ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def start_command(command: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bertwright", *shlex.split(command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=accept_ctrl_c,
        **options,  # type: ignore[call-overload]
    )


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        pytest.param(signal.SIGINT, ".unfinished-*", id="Ctrl-C, workers start", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, ".unfinished-*/*", id="SIGTERM, a part is there"),
        pytest.param(signal.SIGINT, ".unfinished-*/*", id="Ctrl-C, a part is there", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, ".unfinished-*", id="SIGTERM, workers start", marks=pytest.mark.slow),
    ],
)
def test_interrupted_prepare_resumes_to_the_same_store(at: Path, number: signal.Signals, moment: str) -> None:
    (at / "long.txt").write_text("\n\n".join(f"{number} {TEXT}" for number in range(1_200)))
    command = "prepare long.txt --vocabulary vocabulary --workers 1 --held-out 0.1 --store"
    with start_command(f"{command} broken", start_new_session=True) as process:
        until = time.monotonic() + 60
        while not list((at / "broken").glob(moment)):
            assert time.monotonic() < until
            time.sleep(0.01)
        os.killpg(process.pid, number)  # as a terminal does
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert re.fullmatch(r"bertwright: interrupted: .* continue\n", err)
    assert not (at / "broken/train").exists()
    run_successfully(f"{command} broken")
    run_successfully(f"{command} whole")
    assert files(at / "broken/train") == files(at / "whole/train")


def test_closed_pipe_ends_without_an_error(at: Path) -> None:
    with start_command("survey text.txt") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_unknown_option_with_closed_output_is_an_error() -> None:
    command = f"{shlex.quote(sys.executable)} -m bertwright survey text.txt --no-such >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "--no-such" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_output_is_no_error(at: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m bertwright survey text.txt >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_error_is_written_in_one_call() -> None:
    ours, theirs = socket.socketpair(type=socket.SOCK_DGRAM)  # each write is one message
    with ours, theirs:
        command = [sys.executable, "-u", "-m", "bertwright", "info", "nowhere"]  # unbuffered, as under torchrun
        assert subprocess.run(command, stderr=theirs, check=False).returncode == 2
        line = ours.recv(10_000)
    assert line.startswith(b"bertwright: error: ")
    assert line.endswith(b"\n")


def test_installed_command_prints_to_an_ascii_terminal(at: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [Path(sys.executable).with_name("bertwright"), "survey", "text.txt"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "documents" in done.stdout


def test_help_works_without_source_files(tmp_path: Path) -> None:
    package, copy = Path(bertwright.__file__).parent, tmp_path / "bertwright"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pyc*", "*.py"))
    compileall.compile_dir(package, quiet=1)  # only what has changed
    for path in package.rglob("*.py"):
        shutil.copy(cache_from_source(path), copy / path.relative_to(package).with_suffix(".pyc"))
    for arguments, expected in (
        (["--help"], "turn texts into vectors"),
        (["embed", "--help"], "--pooling"),
    ):
        command = [sys.executable, "-m", "bertwright", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": ""}, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert expected in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
def test_full_disk_of_the_output_is_named() -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "bertwright", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("bertwright: error: standard output or a temporary file: No space")
