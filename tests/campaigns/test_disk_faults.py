"""Campaign: disks that are full, broken, read-only or forbidden while a command writes.

The command ends with one message, leaves nothing half-written and every old file as it was; once the disk works again,
the same command, or --resume, gives the result of an undisturbed one.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
from test_kills import KILLED_COMMANDS, KilledCommand, check_partial, is_reported, next_command

pytestmark = pytest.mark.slow

NUM_FAULTS = 120
NOBODY = 65534
FAULTS = ["ENOSPC", "EDQUOT", "EIO", "EROFS", "EACCES", "file size", "small disk", "read-only folder"]


@contextmanager
def mount_disk(folder: Path, size: int) -> Iterator[bool]:
    """Mount a disk in memory of a size in bytes; yield False if this user must not."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        yield False
        return
    try:
        yield True
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def check_failure(
    outcome: Outcome, fault: str, killed: KilledCommand, folder: Path, expected: dict[str, bytes]
) -> None:
    """Assert that a command has reported a fault, and that what it has left is complete."""
    assert outcome.problem is None, f"{fault}: {outcome}"
    if outcome.code:
        check_partial(killed, folder, expected)
    else:  # a fault after the last operation that needs the disk, or one that the command works around
        assert not find_differences(read_results(folder), expected), f"{fault}: {outcome}"


def run_small_disk(
    killed: KilledCommand, folder: Path, commands: Commands, expected: dict[str, bytes], chance: random.Random
) -> bool:
    """Run a command on a disk that is too small, then on a large enough one; return whether it could be mounted."""
    size = sum(len(content) for content in expected.values())
    with mount_disk(folder, chance.randint(1, max(2, size // 4096)) << 12) as is_mounted:
        if not is_mounted:
            return False
        outcome = commands(killed.command, folder)
        check_failure(outcome, "small disk", killed, folder, expected)
        left = find_temporaries(folder)
        assert not left, f"small disk: {left}, {outcome}"
        subprocess.run(["mount", "-o", "remount,size=100m", str(folder)], check=True)
        finish(killed, folder, commands, expected, outcome)
    return True


def finish(
    killed: KilledCommand, folder: Path, commands: Commands, expected: dict[str, bytes], failed: Outcome
) -> None:
    """Run a command again after its fault; assert that its result is that of an undisturbed one."""
    if failed.code:
        outcome = commands(next_command(killed, folder), folder)
        is_there = is_reported(outcome.err) and (folder / killed.output).exists()
        assert outcome.code == 0 or is_there, f"after {failed}\n{outcome}"
    assert not find_differences(read_results(folder), expected), str(failed)
    assert not find_temporaries(folder), str(failed)


def run_fault(
    killed: KilledCommand,
    fault: str,
    folder: Path,
    commands: Commands,
    unbroken: Outcome,
    expected: dict[str, bytes],
    chance: random.Random,
) -> str:
    """Run a command with one fault, and again without; return the fault that was caused."""
    folder.mkdir()
    if fault == "small disk" and run_small_disk(killed, folder, commands, expected, chance):
        return fault
    details: dict[str, Any] = {"at": chance.randint(1, unbroken.operations), "errno": fault}
    if fault in ("file size", "small disk"):
        fault = "file size"
        details = {"file_size": int(10 ** chance.uniform(0, 4.5))}
    if fault == "read-only folder":
        details = {"user": NOBODY} if os.geteuid() == 0 else {}
        folder.chmod(0o555)
    outcome = commands(killed.command, folder, **details)
    if fault == "read-only folder":
        assert outcome.code, str(outcome)
        assert not list(folder.iterdir())
        folder.chmod(0o755)
    check_failure(outcome, f"{fault} {details}", killed, folder, expected)
    if fault != "EIO" and "at" not in details:  # with a failing disk, its own temporaries may stay
        assert not find_temporaries(folder), f"{fault}: {outcome}"
    finish(killed, folder, commands, expected, outcome)
    return fault


def test_disk_faults_are_reported_and_lose_nothing(project: Path, commands: Commands) -> None:
    base = project.parent / "faults"
    base.mkdir(mode=0o755)
    (base / "project").symlink_to(project)
    for folder in (*project.parents, project):  # readable by the user of the read-only folders
        if folder.owner() == base.owner() and folder.name.startswith(("pytest-", "campaign")):
            folder.chmod(0o755)
    before = read_files(project)
    undisturbed = {}
    for killed in KILLED_COMMANDS:
        (base / "undisturbed").mkdir()
        outcome = commands.check(killed.command, base / "undisturbed")
        undisturbed[killed.name] = outcome, read_results(base / "undisturbed")
        shutil.rmtree(base / "undisturbed")
    chance = random.Random(SEED)
    caused: Counter[str] = Counter()
    failures = []
    for number in range(scale(NUM_FAULTS)):
        killed = KILLED_COMMANDS[number % len(KILLED_COMMANDS)]
        fault = FAULTS[(number + number // len(KILLED_COMMANDS)) % len(FAULTS)]
        folder = base / f"fault-{number}"
        try:
            caused[run_fault(killed, fault, folder, commands, *undisturbed[killed.name], chance)] += 1
        except AssertionError as failure:
            failures.append(f"{number} {fault}: {failure}")
        shutil.rmtree(folder)
    assert not find_differences(read_files(project), before)
    numbers = ", ".join(f"{count} {fault}" for fault, count in caused.items())
    summarize(f"disk faults: {caused.total()} reported, results equal afterwards ({numbers}); {len(failures)} failures")
    assert not failures, "\n\n".join(failures)
