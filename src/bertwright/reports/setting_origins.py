"""Where each setting of a run is from: a flag, a file, other settings, or a default."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from bertwright.base.files import read_utf8
from bertwright.base.settings import (
    default_table,
    derived_defaults,
    enclosing_defaults,
    flatten,
    from_table,
    merge,
    to_table,
)
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.pretraining.settings import PretrainSettings
from bertwright.training.run_folder import read_origins
from bertwright.translation.settings import TrainTranslationSettings
from bertwright.trials.grid_settings import GridSettings
from bertwright.trials.ladder_settings import LadderSettings
from bertwright.trials.probe_settings import ProbeSettings

DEFAULT, STATED = "default", "stated"
# Command that wrote settings.toml → its settings.
KINDS: dict[str, type[Any]] = {
    "pretrain": PretrainSettings, "finetune": FinetuneSettings, "train-translation": TrainTranslationSettings,
    "grid": GridSettings, "ladder": LadderSettings, "probe": ProbeSettings,
}  # fmt: skip


def find_origins(table: Mapping[str, Any], run: Path) -> dict[str, str]:
    """Return where each setting is from, by dotted name; `table`: as in the run's settings.toml.

    "flag" and "--config FILE" as the command line recorded them, "default", or "by NAMES" for a value that follows
    from other settings, as the learning rate does from the model folder. Everything else is "stated": by a call in
    Python, by a grid for its runs, or by an earlier version, whose runs have no record.
    """
    recorded = read_origins(run)
    command = read_utf8(run / "settings.toml").removeprefix("# bertwright ").partition(":")[0]
    stated = _select(table, recorded) if recorded else {**table}
    try:
        cls = KINDS[command]
        settings = from_table(cls, {**table, "run": str(run)}, "settings.toml")
        derived = dict(flatten(derived_defaults(cls, stated)))
        without = {name: dict(flatten(derived_defaults(cls, _leave_out(stated, name)))) for name in stated}
    except (KeyError, ValueError):  # another kind of run, or one of an earlier version
        return {name: recorded.get(name, STATED) for name, _ in flatten(table)}
    enclosing = {field.name: inner for field in fields(cls) if (inner := enclosing_defaults(field))}
    defaults, origins = dict(flatten(merge(default_table(settings), enclosing))), dict[str, str]()
    for name, value in flatten(to_table(settings)):
        if name in recorded:
            origins[name] = str(recorded[name])
        elif name in derived and derived[name] == value:
            sources = [left_out for left_out, values in without.items() if values.get(name) != value]
            origins[name] = f"by {', '.join(sources)}" if sources else DEFAULT
        else:
            origins[name] = DEFAULT if name in defaults and defaults[name] == value else STATED
    return origins


def _select(table: Mapping[str, Any], names: Container[str], prefix: str = "") -> dict[str, Any]:
    """Return the values of a table whose dotted names are among some, in tables as they were."""
    selected = dict[str, Any]()
    for name, value in table.items():
        if isinstance(value, dict) and (inner := _select(value, names, f"{prefix}{name}.")):
            selected[name] = inner
        elif prefix + name in names:
            selected[name] = value
    return selected


def _leave_out(table: Mapping[str, Any], left_out: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != left_out}
