"""What `bertwright info` says of a folder; each format describes its own folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.messages import format_duration
from bertwright.base.settings import read_toml


class Description(NamedTuple):
    """The kind and the properties of a folder, for the user."""

    kind: str
    fields: dict[str, str]
    has_digests: bool = False
    """Whether --verify has something to compare."""


@contextmanager
def name_damaged_file(path: Path) -> Iterator[None]:
    """Raise ValueError with the file's name if its JSON does not have the structure that bertwright wrote."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path}: not as it was written ({error!r}); move it away to see the rest") from None


def format_work(work: dict[str, Any]) -> str:
    """Format what a training has read, from its report."""
    return f"{work['tokens']:,.0f} tokens, {format_duration(work['seconds'])}"


def read_settings_with(folder: Path, *names: str) -> dict[str, Any] | None:
    """Read the settings of a folder if all of these are among them; None for another folder."""
    path = folder / "settings.toml"
    settings = read_toml(path) if path.is_file() else {}
    return settings if settings.keys() >= {*names} else None


def describe_progress(folder: Path, done: int, planned: int | None = None) -> dict[str, str]:
    """Return the state of a series, for people. Without the number of its runs, it is finished when it has a report."""
    finished = (folder / "report.json").is_file() and (planned is None or done >= planned)
    total = "" if planned is None else f" of {planned:,}"
    return {"state": "finished" if finished else "not finished", "runs done": f"{done:,}{total}"}
