"""The command line: one command per stage, and a flag for every setting."""

from bertwright.cli.main import main, run

__all__ = ["main", "run"]
