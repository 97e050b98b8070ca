"""The experiments, one file each: the name of a file is the name of the experiment, its TABLE what is compared."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from bertwright.base.settings import did_you_mean
from bertwright.trials.paper_table import PaperTable


def table_names() -> list[str]:
    """Return the names of all experiments: the files of this folder."""
    return [module.name for module in pkgutil.iter_modules(__path__)]


@cache
def find_table(name: str) -> PaperTable:
    table: PaperTable = importlib.import_module(f"{__name__}.{name}").TABLE
    return table


def suggest_table(name: str) -> str:
    """Return what to write in place of a name that no experiment has."""
    whole = next((table for table in table_names() if name in find_table(table).parts), None)
    return did_you_mean(name, table_names()) if whole is None else f"it is part of {whole}"


def describe_tables() -> str:
    """Return the names and titles of all experiments as one sentence."""
    return f"Experiments: {', '.join(f'{name} ({find_table(name).title})' for name in table_names())}."
