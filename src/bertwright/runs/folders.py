"""What a name on the command line stands for, and where a result may go."""

from __future__ import annotations

from pathlib import Path

from bertwright.interop.folders import is_run, model_folder


def vocabulary_folder(name: str) -> Path:
    """A vocabulary's folder or file as it is; a run, or a name on the hub, stands for its model's."""
    return Path(name) if Path(name).exists() and not is_run(Path(name)) else model_folder(name)


def refuse_existing(path: Path) -> None:
    """Raise ValueError where a result would take the place of something; before the work, not after it."""
    if path.exists():
        raise ValueError(f"{path}: is there already; name another, or delete it")
