"""Campaign: single flipped bits in models, checkpoints and stores; whatever a digest covers is noticed."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
from campaign import SEED, Commands, read_files, scale, summarize
from project import CPU, reopen_run

from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

pytestmark = pytest.mark.slow

NUM_FLIPS = 240
FIRST_STEPS = (
    "--size tiny --hidden-size 16 --num-heads 2 --max-positions 32 --max-length 24 --batch-size 4 --long-ratio 0 "
    f"--steps 2 --eval-sequences 8 {CPU}"
)
TOKENIZER = "store/tokenizer"
# Folder or file whose content a digest covers, and a command that reads it.
FOLDERS = {
    "checkpoint": ("open/checkpoints/step-00000009", "pretrain --run open --resume"),
    "best checkpoint": ("open-task/best", "finetune --run open-task --resume"),
    "store": ("store/train", f"pretrain --store store --run new {FIRST_STEPS}"),
    "tokenizer of a store": (TOKENIZER, f"pretrain --store store --run new {FIRST_STEPS}"),
    "model": ("classification/model", f"predict classification/model 'the bear sees' {CPU}"),
}


def test_flipped_bits_are_noticed(project: Path, commands: Commands) -> None:
    original, work = project.parent / "unflipped", project.parent / "flipped"
    shutil.copytree(project, original)
    for run, source in (("open", "run"), ("open-task", "classification")):
        shutil.copytree(original / source, original / run)
        reopen_run(original / run)
    digest = Tokenizer.load(original / TOKENIZER).digest
    chance = random.Random(SEED)
    noticed: dict[str, Counter[str]] = {name: Counter() for name in FOLDERS}
    missed = []
    for number in range(scale(NUM_FLIPS)):
        name = list(FOLDERS)[number % len(FOLDERS)]
        location, command = FOLDERS[name]
        files = sorted(path for path in [original / location, *(original / location).rglob("*")] if path.is_file())
        path = chance.choice(files).relative_to(original)
        shutil.copytree(original, work)
        before = read_files(work)
        content = bytearray((work / path).read_bytes())
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        (work / path).write_bytes(content)
        outcome = commands(command, work)
        noticed[name]["all"] += 1
        noticed[name]["noticed"] += outcome.code == 2
        if outcome.code == 0 and location == TOKENIZER and Tokenizer.load(work / location).digest == digest:
            noticed[name]["same ids"] += 1  # the digest of a tokenizer covers what decides its ids
        elif outcome.code == 0 and path.name in ("state.json", "README.md"):
            noticed[name]["outside of digests"] += 1  # not all of the first is read; the owner may edit the second
        elif outcome.code != 2 or outcome.problem:
            missed.append(f"{name}: {path}: {outcome}")
        else:
            after = read_files(work)
            changed = [one for one in before if after.get(one) != before[one] and one != str(path)]
            assert not [one for one in changed if Path(one).name != "settings.toml"], str(outcome)
        shutil.rmtree(work)
    numbers = ", ".join(f"{name} {dict(counts)}" for name, counts in noticed.items())
    summarize(f"bit flips: {numbers}; {len(missed)} failures")
    assert not missed, "\n\n".join(missed)
