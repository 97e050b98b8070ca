"""Runs that can be gone on with: the settings in a run's folder, and what a resumption may change of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, TypeVar

from bertwright.settings import differences, from_table, read_toml, to_table


class Resumable(Protocol):
    """What every settings record of a long run has."""

    @property
    def run(self) -> Path: ...

    @property
    def resume(self) -> bool: ...


S = TypeVar("S", bound=Resumable)


def saved_settings(cls: type[S], run: Path) -> S:
    """The settings that a run folder's settings.toml holds, set to resume it."""
    path = run / "settings.toml"
    if not path.is_file():
        raise ValueError(f"{run}: no run to resume there (settings.toml is missing); leave --resume out to start one")
    table: dict[str, Any] = read_toml(path) | {"run": str(run), "resume": True}
    try:
        return from_table(cls, table, str(path))
    except ValueError as error:
        writer = path.read_text(encoding="utf-8").removeprefix("# ").partition(":")[0]
        raise ValueError(f"{error} (the folder was written by `{writer}`)") from None


def check_folder(settings: Resumable, free: tuple[str, ...]) -> None:
    """A new run needs a folder without one; a resumed run must be the one that the folder holds.

    `free`: settings that may differ, as they say where and how often, not what is computed.
    """
    path = settings.run / "settings.toml"
    if not settings.resume:
        if path.exists() or any(settings.run.glob("checkpoints/step-*")):
            raise ValueError(f"{settings.run}: holds a run already; go on with --resume, or name another --run folder")
        return
    kept = to_table(saved_settings(type(settings), settings.run))
    for name, (before, now) in differences(kept, to_table(settings)).items():
        if name.partition(".")[0] not in free:
            raise ValueError(f"{path}: {name} was {before!r}, now {now!r}: a resumed run keeps its settings")
