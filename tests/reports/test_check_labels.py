"""`bertwright check-labels`: labels that were swapped are found, from files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertwright.cli.main import run as run_command


def test_swapped_labels_are_found_and_ranked_first(tmp_path: Path, review_files: Path) -> None:
    rows = [line.split("\t") for line in (review_files / "train.tsv").read_text().splitlines()]
    swapped = range(10, 300, 20)
    for number in swapped:
        rows[number][1] = {"good": "bad", "bad": "good"}[rows[number][1]]
    path, output = tmp_path / "train.tsv", tmp_path / "suspects.tsv"
    path.write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    assert run_command(["check-labels", str(path), "--output", str(output)]) == 0
    header, *found = [line.split("\t") for line in output.read_text().splitlines()]
    assert header[:5] == ["location", "text", "gold", "label", "probability"]
    lines = [int(row[0].rpartition(" ")[2]) - 1 for row in found]
    assert len({*swapped} & {*lines}) >= 13  # of 15
    assert len({*swapped} & {*lines[:15]}) >= 10
    assert all(row[2] != row[3] for row in found)
    first = output.read_bytes()
    output.unlink()
    assert run_command(["check-labels", str(path), "--output", str(output)]) == 0
    assert output.read_bytes() == first


def test_too_few_texts_are_rejected_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.tsv").write_text("text\tlabel\na\tx\nb\ty\na\tx\n")
    assert run_command(["check-labels", str(tmp_path / "train.tsv"), "--output", str(tmp_path / "s.tsv")]) == 2
    assert "train.tsv, line 2: expected at least 5" in capsys.readouterr().err
    assert not (tmp_path / "s.tsv").exists()
