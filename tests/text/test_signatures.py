"""Formats that are no text are named by their first bytes, whatever the name of the file."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import torch

from bertwright.text.decoding import read_text
from bertwright.text.signatures import recognize
from bertwright.text.sources import list_inputs


def zipped(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return buffer.getvalue()


def written(write: Callable[[Any], Any]) -> bytes:
    write(buffer := io.BytesIO())
    return buffer.getvalue()


FRAME = polars.DataFrame({"text": ["a"]})
FILES = {
    "a pickle": [pickle.dumps({"a": np.zeros(1)}, protocol) for protocol in range(6)],
    "a PyTorch file": [
        written(lambda file: torch.save([1], file)),
        written(lambda file: torch.save([1], file, _use_new_zipfile_serialization=False)),
    ],
    "a NumPy array": [written(lambda file: np.save(file, np.zeros(1)))],
    "a NumPy archive": [written(lambda file: np.savez(file, a=np.zeros(1)))],
    "an Arrow or Feather file": [written(FRAME.write_ipc), written(FRAME.write_ipc_stream)],
    "an Avro": [written(FRAME.write_avro)],
    "a Parquet file": [written(FRAME.write_parquet)],
    "an Excel workbook": [zipped("[Content_Types].xml", "xl/workbook.xml")],
    "a Microsoft Office document": [zipped("_rels/.rels", "word/document.xml")],
    "a ZIP archive": [zipped("a.txt"), zipped("data/train.csv", "data/dev.csv")],
}


@pytest.mark.parametrize(("name", "contents"), FILES.items(), ids=FILES)
def test_a_file_is_named_with_a_way_out(tmp_path: Path, name: str, contents: list[bytes]) -> None:
    for content in contents:
        (tmp_path / "a.txt").write_bytes(content)
        with pytest.raises(ValueError, match=rf"a\.txt: not text but {name}.*\(.+\)$"):
            list(read_text(str(tmp_path / "a.txt")))
        (tmp_path / "a.xyz").write_bytes(content)
        with pytest.raises(ValueError, match=rf"a\.xyz: not text but {name}"):
            list_inputs([str(tmp_path / "a.xyz")], {".txt": True})


@pytest.mark.parametrize("text", ["ORC and elf", "copy\nnumpy\n", "(a) dp0\n", "PK", "[q]", "한국어", "Rar! ", "GIFs"])
def test_text_is_not_taken_for_another_format(text: str) -> None:
    assert recognize(text.encode()) == recognize(text.encode("utf-16")) == ""
