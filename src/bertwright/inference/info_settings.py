"""Settings of `bertwright info`, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bertwright.base.settings import Positional


@dataclass(frozen=True)
class InfoSettings:
    """Describe a folder: a model, a vocabulary, word vectors, a token store, features, a run, a grid or a ladder."""

    folder: Positional[Path]
    """The folder to describe."""
    verify: bool = False
    """Compare every byte of a store, of a run's newest checkpoint or of a model with its digest or checksum. Models are
    always compared."""

    def __post_init__(self) -> None:
        if not self.folder.is_dir():
            problem = "a file; name its folder" if self.folder.exists() else "no such folder"
            raise ValueError(f"{self.folder}: {problem}")
