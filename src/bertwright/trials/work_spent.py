"""What the pre-training of a system read, and how long it took, from the folders of its runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bertwright.base.files import read_json
from bertwright.base.settings import read_toml

STARTS = ("init", "vectors")
"""Settings of a training that name another one, which came before it."""


class Work(NamedTuple):
    """Tokens that trainings have read, and the seconds of their steps."""

    tokens: float
    seconds: float


def pretraining_work(sources: Iterable[str]) -> Work | None:
    """Add up the trainings of some models and word vectors, and of everything that these started from.

    Each folder counts once. None if one of them is no folder of a finished run, or its run did not record its work.
    """
    folders, pending = dict[Path, Work](), list(sources)
    while pending:
        path = Path(pending.pop()).resolve()
        folder = path if (path / "report.json").is_file() else path.parent  # a run, or a file or model folder in it
        if folder in folders:
            continue
        if not all((folder / name).is_file() for name in ("report.json", "settings.toml")):
            return None
        report, settings = read_json(folder / "report.json"), read_toml(folder / "settings.toml")
        if not {"tokens", "seconds"} <= report.keys():
            return None
        folders[folder] = Work(float(report["tokens"]), float(report["seconds"]))
        tables = settings, settings.get("model")  # pretrain --init is in [model]
        starts = [table.get(name) for table in tables if isinstance(table, dict) for name in STARTS]
        pending += [str(start) for start in starts if start is not None]
    return Work(sum(work.tokens for work in folders.values()), sum(work.seconds for work in folders.values()))
