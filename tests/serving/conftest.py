"""Servers that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from serving.servers import running_server, save_models


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of every task into one folder."""
    folder = tmp_path_factory.mktemp("models")
    save_models(folder)
    return folder


@pytest.fixture(scope="module")
def client(model_folders: Path) -> Iterator[httpx.Client]:
    """Serve all models."""
    with running_server([str(path) for path in sorted(model_folders.iterdir())]) as client:
        yield client
