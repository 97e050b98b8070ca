"""The notebooks run from their first cell to their last, without network, and are in git without outputs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import make_hub_cache

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_no_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_end(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient: Any = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat: Any = pytest.importorskip("nbformat")
    for name, value in make_hub_cache(tmp_path / "hub").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where the notebooks make their folders
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    book = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(book, timeout=1200, kernel_name="python3", resources={"metadata": {"path": ROOT}})
    client.execute()
    printed = [output for cell in book.cells for output in cell.get("outputs", []) if output.get("name") == "stdout"]
    text = "".join(output["text"] for output in printed)
    assert "error:" not in text  # a command that fails does not end a notebook
    assert "Traceback" not in text
    (tmp_path / "text.txt").write_text(text)
