"""Checkpoints: whole or absent, verified when read, the oldest ones deleted.

A checkpoint is a folder `step-00001000` with the model as a Hugging Face folder, the optimizer's state, and
`state.json`, which names every file with its size and digest, and what the bits of the next steps depend on.
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

from bertwright.files import atomic_folder, digest_file, read_json, remove_folder, write_json
from bertwright.kernels.cpu import model_name
from bertwright.kernels.native import describe_library

STATE = "state.json"
OPTIMIZER = "optimizer.safetensors"


def list_checkpoints(folder: Path) -> list[Path]:
    """Every checkpoint in a folder, oldest first."""
    return sorted((path for path in folder.glob("step-*") if path.name[5:].isdecimal() and path.is_dir()), key=step_of)


def step_of(checkpoint: Path) -> int:
    """The number of steps behind a checkpoint."""
    return int(checkpoint.name.removeprefix("step-"))


def save(
    folder: Path, step: int, write_model: Callable[[Path], None], optimizer: Mapping[str, Tensor], keep: int
) -> Path:
    """Write one checkpoint, then delete all but the newest `keep`.

    Raises OSError (a full disk, no permission) with nothing half-written and the older checkpoints untouched.
    """
    path = folder / f"step-{step:08d}"
    if path.exists():
        return path
    try:
        with atomic_folder(path) as part:
            write_model(part)
            save_file(dict(optimizer), part / OPTIMIZER)
            files = sorted(file for file in part.iterdir())
            listed = {file.name: {"bytes": file.stat().st_size, "digest": digest_file(file)} for file in files}
            write_json(part / STATE, {"step": step, "files": listed, "environment": describe_environment()})
    except SafetensorError as error:  # it reports the system's errors as text
        raise OSError(errno.EIO, f"the checkpoint could not be written ({error})", str(path)) from None
    for old in list_checkpoints(folder)[:-keep]:
        remove_folder(old)
    return path


def verify(checkpoint: Path) -> dict[str, Any]:
    """Compare every file of a checkpoint with its record; returns `state.json`.

    Raises ValueError naming the first file that is missing, truncated or altered.
    """
    remedy = "start anew in another folder"
    if list_checkpoints(checkpoint.parent)[0] != checkpoint:
        remedy = f"delete {checkpoint} to go on from the one before it, or {remedy}"
    if not (checkpoint / STATE).is_file():
        raise ValueError(f"{checkpoint}: {STATE} is missing; {remedy}")
    try:
        state: dict[str, Any] = read_json(checkpoint / STATE)
        listed = [(name, int(record["bytes"]), str(record["digest"])) for name, record in state["files"].items()]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"{checkpoint / STATE}: damaged, expected a list of the checkpoint's files; {remedy}"
        ) from None
    for name, size_then, digest in listed:
        file = checkpoint / name
        size = file.stat().st_size if file.is_file() else None
        if size != size_then:
            found = "missing" if size is None else f"{size:,} bytes"
            raise ValueError(f"{file}: {size_then:,} bytes expected, {found}; {remedy}")
        if digest_file(file) != digest:
            raise ValueError(f"{file}: its content was altered after it was written; {remedy}")
    return state


def describe_environment() -> dict[str, str]:
    """Return what training's bits depend on beside its settings and data."""
    if torch.cuda.is_available():
        return {"torch": torch.__version__, "processor": torch.cuda.get_device_name()}
    threads, kernels = str(torch.get_num_threads()), describe_library("kernels")
    return {"torch": torch.__version__, "processor": model_name(), "threads": threads, "kernels": kernels}


def environment_changes(checkpoint: Path) -> str | None:
    """Say how this process differs from the one that wrote a verified checkpoint, if that changes the bits of a run."""
    before, now = read_json(checkpoint / STATE).get("environment", {}), describe_environment()
    changed = [f"{name} {before[name]} → {now[name]}" for name in now if name in before and before[name] != now[name]]
    if not changed:
        return None
    return f"not the environment of {checkpoint}: {', '.join(changed)}; results will differ by rounding"


def latest(folder: Path) -> Path | None:
    """The newest checkpoint, verified; None where there is none."""
    found = list_checkpoints(folder)
    if not found:
        return None
    verify(found[-1])
    return found[-1]


def load_optimizer(checkpoint: Path) -> dict[str, Tensor]:
    """The optimizer's state of a verified checkpoint."""
    return load_file(checkpoint / OPTIMIZER)
