"""The example that a module of tests is named after."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def example(request: pytest.FixtureRequest) -> ModuleType:
    """Run examples/NAME.py for test_NAME.py, and return its module."""
    path = Path(__file__).parents[2] / "examples" / request.path.name.removeprefix("test_")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
