"""Folders of models and of their exports that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest

from bertwright.base.reporter import MUTE
from bertwright.exporting.export import export
from bertwright.exporting.export_settings import ExportSettings
from export.small_exports import Folders, make_model


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[Path, Path]]:
    """Return a function of a kind and a format to the folders of a model and of its export, made once."""
    root = tmp_path_factory.mktemp("export")

    def make(kind: str, to: str) -> tuple[Path, Path]:
        model, exported = root / kind, root / f"{kind}-{to}"
        if not model.exists():
            make_model(model, kind)
        if not exported.exists():
            export(ExportSettings(str(model), exported, to=to), MUTE)  # type: ignore[arg-type]
        return model, exported

    return make


@pytest.fixture
def foreign(folders: Folders, tmp_path: Path) -> Path:
    """Return a copy of an exported folder, without checksums."""
    folder = copytree(folders("classification", "onnx")[1], tmp_path / "foreign")
    (folder / "checksums.json").unlink()
    return folder
