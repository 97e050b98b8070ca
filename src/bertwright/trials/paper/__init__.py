"""The experiments, one file each: the name of a file is the name of the experiment.

A file has a constant TITLE, `make_plan(maker)`, which returns its `TablePlan`, and the constants of `TableProperties`
that differ from their defaults, in capitals. The modules import torch, so these constants, literals, are read from the
source.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from bertwright.base.settings import did_you_mean, read_constants

if TYPE_CHECKING:
    from bertwright.trials.job_maker import ExperimentInputs
    from bertwright.trials.table_plan import TablePlan


class TableProperties(NamedTuple):
    """What is known of an experiment before it is planned."""

    title: str
    takes_model: bool = False
    """Whether a model folder of the user may stand for the pre-trainings."""
    only_task: str = ""
    """The task of an experiment that is about one; "": `--tasks` chooses."""
    is_curve: bool = False
    """Whether each checkpoint is fine-tuned, for which levels have fewer seeds and rates."""
    parts: str = ""
    """Names of the paper's tables that it contains and that have no file of their own, with blanks between."""


def table_names() -> list[str]:
    """Return the names of all experiments: the files of this folder."""
    return [module.name for module in pkgutil.iter_modules(__path__)]


@cache
def read_properties(name: str) -> TableProperties:
    """Read the constants of an experiment's file, without an import of it."""
    values = read_constants(f"{__name__}.{name}")
    return TableProperties(
        **{field: values[field.upper()] for field in TableProperties._fields if field.upper() in values}
    )


def suggest_table(name: str) -> str:
    """Return what to write in place of a name that no experiment has."""
    whole = next((table for table in table_names() if name in read_properties(table).parts.split()), None)
    return did_you_mean(name, table_names()) if whole is None else f"it is part of {whole}"


def describe_tables() -> str:
    """Return the names and titles of all experiments as one sentence."""
    return f"Experiments: {', '.join(f'{name} ({read_properties(name).title})' for name in table_names())}."


def make_plan(name: str, inputs: ExperimentInputs) -> TablePlan:
    """Return the plan of an experiment. Raises ValueError if none of its tasks has files."""
    from bertwright.trials.job_maker import JobMaker

    table: Any = importlib.import_module(f"{__name__}.{name}")
    plan: TablePlan = table.make_plan(JobMaker(inputs))
    return plan
