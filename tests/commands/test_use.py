"""What is done with models: the printed against the computed, every kind of folder, every kind of checkpoint."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import bertwright
from bertwright import DeviceSettings
from bertwright.commands import use
from bertwright.commands.use import ConvertSettings, EmbedSettings, FillMaskSettings, InfoSettings
from bertwright.files import write_text
from bertwright.interop.huggingface import save_model, write_model
from bertwright.models.config import BertConfig
from bertwright.models.heads import BertForPretraining
from bertwright.tasks import prediction
from bertwright.training import checkpoint
from bertwright.vocabulary.tokenizer import Tokenizer

GOOGLE = Path(__file__).parent.parent / "interop" / "test_google.py"
HERE = DeviceSettings(device="cpu", dtype="float32", threads=1)


@pytest.fixture
def console() -> Console:
    return Console(file=StringIO(), width=80)


def shown(console: Console) -> str:
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


@pytest.fixture(scope="module")
def tokenizer(vocabulary_folder: Path) -> Tokenizer:
    return Tokenizer.load(vocabulary_folder)


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> BertForPretraining:
    config = BertConfig(tokenizer.vocab_size, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)
    return BertForPretraining(config, seed=1).eval()


@pytest.fixture
def folder(tmp_path: Path, model: BertForPretraining, tokenizer: Tokenizer) -> Path:
    save_model(tmp_path / "model", model, tokenizer)
    return tmp_path / "model"


@pytest.fixture
def unfinished_run(tmp_path: Path, model: BertForPretraining, tokenizer: Tokenizer) -> Path:
    """A run that was stopped after step 7."""
    run = tmp_path / "run"
    write_text(run / "settings.toml", "")
    write = partial(write_model, model=model, tokenizer=tokenizer)
    checkpoint.save(run / "checkpoints", 7, write, {"moment": torch.zeros(3)}, keep=2)
    return run


def test_fill_mask_returns_what_it_shows(folder: Path, console: Console) -> None:
    text = "The [MASK] sees the [MASK] ."
    (filled,) = use.fill_mask(FillMaskSettings(str(folder), (text,), top_k=3, device=HERE), console)
    assert filled == bertwright.load(folder, "cpu").fill_mask(text, 3)
    for candidates in filled.masks:
        for candidate in candidates:
            assert candidate.token in shown(console)
            assert f"{candidate.probability:.1%}" in shown(console)


def test_vectors_on_disk_are_those_in_memory(
    tmp_path: Path, folder: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "EXAMPLES_AT_ONCE", 3)  # so that ten texts are written in four blocks
    texts = [f"The bear sees the {noun} ." for noun in "deer fish wolf crow hare duck seal lynx mole bear".split()]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    settings = EmbedSettings(
        str(folder), inputs=(str(tmp_path / "texts.txt"),), output=tmp_path / "new/v.npy", device=HERE
    )
    use.embed(settings, console)
    written = np.load(tmp_path / "new/v.npy")
    assert written.dtype == np.float32
    np.testing.assert_allclose(written, bertwright.load(folder, "cpu").embed(texts), atol=1e-6)
    assert shown(console) == f"{tmp_path}/new/v.npy: 10 vectors of 16 numbers\n"


def test_vectors_of_piped_texts_are_those_of_a_file(
    tmp_path: Path, folder: Path, console: Console, pipe_in: Callable[[str | bytes | None], None]
) -> None:
    content = "\ufeffThe bear .\r\n\n  \nThe deer sees the bear .\nThe fish é".encode()
    (tmp_path / "texts.txt").write_bytes(content)
    file = EmbedSettings(str(folder), inputs=(str(tmp_path / "texts.txt"),), output=tmp_path / "file.npy", device=HERE)
    use.embed(file, console)
    pipe_in(content)
    use.embed(replace(file, inputs=("-",), output=tmp_path / "inputs.npy"), console)
    pipe_in(content)
    use.embed(replace(file, inputs=(), texts=("-",), output=tmp_path / "texts.npy"), console)
    written = (tmp_path / "file.npy").read_bytes()
    assert np.load(tmp_path / "file.npy").shape == (3, 16)
    assert written == (tmp_path / "inputs.npy").read_bytes() == (tmp_path / "texts.npy").read_bytes()


def test_piped_texts_are_compared(
    folder: Path, console: Console, pipe_in: Callable[[str | bytes | None], None]
) -> None:
    pipe_in(b"The bear .\nThe deer .\n")
    use.embed(EmbedSettings(str(folder), ("-",), device=HERE), console)
    assert "Cosines of 2 texts" in shown(console)
    pipe_in(b"The bear .\n")
    with pytest.raises(ValueError, match="one text has nothing to compare with"):
        use.embed(EmbedSettings(str(folder), ("-",), device=HERE), console)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"The bear .\ncaf\xe9 .\n", "^standard input, byte 14: e9 is not UTF-8 text; .*--encoding-errors replace"),
        (b" \n\n", "^no text in standard input; pipe texts in, one a line"),
        (b"", "^no text in standard input"),
        ("bear".encode("utf-16"), "^standard input: not text but UTF-16"),
        (None, "^standard input is closed"),
    ],
)
def test_pipes_without_text(
    tmp_path: Path,
    folder: Path,
    console: Console,
    pipe_in: Callable[[str | bytes | None], None],
    content: bytes | None,
    message: str,
) -> None:
    pipe_in(content)
    with pytest.raises(ValueError, match=message):
        use.embed(EmbedSettings(str(folder), inputs=("-",), output=tmp_path / "v.npy", device=HERE), console)
    assert not [path for path in tmp_path.iterdir() if "npy" in path.name]


def test_fill_mask_reads_a_pipe(folder: Path) -> None:
    command = [sys.executable, "-m", "bertwright", "fill-mask", folder, "-", "--top-k", "2", "--device", "cpu"]

    def run(content: bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(command, input=content, capture_output=True, timeout=300, check=False)

    done = run(b"The [MASK] sees .\n\nThe bear [MASK] .\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().count("[MASK]") >= 2
    expected = bertwright.load(folder, "cpu").fill_mask("The bear [MASK] .", 2).text
    assert expected in done.stdout.decode()
    refused = run(b"The [MASK] caf\xe9\n")
    assert refused.returncode == 2
    assert refused.stderr == (
        b"bertwright: error: standard input, byte 14: e9 is not UTF-8 text; "
        b"mend the file, it must be UTF-8 throughout\n"
    )


def test_bad_bytes_are_refused_or_replaced_as_asked(tmp_path: Path, folder: Path, console: Console) -> None:
    (tmp_path / "texts.txt").write_bytes(b"The bear .\ncaf\xe9 .\n")
    settings = EmbedSettings(str(folder), inputs=(str(tmp_path / "texts.txt"),), output=tmp_path / "v.npy", device=HERE)
    with pytest.raises(ValueError, match=r"byte 14: e9 is not UTF-8 text; .* --encoding-errors replace"):
        use.embed(settings, console)
    use.embed(replace(settings, encoding_errors="replace"), console)
    expected = bertwright.load(folder, "cpu").embed(["The bear .", "caf\ufffd ."])
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)


def test_vectors_are_written_under_no_other_suffix(tmp_path: Path, folder: Path, console: Console) -> None:
    with pytest.raises(ValueError, match=r"e\.csv: vectors are written as \.npy, not as \.csv; name it .*e\.npy"):
        use.embed(EmbedSettings(str(folder), ("The bear .",), output=tmp_path / "e.csv"), console)
    with pytest.raises(ValueError, match="standard input, which is read alone"):
        EmbedSettings(str(folder), inputs=("a.txt", "-"), output=tmp_path / "e.npy")


def test_a_file_that_breaks_off_leaves_no_vectors(tmp_path: Path, folder: Path, console: Console) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "The bear ."}\n{"text": \n')
    inputs = (str(tmp_path / "texts.jsonl"),)
    with pytest.raises(ValueError, match=r"texts\.jsonl, line 2"):
        use.embed(EmbedSettings(str(folder), inputs=inputs, output=tmp_path / "v.npy", device=HERE), console)
    assert not [path for path in tmp_path.iterdir() if "npy" in path.name]


def test_cosines_by_hand(folder: Path, console: Console) -> None:
    texts = ("The bear .", "The deer sees the bear .")
    use.embed(EmbedSettings(str(folder), texts, normalize=False, device=HERE), console)
    one, two = bertwright.load(folder, "cpu").embed(texts)
    assert shown(console).count(f"{one @ two:.3f}") == 2
    assert shown(console).count("1.000") == 2


def test_info_tells_the_kinds_apart(
    folder: Path, unfinished_run: Path, store: Path, vocabulary_folder: Path, console: Console
) -> None:
    write_text(vocabulary_folder / "settings.toml", "")  # a vocabulary's and a store's settings make no run of them
    for path, what in (
        (folder, "model"),
        (unfinished_run, "pre-training run"),
        (unfinished_run / "checkpoints/step-00000007", "model"),
        (store, "token store"),
        (vocabulary_folder, "vocabulary"),
    ):
        use.info(InfoSettings(path), console)
        assert f"{path}: {what}\n" in shown(console)
    assert "not finished" in shown(console)


def test_verify_finds_an_altered_byte(unfinished_run: Path, console: Console) -> None:
    use.info(InfoSettings(unfinished_run, verify=True), console)
    weights = unfinished_run / "checkpoints/step-00000007/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    use.info(InfoSettings(unfinished_run), console)
    with pytest.raises(ValueError, match="altered after it was written"):
        use.info(InfoSettings(unfinished_run, verify=True), console)


def test_an_unfinished_run_stands_for_its_newest_checkpoint(
    tmp_path: Path, folder: Path, unfinished_run: Path, console: Console
) -> None:
    use.convert(ConvertSettings(str(unfinished_run), tmp_path / "new"), console)
    assert (tmp_path / "new/model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert {path.name for path in (tmp_path / "new").iterdir()} == {path.name for path in folder.iterdir()}
    (unfinished_run / "checkpoints/step-00000007").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="a run without a checkpoint yet"):
        use.convert(ConvertSettings(str(unfinished_run), tmp_path / "other"), console)


def test_a_release_of_google_s(
    tmp_path: Path, folder: Path, model: BertForPretraining, vocabulary_folder: Path, console: Console
) -> None:
    source = tmp_path / "uncased_L-1"
    source.mkdir()
    runpy.run_path(str(GOOGLE))["write_release"](source, model)
    (source / "vocab.txt").write_bytes((vocabulary_folder / "vocab.txt").read_bytes())
    with pytest.raises(ValueError, match="lowercase"):
        use.convert(ConvertSettings(str(source), tmp_path / "new"), console)
    assert not (tmp_path / "new").exists()
    use.convert(ConvertSettings(str(source), tmp_path / "new", lowercase=True), console)
    text = "The [MASK] sees the bear ."
    assert bertwright.load(tmp_path / "new").fill_mask(text) == bertwright.load(folder).fill_mask(text)
