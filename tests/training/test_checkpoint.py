"""Checkpoints: written atomically, damage is noticed."""

from __future__ import annotations

import errno
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertwright.training import checkpoint
from bertwright.training.context import ExecutionContext
from helpers import full_disk

STATE = {"moments": torch.arange(1000.0), "steps": torch.tensor(7)}


def write_model(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weights" * 100)


def test_latest_is_the_newest_checkpoint_and_old_ones_are_deleted(tmp_path: Path) -> None:
    assert checkpoint.verify_latest(tmp_path) is None
    for step in (5, 100, 20):
        checkpoint.save(tmp_path, step, write_model, STATE)
        checkpoint.prune(tmp_path, keep_last=2)
    (tmp_path / "step-00000999.copy").mkdir()  # a user's own, which is none of ours
    assert [path.name for path in checkpoint.list_checkpoints(tmp_path)] == ["step-00000020", "step-00000100"]
    newest = checkpoint.verify_latest(tmp_path)
    assert newest is not None
    assert newest == checkpoint.find_latest(tmp_path)
    assert checkpoint.step_of(newest) == 100
    loaded = checkpoint.load_optimizer(newest)
    assert all(torch.equal(loaded[name], STATE[name]) for name in STATE)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: f.write_bytes(f.read_bytes()[:-1]),
            r"model.safetensors: expected 700 bytes, got 699 bytes; start again",
        ),
        (lambda f: f.write_bytes(b"W" + f.read_bytes()[1:]), r"model.safetensors: its content was altered"),
        (lambda f: f.unlink(), r"model.safetensors: expected 700 bytes, got no file"),
        (
            lambda f: (f.parent / "state.json").unlink(),
            r"state.json is missing; start again in another folder",
        ),
        (
            lambda f: (f.parent / "state.json").write_text(""),
            r"state.json: damaged.*; start again in another folder",
        ),
        (lambda f: (f.parent / "state.json").write_text('{"step": 1}'), r"state.json: damaged.*; start again"),
        (
            lambda f: (f.parent / "state.json").write_text('{"files": {"a": {"bytes": 1e400, "digest": ""}}}'),
            r"state.json: damaged.*; start again",
        ),
        (
            lambda f: (f.parent / "state.json").write_text('{"step": 1, "files": {}, "environment": 3}'),
            r"state.json: damaged.*; start again",
        ),
    ],
)
def test_damaged_checkpoint_raises_an_error_with_a_hint(tmp_path: Path, damage: object, message: str) -> None:
    checkpoint.save(tmp_path, 1, write_model, STATE)
    path = checkpoint.path_of(tmp_path, 1)
    damage(path / "model.safetensors")  # type: ignore[operator]
    with pytest.raises(ValueError, match=message):
        checkpoint.verify_latest(tmp_path)
    assert checkpoint.find_latest(tmp_path) == path
    checkpoint.save(tmp_path, 0, write_model, STATE)
    older = re.escape(f"delete {path} to resume from the one before it, or start again")
    with pytest.raises(ValueError, match=message.replace("start again", older)):
        checkpoint.verify_latest(tmp_path)


def test_failed_write_leaves_older_checkpoints(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, write_model, STATE)

    def full(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, 2, full, STATE)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    assert checkpoint.verify_latest(tmp_path) == tmp_path / "step-00000001"


def test_error_of_the_system_while_writing_is_raised(tmp_path: Path) -> None:
    with full_disk(2_000), pytest.raises(OSError, match=r"[Tt]oo large"):
        checkpoint.save(tmp_path, 3, write_model, STATE)
    assert list(tmp_path.iterdir()) == []


CPU = ExecutionContext(torch.device("cpu"), torch.float32, threads=2)


def save_with_environment(folder: Path, context: ExecutionContext) -> Path:
    fields = {"environment": checkpoint.describe_environment(context)}
    checkpoint.save(folder, 1, write_model, STATE, fields)
    return checkpoint.path_of(folder, 1)


def test_changed_environment_is_reported_on_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FINDINGS M5."""
    path = save_with_environment(tmp_path, CPU)
    assert checkpoint.describe_environment_changes(path, CPU) is None
    recorded = checkpoint.describe_environment(CPU)
    now = replace(CPU, dtype=torch.bfloat16, threads=3, world_size=4)
    monkeypatch.setattr(checkpoint, "describe_library", lambda name: "kernels-x86-64-v2")
    monkeypatch.setattr(checkpoint, "processor_name", lambda: "Other Processor")
    monkeypatch.setattr(torch, "__version__", "9.9")
    changes = checkpoint.describe_environment_changes(path, now)
    assert changes is not None
    for change in (
        f"torch {recorded['torch']} → 9.9",
        "dtype float32 → bfloat16",
        "processes 1 → 4",
        f"processor {recorded['processor']} → Other Processor",
        "threads 2 → 3",
        f"kernels {recorded['kernels']} → kernels-x86-64-v2",
    ):
        assert change in changes


def test_checkpoint_without_an_environment_reports_no_change(tmp_path: Path) -> None:
    """Versions before 0.2 recorded none."""
    checkpoint.save(tmp_path, 1, write_model, STATE)
    assert checkpoint.describe_environment_changes(checkpoint.path_of(tmp_path, 1), CPU) is None
