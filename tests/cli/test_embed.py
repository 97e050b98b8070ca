"""`bertwright embed`: what it prints and writes against what the model computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bertwright
from bertwright.cli.render.terminal import TerminalReporter
from bertwright.inference.embed import EmbedSettings, embed
from bertwright.tasks import prediction
from helpers import CPU, read_output


def test_vectors_in_the_file_equal_those_of_the_model(
    tmp_path: Path, one_layer_folder: Path, reporter: TerminalReporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "MAX_CHUNK_EXAMPLES", 3)  # so that ten texts are vectors in four blocks
    texts = [f"The bear sees the {noun} ." for noun in "deer fish wolf crow hare duck seal lynx mole bear".split()]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    settings = EmbedSettings(
        str(one_layer_folder), inputs=(str(tmp_path / "texts.txt"),), output=tmp_path / "new/v.npy", device=CPU
    )
    embed(settings, reporter)
    vectors = np.load(tmp_path / "new/v.npy")
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, bertwright.load(one_layer_folder, "cpu").embed(texts), atol=1e-6)
    assert read_output(reporter) == f"{tmp_path}/new/v.npy: 10 vectors of 16 numbers\n"


def test_vectors_of_piped_texts_equal_those_of_a_file(
    tmp_path: Path, one_layer_folder: Path, reporter: TerminalReporter, pipe_in: Callable[[str | bytes | None], None]
) -> None:
    content = "\ufeffThe bear .\r\n\n  \nThe deer sees the bear .\nThe fish é".encode()
    (tmp_path / "texts.txt").write_bytes(content)
    file = EmbedSettings(
        str(one_layer_folder), inputs=(str(tmp_path / "texts.txt"),), output=tmp_path / "file.npy", device=CPU
    )
    embed(file, reporter)
    pipe_in(content)
    embed(replace(file, inputs=("-",), output=tmp_path / "inputs.npy"), reporter)
    pipe_in(content)
    embed(replace(file, inputs=(), texts=("-",), output=tmp_path / "texts.npy"), reporter)
    vectors = (tmp_path / "file.npy").read_bytes()
    assert np.load(tmp_path / "file.npy").shape == (3, 16)
    assert vectors == (tmp_path / "inputs.npy").read_bytes() == (tmp_path / "texts.npy").read_bytes()


def test_piped_texts_are_compared(
    one_layer_folder: Path, reporter: TerminalReporter, pipe_in: Callable[[str | bytes | None], None]
) -> None:
    pipe_in(b"The bear .\nThe deer .\n")
    embed(EmbedSettings(str(one_layer_folder), ("-",), device=CPU), reporter)
    assert "Cosines of 2 texts" in read_output(reporter)
    pipe_in(b"The bear .\n")
    with pytest.raises(ValueError, match="one text"):
        embed(EmbedSettings(str(one_layer_folder), ("-",), device=CPU), reporter)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"The bear .\ncaf\xe9 .\n", "^standard input, byte 14: e9 is not UTF-8 text; .*--encoding-errors replace"),
        (b" \n\n", "^standard input: .*text"),
        (b"", "^standard input: .*text"),
        ("bear".encode("utf-16"), "^standard input: not text but UTF-16"),
        (None, "^standard input is closed"),
    ],
)
def test_standard_input_without_text_is_rejected(
    tmp_path: Path,
    one_layer_folder: Path,
    reporter: TerminalReporter,
    pipe_in: Callable[[str | bytes | None], None],
    content: bytes | None,
    message: str,
) -> None:
    pipe_in(content)
    with pytest.raises(ValueError, match=message):
        embed(EmbedSettings(str(one_layer_folder), inputs=("-",), output=tmp_path / "v.npy", device=CPU), reporter)
    assert not [path for path in tmp_path.iterdir() if "npy" in path.name]


def test_invalid_utf8_is_rejected_or_replaced(
    tmp_path: Path, one_layer_folder: Path, reporter: TerminalReporter
) -> None:
    (tmp_path / "texts.txt").write_bytes(b"The bear .\ncaf\xe9 .\n")
    settings = EmbedSettings(
        str(one_layer_folder), inputs=(str(tmp_path / "texts.txt"),), output=tmp_path / "v.npy", device=CPU
    )
    with pytest.raises(ValueError, match=r"byte 14: e9 is not UTF-8 text; .* --encoding-errors replace"):
        embed(settings, reporter)
    embed(replace(settings, encoding_errors="replace"), reporter)
    expected = bertwright.load(one_layer_folder, "cpu").embed(["The bear .", "caf\ufffd ."])
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)


def test_another_suffix_than_npy_is_rejected(
    tmp_path: Path, one_layer_folder: Path, reporter: TerminalReporter
) -> None:
    with pytest.raises(ValueError, match=r"e\.csv: vectors are written as \.npy, not as \.csv; name it .*e\.npy"):
        embed(EmbedSettings(str(one_layer_folder), ("The bear .",), output=tmp_path / "e.csv"), reporter)
    with pytest.raises(ValueError, match=r"expected no inputs .* got 1"):
        EmbedSettings(str(one_layer_folder), inputs=("a.txt", "-"), output=tmp_path / "e.npy")


def test_a_truncated_file_leaves_no_vectors(tmp_path: Path, one_layer_folder: Path, reporter: TerminalReporter) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "The bear ."}\n{"text": \n')
    inputs = (str(tmp_path / "texts.jsonl"),)
    with pytest.raises(ValueError, match=r"texts\.jsonl, line 2"):
        embed(EmbedSettings(str(one_layer_folder), inputs=inputs, output=tmp_path / "v.npy", device=CPU), reporter)
    assert not [path for path in tmp_path.iterdir() if "npy" in path.name]


def test_cosines_are_dot_products_of_unit_vectors(one_layer_folder: Path, reporter: TerminalReporter) -> None:
    texts = ("The bear .", "The deer sees the bear .")
    embed(EmbedSettings(str(one_layer_folder), texts, normalize=False, device=CPU), reporter)
    one, two = bertwright.load(one_layer_folder, "cpu").embed(texts)
    assert read_output(reporter).count(f"{one @ two:.3f}") == 2
    assert read_output(reporter).count("1.000") == 2
