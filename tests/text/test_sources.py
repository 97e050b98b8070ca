"""Names of inputs: hints for files that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertwright.text.decoding import read_text
from bertwright.text.sources import expand_files


def test_a_missing_file_is_named_with_the_most_similar_one(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("text\n")
    with pytest.raises(ValueError, match=r"trian\.tsv: no such file or folder; did you mean .*train\.tsv\?$"):
        list(expand_files(str(tmp_path / "trian.tsv")))
    with pytest.raises(ValueError, match=r"trian\.tsv: no such file; did you mean .*train\.tsv\?$"):
        list(read_text(str(tmp_path / "trian.tsv")))
    with pytest.raises(ValueError, match=r"other/a\.tsv: no such file or folder$"):
        list(expand_files(str(tmp_path / "other" / "a.tsv")))
