"""What a name on the command line stands for, and where a result may go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertwright.files import atomic_file
from bertwright.interop.model_files import is_run, model_folder
from bertwright.io.decoding import STDIN


def vocabulary_folder(name: str) -> Path:
    """A vocabulary's folder or file as it is; a run, or a name on the hub, stands for its model's."""
    return Path(name) if Path(name).exists() and not is_run(Path(name)) else model_folder(name)


def check_absent(path: Path) -> None:
    """Raise ValueError where a result would take the place of something; before the work, not after it."""
    if os.path.lexists(path):
        raise ValueError(f"{path}: is there already; name another, or delete it")


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A path to write to that becomes `path`, whole or not at all; what cannot be written shows before the work.

    Raises OSError for that, and ValueError where something is there already, or for the sign of standard output.
    """
    if path == Path(STDIN):
        raise ValueError(f"{STDIN}: a file is written here, not standard output; name it")
    check_absent(path)
    with atomic_file(path) as part:
        part.touch()
        yield part
        if os.path.lexists(path):  # somebody was quicker; what either has made stays
            kept = path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}")
            part.rename(kept)
            raise ValueError(f"{path}: was written by another process meanwhile; the result of this one is {kept}")
