"""A Ray cluster of this machine with two workers."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from bertwright.executors.ray_executor import QUIET


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Start a cluster, which commands in this process use, and return the module; skip if Ray is not installed."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'bertwright[scale]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # workers import the functions of tests
        for name, value in QUIET.items():
            patch.setenv(name, value)
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        ray.init(address="local", num_cpus=2, object_store_memory=100 << 20, **options)
    yield ray
    ray.shutdown()
