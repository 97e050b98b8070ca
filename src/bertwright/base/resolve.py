"""Names of things that are imported on use, written "module:NAME" in tables of literals."""

from __future__ import annotations

import importlib
from operator import attrgetter
from typing import Any


def resolve(name: str) -> Any:
    """Import what a table names as "module:NAME"; NAME may have dots."""
    module, _, attribute = name.partition(":")
    return attrgetter(attribute)(importlib.import_module(module))
