"""The experiments, one file each: the name of a file is the name of the experiment.

A file has a constant TITLE, a literal, and `make_plan(maker)`, which returns its `TablePlan`. The modules import torch,
so the names and titles are read without an import of them.
"""

from __future__ import annotations

import importlib.util
import pkgutil
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertwright.experiments.job_maker import ExperimentInputs
    from bertwright.experiments.table_plan import TablePlan


def table_names() -> list[str]:
    """Return the names of all experiments: the files of this folder."""
    return [module.name for module in pkgutil.iter_modules(__path__)]


def describe_tables() -> str:
    """Return the names and titles of all experiments as one sentence."""
    described = []
    for name in table_names():
        spec: Any = importlib.util.find_spec(f"{__name__}.{name}")
        source = spec.loader.get_source(spec.name) or ""  # a package of compiled files has none
        title = re.search(r'^TITLE = "(.*)"$', source, re.MULTILINE)
        described.append(f"{name} ({title[1]})" if title else name)
    return f"Experiments: {', '.join(described)}."


def make_plan(name: str, inputs: ExperimentInputs) -> TablePlan:
    """Return the plan of an experiment. Raises ValueError if none of its tasks has files."""
    from bertwright.experiments.job_maker import JobMaker

    table: Any = importlib.import_module(f"{__name__}.{name}")
    plan: TablePlan = table.make_plan(JobMaker(inputs))
    return plan
