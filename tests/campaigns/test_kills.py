"""Campaign: SIGKILL at random moments of every command that writes files; the same command again gives the same result.

Half of the kills come before a random file operation, half after a random time.
"""

from __future__ import annotations

import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from campaign import (
    SEED,
    Commands,
    Outcome,
    find_differences,
    find_temporaries,
    read_files,
    read_results,
    scale,
    summarize,
)
from project import CPU, PRETRAIN, TUNE

pytestmark = pytest.mark.slow

MAX_KILLS = 3  # per trial; then the command may finish


class KilledCommand(NamedTuple):
    """A command that is killed."""

    name: str
    kills: int
    command: str
    """Command line in a folder beside the project."""
    output: str
    """What it writes."""
    resume: str = ""
    """The command that continues its run with --resume; empty: it is typed again."""


TRAIN = "--train ../project/train.tsv --dev ../project/dev.tsv --model ../project/run/model"
DATA = "--train ../project/train.conll --dev ../project/dev.conll --model ../project/run/model"
MODEL = "../project/run/model"
ROLES = "--columns anchor=first positive=second score=score"
PAIRS = f"{ROLES} --train ../project/train.csv --dev ../project/dev.csv --model {MODEL}"
HEADS = "--representations embeddings last --seeds 0 1 --epochs 2 --lstm-size 4 --lstm-layers 1"
KILLED_COMMANDS = [
    KilledCommand("vocabulary", 20, "vocabulary ../project/text.txt --output new --size 120 --min-frequency 2", "new"),
    KilledCommand(
        "prepare", 20, "prepare ../project/text.txt --vocabulary ../project/vocabulary --store new --workers 1", "new"
    ),
    KilledCommand("pretrain", 40, f"pretrain --store ../project/store --run new {PRETRAIN}", "new", "pretrain"),
    KilledCommand(
        "finetune", 35, f"finetune --task classification {TRAIN} --run new {TUNE} --save-every 2", "new", "finetune"
    ),
    KilledCommand(
        "grid",
        25,
        f"grid --task classification {TRAIN} --run new --epochs 1 --batch-sizes 8 --learning-rates 1e-2 1e-3 {CPU}",
        "new",
        "grid",
    ),
    KilledCommand("probe", 25, f"probe --task tagging {DATA} --run new {HEADS} {CPU}", "new", "probe"),
    KilledCommand(
        "predict",
        15,
        f"predict ../project/classification --inputs ../project/dev.tsv --output new.jsonl {CPU}",
        "new.jsonl",
    ),
    KilledCommand("embed", 10, f"embed ../project/run --inputs ../project/lines.txt --output new.npy {CPU}", "new.npy"),
    KilledCommand(
        "evaluate", 10, f"evaluate ../project/tagging ../project/dev.conll --output new.json {CPU}", "new.json"
    ),
    KilledCommand("convert", 15, "convert ../project/classification new", "new"),
    KilledCommand(
        "glue-submission",
        10,
        f"glue-submission sst2=../project/classification --data ../project/glue --output new.zip --fill-missing {CPU}",
        "new.zip",
    ),
    KilledCommand("attention", 10, f"attention ../project/run 'the bear sees' --output new.npz {CPU}", "new.npz"),
    KilledCommand("survey", 10, "survey ../project/text.txt --json new.json", "new.json"),
    KilledCommand(
        "vectors", 20, f"finetune --task embedding {PAIRS} --run new {TUNE} --save-every 2", "new", "finetune"
    ),
    KilledCommand(
        "distill", 15, f"distill {MODEL} --layers 0 --texts ../project/lines.txt --run new --batch-size 8 {CPU}", "new",
        "finetune",
    ),
    KilledCommand("static", 5, f"distill {MODEL} --static 8 --run new {CPU}", "new"),
    KilledCommand("search build", 15, f"search build {MODEL} ../project/lines.txt --index new {CPU}", "new"),
    KilledCommand(
        "mine-negatives",
        10,
        f"mine-negatives {MODEL} --train ../project/train.csv --columns anchor=first positive=second "
        f"--corpus ../project/lines.txt --number 2 --output new.jsonl {CPU}",
        "new.jsonl",
    ),
    KilledCommand("word-vectors", 15, "word-vectors ../project/text.txt --output new --size 8 --min-count 1", "new"),
    KilledCommand("quantize", 5, "quantize ../project/classification new --dev ../project/dev.tsv", "new"),
    KilledCommand("export", 3, "export ../project/classification new --to onnx", "new"),
    KilledCommand("report", 5, "report ../project/run --output new.html", "new.html"),
]  # fmt: skip


def next_command(killed: KilledCommand, folder: Path) -> str:
    """Return the command that a user would type now: the same one, or the run's --resume."""
    has_run = killed.resume and (folder / killed.output / "settings.toml").exists()
    return f"{killed.resume} --run {killed.output} --resume" if has_run else killed.command


def is_reported(error: str) -> bool:
    """Return whether a command has found its result in place."""
    return "already exists" in error or "already an index of" in error


def check_partial(killed: KilledCommand, folder: Path, expected: dict[str, bytes]) -> None:
    """Assert that whatever a killed command has left under a final name is complete."""
    output = folder / killed.output
    goes_on = killed.resume or killed.name in ("prepare", "search build")  # from what a killed command left
    if output.exists() and not goes_on:
        assert not find_differences(read_results(folder), expected)
    for name in ("model", "train", "held_out"):
        if (output / name).exists():
            found = {path: content for path, content in read_results(folder).items() if f"/{name}/" in f"/{path}"}
            assert found == {path: expected[path] for path in found}
            assert found.keys() == {path for path in expected if path.startswith(f"{killed.output}/{name}/")}


def run_trial(
    killed: KilledCommand, folder: Path, commands: Commands, unbroken: Outcome, expected: dict[str, bytes], kills: int
) -> int:
    """Run a command in an empty folder, kill it up to `kills` times, and check its result; return the kills."""
    chance = random.Random(f"{SEED} {killed.name} {folder.name}")
    done = 0
    folder.mkdir()
    while True:
        command = next_command(killed, folder)
        fault: dict[str, float] = {}
        if done < kills:
            at, after = chance.randint(1, unbroken.operations), chance.uniform(0, unbroken.seconds)
            fault = {"at": at} if chance.random() < 0.5 else {"after": after}
        outcome = commands(command, folder, **fault)
        if outcome.code == -signal.SIGKILL and not outcome.timed_out:
            done += 1
            check_partial(killed, folder, expected)
            continue
        # Killed when its result was in place: the same command again reports that.
        is_there = outcome.code == 2 and is_reported(outcome.err) and done and not killed.resume
        assert outcome.problem is None, str(outcome)
        assert outcome.code == 0 or is_there, str(outcome)
        if is_there or done == kills or not fault:
            break
        shutil.rmtree(folder)  # it ended before its kill
        folder.mkdir()
    assert not find_differences(read_results(folder), expected), f"{killed.name} after {done} kills"
    assert not find_temporaries(folder)
    return done


@pytest.mark.parametrize("killed", KILLED_COMMANDS, ids=lambda killed: killed.name)
def test_killed_command_ends_with_the_same_bits(killed: KilledCommand, project: Path, commands: Commands) -> None:
    base = project.parent / f"kills-{killed.name}"
    base.mkdir()
    (base / "project").symlink_to(project)
    before = read_files(project)
    (base / "unbroken").mkdir()
    commands.check(killed.command, base / "unbroken")  # once more: the first one may read files from the disk
    shutil.rmtree(base / "unbroken")
    (base / "unbroken").mkdir()
    unbroken = commands.check(killed.command, base / "unbroken")
    expected = read_results(base / "unbroken")
    total, trials, chance = 0, 0, random.Random(SEED)
    while total < scale(killed.kills):
        kills = min(chance.randint(1, MAX_KILLS), scale(killed.kills) - total)
        total += run_trial(killed, base / f"trial-{trials}", commands, unbroken, expected, kills)
        shutil.rmtree(base / f"trial-{trials}")
        trials += 1
    assert not find_differences(read_files(project), before)
    summarize(f"kills: {killed.name}: {total} in {trials} trials, all results equal, no temporary left")


@pytest.mark.parametrize("killed", KILLED_COMMANDS[:4], ids=lambda killed: killed.name)
def test_killed_process_of_the_shell_ends_with_the_same_bits(killed: KilledCommand, project: Path) -> None:
    base = project.parent / f"shell-{killed.name}"
    base.mkdir()
    (base / "project").symlink_to(project)
    for name in ("unbroken", "broken"):
        (base / name).mkdir()
    chance = random.Random(SEED)

    def start(command: str, folder: Path) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-m", "bertwright", *shlex.split(command)]
        return subprocess.Popen(arguments, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    started = time.monotonic()
    assert start(killed.command, base / "unbroken").wait() == 0
    seconds = time.monotonic() - started
    expected, ends = read_results(base / "unbroken"), Counter[str]()
    while ends["killed"] < scale(3):
        process = start(next_command(killed, base / "broken"), base / "broken")
        try:
            process.communicate(timeout=chance.uniform(0.3, 1.1) * seconds)
            ends["ended"] += 1
            shutil.rmtree(base / "broken")
            (base / "broken").mkdir()
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            ends["killed"] += 1
            check_partial(killed, base / "broken", expected)
    process = start(next_command(killed, base / "broken"), base / "broken")
    _, error = process.communicate()
    assert process.returncode == 0 or is_reported(error), error
    assert not find_differences(read_results(base / "broken"), expected)
    assert not find_temporaries(base / "broken")
    summarize(f"kills: {killed.name} from the shell: {ends['killed']}, result equal")
