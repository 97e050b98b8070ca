"""The command line: one verb per stage, every setting a flag, a TOML file underneath."""

from bertwright.cli.main import main, run

__all__ = ["main", "run"]
