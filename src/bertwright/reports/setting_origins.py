"""Which settings of a run are defaults, and which were stated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertwright.base.settings import default_table, derived_defaults, from_table, merge, to_table
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.pretraining.settings import PretrainSettings
from bertwright.translation.settings import TrainTranslationSettings


def find_stated(table: Mapping[str, Any], run: Path) -> set[str]:
    """Return the dotted names of the settings that are not defaults; of a series of runs, all of them.

    A default may follow from others, such as the learning rate of a model's size.
    """
    kinds: dict[str, type[Any]] = {"tuning": FinetuneSettings, "train_source": TrainTranslationSettings}
    cls = next((cls for name, cls in kinds.items() if name in table), PretrainSettings)
    try:
        settings = from_table(cls, {**table, "run": str(run)}, "settings.toml")
        defaults = dict(flatten(merge(default_table(settings), derived_defaults(cls, {**table}))))
    except ValueError:  # another kind of run, or one of an earlier version
        return {name for name, _ in flatten(table)}
    return {name for name, value in flatten(to_table(settings)) if name not in defaults or defaults[name] != value}


def flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a table and of the tables in it, with dotted names.

    >>> [*flatten({"a": 1, "b": {"c": 2}})]
    [('a', 1), ('b.c', 2)]
    """
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
