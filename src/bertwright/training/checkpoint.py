"""Checkpoints: write them atomically, verify them on reading, delete the oldest ones.

A checkpoint is a folder `step-00001000` with the model (for BERT a Hugging Face folder), the optimizer's state, any
state that steps carry, and `state.json`, which lists the size and digest of each file; files in folders, the modules of
sentence-transformers, are not listed. If a run can resume from the checkpoint, `state.json` also contains the
environment, on which the bits of the next steps depend.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertwright.base.files import atomic_folder, digest_file, read_json, remove_folder, write_json
from bertwright.base.foreign import check_file_name
from bertwright.kernels.cpu import processor_name
from bertwright.kernels.native_library import describe_library
from bertwright.training.context import ExecutionContext

STATE = "state.json"
OPTIMIZER, CARRIED = "optimizer.safetensors", "carried.safetensors"


def list_checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoints in a folder, oldest first."""
    return sorted((path for path in folder.glob("step-*") if path.name[5:].isdecimal() and path.is_dir()), key=step_of)


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def save(
    folder: Path,
    step: int,
    write_model: Callable[[Path], None],
    optimizer: Mapping[str, Tensor],
    fields: Mapping[str, Any] | None = None,
    carried: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint unless it already exists.

    `fields`: further content of state.json. `carried`: the state that a step hands to the next one. If it raises
    OSError (a full disk, no permission), nothing is written.
    """
    path = path_of(folder, step)
    if path.exists():
        return
    try:
        with atomic_folder(path) as temporary:
            write_model(temporary)
            save_file(dict(optimizer), temporary / OPTIMIZER)
            if carried is not None:
                save_file({name: tensor.contiguous() for name, tensor in carried.items()}, temporary / CARRIED)
            files = sorted(path for path in temporary.iterdir() if path.is_file())
            listed = {file.name: {"bytes": file.stat().st_size, "digest": digest_file(file)} for file in files}
            write_json(temporary / STATE, {"step": step, "files": listed} | dict(fields or {}))
    except SafetensorError as error:  # reports the system's errors as text
        raise OSError(errno.EIO, f"the checkpoint could not be written ({error})", str(path)) from None


def prune(folder: Path, keep_last: int, keep_every: int | None = None) -> None:
    """Delete all checkpoints but the newest `keep_last` and the multiples of `keep_every` steps."""
    for old in list_checkpoints(folder)[:-keep_last]:
        if keep_every is None or step_of(old) % keep_every:
            remove_folder(old)


def verify(checkpoint: Path) -> None:
    """Compare the files of a checkpoint with their recorded sizes and digests.

    Raises ValueError that names the first file that is missing, truncated or altered.
    """
    remedy = "start again in another folder"
    if list_checkpoints(checkpoint.parent)[:1] != [checkpoint]:
        remedy = f"delete {checkpoint} to resume from the one before it, or {remedy}"
    if not (checkpoint / STATE).is_file():
        raise ValueError(f"{checkpoint}: {STATE} is missing; {remedy}")
    try:
        state = read_json(checkpoint / STATE)
        listed = [
            (check_file_name(name, checkpoint / STATE), int(record["bytes"]), str(record["digest"]))
            for name, record in state["files"].items()
        ]
        dict(state.get("environment", {}))  # an error if it is no table
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise ValueError(
            f"{checkpoint / STATE}: damaged, expected the checkpoint's files and environment; {remedy}"
        ) from None
    for name, expected, digest in listed:
        file = checkpoint / name
        size = file.stat().st_size if file.is_file() else None
        if size != expected:
            actual = "no file" if size is None else f"{size:,} bytes"
            raise ValueError(f"{file}: expected {expected:,} bytes, got {actual}; {remedy}")
        if digest_file(file) != digest:
            raise ValueError(f"{file}: its content was altered after it was written; {remedy}")


def describe_environment(context: ExecutionContext) -> dict[str, str]:
    """Describe everything but settings and data that the bits of a training step depend on."""
    environment = {"torch": torch.__version__, "dtype": context.dtype_name, "processes": str(context.world_size)}
    if context.device.type == "cuda":
        return environment | {"processor": torch.cuda.get_device_name(context.device)}
    return environment | {
        "processor": processor_name(),
        "threads": str(context.threads),
        "kernels": describe_library("kernels"),
    }


def describe_environment_changes(checkpoint: Path, context: ExecutionContext) -> str | None:
    """Return a notice if the environment differs from the one in a verified checkpoint; None if it does not."""
    before, now = read_json(checkpoint / STATE).get("environment", {}), describe_environment(context)
    changed = [f"{name} {before[name]} → {now[name]}" for name in now if name in before and before[name] != now[name]]
    if not changed:
        return None
    return f"{checkpoint}: the environment has changed: {', '.join(changed)}; results will differ by rounding"


def find_latest(folder: Path) -> Path | None:
    """Return the newest checkpoint of a folder without verifying it; None if there is none."""
    return next(reversed(list_checkpoints(folder)), None)


def verify_latest(folder: Path) -> Path | None:
    """Verify and return the newest checkpoint of a folder; None if it has none. Raises ValueError for a damaged one."""
    latest = find_latest(folder)
    if latest is not None:
        verify(latest)
    return latest


def load_optimizer(checkpoint: Path) -> dict[str, Tensor]:
    return load_file(checkpoint / OPTIMIZER)
