"""Names on the command line: where a vocabulary is, and where a result is written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertwright.files import atomic_file
from bertwright.interop.model_files import is_run, model_folder
from bertwright.io.decoding import STDIN


def vocabulary_folder(name: str) -> Path:
    """Return a vocabulary's folder; a run and a name on the hub mean those of their model."""
    return Path(name) if Path(name).exists() and not is_run(Path(name)) else model_folder(name)


def check_absent(path: Path) -> None:
    """Raise ValueError if a result would replace something; called before the work, not after it."""
    if os.path.lexists(path):
        raise ValueError(f"{path}: already exists; choose another path, or delete it")


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which becomes `path` when the block ends.

    Raises OSError before the work if the file cannot be written, and ValueError if the path exists or is "-". If
    another process has written the path in the meantime, the result is saved under another name, which the ValueError
    states.
    """
    if path == Path(STDIN):
        raise ValueError(f"{STDIN}: expected the name of a file; this result is not written to standard output")
    check_absent(path)
    with atomic_file(path) as temporary:
        temporary.touch()
        yield temporary
        if os.path.lexists(path):
            other = path.with_name(f"{path.stem}-{os.getpid()}{path.suffix}")
            temporary.rename(other)
            raise ValueError(f"{path}: written by another process in the meantime; this result is in {other}")
