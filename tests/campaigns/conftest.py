"""The commands and the project that all campaigns use, and their summary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign import SUMMARIES, Commands
from project import build_project


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    """Runs command lines in forks of a process that has imported the package."""
    commands = Commands()
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory, commands: Commands) -> Path:
    """A folder with a corpus, a vocabulary, a store, and runs of several kinds, made by the commands themselves."""
    folder = tmp_path_factory.mktemp("campaign") / "project"
    build_project(folder, commands)
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the campaigns did and found."""
    if SUMMARIES:
        terminalreporter.section("campaigns")
        for line in SUMMARIES:
            terminalreporter.write_line(line)
